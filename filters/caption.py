"""Length of a caption, counted as DataComp's basic filter counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from filters.base import Batch, Columns


@dataclass(kw_only=True)
class Caption:
    """caption_words: pieces between whitespace. caption_chars: code points, whitespace at the ends included.

    DataComp's basic filter asks for more than 2 words and more than 5 characters of exactly these.
    """

    name: ClassVar[str] = "caption"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "caption_words": pa.int32(),
        "caption_chars": pa.int32(),
    }
    device: ClassVar[str] = "cpu"

    def identity(self) -> str:
        return ""

    def check(self) -> None:
        return None

    def setup(self) -> None:
        return None

    def score(self, batch: Batch) -> Columns:
        return {
            "caption_words": np.array([len(c.split()) for c in batch.captions], np.int32),
            "caption_chars": np.array([len(c) for c in batch.captions], np.int32),
        }
