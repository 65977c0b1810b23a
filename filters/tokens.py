"""Captions as numbers, so that training reads them instead of computing them again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from filters.base import Batch, Columns, file_hash, package_folder

CONTEXT = 77  # the longest caption that is kept, start and end included; a model with a shorter context cuts further
CACHED_WORDS = (
    2**18
)  # the tokenizer remembers every word it met; a crawl never stops bringing new ones


@dataclass(kw_only=True)
class Tokens:
    """tokens: start-of-text, the caption in CLIP's byte-pair code of 49,408 entries, end-of-text; not padded.

    Cut at 77 with the end kept, as open_clip cuts it.
    """

    name: ClassVar[str] = "tokens"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"tokens": pa.list_(pa.uint16())}
    device: ClassVar[str] = "cpu"
    tokenizer: Literal["clip"] = "clip"
    coder: Any = field(default=None, init=False, repr=False, compare=False)

    def identity(self) -> str:
        return file_hash(package_folder("open_clip", "tokens") / "bpe_simple_vocab_16e6.txt.gz")

    def check(self) -> None:
        return None

    def setup(self) -> None:
        from open_clip.tokenizer import SimpleTokenizer

        self.coder = SimpleTokenizer(context_length=CONTEXT)

    def score(self, batch: Batch) -> Columns:
        if len(self.coder.cache) > CACHED_WORDS:
            self.setup()
        return {"tokens": [self.encode(caption) for caption in batch.captions]}

    def encode(self, caption: str) -> np.ndarray[Any, np.dtype[np.uint16]]:
        """Numbers of one caption, 2 to 77 of them."""
        inside = self.coder.encode(caption)[: CONTEXT - 2]
        return np.array([self.coder.sot_token_id, *inside, self.coder.eot_token_id], np.uint16)
