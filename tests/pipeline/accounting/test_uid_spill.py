"""Uids sorted in bounded memory: what is repeated and what differs is counted exactly."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pipeline.accounting import uid_spill
from pipeline.accounting.uid_spill import UidSpill, compare


def column(numbers: list[int]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([f"{number:032x}" for number in numbers], pa.string())])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uid_spill, "PARTITION_ROWS", 100)
    monkeypatch.setattr(uid_spill, "BUFFERED_ROWS", 70)


def drawn(count: int) -> list[int]:
    randomness = random.Random(1)
    return [randomness.getrandbits(128) for _ in range(count)]


def test_every_uid_comes_back_in_order() -> None:
    numbers = drawn(1000)
    with UidSpill(1000) as spill:
        for start in range(0, 1000, 45):
            spill.add(column(numbers[start : start + 45]))
        assert spill.bits == 4
        back = [uid for part in spill.partitions() for uid in part.tolist()]
    expected = [number.to_bytes(16, "big").rstrip(b"\0") for number in sorted(numbers)]
    assert back == expected


def test_repetitions_and_differences_are_counted() -> None:
    numbers = drawn(500)
    with UidSpill(500) as one, UidSpill(500) as two:
        one.add(column(numbers))
        two.add(column(numbers[::-1]))
        assert compare(one, two) == (0, 0, True)
    with UidSpill(500) as one, UidSpill(500) as two:
        one.add(column([*numbers, *numbers[:3]]))
        two.add(column([*numbers, *numbers[7:9]]))
        assert compare(one, two) == (3, 2, False)


def test_an_empty_pool_has_nothing_to_compare() -> None:
    with UidSpill(0) as one, UidSpill(0) as two:
        assert compare(one, two) == (0, 0, True)


def test_a_uid_of_another_length_is_refused() -> None:
    with UidSpill(1) as spill, pytest.raises(ValueError, match="32 hex digits"):
        spill.add(pa.chunked_array([pa.array(["abcd"])]))
