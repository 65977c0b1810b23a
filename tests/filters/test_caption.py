"""Counts and measures of captions whose values follow from their definitions, and word lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmill.filters import check_filters, instances_of
from clipmill.filters.base import Batch
from clipmill.filters.caption import Caption, WordList, as_word_runs, boilerplate, fasttext_words
from clipmill.manifests.schema import FilterSpec


def column(*captions: str) -> pa.Array:
    return pa.array(captions, pa.string())


def score(filter_: Caption, *captions: str) -> dict[str, list[Any]]:
    filter_.setup()
    scores = filter_.score(Batch(captions=list(captions), images=None, rows=pa.table({})))
    columns = filter_.columns()
    assert scores.keys() == columns.keys()
    return {name: pa.array(scores[name], kind).to_pylist() for name, kind in columns.items()}


VALUES: list[tuple[str, str, dict[Any, Any]]] = [
    (
        "words", "between white space, a no-break space too",
        {"": 0, "a dog": 2, "  a\tdog\n runs ": 3, "narrow\u00a0space": 2, "犬の写真です": 1},
    ),
    ("chars", "code points", {"": 0, "  a\tdog\n runs ": 14, "犬の写真です": 6, "🐱 cat": 5}),
    (
        "top_word", "by the number of words",
        {"": 0, "a dog runs": 0, "Dog dog DOG cat": 0.75, "sale sale": 1, "a b c d a b c": 2 / 7},
    ),
    (
        "top_3gram", "by the number of runs",
        {"a dog runs": 0, "sale sale": 0, "a b c d a b c": 2 / 5,
         "buy it now buy it now buy it now": 3 / 7},
    ),
    (
        "special", "no letter, mark, digit or white space; vowel signs are marks",
        {"": 0, "a dog": 0, "***!": 1, "犬が好き": 0, "नमस्ते": 0, "cafe\u0301": 0, "🐶🐶 a": 0.5,
         "a-b": 1 / 3, "50% off!": 2 / 8},
    ),
    (
        "url", "an address stands in it",
        dict.fromkeys(
            ("see https://x.org/a", "HTTP://X.ORG", "photo by www.photos.example",
             "buy at shop.com", "shop.com/sale now", "shop.com, now"), True,
        ) | dict.fromkeys(
            ("mail me@shop.company", "a dog.comes", "version 2.0", "Mr. Net", "ending.community"),
            False,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "meaning", "values"), VALUES)
def test_a_measure_is_its_definition(name: str, meaning: str, values: dict[str, Any]) -> None:
    scores = score(Caption(detail=True), *values)[f"caption_{name}"]
    for caption, value, expected in zip(values, scores, values.values(), strict=True):
        assert value == pytest.approx(expected), (caption, meaning)


def test_which_columns_there_are(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("sale")
    words = str(tmp_path / "words.txt")
    captions = ["sale sale http://x.org", "IMG_1234"]
    scores = score(Caption(detail=True, words=words), *captions)
    assert scores.keys() == Caption.adds.keys()
    assert scores["caption_listed"] == [1, 0]
    assert scores["caption_boilerplate"] == ["", "file_name"]
    assert list(score(Caption(words=words))) == ["caption_words", "caption_chars", "caption_listed"]
    assert "caption_listed" not in score(Caption(detail=True))
    assert list(score(Caption())) == ["caption_words", "caption_chars"]


def by_reading(text: str) -> int:
    """fastText's readWord as a loop: a line end is a word of its own."""
    words, inside = 0, False
    for character in text:
        if character in " \n\r\t\v\f\0":
            words += character == "\n"
            inside = False
        else:
            words += not inside
            inside = True
    return words


@given(st.text("ab \n\t\0\u00a0犬", max_size=20))
def test_words_as_fasttext_reads_them(text: str) -> None:
    assert fasttext_words(column(text)).to_pylist() == [by_reading(text)]


@pytest.mark.parametrize(
    ("kind", "captions"),
    [
        (
            "file_name",
            "IMG_1234.jpg|img_1234|DSC00012|DSCN1234 (2)|my holiday.JPEG|a1b2c3d4e5f60718|"
            "20190304_123456|P1010234|Screenshot 2019-03-04 at 12.30.11|logo-2.svg|"
            "123e4567-e89b-12d3-a456-426614174000",
        ),
        ("counter", "image 3 of 10|Photo 2/7|12|#4|slide 5|image 3|Bild 2 von 9|3.|(2)"),
        (
            "placeholder",
            "untitled|Image|photo...|no image available|Click to enlarge|alt text|null|N/A|"
            "view larger image|Image may contain: 1 person, smiling|profile picture",
        ),
        (
            "",
            "a dog on the beach|Image of a dog|Untitled Goose Game cover|5 dogs|"
            "Logo design by Anna|the 3 of us|Photo: Anna Lee|images of 2 dogs|犬|v1.2 release|"
            "Thomsonlaan-wk12-01 house|Click Bait the movie",
        ),
    ],
)
def test_captions_that_are_only_boilerplate(kind: str, captions: str) -> None:
    given_captions = [f" {caption}\n" for caption in captions.split("|")]
    answers = boilerplate(column(*given_captions)).to_pylist()
    assert dict(zip(given_captions, answers, strict=True)) == dict.fromkeys(given_captions, kind)


def test_a_caption_of_a_megabyte_takes_no_long_time() -> None:
    captions = ["x" * 1_000_000, "ab " * 333_333, "." * 1_000_000, "image " * 166_666]
    scores = score(Caption(detail=True), *captions)
    assert scores["caption_url"] == [False] * 4
    assert scores["caption_boilerplate"] == [""] * 4
    assert scores["caption_special"][2] == 1


def test_words_alone() -> None:
    expected = {
        "": "", "A dog, running!": "a dog running", "free-shipping_now": "free shipping now",
        "cafe\u0301 नमस्ते 犬が": "cafe\u0301 नमस्ते 犬が", "a\tb\nc\u00a0d": "a b c d",
    }  # fmt: skip
    runs = as_word_runs(column(*expected)).to_pylist()
    assert [run.strip() for run in runs] == list(expected.values())


def test_whole_words_whatever_their_case() -> None:
    counts = {
        "": 0, "Sale, SALE sale!": 1, "wholesale": 0, "free-shipping on sale": 2,
        "free\nshipping": 1, "shipping free": 0, "caf\u00e9 cafe\u0301": 1, "(a.b*)": 1,
    }  # fmt: skip
    words = WordList(["sale", "Free Shipping", "CAF\u00c9", "a.b*"])
    assert words.count(column(*counts)).tolist() == list(counts.values())


def test_a_file_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# no ads\nsale\r\n\n  free shipping \n")
    assert WordList.read(str(path)).by_length == {1: {"sale"}, 2: {"free shipping"}}
    for text, message in (
        ("# nothing\n\n", r"words\.txt: the word list is empty"),
        ("sale\n***\n", r"has '\*\*\*', which holds no letter or digit"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            check_filters(instances_of([FilterSpec(name="caption", options={"words": str(path)})]))
