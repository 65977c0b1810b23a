"""Rows to shards and files: every row once, in order, whatever the sizes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.planning.planner import (
    KEY_BITS,
    SHARDS_PER_FILE,
    cell_bounds,
    file_parts,
    shard_sizes,
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_files_hold_every_shard_once_and_the_cells_that_have_its_rows(
    group_rows: list[int], per_shard: int, per_file: int, random: object
) -> None:
    counts = np.array(group_rows)
    bounds = cell_bounds(counts, per_file)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == len(group_rows) << KEY_BITS
    groups = np.array([bound >> KEY_BITS for bound in bounds[:-1]])
    cell_rows = np.zeros(len(groups), np.int64)
    for group, rows in enumerate(group_rows):
        own = np.flatnonzero(groups == group)
        for row in range(rows):
            cell_rows[own[row * 7 % len(own)]] += 1
    _, sizes = shard_sizes(counts, per_shard)
    parts = file_parts(sizes, cell_rows, per_file)
    shards = [shard for part in parts for shard in range(part.first_shard, part.end_shard)]
    assert shards == list(range(len(sizes)))
    starts = np.concatenate([[0], np.cumsum(cell_rows)])
    row_starts = np.concatenate([[0], np.cumsum(sizes)])
    for part in parts:
        rows = int(row_starts[part.end_shard] - row_starts[part.first_shard])
        assert rows <= per_file or part.end_shard == part.first_shard + 1
        assert starts[part.first_cell] + part.skip == row_starts[part.first_shard]
        assert part.skip + rows <= starts[part.end_cell] - starts[part.first_cell]
        assert 0 <= part.skip < max(1, cell_rows[part.first_cell])


def test_a_file_has_a_bounded_number_of_shards() -> None:
    parts = file_parts(np.ones(1000, np.int64), np.array([1000]), 10**6)
    assert [part.end_shard - part.first_shard for part in parts] == [256, 256, 256, 232]
    assert SHARDS_PER_FILE == 256


@pytest.mark.parametrize("slices", [2, 3, 1000])
def test_slices_divide_the_keys_evenly(slices: int) -> None:
    bounds = cell_bounds(np.array([16, 17, slices * 16, 0]), 16 * 16)[2:-1]
    assert bounds[0] == 2 << KEY_BITS
    assert bounds[-1] == 3 << KEY_BITS
    widths = np.diff(np.array(bounds, dtype=object))
    assert len(widths) == (slices if slices > 16 else 1)
    assert max(widths) - min(widths) <= 1
