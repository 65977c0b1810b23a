"""Each measure against small captions whose value follows from its definition."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.caption import (
    as_word_runs,
    boilerplate,
    count_words,
    fasttext_words,
    has_url,
    special_share,
)


def one(values: pa.Array) -> object:
    return values[0].as_py()


def column(*captions: str) -> pa.Array:
    return pa.array(captions, pa.string())


@pytest.mark.parametrize(
    ("caption", "words", "top_word", "top_3gram"),
    [
        ("", 0, 0, 0),
        ("a dog runs", 3, 0, 0),
        ("Dog dog DOG cat", 4, 0.75, 0),
        ("sale sale", 2, 1, 0),
        ("buy it now buy it now buy it now", 9, 1 / 3, 3 / 7),
        ("a b c d a b c", 7, 2 / 7, 2 / 5),
    ],
)
def test_words_and_what_is_repeated(
    caption: str, words: int, top_word: float, top_3gram: float
) -> None:
    counts, top_words, top_3grams = count_words([caption])
    assert counts[0] == words
    assert top_words[0] == pytest.approx(top_word)
    assert top_3grams[0] == pytest.approx(top_3gram)


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


@settings(deadline=None)
@given(st.text("ab \n\t\0\u00a0犬", max_size=20))
def test_words_as_fasttext_reads_them(text: str) -> None:
    assert one(fasttext_words(column(text))) == by_reading(text)


@pytest.mark.parametrize(
    ("caption", "share"),
    [
        ("", 0),
        ("a dog", 0),
        ("***!", 1),
        ("犬が好き", 0),
        ("नमस्ते", 0),  # vowel signs are marks
        ("cafe\u0301", 0),
        ("🐶🐶 a", 0.5),
        ("a-b", 1 / 3),
        ("50% off!", 2 / 8),
    ],
)
def test_special_characters(caption: str, share: float) -> None:
    assert one(special_share(column(caption))) == pytest.approx(share)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("see https://x.org/a", True),
        ("HTTP://X.ORG", True),
        ("photo by www.photos.example", True),
        ("buy at shop.com", True),
        ("shop.com/sale now", True),
        ("shop.com, now", True),
        ("mail me@shop.company", False),
        ("a dog.comes", False),
        ("version 2.0", False),
        ("Mr. Net", False),
        ("ending.community", False),
    ],
)
def test_addresses(caption: str, expected: bool) -> None:
    assert one(has_url(column(caption))) is expected


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


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("", []),
        ("A dog, running!", ["a", "dog", "running"]),
        ("free-shipping_now", ["free", "shipping", "now"]),
        ("cafe\u0301 नमस्ते 犬が", ["cafe\u0301", "नमस्ते", "犬が"]),
        ("a\tb\nc\u00a0d", ["a", "b", "c", "d"]),
    ],
)
def test_words_alone(caption: str, words: list[str]) -> None:
    assert str(one(as_word_runs(column(caption)))).split() == words


def test_a_caption_of_a_megabyte_takes_no_long_time() -> None:
    text = "x" * 1_000_000
    captions = column(text, "ab " * 333_333, "." * 1_000_000, "image " * 166_666)
    assert has_url(captions).to_pylist() == [False] * 4
    assert boilerplate(captions).to_pylist() == [""] * 4
    assert special_share(captions).to_pylist()[2] == 1
