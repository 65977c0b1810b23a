"""Positions of a run, where weights change and sources end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.mixture.schedule import (
    NO_LIMIT,
    PHASES,
    Schedule,
    SourceRows,
    Stage,
    wheel_sequence,
    wheel_slots,
)


def sources_of(*weights: float) -> list[SourceRows]:
    return [SourceRows(name=f"s{k}", weight=w, shard_rows=(9,)) for k, w in enumerate(weights)]


def stage(start: int, *weights: float) -> Stage:
    return Stage(start=start, weights=weights)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(1, 4))
    weights = st.tuples(*[st.sampled_from([0, 1, 2, 0.5])] * count).filter(any)
    starts = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    stages = [stage(start, *draw(weights)) for start in [0, *starts]]
    limits = [draw(st.sampled_from([NO_LIMIT, 1, 7, 20])) for _ in range(count)]
    return Schedule(sources_of(*[1] * count), stages, limits)


@settings(max_examples=150, deadline=None)
@given(schedules(), st.integers(1, 12))
def test_the_draws_of_a_source_are_counted_from_0_and_end_at_its_limit(
    schedule: Schedule, batch: int
) -> None:
    length = 120 if schedule.end is None else schedule.end
    source, draw = schedule.draws(np.arange(length))
    for s, limit in enumerate(schedule.limits.tolist()):
        own = draw[source == s]
        assert own.tolist() == list(range(len(own)))
        assert len(own) <= limit
    for n in range(0, length, 7):
        counts = np.bincount(source[:n], minlength=len(schedule.sources))
        assert schedule.drawn(n).tolist() == counts.tolist()
        one, number = schedule.draws(np.array([n]))  # a position alone
        assert (one[0], number[0]) == (source[n], draw[n])
    most = schedule.most_in_a_batch(batch)
    for first in range(0, length - batch + 1, batch):
        counts = np.bincount(source[first : first + batch], minlength=len(most))
        assert (counts <= most).all()


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_a_stage_follows_its_weights(schedule: Schedule) -> None:
    length = 120 if schedule.end is None else schedule.end
    source, _ = schedule.draws(np.arange(length))
    stops = [*[each.start for each in schedule.stages[1:]], length]
    for each, stop in zip(schedule.stages, stops, strict=True):
        if (schedule.limits < NO_LIMIT).any():
            allowed = set(np.flatnonzero(each.weights).tolist())
            assert set(source[each.start : stop].tolist()) <= allowed
            continue
        weights = np.array(each.weights) / sum(each.weights)
        for n in range(each.start, min(stop, length)):
            counts = np.bincount(source[each.start : n], minlength=len(weights))
            assert np.abs(counts - (n - each.start) * weights).max() < 1


def test_a_schedule_of_one_stage_is_the_wheel() -> None:
    sources = sources_of(0.5, 0.3, 0.2)
    source, _ = Schedule(sources).draws(np.arange(20))
    assert source.tolist() == np.tile(wheel_sequence(wheel_slots(sources)), 2).tolist()
    assert Schedule(sources).identity() == {}


def test_a_limit_below_a_batch_ends_inside_of_it_and_the_others_share_the_rest() -> None:
    schedule = Schedule(sources_of(0.5, 0.25, 0.25), limits=[3, NO_LIMIT, NO_LIMIT])
    source, _ = schedule.draws(np.arange(32))
    assert np.count_nonzero(source == 0) == 3
    assert max(np.flatnonzero(source == 0)) < 8
    assert schedule.drawn(16).tolist() == np.bincount(source[:16]).tolist()
    assert abs(int(schedule.drawn(32)[1]) - int(schedule.drawn(32)[2])) <= 2
    assert schedule.end is None
    assert schedule.identity() == {"limits": {"s0": 3}}


def test_the_end_is_where_no_source_is_left() -> None:
    assert Schedule(sources_of(1, 1), limits=[3, 5]).end == 8
    # The second stage names only a source that has ended.
    assert Schedule(sources_of(1, 1), [stage(0, 1, 1), stage(10, 1, 0)], [4, NO_LIMIT]).end == 10


def test_many_sources_with_limits_make_as_many_phases() -> None:
    schedule = Schedule(sources_of(*[1] * 300), limits=range(1, 301))
    assert schedule.end == 300 * 301 // 2
    source, _ = schedule.draws(np.arange(schedule.end))
    assert np.bincount(source).tolist() == list(range(1, 301))


def test_too_many_phases_are_refused() -> None:
    count = PHASES + 2
    with pytest.raises(ValueError, match="changes more than 1,000 times in a run"):
        Schedule(sources_of(*[1] * count), limits=range(1, count + 1))


def test_impossible_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="weight of 's1' is nan"):
        Schedule(sources_of(1, float("nan")))
    with pytest.raises(ValueError, match="'s1' is less than one in 65,536"):
        Schedule(sources_of(1, 1), [stage(0, 1, 1), stage(5, 1, 1e-300)])
