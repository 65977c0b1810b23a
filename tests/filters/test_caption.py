"""Words and characters as DataComp counts them."""

from __future__ import annotations

from pathlib import Path

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


def score(filter_: Caption, *captions: str) -> dict[str, list[object]]:
    filter_.setup()
    scores = filter_.score(Batch(captions=list(captions), images=None, rows=pa.table({})))
    columns = filter_.columns()
    assert scores.keys() == columns.keys()
    return {name: pa.array(scores[name], kind).to_pylist() for name, kind in columns.items()}


def test_all_columns(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("sale")
    scores = score(Caption(detail=True, words=str(path)), "sale sale http://x.org", "IMG_1234")
    assert scores == {
        "caption_words": [3, 1],
        "caption_chars": [22, 8],
        "caption_fasttext_words": [3, 1],
        "caption_top_word": [pytest.approx(2 / 3), 0],
        "caption_top_3gram": [0, 0],
        "caption_special": [pytest.approx(4 / 22), pytest.approx(1 / 8)],
        "caption_url": [True, False],
        "caption_boilerplate": ["", "file_name"],
        "caption_listed": [1, 0],
    }
    assert score(Caption(words=str(path)), "Sale!")["caption_listed"] == [1]
    assert score(Caption(detail=True))["caption_url"] == []
