"""The join of keys: each row once, the first of repeated keys, and what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline import metadata_join
from pipeline.metadata_join import ROW_BITS, KeyMatch, MatchCounts
from pipeline.shuffle import Bytes


def keys_of(numbers: list[tuple[int, int]]) -> Bytes:
    return np.array(numbers, ">u8").view(np.uint8).reshape(-1, 16)


@pytest.mark.parametrize("batch_rows", [7, 10_000])
def test_every_pool_row_gets_the_first_table_row_of_its_key(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_join, "BATCH_ROWS", batch_rows)
    rng = np.random.default_rng(3)
    # few different halves, so that first halves collide
    pool = [(int(a) << 60, int(b)) for a, b in rng.integers(0, 12, (400, 2))]
    table = [(int(a) << 60, int(b)) for a, b in rng.integers(0, 14, (300, 2))]
    files, rows = np.arange(300) // 100, np.arange(300) % 100
    counts = MatchCounts()
    with KeyMatch() as match:
        match.add("pool", keys_of(pool), np.arange(400))
        match.add("keys", keys_of(table), files << ROW_BITS | rows)
        matches = list(match.matches(counts))
    assert [part.file for part in matches] == [0, 1, 2]
    first: dict[tuple[int, int], int] = {}
    for row, key in enumerate(table):
        first.setdefault(key, row)
    expected = {row: first[key] for row, key in enumerate(pool) if key in first}
    found = {}
    for part in matches:
        assert part.rows.tolist() == sorted(part.rows.tolist())
        for ordinal, row in zip(part.ordinals.tolist(), part.rows.tolist(), strict=True):
            found[ordinal] = part.file * 100 + row
    assert found == expected
    missing = first.keys() - set(pool)
    assert (counts.table_rows, counts.keys) == (300, len(first))
    assert (counts.pool_rows, counts.matched_rows) == (400, len(expected))
    assert counts.missing == len(missing)
    assert counts.missing_keys == sorted(f"{a:016x}{b:016x}" for a, b in missing)[:10]


def test_nothing_to_match() -> None:
    counts = MatchCounts()
    with KeyMatch() as match:
        match.add("pool", keys_of([(0, 0)]), np.zeros(1, np.int64))
        assert list(match.matches(counts)) == []
    assert (counts.pool_rows, counts.matched_rows, counts.missing) == (1, 0, 0)
