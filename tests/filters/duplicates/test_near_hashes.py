from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.duplicates import near_hashes
from filters.duplicates.components import joined
from filters.duplicates.near_hashes import near_labels
from manifests.hamming import Hashes, near_pieces


def crowds(rows: int, words: int, centres: int, most: int, seed: int) -> Hashes:
    """Hashes around some centres, each with up to `most` flipped bits."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, (centres, words), dtype=np.uint64)
    hashes = hashes[random.integers(0, centres, rows)]
    for _ in range(most):
        bit = random.integers(0, 64 * words, rows)
        hashes[np.arange(rows), bit // 64] ^= np.uint64(1) << (bit % 64).astype(np.uint64)
    return hashes


@settings(max_examples=25, deadline=None)
@given(
    words=st.sampled_from([1, 4]),
    centres=st.integers(1, 6),
    most=st.integers(0, 40),
    radius=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_groups_are_those_of_all_pairs_also_in_crowds(
    words: int, centres: int, most: int, radius: int, seed: int
) -> None:
    hashes = crowds(250, words, centres, most, seed)
    settings_before = near_hashes.CROWD, near_hashes.PIECE, near_hashes.FRINGE
    near_hashes.CROWD, near_hashes.PIECE, near_hashes.FRINGE = 5, 7, 3
    try:
        labels = near_labels(hashes, radius)
    finally:
        near_hashes.CROWD, near_hashes.PIECE, near_hashes.FRINGE = settings_before
    assert labels.tolist() == joined(250, near_pieces(hashes, radius)).tolist()


def test_a_crowd_of_different_near_hashes_is_not_quadratic() -> None:
    hashes = crowds(50_000, 4, 1, 12, 0)
    started = time.process_time()
    assert set(near_labels(hashes, 31).tolist()) == {0}
    assert time.process_time() - started < 10  # all pairs take half an hour


def test_a_negative_radius_is_refused() -> None:
    with pytest.raises(ValueError, match="radius is -1"):
        near_labels(np.arange(4, dtype=np.uint64)[:, None], -1)
