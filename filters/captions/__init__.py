"""What can be said about the text of captions, without the images."""

from __future__ import annotations

from filters.captions.measures import (
    boilerplate,
    count_words,
    fasttext_words,
    has_url,
    special_share,
)
from filters.captions.word_list import WordList

__all__ = [
    "WordList",
    "boilerplate",
    "count_words",
    "fasttext_words",
    "has_url",
    "special_share",
]
