"""Embeddings of images and captions under a CLIP, stored once for everything that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from filters.base import Batch, Columns
from filters.clip.models import ClipFilter, model_config
from manifests import disk

Embeddings = NDArray[np.float32]


@dataclass(kw_only=True)
class Embed(ClipFilter):
    """embed_image, embed_text: embeddings of length 1, fixed-size fp16 lists of the model's width.

    model, pretrained, precision: see ClipFilter. towers: those whose embeddings are stored. A row
    without a caption has no embed_text, a row without a readable image has neither if the image is
    asked for.
    """

    name: ClassVar[str] = "embed"
    needs: ClassVar[frozenset[str]] = frozenset({"image", "caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "embed_image": pa.list_(pa.float16()),
        "embed_text": pa.list_(pa.float16()),
    }
    meanings: ClassVar[dict[str, str]] = {
        "embed_image": "embedding of the image under the filter's CLIP, length 1, fp16",
        "embed_text": "embedding of the caption under the filter's CLIP, length 1, fp16",
    }
    towers: tuple[Literal["image", "text"], ...] = ("image", "text")

    def check_model_options(self) -> None:
        super().check_model_options()
        if not self.towers or len(set(self.towers)) < len(self.towers):
            raise ValueError(
                f"filter embed: towers is {list(self.towers)}; "
                "name image, text, or each of them once"
            )
        self.towers = tuple(sorted(self.towers))  # the order makes no other columns
        # A row that lacks its caption keeps the embedding of its image.
        vars(self)["needs"] = frozenset({"image"} if "image" in self.towers else {"caption"})

    def columns(self) -> dict[str, pa.DataType]:
        """Lists of any length where the model's configuration is not there yet: a recipe is checked
        before its scorer is trained, and on machines without open_clip, which may crawl and fetch.
        """
        try:
            width = int(model_config(self.name, self.model)["embed_dim"])
        except ValueError:
            width = -1
        return {f"embed_{tower}": pa.list_(pa.float16(), width) for tower in self.towers}

    def identity(self) -> str:
        """Weights, and open_clip's configuration: activation, sizes, context length."""
        config = disk.content_hash(model_config(self.name, self.model), 64)
        return f"{super().identity()} {config}"

    def score(self, batch: Batch) -> Columns:
        assert self.loaded is not None
        columns: Columns = {}
        types = self.columns()
        if "image" in self.towers:
            assert batch.images is not None
            image_BE = self.loaded.embed_images(batch.images, self.batch_size)
            columns["embed_image"] = fixed_lists(image_BE, types["embed_image"])
        if "text" in self.towers:
            text_BE = self.loaded.embed_texts(batch.captions, self.batch_size)
            lacking = None
            if "image" in self.towers and "caption" in batch.rows.column_names:
                lacking = pc.is_null(batch.rows["caption"]).to_numpy()
            columns["embed_text"] = fixed_lists(text_BE, types["embed_text"], lacking)
        return columns


def fixed_lists(
    rows_BE: Embeddings, kind: pa.DataType, lacking: NDArray[np.bool_] | None = None
) -> pa.Array:
    """An Arrow array of `kind`, a fixed-size list of fp16; NULL where `lacking` is true."""
    values = pa.array(rows_BE.astype(np.float16).reshape(-1), pa.float16())
    mask = None if lacking is None else pa.array(lacking)
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)


def stored_embeddings(
    columns: Mapping[str, Any], instance: str, tower: str
) -> tuple[Embeddings, NDArray[np.bool_]]:
    """(rows, width) fp32 of a stored column of an `embed` instance, of length 1 again, and
    which rows have one. Rows without one are zero.

    ValueError if the instance has no such column.
    """
    name = f"{instance}_{tower}"
    if name not in columns:
        raise ValueError(
            f"{instance} has no column {name}; it must be an embed filter with towers: [{tower}]"
        )
    array = columns[name]
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    there: NDArray[np.bool_] = np.asarray(array.is_valid())
    width = array.type.list_size
    rows_BE = np.zeros((len(array), width), np.float32)
    rows_BE[there] = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    lengths_B1 = np.linalg.norm(rows_BE, axis=1, keepdims=True)
    np.divide(rows_BE, lengths_B1, out=rows_BE, where=lengths_B1 > 0)
    return rows_BE, there
