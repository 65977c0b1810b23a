"""Words and characters as DataComp counts them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from filters.base import Batch
from filters.caption import Caption


@pytest.mark.parametrize(
    ("caption", "words", "chars"),
    [
        ("", 0, 0),
        ("a dog", 2, 5),
        ("  a\tdog\n runs ", 3, 14),
        ("narrow\u00a0space", 2, 12),  # a no-break space parts words, as str.split has it
        ("犬の写真です", 1, 6),
        ("🐱 cat", 2, 5),  # code points, not bytes
    ],
)
def test_counts(caption: str, words: int, chars: int) -> None:
    scores = Caption().score(Batch(captions=[caption], images=None, rows=pa.table({})))
    assert (scores["caption_words"][0], scores["caption_chars"][0]) == (words, chars)


def test_a_missing_caption_is_not_counted_as_empty() -> None:
    with pytest.raises(AttributeError):
        Caption().score(Batch(captions=[None], images=None, rows=pa.table({})))  # type: ignore[list-item]
