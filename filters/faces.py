"""Faces in an image, by an ONNX detector that the user gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from clipmill.filters.base import BETWEEN_0_AND_1, FILE, Batch, Columns, Filter, described, require
from clipmill.manifests.arrays import Float32Array

BOXES = pa.list_(pa.list_(pa.float32(), 4))
STRIDES, ANCHORS = (8, 16, 32), 2  # of SCRFD, coarser from output to output


@dataclass(kw_only=True)
class Faces(Filter):
    """faces_count, faces_boxes: [left, top, right, bottom] of each face as shares of the upright
    image, the surest first: the form that `fetch.bbox_column` reads to blur them.

    weights: an .onnx file of one of two kinds, told apart by their outputs. UltraFace (RFB-320,
    RFB-640, slim): scores (1, N, 2) and boxes (1, N, 4) as shares. SCRFD: for strides 8, 16 and 32
    the scores, then the distances to the four sides, then perhaps five points; the image keeps its
    shape and is padded. Both take RGB. size: height and width of the input, where the file leaves
    them open. threshold: the least score (DataComp blurs from 0.3 on with SCRFD-10G). overlap: of
    two boxes with a larger intersection over union, the less sure one is left out.
    """

    name = "faces"
    needs = frozenset({"image"})
    adds, meanings = described(
        faces_count=(pa.int32(), "faces that the filter's detector finds"),
        faces_boxes=(BOXES, "[left, top, right, bottom] of each as shares, surest first"),
    )
    weights: str = field(metadata=FILE)
    threshold: float = field(default=0.5, metadata=BETWEEN_0_AND_1)
    overlap: float = field(default=0.4, metadata=BETWEEN_0_AND_1)
    size: int = field(default=640, metadata={"least": 32})
    session: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 32:
            raise ValueError(f"filter faces: size is {self.size}; it must be a multiple of 32")

    def setup(self) -> None:
        require(self.name, "onnxruntime", "faces")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        try:
            self.session = onnxruntime.InferenceSession(
                self.weights, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common class
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"filter faces: {self.weights} cannot be loaded: {line}") from error

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        found = [self.detect(image) for image in batch.images]
        return {
            "faces_count": [len(boxes) for boxes in found],
            "faces_boxes": [boxes.tolist() for boxes in found],
        }

    def detect(self, image: Image.Image) -> Float32Array:
        """(faces, 4) boxes of an RGB image. ValueError for a model of another kind."""
        given = self.session.get_inputs()[0]
        height, width = (n if isinstance(n, int) else self.size for n in given.shape[2:])
        scrfd = len(self.session.get_outputs()) in (6, 9)
        if scrfd:
            scale = min(width / image.width, height / image.height)
            inside = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            canvas = Image.new("RGB", (width, height))
            canvas.paste(image.resize(inside, Image.Resampling.BILINEAR))
            mean = 127.5
        else:
            inside, mean = (width, height), 127.0
            canvas = image.resize(inside, Image.Resampling.BILINEAR)
        pixels_HWC = (np.asarray(canvas, np.float32) - mean) / 128
        outputs = self.session.run(None, {given.name: pixels_HWC.transpose(2, 0, 1)[None]})
        scores, boxes = scrfd_boxes(outputs, width, height) if scrfd else ultraface(outputs)
        if scrfd:
            boxes = np.divide(boxes, np.array([*inside, *inside]), dtype=np.float32)
        chosen = scores >= self.threshold
        return surest(scores[chosen], boxes[chosen].clip(0, 1), self.overlap)


def ultraface(outputs: list[Any]) -> tuple[Float32Array, Float32Array]:
    """(N,) scores and (N, 4) boxes as shares of the input. ValueError for other outputs."""
    shapes = [output.shape for output in outputs]
    by_width = {shape[-1]: output for shape, output in zip(shapes, outputs, strict=True)}
    if len(outputs) != 2 or set(by_width) != {2, 4}:
        raise ValueError(
            f"filter faces: the model has outputs of the shapes {shapes}; it must be an "
            "UltraFace, with (1, N, 2) and (1, N, 4), or an SCRFD, with 6 or 9"
        )
    return by_width[2].reshape(-1, 2)[:, 1], by_width[4].reshape(-1, 4)


def scrfd_boxes(outputs: list[Any], width: int, height: int) -> tuple[Float32Array, Float32Array]:
    """(N,) scores and (N, 4) boxes in pixels of the input: distances to the sides from ANCHORS
    anchors at each point of three grids."""
    scores, boxes = [], []
    for number, stride in enumerate(STRIDES):
        columns, rows = np.meshgrid(np.arange(-(-width // stride)), np.arange(-(-height // stride)))
        centres = np.stack([columns, rows], -1).reshape(-1, 2).repeat(ANCHORS, 0) * stride
        distances = outputs[number + len(STRIDES)].reshape(-1, 4) * stride
        if len(distances) != len(centres):
            raise ValueError(
                f"filter faces: the model has {len(distances)} boxes at stride {stride}, and an "
                f"SCRFD has {len(centres)}"
            )
        scores.append(outputs[number].reshape(-1))
        boxes.append(np.concatenate([centres - distances[:, :2], centres + distances[:, 2:]], 1))
    return np.concatenate(scores), np.concatenate(boxes).astype(np.float32)


def surest(scores: Float32Array, boxes: Float32Array, overlap: float) -> Float32Array:
    """The boxes with the largest scores that do not overlap a surer one by more than `overlap`
    (intersection over union), in the order of their scores. Boxes without an area are left out."""
    sides = boxes[:, 2:] - boxes[:, :2]
    scores, boxes = scores[(sides > 0).all(1)], boxes[(sides > 0).all(1)]
    boxes = boxes[np.argsort(-scores, kind="stable")]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    chosen: list[int] = []
    for number, box in enumerate(boxes):
        low = np.maximum(box[:2], boxes[chosen, :2])
        high = np.minimum(box[2:], boxes[chosen, 2:])
        shared = np.maximum(0, high - low).prod(1)
        if (shared <= overlap * (areas[number] + areas[chosen] - shared)).all():
            chosen.append(number)
    return boxes[chosen]
