"""Uids of pairs and attempts: what is repeated and what differs is counted exactly."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from manifests.columns import hex_bytes
from pipeline.pool import uid_hashes
from pipeline.pool.uid_hashes import Bytes, compare_uids, uid_spill


def records(numbers: list[int]) -> Bytes:
    return hex_bytes(pa.array([f"{number:032x}" for number in numbers], pa.string()), 16, "uid")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uid_hashes, "UID_PARTITION_ROWS", 100)
    monkeypatch.setattr(uid_hashes, "BUFFERED_BYTES", 70 * 16)


def drawn(count: int) -> list[int]:
    randomness = random.Random(1)
    return [randomness.getrandbits(128) for _ in range(count)]


def test_repetitions_and_differences_are_counted() -> None:
    numbers = drawn(500)
    with uid_spill(500) as one, uid_spill(500) as two:
        one.add(records(numbers))
        two.add(records(numbers[::-1]))
        assert compare_uids(one, two) == (0, 0, True)
    with uid_spill(500) as one, uid_spill(500) as two:
        one.add(records([*numbers, *numbers[:3]]))
        two.add(records([*numbers, *numbers[7:9]]))
        assert compare_uids(one, two) == (3, 2, False)


def test_an_empty_pool_has_nothing_to_compare_uids() -> None:
    with uid_spill(0) as one, uid_spill(0) as two:
        assert compare_uids(one, two) == (0, 0, True)


def test_spills_of_other_sizes_are_not_compared() -> None:
    with uid_spill(50) as one, uid_spill(500) as two, pytest.raises(AssertionError):
        compare_uids(one, two)
