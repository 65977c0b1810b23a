"""Draws by chance, captions by their shares, draws that are kept apart, and segments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmill.train.mixture.order import (
    CANDIDATES,
    NEAR,
    REPEATED_STEPS,
    UNDECIDED,
    CaptionColumns,
    Segment,
    SegmentOrder,
    candidates_for,
    choose_candidates,
    exchanged_draws,
    expected_unique,
    next_segment,
    put_apart,
    shuffled_apart,
)


def test_rows_are_chosen_in_proportion_to_their_chances():
    kinds = np.array([1.0, 0.5, 0.1])  # a third of the rows each
    random = np.random.default_rng(0)
    count = candidates_for(float(kinds.mean()))
    kind = random.integers(0, 3, (60_000, count))
    chosen = choose_candidates(kinds[kind], 7, np.arange(60_000))
    shares = np.bincount(kind[np.arange(60_000), chosen], minlength=3) / 60_000
    assert np.abs(shares - kinds / kinds.sum()).max() < 0.015
    again = choose_candidates(kinds[kind[500:600]], 7, np.arange(500, 600))
    assert np.array_equal(again, chosen[500:600])  # a function of the draw alone
    assert not np.array_equal(choose_candidates(kinds[kind[:100]], 8, np.arange(100)), chosen[:100])


@pytest.mark.parametrize(("mean", "count"), [(1.0, 1), (0.995, 2), (0.9, 2), (0.5, 7)])
def test_a_draw_looks_at_as_few_rows_as_are_enough(mean, count):
    assert candidates_for(mean) == count


@pytest.mark.parametrize("mean", [1.0, 0.97, 0.9, 0.5, 0.25, 0.05, 0.001])
def test_there_are_enough_candidates(mean):
    count = candidates_for(mean)
    assert 1 <= count <= CANDIDATES
    assert (1 - mean) ** count <= UNDECIDED or count == CANDIDATES
    assert (1 - mean) ** max(0, count - 2) > UNDECIDED or count <= 2


def test_where_none_is_accepted_one_is_taken_by_weight():
    chances = np.tile([1e-9, 3e-9], (20_000, 1))
    chosen = choose_candidates(chances, 1, np.arange(20_000))
    assert abs(chosen.mean() - 0.75) < 0.01


def test_the_number_of_different_rows_is_estimated():
    assert expected_unique(np.ones(50), 1000, 10) == pytest.approx(10, rel=0.01)
    assert expected_unique(np.ones(50), 1000, 10**6) == pytest.approx(1000)
    chances = np.array([1.0, 0.01])
    rows = np.tile(chances, 500)
    drawn = np.random.default_rng(1).choice(1000, 2000, p=rows / rows.sum())
    assert expected_unique(chances, 1000, 2000) == pytest.approx(len(set(drawn.tolist())), rel=0.05)


@given(st.integers(0, 90), st.integers(0, 2**63))
def test_any_prefix_is_counted_and_the_shares_are_exact(draws, key):
    columns = CaptionColumns({"caption": 0.3, "synthetic": 0.7}, key)
    chosen = [columns.names[k] for k in columns.of_draws(np.arange(90)).tolist()]
    assert columns.count(draws) == {
        name: chosen[:draws].count(name) for name in ("caption", "synthetic")
    }
    for first in range(0, 90, 10):
        assert Counter(chosen[first : first + 10]) == {"caption": 3, "synthetic": 7}
    # A draw answers alone as it does among others.
    if draws < 90:
        assert columns.names[int(columns.of_draws(np.array([draws]))[0])] == chosen[draws]


def test_columns_are_not_bound_to_the_lane_of_a_draw():
    columns = CaptionColumns({"a": 1, "b": 1}, 5)
    of_lane = columns.of_draws(np.arange(0, 6400, 64))
    assert 25 < np.count_nonzero(of_lane) < 75
    other = CaptionColumns({"a": 1, "b": 1}, 6).of_draws(np.arange(0, 6400, 64))
    assert not np.array_equal(of_lane, other)


def test_impossible_shares_are_refused():
    with pytest.raises(ValueError, match="weight of 'b' is 0"):
        CaptionColumns({"a": 1, "b": 0}, 0)


def is_apart(order, apart):
    return all(
        len(set(order[k : k + apart])) == apart for k in range(max(1, len(order) - apart + 1))
    )


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 2**32))
def test_draws_are_exchanged_so_that_no_row_follows_itself(apart, more, seed):
    rows = 4 * apart + more
    random = np.random.default_rng(seed)
    before, after = random.permutation(rows), random.permutation(rows)
    draws = exchanged_draws(before[-apart:], after[: 3 * apart], apart)
    assert sorted(draws.tolist()) == list(range(3 * apart))
    begins = after[draws]
    assert is_apart([*before[-apart:].tolist(), *begins.tolist()], apart)
    moved = np.flatnonzero(draws != np.arange(3 * apart))
    assert len(moved) == 2 * np.isin(after[:apart], before[-apart:]).sum()


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**63))
def test_a_shuffled_epoch_keeps_its_rows_apart(apart, slack, key):
    before = np.random.default_rng(apart).permutation(apart + slack)
    after = shuffled_apart(before, apart, key)
    assert sorted(after.tolist()) == sorted(before.tolist())
    assert is_apart([*before.tolist(), *after.tolist()], apart)
    if slack == 0:
        assert np.array_equal(before, after)  # nothing is left to chance


def test_every_order_that_keeps_rows_apart_is_drawn():
    before = np.arange(4)
    drawn = {tuple(shuffled_apart(before, 2, key).tolist()) for key in range(400)}
    assert (2, 3, 0, 1) in drawn
    assert (0, 1, 2, 3) in drawn
    # Row 3, drawn last, may come third at the earliest... of four places it has all but the first.
    assert all(order.index(3) >= 1 for order in drawn)
    assert len(drawn) == 18


# --------------------------------------------------------------------------------------------------


def batches_of(numbers, batch):
    return [numbers[k : k + batch].tolist() for k in range(0, len(numbers), batch)]


def apart_in_batches(numbers, batch):
    for each in batches_of(numbers, batch):
        checked = [number for number in each if number >= 0]
        if len(set(checked)) < len(checked):
            return False
    return True


@given(st.integers(2, 12), st.integers(2, 5), st.integers(0, 2**32))
def test_a_block_without_collisions_has_the_same_draws_of_each_source(batch, steps, seed):
    random = np.random.default_rng(seed)
    source = np.tile(random.integers(0, 3, batch), steps)
    numbers = random.integers(0, 3 * batch, batch * steps)
    numbers[source == 2] = -1  # a source that cannot collide
    draw, left = put_apart(source, numbers, batch)
    assert sorted(draw.tolist()) == list(range(len(source)))
    assert np.array_equal(source[draw], source)
    assert (draw[source == 2] == np.flatnonzero(source == 2)).all()
    if left is None:
        assert apart_in_batches(numbers[draw], batch)
    if apart_in_batches(numbers, batch):
        assert left is None
        assert np.array_equal(draw, np.arange(len(source)))
    again, _ = put_apart(source, numbers, batch)
    assert np.array_equal(draw, again)


def test_a_draw_that_collides_comes_in_the_next_batch_in_which_it_fits():
    source = np.array([0, 1] * 4)
    numbers = np.array([5, 5, 1, 2, 5, 3, 7, 8])
    draw, left = put_apart(source, numbers, 2)
    assert left is None
    # Of the two 5s of batch 0 the later one moves: to batch 1, since batch 2 has a 5 of its own.
    assert numbers[draw].tolist() == [5, 2, 1, 5, 5, 3, 7, 8]


def test_the_last_batch_takes_from_an_earlier_one():
    source = np.array([0, 1, 0, 1])
    draw, left = put_apart(source, np.array([1, 2, 6, 6]), 2)
    assert left is None
    assert draw.tolist() == [0, 3, 2, 1]


def put_apart_plainly(source, numbers, batch):
    """The rule of `put_apart`, with every batch counted again for every question."""
    draw = list(range(len(source)))

    def of(b):
        return [int(numbers[draw[p]]) for p in range(b * batch, (b + 1) * batch)]

    def fits(here, there):
        a, b = here // batch, there // batch
        ours, theirs = int(numbers[draw[here]]), int(numbers[draw[there]])
        return theirs not in of(a) and ours not in of(b)

    def candidates(position):
        b = position // batch
        same = [p for p in range(len(source)) if source[p] == source[position]]
        later = [p for p in same if p >= (b + 1) * batch]
        for target in range(position + batch, len(source), batch):
            middle = len([p for p in same if p < target])
            yield from (p for p in same[max(0, middle - NEAR) : middle + NEAR] if p in later)
        yield from later
        yield from (p for p in same[::-1] if p < b * batch)

    for b in range(len(source) // batch):
        for number in sorted({n for n in of(b) if n >= 0 and of(b).count(n) > 1}):
            holders = [b * batch + k for k, n in enumerate(of(b)) if n == number]
            for position in holders[::-1]:
                if of(b).count(number) > 1:
                    other = next((p for p in candidates(position) if fits(position, p)), position)
                    draw[position], draw[other] = draw[other], draw[position]
            if of(b).count(number) > 1:
                return draw, holders[-1]
    return draw, None


def test_draws_change_places_as_the_rule_says():
    """Few numbers more than a batch has places: many draws find a place in an earlier batch only,
    and one that was exchanged is exchanged again.
    """
    for seed in range(300):
        random = np.random.default_rng(seed)
        batch, steps = random.integers(2, 7), random.integers(2, 9)
        numbers = random.integers(0, batch + random.integers(0, 4), batch * steps)
        source = random.integers(0, random.integers(1, 3), batch * steps)
        draw, left = put_apart(source, numbers, int(batch))
        expected, expected_left = put_apart_plainly(source, numbers, int(batch))
        assert (seed, draw.tolist(), left) == (seed, expected, expected_left)


@pytest.mark.parametrize("numbers", [[4, 4, 4, 4], [1, 1, 2, 2]])
def test_what_cannot_be_put_apart_is_named(numbers):
    draw, left = put_apart(np.array([0, 0, 0, 0]), np.array(numbers), 2)
    if numbers[0] == 4:
        assert left == 1
    else:
        assert left is None
        assert apart_in_batches(np.array(numbers)[draw], 2)


# --------------------------------------------------------------------------------------------------


def grow(found, batch):
    """The segments that are decided when these shards are found; the last time is the whole."""
    segments: list[Segment] = []
    for number, rows in enumerate(found):
        segment = next_segment(segments, rows, batch, complete=number == len(found) - 1)
        if segment is not None:
            segments.append(segment)
            if segment.steps is None:
                break
    return segments


def spans(segments):
    return [(s.first, s.steps, s.start, s.stop) for s in segments]


def test_new_shards_are_drawn_once_before_any_row_is_drawn_again():
    found = [[], [10], [10, 30], [10, 30], [10, 30], [10, 30, 50], [10, 30, 50], [10, 30, 50]]
    assert spans(grow(found, 16)) == [
        (0, 2, 0, 2),  # 10 rows alone are too few
        (2, 2, 0, 2),  # nothing is new
        (4, 4, 0, 2),
        (8, 3, 2, 3),  # the new shard alone
        (11, 5, 0, 3),
        (16, None, 0, 3),  # complete
    ]


def test_segments_that_repeat_grow_but_stay_short():
    steps = [segment.steps or 0 for segment in grow([[20]] * 40, 10)]
    assert steps[:5] == [2, 2, 4, 8, 16]
    assert max(steps) == REPEATED_STEPS
    assert steps[-1] == 0  # no end
    assert [segment.steps for segment in grow([[10_000]] * 3, 10)] == [1000, 1000, None]


def test_one_batch_of_new_rows_is_a_segment_of_them():
    before = [Segment(number=0, first=0, steps=1, start=0, stop=1)]
    found = next_segment(before, [8, 8], 8, complete=False)
    assert found == Segment(number=1, first=1, steps=1, start=1, stop=2)


def test_too_few_rows_are_waited_for():
    assert next_segment([], [3, 4], 8, complete=False) is None
    assert next_segment([], [], 8, complete=True) is None
    with pytest.raises(AssertionError):  # nothing comes after a segment without end
        next_segment([Segment(number=0, first=0, steps=None, start=0, stop=1)], [9], 8, True)


@dataclass
class Live:
    """Segments that were decided before."""

    segments: list[Segment]
    of_shards: list[int]

    def at(self, step):
        return next(one for one in self.segments if one.first <= step < one.end)

    def rows(self):
        return self.of_shards


def test_a_segment_draws_its_rows_once_and_no_batch_holds_a_row_twice():
    rows = [10, 30, 50]
    segments = grow([[10, 30], [10, 30], rows, rows, rows], 16)
    order = SegmentOrder("web/stored", Live(segments, rows), 16, 4, 2, 7)
    counts: Counter[tuple[int, int]] = Counter()
    for step in range(segments[-1].first + 12):
        source, shard, row = order.batch(step)
        drawn = list(zip(shard.tolist(), row.tolist(), strict=True))
        assert not source.any()
        assert len(set(drawn)) == 16
        assert all(row < rows[shard] for shard, row in drawn)
        counts.update(drawn)
        halves = [order.batch(step, half) for half in (range(8), range(8, 16))]
        assert np.array_equal(np.concatenate([part[1] for part in halves]), shard)
    assert len(counts) == 90
    alone = SegmentOrder(
        "web/stored",
        Live([Segment(number=2, first=0, steps=3, start=2, stop=3)], rows),
        16,
        4,
        2,
        7,
    )
    for step in range(3):  # the order of a segment begins with its first row
        for own, of_run in zip(
            alone.batch(step), order.batch(segments[2].first + step), strict=True
        ):
            assert np.array_equal(own, of_run)
    first_new = {int(k) for k in order.batch(segments[2].first)[1]}
    assert first_new == {2}
    assert order.repeats(2)["web/stored"].drawn == order.repeats(2)["web/stored"].unique == 32
    assert order.repeats(10)["web/stored"].drawn == 160
    for steps in range(1, segments[-1].first + 12):
        repeats = order.repeats(steps)["web/stored"]
        assert repeats.unique <= min(repeats.drawn, 90)
    again = Live([Segment(number=1, first=0, steps=None, start=0, stop=2)], rows)
    repeated = SegmentOrder("web/stored", again, 16, 4, 2, 7).repeats(10)["web/stored"]
    assert (repeated.drawn, repeated.unique) == (160, 40)  # of 10 + 30 rows
    assert repeated.repeats == pytest.approx(160 / 90)
    part = SegmentOrder("web/stored", again, 16, 4, 2, 7).repeats(2)["web/stored"]
    assert (part.drawn, part.unique) == (32, 32)
    assert alone.fingerprint() == order.fingerprint()
    assert SegmentOrder("web/stored", again, 16, 4, 2, 8).fingerprint() != order.fingerprint()
    shard, row = order.substitute(0, segments[2].first, 3, 0)
    assert (shard, row) == alone.substitute(0, 0, 3, 0)
    assert (shard, row < 50) == (2, True)
    assert order.captions(3, range(4)) == [None] * 4
    nothing = SegmentOrder("web/stored", Live([], []), 16, 4, 2, 7).repeats(5)["web/stored"]
    assert (nothing.drawn, nothing.rows, nothing.repeats) == (0, 0, 0)  # no shard was found yet
