"""The join of keys: each row once, the first of repeated keys, and what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.metadata_join import LOCATION, ORDINAL, MatchCounts, match_keys, payload
from pipeline.pool.uid_hashes import Bytes, RecordSpill


def spill(keys: Bytes, values: np.ndarray, bits: int) -> RecordSpill:  # type: ignore[type-arg]
    records = RecordSpill(16 + values.dtype.itemsize, bits)
    records.add(np.hstack([keys, payload(values)]))
    return records


def keys_of(numbers: list[tuple[int, int]]) -> Bytes:
    return np.array(numbers, ">u8").view(np.uint8).reshape(-1, 16)


@pytest.mark.parametrize("bits", [0, 4])
def test_every_pool_row_gets_the_first_table_row_of_its_key(bits: int) -> None:
    rng = np.random.default_rng(3)
    # few different halves, so that first halves collide
    pool = [(int(a) << 60, int(b)) for a, b in rng.integers(0, 12, (400, 2))]
    table = [(int(a) << 60, int(b)) for a, b in rng.integers(0, 14, (300, 2))]
    ordinals = np.arange(400).astype(ORDINAL)
    locations = np.zeros(300, LOCATION)
    locations["file"], locations["row"] = np.arange(300) // 100, np.arange(300) % 100
    counts = MatchCounts()
    with (
        spill(keys_of(pool), ordinals, bits) as of_pool,
        spill(keys_of(table), locations, bits) as of_table,
    ):
        matches = list(match_keys(of_pool, of_table, counts))
    first: dict[tuple[int, int], int] = {}
    for row, key in enumerate(table):
        first.setdefault(key, row)
    expected = {row: first[key] for row, key in enumerate(pool) if key in first}
    found = {}
    for part in matches:
        for ordinal, file, row in zip(part.ordinals, part.files, part.rows, strict=True):
            found[int(ordinal)] = int(file) * 100 + int(row)
    assert found == expected
    missing = first.keys() - set(pool)
    assert (counts.table_rows, counts.keys) == (300, len(first))
    assert (counts.pool_rows, counts.matched_rows) == (400, len(expected))
    assert counts.missing == len(missing)
    assert set(counts.missing_keys) <= {f"{a:016x}{b:016x}" for a, b in missing}
    assert len(counts.missing_keys) == min(10, len(missing))


def test_nothing_to_match() -> None:
    counts = MatchCounts()
    empty = np.zeros((0, 16), np.uint8)
    one = keys_of([(0, 0)])
    with (
        spill(one, np.zeros(1, ORDINAL), 0) as of_pool,
        spill(empty, np.zeros(0, LOCATION), 0) as of_table,
    ):
        (part,) = match_keys(of_pool, of_table, counts)
    assert len(part.rows) == 0
    assert (counts.pool_rows, counts.matched_rows, counts.missing) == (1, 0, 0)
