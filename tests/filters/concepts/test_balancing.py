"""Counts, thresholds and probabilities, against the definitions written as loops."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import xxhash

from filters.concepts import (
    count_entries,
    draws,
    row_probabilities,
    tail_share,
    threshold_for_share,
)

LISTS = pa.list_(pa.int32())


def test_a_column_in_pieces_counts_as_a_whole() -> None:
    chunked = pa.chunked_array([[[0], [1, 2]], [[2], None]], LISTS)
    assert count_entries(chunked).to_pydict() == {"entry": [0, 1, 2], "rows": [1, 1, 2]}


def test_a_slice_of_a_column_has_its_own_values() -> None:
    column = pa.array([[0, 1], [1], [], None, [0]], LISTS).slice(1)
    assert row_probabilities(column, np.array([0.5, 1.0])).tolist()[:2] == [1.0, 0.0]
    assert row_probabilities(column, np.array([0.5, 1.0])).tolist()[3] == 0.5


def test_the_threshold_of_a_tail_share_and_back() -> None:
    counts = np.array([1, 1, 2, 4, 8, 16, 32, 0])
    assert threshold_for_share(counts, 4 / 64) == 2  # 1 + 1 + 2 of 64 matches
    assert tail_share(counts, 2) == 2 / 64  # an entry with t rows is at the border, in no tail
    assert threshold_for_share(counts, 0.5) == 16
    assert threshold_for_share(counts, 0) == 1
    assert threshold_for_share(counts, 1) == 32
    assert threshold_for_share(np.zeros(3, np.int64), 0.06) == 1
    assert tail_share(np.zeros(0, np.int64), 5) == 0


def test_draws_are_of_the_row_and_the_seed_alone() -> None:
    uids = [f"{n:032x}" for n in range(20_000)]
    numbers = draws(uids, 3)
    assert numbers[7] == (xxhash.xxh3_64_intdigest(f"balance:{uids[7]}".encode(), 3) >> 11) / 2**53
    assert (draws(uids[::-1], 3)[::-1] == numbers).all()
    assert 0 <= numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 4 / math.sqrt(12 * len(uids))
    others = (
        draws(uids, 4),
        np.array([xxhash.xxh3_64_intdigest(uid.encode(), 3) for uid in uids]) / 2**64,
    )
    for other in others:  # another seed, and the draw of a view's `sample` with the same seed
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 4 / math.sqrt(len(uids))
