"""A mean of ranks and soft cap sampling, against their definitions over all rows at once."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmill.filters.base import PoolFilter
from clipmill.filters.ranks import GRAIN, RankMean, SoftCap, numbers_of, ring_times
from tests.support.pool_filters import run_inline

VALUES = st.none() | st.sampled_from([-1.5, -0.0, 0.0, 0.25, 3.0, math.nan, math.inf, -math.inf])
DIVIDED = (st.sampled_from([1, 3, 50]), st.sampled_from([1, 2, 7]))


def table(**columns: list[Any]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    uids = pa.array([f"{number * 7919 % 2**31:032x}" for number in range(rows)], pa.string())
    arrays = {name: pa.array(values, pa.float32()) for name, values in columns.items()}
    return pa.table({"uid": uids, **arrays})


def values_of(
    filter_: PoolFilter, pool: pa.Table, per_shard: int = 50, partitions: int = 1
) -> dict[str, Any]:
    """uid -> the value of the filter's only column, of the rows that have one."""
    shards = [pool.slice(n, per_shard) for n in range(0, max(1, pool.num_rows), per_shard)]
    (column,) = filter_.columns()
    rows = run_inline(filter_, shards, partitions)
    return {uid: row[column] for uid, row in rows.items()}


@given(
    st.lists(st.tuples(VALUES, VALUES), max_size=40), st.sampled_from([(1, 1), (3, -1)]), *DIVIDED
)
def test_a_rank_mean_is_the_mean_of_the_ranks(
    rows: list[Any], weights: tuple[int, int], per_shard: int, partitions: int
) -> None:
    pool = table(a=[a for a, _ in rows], b=[b for _, b in rows])
    of = dict(zip("ab", weights, strict=True))
    expected = {}
    for uid, row in zip(pool["uid"].to_pylist(), pool.to_pylist(), strict=True):
        total = 0.0
        for name, weight in of.items():
            known = [x for x in pool[name].to_pylist() if x is not None and math.isfinite(x)]
            if row[name] is None or not math.isfinite(row[name]):
                break
            below = sum(x < row[name] for x in known) + sum(x == row[name] for x in known) / 2
            rank = below / len(known)
            total += abs(weight) * (rank if weight > 0 else 1 - rank)
        else:
            expected[uid] = total / sum(map(abs, weights))
    assert values_of(RankMean(of=of), pool, per_shard, partitions) == pytest.approx(
        expected, abs=1e-6
    )


def test_equal_values_have_the_middle_rank_and_one_row_is_in_the_middle() -> None:
    assert set(values_of(RankMean(of={"a": 1}), table(a=[2.0] * 9)).values()) == {0.5}
    assert list(values_of(RankMean(of={"a": -4}), table(a=[2.0])).values()) == [0.5]


def one_by_one(pool: pa.Table, filter_: SoftCap) -> dict[str, int]:
    """uid -> draws, by ringing the clocks of all rows in the order of their times."""
    scores = numbers_of(pool, "a") / filter_.temperature
    known = np.flatnonzero(np.isfinite(scores))
    uids = [pool["uid"].to_pylist()[row] for row in known]
    times = ring_times(scores[known], uids, filter_.penalty, filter_.most, filter_.seed)
    counts = dict.fromkeys(uids, 0)
    order = np.argsort(times, axis=None, kind="stable")
    for ring in order[: math.ceil(filter_.share * len(uids))]:
        counts[uids[ring // filter_.most]] += 1
    return counts


@given(
    st.lists(VALUES, max_size=40),
    st.sampled_from([0.1, 0.5, 1.0, 2.5]),
    st.sampled_from([0.15, 1.0]),
    st.integers(0, 3),
    *DIVIDED,
)
def test_rows_are_drawn_as_by_one_draw_after_the_other(
    values: list[Any], share: float, penalty: float, seed: int, per_shard: int, partitions: int
) -> None:
    pool = table(a=values)
    filter_ = SoftCap(of="a", share=share, penalty=penalty, most=3, seed=seed)
    assert values_of(filter_, pool, per_shard, partitions) == one_by_one(pool, filter_)


@functools.cache
def expected_draws(counts: tuple[int, ...], draws: int) -> tuple[float, ...]:
    """The mean number of draws of rows with the scores 0, 1, 2 and a penalty of 0.7, from the
    definition: each draw by softmax(score - penalty * draws so far)."""
    if not draws:
        return tuple(map(float, counts))
    weights = np.exp(np.arange(3) - 0.7 * np.array(counts))
    mean = np.zeros(3)
    for row, chance in enumerate(weights / weights.sum()):
        more = tuple(count + (row == other) for other, count in enumerate(counts))
        mean += chance * np.array(expected_draws(more, draws - 1))
    return tuple(mean)


def test_the_clocks_ring_as_the_definition_draws() -> None:
    trials, draws = 20_000, 6
    uids = [f"{number:032x}" for number in range(3 * trials)]
    scores = np.tile([0.0, 1.0, 2.0], trials)
    times = ring_times(scores, uids, 0.7, draws, 5).reshape(trials, 3 * draws)
    last = np.sort(times, axis=1)[:, draws - 1 : draws]
    counts = (times <= last).reshape(trials, 3, draws).sum(axis=2)
    error = 4 * counts.std(axis=0) / math.sqrt(trials)
    assert (np.abs(counts.mean(axis=0) - expected_draws((0, 0, 0), draws)) < error).all()


def test_as_many_draws_as_asked_for_and_the_best_rows_most_often() -> None:
    rows = 20_000
    pool = table(a=(np.arange(rows) / rows).tolist())
    draws = {}
    for share in (0.3, 0.7):
        values = values_of(SoftCap(of="a", share=share, temperature=0.1, most=8), pool, 10_000)
        draws[share] = np.array([values[uid] for uid in pool["uid"].to_pylist()])
        assert 0 <= draws[share].sum() - share * rows <= 2  # draws at the time of the last one
    assert (draws[0.3] <= draws[0.7]).all()
    tenths = draws[0.7].reshape(10, -1).sum(axis=1)
    assert tenths[-1] > 3 * tenths[-3] > 9 * tenths[-5]
    hard = values_of(SoftCap(of="a", share=0.7, temperature=0.1, most=8, penalty=5), pool, 10_000)
    assert max(hard.values()) < draws[0.7].max() == 8
    other = values_of(SoftCap(of="a", share=0.7, temperature=0.1, most=8, seed=1), pool, 10_000)
    assert [other[uid] for uid in pool["uid"].to_pylist()] != draws[0.7].tolist()


def test_equal_scores_one_row_no_row_and_all_that_there_is() -> None:
    equal = values_of(SoftCap(of="a", share=1, most=8), table(a=[5.0] * 1000))
    assert sum(equal.values()) == 1000
    assert 0 in equal.values()
    assert list(values_of(SoftCap(of="a", share=0.1), table(a=[5.0])).values()) == [1]
    assert values_of(SoftCap(of="a", share=0.1), table(a=[None, math.nan])) == {}
    assert set(values_of(SoftCap(of="a", share=4, most=4), table(a=[1.0, -9e9])).values()) == {4}
    far = values_of(SoftCap(of="a", share=0.5, most=2), table(a=[1e9, -1e9]))
    assert sorted(far.values()) == [0, 1]


@pytest.mark.parametrize("filter_", [RankMean(of={"a": 1, "b": -2}), SoftCap(of="a", share=0.4)])
def test_merged_summaries_give_the_same_state(filter_: RankMean | SoftCap) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, 60)).round(1)
    values[0, ::7] = np.nan
    pool = table(a=values[0].tolist(), b=values[1].tolist())
    summaries = [filter_.summarise(pool.slice(n, 20)) for n in (0, 20, 40)]
    merged = filter_.merge(pa.concat_tables(summaries[:2]))
    assert merged.num_rows < pa.concat_tables(summaries[:2]).num_rows or filter_.name == "soft_cap"
    states = [
        filter_.combine(pa.concat_tables(each)) for each in (summaries, [merged, summaries[2]])
    ]
    np.testing.assert_equal(*states)


def test_a_column_of_text_is_refused_and_whole_numbers_and_booleans_are_not() -> None:
    rows = pa.table({"t": ["a"], "b": [True], "i": [2**62], "h": pa.array([0.5], pa.float16())})
    with pytest.raises(ValueError, match="the column t holds string; name a column of numbers"):
        numbers_of(rows, "t")
    assert [numbers_of(rows, name).tolist() for name in "bih"] == [[1.0], [2.0**62], [0.5]]


def test_times_depend_on_uid_and_seed_alone() -> None:
    (times,) = ring_times(np.array([1.5]), [f"{7:032x}"], 0.15, 3, 2).tolist()
    assert times == sorted(times)
    assert [round(time / GRAIN) for time in times] == PINNED


PINNED = [-426342, -93161, -28030]
