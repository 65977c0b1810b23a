"""Captions of further text columns as tokens, equal to those that the filter `tokens` stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

CONTEXT = 77  # the longest caption that is kept, start and end included
CACHED_WORDS = 2**18  # the tokenizer caches every word; a crawl brings new ones without end
TOKENIZER = "clip"  # the only one whose code is here


class CaptionTokenizer:
    """Texts to CLIP's tokens. ValueError where open_clip, which has the code, is not installed."""

    def __init__(self) -> None:
        self._coder = _coder()

    def encode(self, text: str) -> list[int]:
        """Start-of-text, at most 75 tokens, end-of-text."""
        if len(self._coder.cache) > CACHED_WORDS:
            self._coder = _coder()
        inside = self._coder.encode(text)[: CONTEXT - 2]
        return [self._coder.sot_token_id, *inside, self._coder.eot_token_id]

    def encode_all(
        self, texts: pa.ChunkedArray, *, blanks: bool = False
    ) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """(tokens of all texts, (texts + 1,) where those of each end); NULL has none, and a blank
        text has only with `blanks`, as in the stored tokens.
        """
        tokens: list[int] = []
        ends = [0]
        for text in texts.to_pylist():
            if text is not None and (blanks or text.strip()):
                tokens += self.encode(text)
            ends.append(len(tokens))
        return np.array(tokens, np.uint16), np.array(ends, np.int64)


def _coder() -> Any:
    try:
        # Imported here: a run that reads stored tokens starts without open_clip.
        from manifests.clip_tokenizer import simple_tokenizer

        return simple_tokenizer()(context_length=CONTEXT)
    except ImportError as error:
        raise ValueError(
            f"captions are tokenised with open_clip, which cannot be imported ({error}); "
            "run pip install open_clip_torch, or train on the stored tokens"
        ) from error
