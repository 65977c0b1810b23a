"""Words and characters as DataComp counts them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from filters import check_filters, make
from filters.base import Batch, set_id
from filters.caption import Caption
from manifests.schema import FilterSpec


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


def test_the_id_is_that_of_the_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("sale")
    first = set_id(Caption(words=str(path)))
    (tmp_path / "copy.txt").write_text("sale")
    assert set_id(Caption(words=str(tmp_path / "copy.txt"))) == first != set_id(Caption())
    path.write_text("sales")
    assert set_id(Caption(words=str(path))) != first


def test_a_word_list_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"caption: .*there is no file /nowhere/x\.txt"):
        make(FilterSpec(name="caption", options={"words": "/nowhere/x.txt"}))
    path = tmp_path / "words.txt"
    path.write_text("...\n")
    with pytest.raises(ValueError, match="which holds no letter or digit"):
        check_filters([FilterSpec(name="caption", options={"words": str(path)})])
