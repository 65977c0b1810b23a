"""open_clip's tokenizers, loaded without the rest of open_clip, and captions as tokens.

The package imports timm and torchvision, which tokenizers do not use: they would double the
start of every process that only needs tokens.
"""

from __future__ import annotations

import functools
import heapq
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clipmill.manifests.arrays import Integers

LONG_WORD = 200  # symbols; open_clip takes 3 ms for such a word and 7 s for one of 16,000


def simple_tokenizer() -> Any:
    """open_clip's class SimpleTokenizer. ImportError where open_clip is not installed."""
    return tokenizers().SimpleTokenizer


def tokenizers() -> Any:
    """open_clip's module of tokenizers. ImportError where open_clip is not installed."""
    if sys.modules.get("open_clip") is not None:
        from open_clip import tokenizer

        return tokenizer
    package = importlib.util.find_spec("open_clip")
    if package is None or not package.submodule_search_locations:
        raise ImportError("No module named 'open_clip'", name="open_clip")
    return _load(Path(package.submodule_search_locations[0]) / "tokenizer.py")


def with_long_words(tokenizer: Any) -> Any:
    """The same tokenizer, with a code of long words in n log n steps where open_clip takes n².

    A word is a run of letters: a caption in Chinese is one word of three symbols for a character.
    Long words are not cached. Tokenizers of other kinds are returned as they are.
    """
    if not hasattr(tokenizer, "bpe_ranks"):
        return tokenizer
    usual: Callable[[str], str] = tokenizer.bpe

    def code(word: str) -> str:
        if len(word) < LONG_WORD:
            return usual(word)
        return " ".join(merged([*word[:-1], f"{word[-1]}</w>"], tokenizer.bpe_ranks))

    tokenizer.bpe = code
    return tokenizer


def merged(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """The byte-pair code of a word: the pair of the lowest rank is merged wherever it stands, from
    left to right, until no pair has a rank."""
    parts: list[str | None] = list(symbols)  # None: merged into a part to the left
    after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
    lefts: dict[tuple[str, str], list[int]] = {}  # positions of left parts, some of them outdated
    queue: list[tuple[int, tuple[str, str]]] = []

    def add_pair(left: int) -> None:
        right = after[left] if left >= 0 else len(parts)
        if right == len(parts):
            return
        pair = (parts[left] or "", parts[right] or "")
        if pair in ranks and pair not in lefts:
            heapq.heappush(queue, (ranks[pair], pair))
            lefts[pair] = []
        if pair in lefts:
            lefts[pair].append(left)

    for left in range(len(parts)):
        add_pair(left)
    while queue:
        _, pair = heapq.heappop(queue)
        changed = []
        for left in sorted(lefts.pop(pair)):
            right = after[left]
            if right == len(parts) or (parts[left], parts[right]) != pair:
                continue
            parts[left], parts[right] = pair[0] + pair[1], None
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            changed.append(left)
        for left in changed:  # after all merges of the pair, as other pairs wait for them
            add_pair(before[left])
            add_pair(left)
    return [part for part in parts if part is not None]


@functools.cache
def _load(path: Path) -> Any:
    """The module of a file, without the package that it lies in."""
    spec = importlib.util.spec_from_file_location("open_clip_tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------
# Captions of further text columns as tokens, equal to those that the filter `tokens` stores.


CONTEXT = 77  # the longest caption that is kept, start and end included
CACHED_WORDS = 2**18  # the tokenizer caches every word; a crawl brings new ones without end
TOKENIZER = "clip"  # the only one whose code is here
TokenArray = NDArray[np.unsignedinteger[Any]]  # a model may have a tokenizer with more tokens


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
    ) -> tuple[NDArray[np.uint16], Integers]:
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
        return simple_tokenizer()(context_length=CONTEXT)
    except ImportError as error:
        raise ValueError(
            f"captions are tokenised with open_clip, which cannot be imported ({error}); "
            "run pip install open_clip_torch, or train on the stored tokens"
        ) from error
