"""How well a caption fits its picture: the cosine of both under a CLIP that open_clip can load."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from PIL import Image

from filters.base import FREE, Batch, Columns, file_hash, package_folder
from manifests import disk

LOCAL, HUB = "local-dir:", "hf-hub:"
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".json")  # what open_clip reads of a local folder
PREPARERS = min(8, os.cpu_count() or 1)  # threads that resize pictures for the model


@dataclass(kw_only=True)
class ClipScore:
    """clip_score: cosine of image and text embedding, in [-1, 1].

    model: a name of open_clip with `pretrained` (a tag, or a file of weights), or `local-dir:FOLDER` or
    `hf-hub:ORG/NAME`, which bring their own. precision auto is bf16 on a GPU and fp32 elsewhere. Pictures go through
    the model's own validation transform, captions through its own tokenizer and context length.
    """

    name: ClassVar[str] = "clip_score"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"image", "caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"clip_score": pa.float32()}
    model: str = field(metadata=FREE)  # identity() says which weights these are, wherever they lie
    pretrained: str | None = field(default=None, metadata=FREE)
    batch_size: int = field(default=256, metadata=FREE)
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=FREE)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    loaded: Any = field(default=None, init=False, repr=False, compare=False)
    transform: Any = field(default=None, init=False, repr=False, compare=False)
    tokenizer: Any = field(default=None, init=False, repr=False, compare=False)
    place: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(
                f"filter clip_score: batch_size is {self.batch_size}; it must be at least 1"
            )
        if self.model.startswith(LOCAL):  # a worker may start in another folder
            self.model = LOCAL + os.path.abspath(self.model.removeprefix(LOCAL))
        brings_weights = self.model.startswith((LOCAL, HUB))
        if brings_weights and self.pretrained is not None:
            raise ValueError(
                f"filter clip_score: {self.model} brings its own weights; leave pretrained out"
            )
        if not brings_weights and self.pretrained is None:
            raise ValueError(
                f"filter clip_score: model {self.model} has no weights of its own; name them with pretrained: TAG"
            )

    def identity(self) -> str:
        if self.model.startswith(LOCAL):
            folder = Path(self.model.removeprefix(LOCAL))
            if not (folder / "open_clip_config.json").is_file():
                raise ValueError(
                    f"filter clip_score: there is no open_clip_config.json in {folder}"
                )
            files = sorted(f for f in folder.iterdir() if f.suffix in WEIGHTS)
            return disk.content_hash({f.name: file_hash(f) for f in files}, 64)
        if self.model.startswith(HUB):
            return self.model
        known = [
            f.stem
            for f in (package_folder("open_clip", self.name) / "model_configs").glob("*.json")
        ]
        if self.model not in known:
            raise ValueError(
                f"filter clip_score: open_clip has no model {self.model!r}{disk.did_you_mean(self.model, known)}"
            )
        assert self.pretrained is not None
        weights = file_hash(self.pretrained) if os.path.isfile(self.pretrained) else self.pretrained
        return f"{self.model}:{weights}"

    def check(self) -> None:
        if self.model.startswith((LOCAL, HUB)) or os.path.isfile(str(self.pretrained)):
            return
        import open_clip

        tags = open_clip.list_pretrained_tags_by_model(self.model)
        if self.pretrained not in tags:
            raise ValueError(
                f"filter clip_score: {self.model} has no weights {self.pretrained!r}"
                f"{disk.did_you_mean(str(self.pretrained), tags)}; it has {', '.join(tags)}"
            )
        # Weights trained with one activation and run with the other lose points without a word.
        trained = bool(
            open_clip.get_pretrained_cfg(self.model, self.pretrained).get("quick_gelu", False)
        )
        if trained != bool(open_clip.get_model_config(self.model).get("quick_gelu", False)):
            plain = self.model.removesuffix("-quickgelu")
            other = f"{plain}-quickgelu" if trained else plain
            raise ValueError(
                f"filter clip_score: {self.pretrained} was trained with another activation than {self.model} has; "
                f"write model: {other}"
            )

    def setup(self) -> None:
        import open_clip
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "filter clip_score: device is cuda, but there is no GPU here; leave device out"
            )
        self.place = torch.device(
            "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"
        )
        before = logging.root.manager.disable
        logging.disable(logging.INFO)  # open_clip tells its every step to the root logger
        try:
            self.loaded, _, self.transform = open_clip.create_model_and_transforms(
                self.model, pretrained=self.pretrained, device=self.place
            )
            self.tokenizer = open_clip.get_tokenizer(self.model)
        finally:
            logging.disable(before)
        self.loaded.eval()

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        parts = [
            self.cosine(
                batch.images[at : at + self.batch_size], batch.captions[at : at + self.batch_size]
            )
            for at in range(0, len(batch.captions), self.batch_size)
        ]
        return {"clip_score": np.concatenate(parts) if parts else np.zeros(0, np.float32)}

    def cosine(
        self, images: list[Image.Image], captions: list[str]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Shape (B,), fp32: embeddings are brought to length one and multiplied in fp32 whatever the precision."""
        import torch
        import torch.nn.functional as F

        with ThreadPoolExecutor(PREPARERS) as threads:
            image_BCHW = torch.stack(list(threads.map(self.transform, images))).to(self.place)
        text_BT = self.tokenizer(captions).to(self.place)
        half = self.precision == "bf16" or (self.precision == "auto" and self.place.type == "cuda")
        with torch.inference_mode(), torch.autocast(self.place.type, torch.bfloat16, enabled=half):
            image_BE = self.loaded.encode_image(image_BCHW)
            text_BE = self.loaded.encode_text(text_BT)
        cosine_B = (
            F.normalize(image_BE.float(), dim=-1) * F.normalize(text_BE.float(), dim=-1)
        ).sum(-1)
        found: np.ndarray[Any, np.dtype[np.float32]] = cosine_B.cpu().numpy()
        return found
