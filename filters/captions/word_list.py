"""A user's list of words and phrases, and which of them stand in captions as whole words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from filters.captions.measures import as_word_runs
from manifests import disk


class WordList:
    """Words and phrases by their number of words. Capitals and marks between words do not count."""

    def __init__(self, phrases: Sequence[str]) -> None:
        """ValueError for an empty list, and for a phrase without a letter or a digit."""
        self.by_length: dict[int, set[str]] = {}
        runs = as_word_runs(pa.array(phrases, pa.string())).to_pylist()
        for phrase, run in zip(phrases, runs, strict=True):
            words = run.split()
            if not words:
                raise ValueError(f"the word list has {phrase!r}, which holds no letter or digit")
            self.by_length.setdefault(len(words), set()).add(" ".join(words))
        if not self.by_length:
            raise ValueError("the word list is empty")

    @classmethod
    def read(cls, path: str) -> WordList:
        """The list of a file, one word or phrase a line; blank lines and lines that begin with #
        are skipped. ValueError with the path for what is no list."""
        try:
            text = Path(disk.local_path(path)).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the word list {path} cannot be read: {error}") from None
        lines = [line.strip() for line in text.splitlines()]
        try:
            return cls([line for line in lines if line and not line.startswith("#")])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def count(self, captions: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """(captions,) how many different words and phrases of the list each one has."""
        counts = []
        for run in as_word_runs(captions).to_pylist():
            words = run.split()
            total = 0
            for length, listed in self.by_length.items():
                if length == 1:
                    total += len(listed.intersection(words))
                    continue
                starts = range(len(words) - length + 1)
                total += len(listed.intersection(" ".join(words[i : i + length]) for i in starts))
            counts.append(total)
        return np.array(counts, np.int32)
