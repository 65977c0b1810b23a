"""Segments of a run on a growing pool: which shards they draw, and the order of their rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from train.mixture.order import REPEATED_STEPS, Segment, SegmentOrder, next_segment


def grow(found: list[list[int]], batch: int) -> list[Segment]:
    """The segments that are decided when these shards are found; the last time is the whole."""
    segments: list[Segment] = []
    for number, rows in enumerate(found):
        segment = next_segment(segments, rows, batch, complete=number == len(found) - 1)
        if segment is not None:
            segments.append(segment)
            if segment.steps is None:
                break
    return segments


def spans(segments: list[Segment]) -> list[tuple[int, int | None, int, int]]:
    return [(s.first, s.steps, s.start, s.stop) for s in segments]


def test_new_shards_are_drawn_once_before_any_row_is_drawn_again() -> None:
    found = [[], [10], [10, 30], [10, 30], [10, 30], [10, 30, 50], [10, 30, 50], [10, 30, 50]]
    assert spans(grow(found, 16)) == [
        (0, 2, 0, 2),  # 10 rows alone are too few
        (2, 2, 0, 2),  # nothing is new
        (4, 4, 0, 2),
        (8, 3, 2, 3),  # the new shard alone
        (11, 5, 0, 3),
        (16, None, 0, 3),  # complete
    ]


def test_segments_that_repeat_grow_but_stay_short() -> None:
    steps = [segment.steps or 0 for segment in grow([[20]] * 40, 10)]
    assert steps[:5] == [2, 2, 4, 8, 16]
    assert max(steps) == REPEATED_STEPS
    assert steps[-1] == 0  # no end
    assert [segment.steps for segment in grow([[10_000]] * 3, 10)] == [1000, 1000, None]


def test_too_few_rows_are_waited_for() -> None:
    assert next_segment([], [3, 4], 8, complete=False) is None
    assert next_segment([], [], 8, complete=True) is None
    with pytest.raises(AssertionError):  # nothing comes after a segment without end
        next_segment([Segment(number=0, first=0, steps=None, start=0, stop=1)], [9], 8, True)


@dataclass
class Live:
    """Segments that were decided before."""

    segments: list[Segment]
    of_shards: list[int]

    def at(self, step: int) -> Segment:
        return next(one for one in self.segments if one.first <= step < one.end)

    def rows(self) -> list[int]:
        return self.of_shards


def test_a_segment_draws_its_rows_once_and_no_batch_holds_a_row_twice() -> None:
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
    shard, row = order.substitute(0, segments[2].first, 3, 0)
    assert (shard, row) == alone.substitute(0, 0, 3, 0)
    assert (shard, row < 50) == (2, True)
    assert order.captions(3, range(4)) == [None] * 4
