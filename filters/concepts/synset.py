"""DataComp's text-based filter: captions with a word whose most likely synset is in a given set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from filters.base import FREE, Batch, Columns, Filter
from manifests import disk

WNID = re.compile(r"n\d{8}")
# Endings of nouns and what takes their place, in WordNet's order (morphy).
ENDINGS = (
    ("s", ""),
    ("ses", "s"),
    ("ves", "f"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)
CACHED_WORDS = 2**18  # a crawl brings new words without end


class Nouns:
    """Words and the most likely synset of each."""

    def __init__(self, lemmas: Mapping[str, str], forms: Mapping[str, str]) -> None:
        """lemmas: noun -> wnid. forms: irregular form -> wnid, "" if it is no form of a noun."""
        self.lemmas, self.forms = lemmas, forms

    @classmethod
    def read(cls, path: str) -> Nouns:
        """A list as `wordnet.py` writes it; the third column may be missing (lemma).

        ValueError for a line of another form and for a list without a noun.
        """
        lemmas: dict[str, str] = {}
        forms: dict[str, str] = {}
        for number, line in enumerate(_lines(path), 1):
            word, *rest = line.split("\t")
            kind = rest[1] if len(rest) == 2 else "lemma"
            has_synset = bool(rest) and (WNID.fullmatch(rest[0]) or (kind, rest[0]) == ("form", ""))
            if not word or not has_synset or kind not in ("lemma", "form") or len(rest) > 2:
                raise ValueError(
                    f"{path}, line {number}: {line!r} is not `word TAB wnid`; make the list with "
                    "python filters/concepts/wordnet.py"
                )
            (lemmas if kind == "lemma" else forms)[word] = rest[0]
        if not lemmas:
            raise ValueError(f"{path} holds no noun")
        return cls(lemmas, forms)

    def synset(self, word: str) -> str | None:
        """The wnid of the most likely noun synset of a word, None if it is no noun.

        The word itself comes first, then its irregular form, then the first of ENDINGS that gives a
        noun. One ending is replaced, as WordNet's morphy does.
        """
        word = word.lower()
        if word in self.lemmas:
            return self.lemmas[word]
        if word in self.forms:
            return self.forms[word] or None
        for ending, other in ENDINGS:
            if word.endswith(ending):
                base = self.lemmas.get(word.removesuffix(ending) + other)
                if base is not None:
                    return base
        return None


def read_wnids(path: str) -> frozenset[str]:
    """The set of a file with one wnid a line. ValueError for another line and for no wnid."""
    wnids = []
    for number, line in enumerate(_lines(path), 1):
        if not WNID.fullmatch(line):
            raise ValueError(f"{path}, line {number}: {line!r} is no wnid such as n02084071")
        wnids.append(line)
    if not wnids:
        raise ValueError(f"{path} holds no wnid")
    return frozenset(wnids)


def _lines(path: str) -> list[str]:
    """The lines that are not blank, without white space at their right."""
    try:
        text = Path(disk.local_path(path)).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return [line.rstrip("\r ") for line in text.split("\n") if line.strip()]


@dataclass(kw_only=True)
class Synset(Filter):
    """synset_match: whether a word of the caption is a noun whose most likely synset is in the set.

    mapping: nouns and their synsets, made by `python filters/concepts/wordnet.py`. wnids: the set,
    one wnid a line; DataComp's is that of ImageNet-21k. Words lie between white space and keep
    their marks: `dog,` is no noun. DataComp compares synsets by offset alone, so that a verb's may
    equal a noun's of the set; here only nouns count.
    """

    name: ClassVar[str] = "synset"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {"synset_match": pa.bool_()}
    meanings: ClassVar[dict[str, str]] = {
        "synset_match": "whether the most likely synset of a word of the caption is in the set"
    }
    mapping: str = field(metadata=FREE)  # identity() says what is in both files
    wnids: str = field(metadata=FREE)
    nouns: Any = field(default=None, init=False, repr=False, compare=False)
    wanted: Any = field(default=None, init=False, repr=False, compare=False)
    known: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.mapping = os.path.abspath(self.mapping)  # a worker may start in another folder
        self.wnids = os.path.abspath(self.wnids)
        for path in (self.mapping, self.wnids):
            if not os.path.isfile(path):
                raise ValueError(f"filter synset: there is no file {path}")

    def identity(self) -> str:
        return f"{disk.file_sha256(self.mapping)}:{disk.file_sha256(self.wnids)}"

    def check(self) -> None:
        Nouns.read(self.mapping)
        read_wnids(self.wnids)

    def setup(self) -> None:
        self.nouns, self.wanted = Nouns.read(self.mapping), read_wnids(self.wnids)

    def score(self, batch: Batch) -> Columns:
        matches = [any(map(self.is_wanted, caption.split())) for caption in batch.captions]
        return {"synset_match": np.array(matches, np.bool_)}

    def is_wanted(self, word: str) -> bool:
        """Whether the most likely synset of a word is in the set."""
        answer = self.known.get(word)
        if answer is None:
            if len(self.known) >= CACHED_WORDS:
                self.known.clear()
            answer = self.known[word] = self.nouns.synset(word) in self.wanted
        return answer
