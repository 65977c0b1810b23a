"""Captions as numbers, so that training reads them instead of computing them again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from clipmill.filters.base import Batch, Columns, Filter, described, package_folder
from clipmill.manifests import disk
from clipmill.manifests.clip_tokenizer import simple_tokenizer, with_long_words

# The longest caption that is kept, start and end included. A model with a shorter context cuts
# further.
CONTEXT = 77
CACHED_WORDS = 2**18  # the tokenizer caches every word; a crawl brings new ones without end


@dataclass(kw_only=True)
class Tokens(Filter):
    """tokens: start-of-text, the caption in CLIP's byte-pair code of 49,408 entries, end-of-text;
    not padded.

    A longer caption is cut at 77 tokens and keeps the end-of-text, as in open_clip.
    """

    name = "tokens"
    needs = frozenset({"caption"})
    adds, meanings = described(
        tokens=(pa.list_(pa.uint16()), "the caption as CLIP's tokens, at most 77"),
    )
    tokenizer: Literal["clip"] = "clip"
    coder: Any = field(default=None, init=False, repr=False, compare=False)

    def identity(self) -> str:
        return disk.file_sha256(
            package_folder("open_clip", "tokens") / "bpe_simple_vocab_16e6.txt.gz"
        )

    def setup(self) -> None:
        self.coder = with_long_words(simple_tokenizer()(context_length=CONTEXT))

    def score(self, batch: Batch) -> Columns:
        if len(self.coder.cache) > CACHED_WORDS:
            self.setup()
        return {"tokens": [self.encode(caption) for caption in batch.captions]}

    def encode(self, caption: str) -> np.ndarray[Any, np.dtype[np.uint16]]:
        """(2 to 77,) the tokens of one caption."""
        coder, inside = self.coder, []
        for word in coder.pat.finditer(coder.clean_fn(caption)):
            # As the coder's `encode`, which reads all words
            symbols = "".join(coder.byte_encoder[byte] for byte in word[0].encode())
            inside += [coder.encoder[token] for token in coder.bpe(symbols).split(" ")]
            if len(inside) >= CONTEXT - 2:
                break
        tokens = [coder.sot_token_id, *inside[: CONTEXT - 2], coder.eot_token_id]
        return np.array(tokens, np.uint16)
