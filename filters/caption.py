"""Length of a caption as DataComp counts it; with `detail`, how much of it is text that says
something."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from filters.base import FREE, LATER, Batch, Columns, Filter
from filters.captions import (
    WordList,
    boilerplate,
    count_words,
    fasttext_words,
    has_url,
    special_share,
)
from manifests import disk

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

    name: ClassVar[str] = "caption"
    needs: ClassVar[frozenset[str]] = frozenset({"caption"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "caption_words": pa.int32(),
        "caption_chars": pa.int32(),
        "caption_fasttext_words": pa.int32(),
        "caption_top_word": pa.float32(),
        "caption_top_3gram": pa.float32(),
        "caption_special": pa.float32(),
        "caption_url": pa.bool_(),
        "caption_boilerplate": pa.string(),
        "caption_listed": pa.int32(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "caption_words": "words of the caption, separated by whitespace",
        "caption_chars": "characters (code points) of the caption",
        "caption_fasttext_words": "words as fastText's tokenizer counts them",
        "caption_top_word": "share of the most frequent word, 0 if no word is repeated",
        "caption_top_3gram": "share of the most frequent run of three words, 0 if none is repeated",
        "caption_special": "share of characters that are no letter, mark, digit or space",
        "caption_url": "whether a web address stands in the caption",
        "caption_boilerplate": (
            "file_name, counter or placeholder if the whole caption is one, else ''"
        ),
        "caption_listed": "how many words of the user's list stand in the caption",
    }
    detail: bool = field(default=False, metadata=LATER)
    words: str | None = field(default=None, metadata=FREE)  # identity() says what is in it
    word_list: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.words is not None:
            self.words = os.path.abspath(self.words)  # a worker may start in another folder
            if not os.path.isfile(self.words):
                raise ValueError(
                    f"filter caption: there is no file {self.words}; "
                    "give a list with one word or phrase a line"
                )

    def columns(self) -> dict[str, pa.DataType]:
        columns = {}
        for column, kind in self.adds.items():
            if column in LENGTH:
                wanted = True
            elif column == LISTED:
                wanted = self.words is not None
            else:
                wanted = self.detail
            if wanted:
                columns[column] = kind
        return columns

    def identity(self) -> str:
        return "" if self.words is None else disk.file_sha256(self.words)

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
