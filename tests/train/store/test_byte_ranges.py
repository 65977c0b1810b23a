"""Ranged reads: every row in one range, few ranges, nothing read for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from train import store
from train.store import ByteRanges, coalesce


def ranges(rows: list[tuple[int, int]], gap: int, part: int = 1000) -> ByteRanges:
    offset, length = np.array(rows, np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "GAP", gap)
        patch.setattr(store, "PART", part)
        return coalesce(offset, length)


def spans(of: ByteRanges) -> list[tuple[int, int]]:
    return list(zip(of.start.tolist(), of.length.tolist(), strict=True))


def test_near_rows_share_a_range_and_far_ones_do_not() -> None:
    rows = [(0, 10), (15, 10), (31, 5)]
    assert spans(ranges(rows, 5)) == [(0, 25), (31, 5)]
    assert spans(ranges(rows, 6)) == [(0, 36)]
    assert spans(ranges(rows, 4)) == [(0, 10), (15, 10), (31, 5)]


def test_a_range_stays_within_its_size_but_for_one_large_row() -> None:
    rows = [(0, 40), (40, 40), (80, 40), (120, 500), (620, 10)]
    assert spans(ranges(rows, 100, 100)) == [(0, 80), (80, 40), (120, 500), (620, 10)]


@pytest.mark.parametrize("gap", [0, 7, 200])
def test_every_row_lies_in_its_range(gap: int) -> None:
    rng = np.random.default_rng(3)
    length = rng.integers(1, 60, 400)
    offset = np.cumsum(length + rng.integers(0, 30, 400))
    chosen = rng.integers(0, 400, 150)  # in any order, some of them twice
    offset, length = offset[chosen], length[chosen]
    found = ranges(list(zip(offset.tolist(), length.tolist(), strict=True)), gap, 300)
    start, size = found.start[found.of_row], found.length[found.of_row]
    assert (start <= offset).all()
    assert (offset + length <= start + size).all()
    assert (found.length <= 300).all()
    assert (np.diff(found.start) > 0).all()
    assert set(found.of_row.tolist()) == set(range(len(found.start)))
    for k in range(len(found.start)):
        here = np.unique(np.stack([offset, offset + length])[:, found.of_row == k], axis=1)
        assert (here[0, 1:] - here[1, :-1] <= gap).all()
