"""How well a caption fits its image: the cosine of both under a CLIP that open_clip can load."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from PIL import Image

from filters.base import FREE, Batch, Columns, Filter, package_folder, with_options
from manifests import disk

LOCAL, HUB = "local-dir:", "hf-hub:"
WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".json")  # what open_clip reads of a local folder
TRANSFORM_THREADS = min(8, os.cpu_count() or 1)


@dataclass(kw_only=True)
class ClipScore(Filter):
    """clip_score: cosine of image and text embedding, in [-1, 1].

    model: a name of open_clip with `pretrained` (a tag, or a file of weights), or
    `local-dir:FOLDER` or `hf-hub:ORG/NAME`, which bring their own weights. precision auto is bf16
    on a GPU and fp32 elsewhere; it is resolved before the id of the columns is made, so bf16 and
    fp32 scores never share an id. Where a pool has scores of either kind, auto takes them as they
    are (fp32 before bf16). Images go through the model's own validation transform, captions through
    its own tokenizer and context length.
    """

    name: ClassVar[str] = "clip_score"
    needs: ClassVar[frozenset[str]] = frozenset({"image", "caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"clip_score": pa.float32()}
    meanings: ClassVar[dict[str, str]] = {
        "clip_score": "cosine of image and caption under the filter's CLIP, -1 to 1"
    }
    model: str = field(metadata=FREE)  # identity() says which weights these are, wherever they lie
    pretrained: str | None = field(default=None, metadata=FREE)
    batch_size: int = field(default=256, metadata=FREE)
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=FREE)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    loaded: Any = field(default=None, init=False, repr=False, compare=False)
    transform: Any = field(default=None, init=False, repr=False, compare=False)
    tokenizer: Any = field(default=None, init=False, repr=False, compare=False)
    torch_device: Any = field(default=None, init=False, repr=False, compare=False)

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
                f"filter clip_score: model {self.model} has no weights of its own; "
                "name them with pretrained: TAG"
            )

    def alternatives(self) -> tuple[Filter, ...]:
        if self.precision != "auto":
            return (self,)
        return tuple(with_options(self, precision=precision) for precision in ("fp32", "bf16"))

    def resolved(self, *, gpu: bool) -> Filter:
        if self.precision != "auto":
            return self
        resolved: ClipScore = with_options(self, precision="bf16" if gpu else "fp32")
        return resolved

    def identity(self) -> str:
        if self.model.startswith(LOCAL):
            folder = Path(self.model.removeprefix(LOCAL))
            if not (folder / "open_clip_config.json").is_file():
                raise ValueError(
                    f"filter clip_score: there is no open_clip_config.json in {folder}"
                )
            files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS)
            return disk.content_hash({path.name: disk.file_sha256(path) for path in files}, 64)
        if self.model.startswith(HUB):
            return self.model
        self._check_name()
        assert self.pretrained is not None
        weights = (
            disk.file_sha256(self.pretrained)
            if os.path.isfile(self.pretrained)
            else self.pretrained
        )
        return f"{self.model}:{weights}"

    def check(self) -> None:
        """Model and weights against open_clip's own tables.

        A machine without open_clip cannot check them: it may crawl and fetch, and scoring refuses
        there.
        """
        if self.model.startswith((LOCAL, HUB)) or find_spec("open_clip") is None:
            return
        self._check_name()
        if os.path.isfile(str(self.pretrained)):
            return
        import open_clip

        tags = open_clip.list_pretrained_tags_by_model(self.model)
        trained_quick = _trained_with_quick_gelu(self.model, str(self.pretrained))
        if self.pretrained not in tags and trained_quick is None:
            raise ValueError(
                f"filter clip_score: {self.model} has no weights {self.pretrained!r}"
                f"{disk.did_you_mean(str(self.pretrained), tags)}; it has {', '.join(tags)}"
            )
        # Weights trained with one activation and run with the other lose points silently.
        runs_quick = bool(open_clip.get_model_config(self.model).get("quick_gelu", False))
        if trained_quick != runs_quick:
            plain = self.model.removesuffix("-quickgelu")
            other = f"{plain}-quickgelu" if trained_quick else plain
            raise ValueError(
                f"filter clip_score: {self.pretrained} was trained with another activation than "
                f"{self.model} has; write model: {other}"
            )

    def _check_name(self) -> None:
        """ValueError for a model that open_clip does not have; reads names of files only."""
        configs = package_folder("open_clip", self.name) / "model_configs"
        known = [path.stem for path in configs.glob("*.json")]
        if self.model not in known:
            raise ValueError(
                f"filter clip_score: open_clip has no model {self.model!r}"
                f"{disk.did_you_mean(self.model, known)}"
            )

    def setup(self) -> None:
        import open_clip
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "filter clip_score: device is cuda, but there is no GPU here; leave device out"
            )
        on_gpu = self.device != "cpu" and torch.cuda.is_available()
        self.torch_device = torch.device("cuda" if on_gpu else "cpu")
        with _without_info_messages():
            self.loaded, _, self.transform = open_clip.create_model_and_transforms(
                self.model, pretrained=self.pretrained, device=self.torch_device
            )
            self.tokenizer = open_clip.get_tokenizer(self.model)
        self.loaded.eval()

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        parts = []
        for start in range(0, len(batch.captions), self.batch_size):
            rows = slice(start, start + self.batch_size)
            parts.append(self.cosine(batch.images[rows], batch.captions[rows]))
        return {"clip_score": np.concatenate(parts) if parts else np.zeros(0, np.float32)}

    def cosine(
        self, images: list[Image.Image], captions: list[str]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(B,) fp32. Embeddings are normalised and multiplied in fp32 at every precision."""
        import torch
        import torch.nn.functional as F

        with ThreadPoolExecutor(TRANSFORM_THREADS) as threads:
            tensors = list(threads.map(self.transform, images))
        image_BCHW = torch.stack(tensors).to(self.torch_device)
        text_BT = self.tokenizer(captions).to(self.torch_device)
        on_gpu = self.torch_device.type == "cuda"
        half = self.precision == "bf16" or (self.precision == "auto" and on_gpu)
        autocast = torch.autocast(self.torch_device.type, torch.bfloat16, enabled=half)
        with torch.inference_mode(), autocast:
            image_BE = self.loaded.encode_image(image_BCHW)
            text_BE = self.loaded.encode_text(text_BT)
        image_BE = F.normalize(image_BE.float(), dim=-1)
        text_BE = F.normalize(text_BE.float(), dim=-1)
        cosine_B: np.ndarray[Any, np.dtype[np.float32]] = (image_BE * text_BE).sum(-1).cpu().numpy()
        return cosine_B


def _trained_with_quick_gelu(model: str, pretrained: str) -> bool | None:
    """The activation that weights of `model` or of its -quickgelu variant were trained with;
    None for other weights."""
    import open_clip

    plain = model.removesuffix("-quickgelu")
    for name in (model, plain, f"{plain}-quickgelu"):
        if pretrained in open_clip.list_pretrained_tags_by_model(name):
            config = open_clip.get_pretrained_cfg(name, pretrained)
            return bool(config.get("quick_gelu", False))
    return None


@contextmanager
def _without_info_messages() -> Iterator[None]:
    """open_clip reports its every step to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
