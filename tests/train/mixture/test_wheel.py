"""The wheel: exact shares in every prefix, the most draws of a batch, and positions by source."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clipmill.manifests.schema import Blend
from clipmill.train.mixture.schedule import (
    Schedule,
    SourceRows,
    blend_sources,
    most_in_a_batch,
    numbered_slots,
    wheel_sequence,
    wheel_slots,
)


def source(name, weight, *rows):
    return SourceRows(name=name, weight=weight, shard_rows=rows)


@pytest.mark.parametrize(
    ("weights", "slots"),
    [
        ((0.7, 0.3), [7, 3]),
        ((1, 2, 5), [1, 2, 5]),
        ((3.0,), [1]),
        ((0.125, 0.875), [1, 7]),
        ((1e-3, 0.999), [1, 999]),
        ((1 / 3, 2 / 3), [1, 2]),
        ((0.123456789, 0.876543211), [8091, 57445]),  # else to the nearest 65,536th
    ],
)
def test_slots_are_exact_where_the_weights_have_a_common_denominator(weights, slots):
    assert wheel_slots([source(str(k), weight, 1) for k, weight in enumerate(weights)]) == slots


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), -1e-300])
def test_a_weight_must_be_a_positive_number(weight):
    with pytest.raises(ValueError, match="weight of 'b'"):
        wheel_slots([source("a", 1, 1), source("b", weight, 1)])


def test_a_share_too_small_for_the_wheel_is_refused():
    with pytest.raises(ValueError, match="'b' is less than one in 65,536"):
        wheel_slots([source("a", 1, 1), source("b", 1e-300, 1)])


def assert_quota(wheel, slots):
    n = np.arange(1, len(wheel) + 1)
    for s, count in enumerate(slots):
        error = np.cumsum(wheel == s) - n * count / len(wheel)
        assert np.abs(error).max() < 1
    assert np.bincount(wheel, minlength=len(slots)).tolist() == slots


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7))
def test_every_prefix_of_the_wheel_is_within_one_of_each_share(slots):
    assert_quota(wheel_sequence(slots), slots)


def test_the_wheel_keeps_its_promise_for_many_small_sources_beside_a_large_one():
    slots = wheel_slots(
        [source("large", 0.9, 1), *(source(f"s{k}", 0.1 / 9 + k * 1e-5, 1) for k in range(9))]
    )
    assert sum(slots) == 65_536
    assert_quota(wheel_sequence(slots), slots)


def test_golden_turn():
    assert wheel_sequence([5, 3, 2]).tolist() == [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 60), st.integers(0, 40))
@example([5, 3, 8], 4, 39)
def test_the_most_draws_are_found_wherever_the_first_batch_begins(slots, batch, offset):
    wheel = wheel_sequence(slots)
    long = np.tile(wheel, 3 * batch + 3 * offset + 3)[offset:]
    batches = long[: len(long) // batch * batch].reshape(-1, batch)[: len(wheel)]
    counts = [int((batches == s).sum(axis=1).max()) for s in range(len(slots))]
    assert most_in_a_batch(wheel, len(slots), batch, offset) == counts


def test_slots_are_numbered_within_their_source():
    assert numbered_slots(np.array([0, 1, 0, 2, 0, 1]), 4).tolist() == [0, 0, 1, 0, 2, 1]


def test_a_source_without_slots_does_not_occur():
    assert wheel_sequence([2, 0, 1]).tolist() == [0, 0, 2]


@pytest.mark.parametrize(("weights", "drawn"), [({}, [75, 25]), ({"weights": "repeats"}, [50, 50])])
def test_weights_are_shares_of_the_samples_or_repeats(weights, drawn):
    views = {"web/a": 3.0, "web/b": 1.0}
    blend = Blend(name="b", pools={"web": "/p"}, views=views, **weights)
    schedule = Schedule(blend_sources(blend, {"web/a": [40, 60], "web/b": [300]}))
    assert schedule.drawn(100).tolist() == drawn  # 3 x 100 rows and 1 x 300


@settings(max_examples=100)
@given(st.lists(st.sampled_from([1, 2, 0.5, 0.3]), min_size=1, max_size=4), st.integers(1, 12))
def test_the_draws_of_a_source_are_counted_from_0(weights, batch):
    sources = [
        SourceRows(name=f"s{-k}", weight=weight, shard_rows=(9,))
        for k, weight in enumerate(weights)
    ]
    schedule = Schedule(sources)
    source, draw = schedule.draws(np.arange(120))
    for s in range(len(sources)):
        own = draw[source == s]
        assert own.tolist() == list(range(len(own)))
    most = schedule.most_in_a_batch(batch)
    for n in range(0, 120 - batch, batch):
        counts = np.bincount(source[:n], minlength=len(sources))
        assert schedule.drawn(n).tolist() == counts.tolist()
        one, number = schedule.draws(np.array([n]))  # a position alone
        assert (one[0], number[0]) == (source[n], draw[n])
        counts = np.bincount(source[n : n + batch], minlength=len(sources))
        assert (counts <= most).all()
