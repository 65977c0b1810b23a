"""What can be said about the text of captions, and how much of it is painted in the images."""

from __future__ import annotations

from filters.captions.measures import (
    boilerplate,
    count_words,
    fasttext_words,
    has_url,
    special_share,
)
from filters.captions.text_overlap import TextOverlap
from filters.captions.word_list import WordList

__all__ = [
    "TextOverlap",
    "WordList",
    "boilerplate",
    "count_words",
    "fasttext_words",
    "has_url",
    "special_share",
]
