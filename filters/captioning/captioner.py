"""Captions that a model writes for the images: a text column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from PIL import Image

from filters.base import FREE, Batch, Columns
from filters.captioning.coca import CocaWriter
from filters.captioning.decoding import Search, row_uniforms
from filters.captioning.hugging_face import TransformersWriter, files_identity
from filters.clip import (
    HUB,
    LOCAL,
    ClipFilter,
    model_config,
    pinned,
    run_batches,
    snapshot,
    takes_gpu,
)

TRANSFORMERS = "hf:"
# Files of a model of transformers; a hub may have weights in several forms.
FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]


@dataclass(kw_only=True)
class Captioner(ClipFilter):
    """captioner: the caption that a model writes for the image; NULL for a blank one.

    model: a CoCa of open_clip (a name with `pretrained`, or `hf-hub:ORG/NAME`), any model of
    transformers that makes text of images (`hf:ORG/NAME`), or `local-dir:FOLDER` with the files of
    one or the other. prompt: what the caption of a CoCa or a BLIP begins with; what a chat model is
    asked. beams: 1 is greedy. max_tokens, min_tokens: of what is written. temperature: above 0
    tokens are drawn, by numbers that depend on the row's uid and `seed` only; beams is 1 then.
    precision: see ClipFilter.
    """

    name: ClassVar[str] = "captioner"
    needs: ClassVar[frozenset[str]] = frozenset({"image"})
    adds: ClassVar[dict[str, pa.DataType]] = {"captioner": pa.string()}
    meanings: ClassVar[dict[str, str]] = {"captioner": "the caption that the filter's model writes"}
    batch_size: int = field(default=32, metadata=FREE)
    prompt: str = ""
    beams: int = 1
    max_tokens: int = 30
    min_tokens: int = 1
    temperature: float = 0.0
    seed: int = 0
    writer: Any = field(default=None, init=False, repr=False, compare=False)
    limits: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check_model_options(self) -> None:
        if self.model.startswith(TRANSFORMERS):
            if self.pretrained is not None:
                raise ValueError(
                    f"filter captioner: {self.model} brings its own weights; leave pretrained out"
                )
        else:
            super().check_model_options()
        for option, least in (("beams", 1), ("max_tokens", 1), ("min_tokens", 0)):
            if getattr(self, option) < least:
                raise ValueError(
                    f"filter captioner: {option} is {getattr(self, option)}; "
                    f"it must be at least {least}"
                )
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"filter captioner: min_tokens is {self.min_tokens} and max_tokens "
                f"{self.max_tokens}; it must not be larger"
            )
        if self.temperature < 0 or (self.temperature and self.beams > 1):
            raise ValueError(
                f"filter captioner: temperature is {self.temperature} with {self.beams} beams; it "
                "must be at least 0, and 0 with several beams"
            )
        if self.seed and not self.temperature:
            raise ValueError(
                f"filter captioner: seed is {self.seed}, and nothing is drawn at temperature 0; "
                "leave it out, or set temperature"
            )

    @property
    def is_transformers(self) -> bool:
        """True for a model of transformers, false for one of open_clip."""
        if self.model.startswith(LOCAL):
            folder = Path(self.model.removeprefix(LOCAL))
            is_open_clip = (folder / "open_clip_config.json").is_file()
            return not is_open_clip and (folder / "config.json").is_file()
        return self.model.startswith(TRANSFORMERS)

    def pinned_model(self) -> str:
        if self.model.startswith(TRANSFORMERS):
            return TRANSFORMERS + pinned(self.name, self.model.removeprefix(TRANSFORMERS))
        return super().pinned_model()

    def identity(self) -> str:
        if not self.is_transformers:
            return super().identity()
        if self.resize != "exact":
            raise ValueError("filter captioner: resize is for models of open_clip; leave it out")
        if self.model.startswith(LOCAL):
            return f"transformers {files_identity(self.model.removeprefix(LOCAL))}"
        return f"transformers {self.pinned_model()}"

    def check(self) -> None:
        """That a model of open_clip is a CoCa. A folder that is not there yet is not checked."""
        if self.is_transformers or find_spec("open_clip") is None:
            return
        super().check()
        is_here = Path(self.model.removeprefix(LOCAL), "open_clip_config.json").is_file()
        if self.model.startswith(HUB) or (self.model.startswith(LOCAL) and not is_here):
            return
        if "multimodal_cfg" not in model_config(self.name, self.model):
            raise ValueError(
                f"filter captioner: {self.model} writes no captions; name a CoCa, such as "
                "coca_ViT-L-14, or a model of transformers as hf:ORG/NAME"
            )

    def setup(self) -> None:
        search: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "beams": self.beams,
            "temperature": self.temperature,
        }
        if not self.is_transformers:
            super().setup()
            self.writer = CocaWriter(self.loaded, search, self.prompt)
            return
        on_gpu = takes_gpu(self)
        half = self.precision == "bf16" or (self.precision == "auto" and on_gpu)
        if self.model.startswith(LOCAL):
            folder = self.model.removeprefix(LOCAL)
        else:
            folder = snapshot(self.name, self.model.removeprefix(TRANSFORMERS), FILES)
        self.writer = TransformersWriter(
            folder,
            "cuda" if on_gpu else "cpu",
            half,
            Search(start=[], end=-1, **search),
            self.prompt,
        )

    def prepare(self, image: Image.Image) -> None:
        if self.loaded is not None:
            super().prepare(image)

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        assert self.writer is not None
        uids = batch.rows["uid"].to_pylist() if self.temperature else []

        def write(numbers: Sequence[int]) -> list[str]:
            assert batch.images is not None
            given: list[Any] = [batch.images[number] for number in numbers]
            if self.loaded is not None:
                given = self.loaded.pixels_of(given)
            uniforms = None
            if self.temperature:
                drawn = [uids[number] for number in numbers]
                uniforms = row_uniforms(drawn, self.seed, self.max_tokens)
            texts: list[str] = self.writer.write(given, uniforms)
            return texts

        numbers = range(len(batch.images))
        batches = run_batches(numbers, self.batch_size, self.limits, "captions", write)
        texts = [text or None for texts in batches for text in texts]
        return {"captioner": texts}
