"""How much of a caption is painted in its image: text is detected and read by RapidOCR."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from clipmill.filters.base import Batch, Columns, Filter, described, package_folder, require
from clipmill.manifests import disk

WORD = re.compile(r"[^\W_]+")
WHOLE = 3  # characters; a shorter word counts only if it is read as a word of its own


@dataclass(kw_only=True)
class TextOverlap(Filter):
    """text_overlap: share of the caption's letters and digits in words that are read in the image.
    text_overlap_area: share of the image under boxes of text. text_overlap_text: what is read.

    A word of three and more characters counts if it occurs in the text without its spaces, because
    text is often read without them. The models are PP-OCR's, which come with the package rapidocr
    (Chinese, English, Japanese and other Latin scripts); nothing is downloaded.
    """

    name = "text_overlap"
    needs = frozenset({"image", "caption"})
    adds, meanings = described(
        text_overlap=(pa.float32(), "share of the caption's letters and digits in the image"),
        text_overlap_area=(pa.float32(), "share of the image that text covers"),
        text_overlap_text=(pa.string(), "the text that is read in the image, in one line"),
    )
    reader: Any = field(default=None, init=False, repr=False, compare=False)

    def identity(self) -> str:
        """Version and weights of the package."""
        self.check()
        models = sorted((package_folder("rapidocr", self.name) / "models").glob("*.onnx"))
        hashes = {path.name: disk.file_sha256(path) for path in models}
        return disk.content_hash([importlib.metadata.version("rapidocr"), hashes], 64)

    def check(self) -> None:
        for package in ("rapidocr", "onnxruntime"):
            require(self.name, package, "ocr")

    def setup(self) -> None:
        self.check()
        from rapidocr import RapidOCR

        engine = "EngineConfig.onnxruntime"
        self.reader = RapidOCR(
            params={
                "Global.log_level": "error",
                # One thread: there are as many workers as cores.
                f"{engine}.intra_op_num_threads": 1,
                f"{engine}.inter_op_num_threads": 1,
            }
        )

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        overlaps, areas, texts = [], [], []
        for caption, image in zip(batch.captions, batch.images, strict=True):
            lines, boxes = self._read(image)
            text = " ".join(lines)
            overlaps.append(overlap(caption, text))
            areas.append(covered_share(boxes, image.size))
            texts.append(text)
        return {
            "text_overlap": np.array(overlaps, np.float32),
            "text_overlap_area": np.array(areas, np.float32),
            "text_overlap_text": texts,
        }

    def _read(self, image: Image.Image) -> tuple[list[str], Sequence[NDArray[np.floating[Any]]]]:
        """Lines of text and their boxes, (4, 2) corners in pixels."""
        bgr_HWC = np.ascontiguousarray(np.asarray(image)[:, :, ::-1])
        # All three are named: the engine keeps those of the call before.
        result = self.reader(bgr_HWC, use_det=True, use_cls=False, use_rec=True)
        lines = [] if result.txts is None else list(result.txts)
        boxes = [] if result.boxes is None else list(result.boxes)
        return lines, boxes


def overlap(caption: str, text: str) -> float:
    """Share of the caption's letters and digits in words that the text has; 0 without a word."""
    words = WORD.findall(caption.casefold())
    read = WORD.findall(text.casefold())
    joined, known = "".join(read), set(read)
    found = 0
    for word in words:
        if word in known or (len(word) >= WHOLE and word in joined):
            found += len(word)
    return found / max(1, sum(map(len, words)))


def covered_share(boxes: Sequence[NDArray[np.floating[Any]]], size: tuple[int, int]) -> float:
    """Share of an image of (width, height) pixels that lies under at least one box."""
    if not boxes:
        return 0.0
    mask = Image.new("1", size)
    draw = ImageDraw.Draw(mask)
    for box in boxes:
        draw.polygon([(float(x), float(y)) for x, y in box], fill=1)
    return float(np.asarray(mask).mean())
