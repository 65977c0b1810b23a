"""Length of a caption, counted as DataComp's basic filter counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from filters.base import Batch, Columns, Filter


@dataclass(kw_only=True)
class Caption(Filter):
    """caption_words: pieces between whitespace. caption_chars: code points, whitespace at the ends
    included.

    DataComp's basic filter asks for more than 2 words and more than 5 characters of exactly these.
    """

    name: ClassVar[str] = "caption"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "caption_words": pa.int32(),
        "caption_chars": pa.int32(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "caption_words": "words of the caption, separated by whitespace",
        "caption_chars": "characters (code points) of the caption",
    }

    def score(self, batch: Batch) -> Columns:
        words = [len(caption.split()) for caption in batch.captions]
        characters = [len(caption) for caption in batch.captions]
        return {
            "caption_words": np.array(words, np.int32),
            "caption_chars": np.array(characters, np.int32),
        }
