"""Length of a caption as DataComp counts it; with `detail`, how much of it is text that says
something.

What can be said about the text of captions, and how much of it is painted in the images.
How they are used: `docs/reference/filters.md`.

They read the files that the options name, and the models in the package rapidocr. They write
nothing.

Invariants:

* Words are DataComp's two counts: `tests/filters/test_caption.py`.
* A list that changes changes the id: `tests/filters/test_caption.py`.

A measure is a function over an Arrow array of captions here, and a column of
`filters/caption.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.base import FILE, LATER, Batch, Columns, Filter, described, read_text
from clipmill.manifests.arrays import Float32Array

# --------------------------------------------------------------------------------------------------
# What can be counted in captions, a whole batch at a time. Arrow's own functions count characters
# and search by regular expression (RE2); Python counts words.


Counts = np.ndarray[Any, np.dtype[np.int32]]

# fastText parts words at these and at nothing else, and counts each line end as a word of its own.
FASTTEXT_WORD = r"[^\x00\t\n\x0b\f\r ]+"
# No letter, combining mark, digit or white space.
SPECIAL = r"[^\p{L}\p{M}\p{N}\p{Z}\s]"
NO_WORD_CHARACTERS = r"[^\p{L}\p{M}\p{N}]+"
URL = (
    r"(?i)(?:\bhttps?:|\bftp:)//[^\s]"
    r"|\bwww\.[\p{L}\p{N}-]+\."
    r"|\b[a-z0-9-]+\.(?:com|net|org|info|biz|edu|gov|io|co\.uk|de|fr|es|it|nl|pl|ru|cn|jp|br|eu)"
    r"(?:[/?#:]|\b[^.\w@-]|\.?$)"
)
EXTENSIONS = "jpe?g|jpe|jfif|png|gif|webp|avif|bmp|tiff?|svg|heic|heif|ico|raw|cr2|nef|dng|psd"
NOUNS = (
    "image|img|photo|foto|photograph|picture|pic|slide|figure|fig|page|view|gallery|thumbnail|"
    "thumb|item|product|bild|imagen|immagine|no|nr"
)
CAMERAS = "img|imag|image|dsc[nf]?|dcim|pxl|mvi|pict|gopr|cimg|sam|wp|p|vlcsnap|fb_img|received"
# The first form that fits counts. `^` and `$` are the ends of the trimmed caption.
BOILERPLATE = {
    "file_name": (
        rf"(?i)[\p{{L}}\p{{N}})_\]-]\.(?:{EXTENSIONS})$"
        rf"|^(?:{CAMERAS})[ _-]?\d{{3,}}(?:[ _-][\w()]+)*$"
        r"|^(?:screen ?shot|whatsapp image|unnamed|untitled)[ _-]*\d[\d .:_()-]*"
        r"(?:at [\d .:apm]+)?$"
        r"|^[0-9a-f]{16,}$"
        r"|^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
        r"|^[a-z]*\d[\da-z]*(?:_[\da-z]+){1,}$"
    ),
    "counter": (
        rf"(?i)^(?:{NOUNS})?[ #_.:(-]*\d+[)]?(?:\s*(?:of|/|von|de|sur|di)\s*\d+)?[.)]?$"
        rf"|^(?:{NOUNS}) (?:\d+|one|two|three) (?:of|from|/) .{{0,40}}$"
    ),
    "placeholder": (
        r"(?i)^(?:untitled|no title|unnamed|undefined|null|none|nan|n/?a|alt|alt[ -]?text|default|"
        r"placeholder|blank|spacer|pixel|loading|advertisement|ad|banner|logo|icon|avatar|"
        r"image|img|photo|picture|pic|thumbnail|thumb|featured image|post image|product image|"
        r"cover image|main image|hero image|profile (?:picture|photo|image)|user avatar|"
        r"(?:no|missing) (?:image|photo|picture)(?: available)?|"
        r"(?:image|photo|picture) (?:not available|unavailable|not found|coming soon)|"
        r"(?:click|tap) (?:here|to (?:enlarge|zoom|view|expand))(?: .{0,30})?|"
        r"(?:view|see) (?:larger|full[ -]?size|bigger)(?: image)?|"
        r"image may contain.{0,80}|read more|learn more|share this|"
        r"(?:image|photo) (?:credit|courtesy|by|via)(?: .{0,40})?)[ .!:…-]*$"
    ),
}


def count_words(captions: Sequence[str]) -> tuple[Counts, Float32Array, Float32Array]:
    """(words, top word share, top 3-gram share) of each caption; words lie between white space.

    The share of a word is its count by the number of words, that of three consecutive words their
    count by the number of such runs; capitals do not count. A share is 0 where nothing is repeated.
    """
    words, top_words, top_runs = [], [], []
    for caption in captions:
        pieces = caption.lower().split()
        words.append(len(pieces))
        if len(set(pieces)) == len(pieces):
            top_words.append(0.0)
            top_runs.append(0.0)
            continue
        top_words.append(max(Counter(pieces).values()) / len(pieces))
        runs = Counter(zip(pieces, pieces[1:], pieces[2:], strict=False))
        largest = max(runs.values(), default=0)
        top_runs.append(largest / runs.total() if largest > 1 else 0.0)
    shares = np.array(top_words, np.float32), np.array(top_runs, np.float32)
    return np.array(words, np.int32), *shares


def fasttext_words(captions: pa.Array) -> pa.Array:
    """(captions,) number of tokens as fastText's tokenizer counts them, int32."""
    words = pc.count_substring_regex(captions, FASTTEXT_WORD)
    return pc.cast(pc.add(words, pc.count_substring(captions, "\n")), pa.int32())


def special_share(captions: pa.Array) -> pa.Array:
    """(captions,) share of the characters that are no letter, mark, digit or white space; 0 for an
    empty caption."""
    special = pc.cast(pc.count_substring_regex(captions, SPECIAL), pa.float32())
    length = pc.max_element_wise(pc.utf8_length(captions), 1)
    return pc.divide(special, pc.cast(length, pa.float32()))


def has_url(captions: pa.Array) -> pa.Array:
    """(captions,) whether a web address stands in it."""
    return pc.match_substring_regex(captions, URL)


def boilerplate(captions: pa.Array) -> pa.Array:
    """(captions,) the key of BOILERPLATE that the whole caption fits, "" where none does."""
    trimmed = pc.utf8_trim_whitespace(captions)
    kinds = list(BOILERPLATE)
    answer = pa.array([""] * len(captions), pa.string())
    for kind in reversed(kinds):
        fits = pc.match_substring_regex(trimmed, BOILERPLATE[kind])
        answer = pc.if_else(fits, kind, answer)
    return answer


def as_word_runs(captions: pa.Array) -> pa.Array:
    """(captions,) the words alone, in lower case, with a space between two.

    What is no letter, mark or digit parts words.
    """
    return pc.replace_substring_regex(pc.utf8_lower(captions), NO_WORD_CHARACTERS, " ")


# --------------------------------------------------------------------------------------------------
# A user's list of words and phrases, and which of them stand in captions as whole words.


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
        lines = [line.strip() for line in read_text(path, "word list").splitlines()]
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


LENGTH = ("caption_words", "caption_chars")
LISTED = "caption_listed"


@dataclass(kw_only=True)
class Caption(Filter):
    """caption_words: pieces between whitespace. caption_chars: code points, whitespace at the ends
    included.

    DataComp's basic filter asks for more than 2 words and more than 5 characters of exactly these.
    detail: also the columns from caption_fasttext_words to caption_boilerplate. words: a file with
    one word or phrase a line; caption_listed is the number of different ones that stand in the
    caption as whole words.
    """

    name = "caption"
    needs = frozenset({"caption"})
    adds, meanings = described(
        caption_words=(pa.int32(), "words of the caption, separated by whitespace"),
        caption_chars=(pa.int32(), "characters (code points) of the caption"),
        caption_fasttext_words=(pa.int32(), "words as fastText's tokenizer counts them"),
        caption_top_word=(pa.float32(), "share of the most frequent word, 0 if none is repeated"),
        caption_top_3gram=(pa.float32(), "share of the most frequent 3 words, 0 if unrepeated"),
        caption_special=(pa.float32(), "share of characters but letters, marks, digits, spaces"),
        caption_url=(pa.bool_(), "whether a web address stands in the caption"),
        caption_boilerplate=(pa.string(), "file_name, counter, placeholder or ''"),
        caption_listed=(pa.int32(), "how many words of the user's list stand in the caption"),
    )
    detail: bool = field(default=False, metadata=LATER)
    words: str | None = field(default=None, metadata=FILE)
    word_list: Any = field(default=None, init=False, repr=False, compare=False)

    def columns(self) -> dict[str, pa.DataType]:
        columns = dict(self.adds)
        if self.words is None:
            del columns[LISTED]
        if not self.detail:
            columns = {name: columns[name] for name in columns if name in (*LENGTH, LISTED)}
        return columns

    def check(self) -> None:
        if self.words is not None:
            WordList.read(self.words)

    def setup(self) -> None:
        if self.words is not None:
            self.word_list = WordList.read(self.words)

    def score(self, batch: Batch) -> Columns:
        words, top_words, top_3grams = count_words(batch.captions)
        columns: Columns = {
            "caption_words": words,
            "caption_chars": np.array([len(caption) for caption in batch.captions], np.int32),
        }
        captions = pa.array(batch.captions, pa.string()) if self.detail or self.words else None
        if self.detail:
            columns |= {
                "caption_fasttext_words": fasttext_words(captions),
                "caption_top_word": top_words,
                "caption_top_3gram": top_3grams,
                "caption_special": special_share(captions),
                "caption_url": has_url(captions),
                "caption_boilerplate": boilerplate(captions),
            }
        if self.words is not None:
            columns[LISTED] = self.word_list.count(captions)
        return columns
