"""How well a caption fits its image: the cosine of both under a CLIP that open_clip can load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters.base import FREE, Batch, Columns, Filter
from filters.clip.embed import stored_embeddings
from filters.clip.models import ClipFilter


@dataclass(kw_only=True)
class ClipScore(ClipFilter):
    """clip_score: cosine of image and text embedding, in [-1, 1].

    model, pretrained: see ClipFilter. precision auto is resolved before the id of the columns is
    made, so bf16 and fp32 scores never share an id. Where a pool has scores of either kind, auto
    takes them as they are (fp32 before bf16). Images go through the model's own validation
    transform, captions through its own tokenizer and context length.

    on: an `embed` instance with both towers, instead of a model: the cosine of its stored columns.
    Embeddings are stored in fp16, which rounds a component by at most 2**-11 of itself, so that
    the cosine is within 1e-3 of the exact one (docs/scoring.md has the measured difference).
    """

    name: ClassVar[str] = "clip_score"
    needs: ClassVar[frozenset[str]] = frozenset({"image", "caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"clip_score": pa.float32()}
    meanings: ClassVar[dict[str, str]] = {
        "clip_score": "cosine of image and caption under the filter's CLIP, -1 to 1"
    }
    on: str | None = field(default=None, metadata=FREE)  # the id of the set that is read counts

    def check_model_options(self) -> None:
        if self.on is None:
            super().check_model_options()
            return
        if self.model or self.pretrained is not None or self.precision != "auto":
            raise ValueError(
                f"filter clip_score: on: {self.on} reads stored embeddings; leave model, "
                "pretrained and precision out"
            )
        vars(self)["needs"] = frozenset[str]()  # no image is decoded

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.on is None else (self.on,)

    def alternatives(self) -> tuple[Filter, ...]:
        return super().alternatives() if self.on is None else (self,)

    def resolved(self, *, gpu: bool) -> Filter:
        return super().resolved(gpu=gpu) if self.on is None else self

    def identity(self) -> str:
        return super().identity() if self.on is None else "stored embeddings"

    def check(self) -> None:
        if self.on is None:
            super().check()

    def setup(self) -> None:
        if self.on is None:
            super().setup()

    def score(self, batch: Batch) -> Columns:
        if self.on is not None:
            image_BE, image_there = stored_embeddings(batch.columns, self.on, "image")
            text_BE, text_there = stored_embeddings(batch.columns, self.on, "text")
            there = image_there & text_there
            return {"clip_score": np.where(there, cosine(image_BE, text_BE), np.nan)}
        assert batch.images is not None
        assert self.loaded is not None
        if not batch.captions:
            return {"clip_score": np.zeros(0, np.float32)}
        image_BE = self.loaded.embed_images(batch.images, self.batch_size)
        text_BE = self.loaded.embed_texts(batch.captions, self.batch_size)
        return {"clip_score": cosine(image_BE, text_BE)}


def cosine(image_BE: NDArray[np.float32], text_BE: NDArray[np.float32]) -> NDArray[np.float32]:
    """(B,) of embeddings of length 1."""
    products_B: NDArray[np.float32] = np.einsum("be,be->b", image_BE, text_BE)
    return products_B
