"""Counts, thresholds and probabilities, against the definitions written as loops."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.concepts import (
    add_counts,
    count_entries,
    draws,
    entry_probabilities,
    row_probabilities,
    tail_share,
    threshold_for_share,
)

LISTS = pa.list_(pa.int32())
lists = st.lists(st.none() | st.lists(st.integers(0, 9), max_size=5, unique=True), max_size=20)


@settings(deadline=None)
@given(lists, lists)
def test_counts_add_up_over_shards(
    first: list[list[int] | None], second: list[list[int] | None]
) -> None:
    tables = [count_entries(pa.array(rows, LISTS)) for rows in (first, second)]
    counts = add_counts(pa.concat_tables(tables))
    for entry in range(10):
        rows = sum(entry in row for row in [*first, *second] if row)
        assert (counts[entry] if entry < counts.size else 0) == rows


def test_a_column_in_pieces_counts_as_a_whole() -> None:
    chunked = pa.chunked_array([[[0], [1, 2]], [[2], None]], LISTS)
    assert count_entries(chunked).to_pydict() == {"entry": [0, 1, 2], "rows": [1, 1, 2]}


@settings(deadline=None)
@given(lists, st.integers(1, 6))
def test_a_row_is_kept_if_any_of_its_entries_keeps_it(rows: list[list[int] | None], t: int) -> None:
    column = pa.array(rows, LISTS)
    counts = add_counts(count_entries(column))
    probabilities = row_probabilities(column, entry_probabilities(counts, t))
    for row, probability in zip(rows, probabilities, strict=True):
        if row is None:
            assert math.isnan(probability)
        else:
            missed = math.prod(1 - min(1, t / counts[entry]) for entry in row)
            assert probability == pytest.approx(1 - missed, abs=1e-12)


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


def test_kept_rows_of_each_entry_are_as_many_as_its_probability_says() -> None:
    """Rows of one entry each: the kept ones are binomial with t / count."""
    generator = np.random.default_rng(0)
    entries = np.minimum(generator.zipf(1.5, 50_000) - 1, 20).astype(np.int32)
    column = pa.array(entries[:, None].tolist(), LISTS)
    counts = add_counts(count_entries(column))
    shares = entry_probabilities(counts, 500)
    kept = draws([f"{n:032x}" for n in range(entries.size)], 0) < row_probabilities(column, shares)
    for entry, count in enumerate(counts):
        expected = count * shares[entry]
        spread = math.sqrt(max(1e-9, expected * (1 - shares[entry])))
        assert abs(kept[entries == entry].sum() - expected) <= 4 * spread
    assert (kept[counts[entries] <= 500]).all()


def test_an_entry_that_was_never_counted_is_an_error() -> None:
    with pytest.raises(IndexError):
        row_probabilities(pa.array([[5]], LISTS), np.array([1.0]))
