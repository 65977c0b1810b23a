from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.duplicates import route_near
from tests.manifests.test_hamming import drawn_hashes, near_pairs


@settings(max_examples=30, deadline=None)
@given(
    words=st.sampled_from([1, 4]),
    radius=st.integers(0, 40),
    partitions=st.sampled_from([1, 2, 3, 7, 36, 700, 5000]),
    seed=st.integers(0, 9),
)
def test_near_hashes_meet_in_a_partition(
    words: int, radius: int, partitions: int, seed: int
) -> None:
    hashes = drawn_hashes(80, words, radius, seed)
    uids = pa.array([f"{number:032x}" for number in range(80)])
    rows, parts = route_near(uids, hashes, radius, partitions)
    assert parts.min() >= 0
    assert parts.max() < partitions
    assert len(set(zip(rows.tolist(), parts.tolist(), strict=True))) == len(rows)
    of_row = [set(parts[rows == row].tolist()) for row in range(80)]
    assert all(of_row)
    for i, j, _ in near_pairs(hashes, radius):
        assert of_row[i] & of_row[j]


@pytest.mark.parametrize(("partitions", "most"), [(1, 1), (3, 2), (100, 13), (10_000, 32)])
def test_a_row_goes_to_few_partitions(partitions: int, most: int) -> None:
    uids = pa.array([f"{number:032x}" for number in range(50)])
    rows, _ = route_near(uids, drawn_hashes(50, 4, 31), 31, partitions)
    assert np.bincount(rows).max() <= most


def test_partitions_are_balanced() -> None:
    uids = pa.array([f"{number:032x}" for number in range(4000)])
    _, parts = route_near(uids, drawn_hashes(4000, 4, 31), 31, 10_000)
    assert np.bincount(parts, minlength=10_000).max() < 250
