"""Balancing over a pool, against a direct computation over all of its rows."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from clipmill.filters.concepts import (
    Balance,
    count_entries,
    draws,
    row_probabilities,
    tail_share,
    threshold_for_share,
)
from tests.support.pool_filters import run_inline

LISTS = pa.list_(pa.int32())
Rows = list[list[int] | None]


def table(rows: Rows) -> pa.Table:
    uids = [xxhash.xxh3_128_hexdigest(str(number).encode()) for number in range(len(rows))]
    return pa.table({"uid": pa.array(uids, pa.string()), "concept_entries": pa.array(rows, LISTS)})


def direct(rows: pa.Table, t: int, seed: int) -> dict[str, tuple[float, bool] | None]:
    """uid -> (probability, kept) as the definition says, from all rows at once."""
    lists = rows["concept_entries"].to_pylist()
    counts: dict[int, int] = {}
    for entries in lists:
        for entry in entries or ():
            counts[entry] = counts.get(entry, 0) + 1
    expected: dict[str, tuple[float, bool] | None] = {}
    for uid, entries in zip(rows["uid"].to_pylist(), lists, strict=True):
        if entries is None:
            expected[uid] = None
            continue
        probability = 1 - math.prod(1 - min(1, t / counts[entry]) for entry in entries)
        draw = (xxhash.xxh3_64_intdigest(b"balance:" + uid.encode(), seed) >> 11) / 2**53
        expected[uid] = probability, draw < probability
    return expected


@given(
    st.lists(st.none() | st.lists(st.integers(0, 6), max_size=4, unique=True), max_size=40),
    st.integers(1, 8),
    st.integers(0, 3),
    st.sampled_from([1, 3, 50]),
    st.sampled_from([1, 2, 7]),
)
def test_every_row_as_a_direct_computation_has_it(
    rows: Rows, t: int, seed: int, per_shard: int, partitions: int
) -> None:
    pool = table(rows)
    shards = [pool.slice(n, per_shard) for n in range(0, max(1, len(rows)), per_shard)]
    values = run_inline(Balance(t=t, seed=seed), shards, partitions)
    for uid, expected in direct(pool, t, seed).items():
        if expected is None:
            assert uid not in values
        else:
            assert values[uid]["balance_probability"] == pytest.approx(expected[0], abs=1e-6)
            assert values[uid]["balance_keep"] == expected[1]


def test_t_may_follow_from_the_share_of_the_tail() -> None:
    rows: Rows = [[0]] * 90 + [[1]] * 6 + [[2]] * 4
    by_share = run_inline(Balance(tail_share=0.1), [table(rows)], 1)
    assert by_share == run_inline(Balance(t=6), [table(rows)], 1)
    assert {round(row["balance_probability"], 4) for row in by_share.values()} == {1, 0.0667}


def test_merged_summaries_give_the_same_state() -> None:
    filter_ = Balance(tail_share=0.3)
    parts = [table([[0, 1], [5]]), table([None, [1]]), table([None]), table([[1, 5], [7]])]
    summaries = [filter_.summarise(part) for part in parts]
    whole = pa.concat_tables(summaries)
    merged = filter_.merge(
        pa.concat_tables([filter_.merge(pa.concat_tables(summaries[:2])), *summaries[2:]])
    )
    assert merged.num_rows == 4
    assert merged.schema == whole.schema
    assert filter_.combine(merged).equals(filter_.combine(whole))


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
