"""The same numbers as open_clip's tokenizer gives, without the padding."""

from __future__ import annotations

import random
import time

import pyarrow as pa
import pytest

from clipmill.filters import tokens
from clipmill.filters.base import Batch
from clipmill.filters.tokens import Tokens
from tests.support.late import open_clip


@pytest.fixture(scope="module")
def filter_() -> Tokens:
    filter_ = Tokens()
    filter_.setup()
    return filter_


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "a photo of a dog",
        "Ünïcode &amp; 🐱",
        "word " * 200,
        "犬の写真です",
        "<end_of_text> a dog",
    ],
)
def test_the_same_as_open_clip(filter_: Tokens, caption: str) -> None:
    (row,) = filter_.score(Batch(captions=[caption], images=None, rows=pa.table({})))["tokens"]
    padded = open_clip.tokenize([caption])[0].tolist()
    assert row.tolist() == padded[: len(row)]
    assert not any(padded[len(row) :])
    assert len(row) <= 77
    assert row[-1] == 49407
    assert pa.array([row], pa.list_(pa.uint16())).to_pylist() == [row.tolist()]


@pytest.mark.parametrize("letters", ["a", "abcdefghijklmnopqrstuvwxyz", "犬の写真です", "é-"])
def test_a_word_without_end_costs_a_second_and_not_hours(filter_: Tokens, letters: str) -> None:
    rng = random.Random(0)
    word = "".join(rng.choices(letters, k=1_500))
    whole = filter_.coder.encode(word)[:75]
    assert filter_.encode(word).tolist() == [49406, *whole, 49407]
    started = time.process_time()
    assert filter_.encode(word * 120).tolist() == [49406, *whole, 49407]
    assert time.process_time() - started < 20  # 200,000 letters took 700 s


def test_the_memory_of_words_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    filter_ = Tokens()
    filter_.setup()
    monkeypatch.setattr(tokens, "CACHED_WORDS", 10)
    batch = Batch(
        captions=[f"{letter}word {letter}other" for letter in "abcdefghi"],
        images=None,
        rows=pa.table({}),
    )
    filter_.score(batch)
    before = len(filter_.coder.cache)
    filter_.score(Batch(captions=["one"], images=None, rows=pa.table({})))
    assert len(filter_.coder.cache) < 10 < before
