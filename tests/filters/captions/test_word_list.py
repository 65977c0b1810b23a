"""A user's words in captions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from filters.caption import WordList


@pytest.mark.parametrize(
    ("caption", "count"),
    [
        ("", 0),
        ("Sale, SALE sale!", 1),
        ("wholesale", 0),
        ("free-shipping on sale", 2),
        ("free\nshipping", 1),
        ("shipping free", 0),
        ("caf\u00e9 cafe\u0301", 1),
        ("(a.b*)", 1),
    ],
)
def test_whole_words_whatever_their_case(caption: str, count: int) -> None:
    words = WordList(["sale", "Free Shipping", "CAF\u00c9", "a.b*"])
    assert words.count(pa.array([caption])).tolist() == [count]


def test_a_file_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# no ads\nsale\r\n\n  free shipping \n")
    assert WordList.read(str(path)).by_length == {1: {"sale"}, 2: {"free shipping"}}


def test_lists_that_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# nothing\n\n")
    with pytest.raises(ValueError, match=r"words\.txt: the word list is empty"):
        WordList.read(str(path))
    path.write_text("sale\n***\n")
    with pytest.raises(ValueError, match=r"has '\*\*\*', which holds no letter or digit"):
        WordList.read(str(path))
    with pytest.raises(ValueError, match="cannot be read"):
        WordList.read(str(tmp_path / "nowhere.txt"))
