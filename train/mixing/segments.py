"""The order of a run on a pool that is still being built: segments of steps, each over the shards
that were committed when it was decided. Pure, given the segments.

Shards have a number in the order in which the run found them. A segment draws the shards that are
new, each row once, or all shards again where nothing is new. So no row comes a second time while
rows wait that have not come at all. The last segment, of a pool that is complete, has no end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manifests.disk import content_hash
from train.mixing.order import ORDER_VERSION, Order
from train.mixing.rules import Repeats
from train.mixing.wheel import SourceRows
from train.rng import Ints, derive_key

SEGMENT = 8  # what a random number is for, see order.py
# Steps of a segment that draws again what was drawn before: new shards wait no longer than that,
# or than one epoch.
REPEATED_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Steps from `first` on over the found shards `start` … `stop` − 1."""

    number: int
    first: int
    steps: int | None  # None: to the end of the run
    start: int
    stop: int

    @property
    def end(self) -> float:
        """The first step after it."""
        return float("inf") if self.steps is None else self.first + self.steps

    @property
    def is_repeated(self) -> bool:
        """Whether it draws shards that an earlier one drew. Only the first one of new shards
        begins with shard 0.
        """
        return self.number > 0 and self.start == 0


def next_segment(
    segments: Sequence[Segment], shard_rows: Sequence[int], batch_size: int, complete: bool
) -> Segment | None:
    """The segment that follows `segments`, now that the shards with `shard_rows` are found.

    complete: no more shards will come. None: there are too few rows yet.
    """
    number = len(segments)
    first = 0
    if segments:
        last_steps = segments[-1].steps
        assert last_steps is not None
        first = segments[-1].first + last_steps
    # What segments without repeats have drawn: they follow one another.
    drawn = max((segment.stop for segment in segments if not segment.is_repeated), default=0)
    all_rows, new = sum(shard_rows), sum(shard_rows[drawn:])
    stop = len(shard_rows)
    if new >= batch_size:
        steps = new // batch_size
        return Segment(number=number, first=first, steps=steps, start=drawn, stop=stop)
    if all_rows < batch_size:
        return None
    steps_of_all = all_rows // batch_size
    repeated = 0
    for segment in reversed(segments):
        if not segment.is_repeated:
            break
        repeated += 1
    steps = max(steps_of_all, min(steps_of_all << repeated, REPEATED_STEPS))
    return Segment(
        number=number, first=first, steps=None if complete else steps, start=0, stop=stop
    )


class SegmentOrder:
    """The order of a live run, with what the loader uses of `Order`.

    segment_at: the segment of a step, which may wait for shards. rows_of: kept rows of the shards
    found so far. Shards are numbered as they were found.
    """

    def __init__(
        self,
        name: str,
        segment_at: Callable[[int], Segment],
        segments: Callable[[], Sequence[Segment]],
        rows_of: Callable[[], Sequence[int]],
        batch_size: int,
        lanes: int,
        window: int,
        seed: int,
    ) -> None:
        self.name, self.batch_size, self.lanes, self.window = name, batch_size, lanes, window
        self.seed = seed
        self._segment_at, self._segments, self._rows_of = segment_at, segments, rows_of
        self._order = functools.lru_cache(maxsize=4)(self._make_order)

    def batch(self, step: int, rows: range | None = None) -> tuple[Ints, Ints, Ints]:
        """(source, shard, row) of each row of a batch, or of some of its `rows`."""
        segment = self._segment_at(step)
        source, shard, row = self._order(segment).batch(step - segment.first, rows)
        return source, shard + segment.start, row

    def captions(self, step: int, rows: range) -> list[str | None]:
        """A live run has the column `caption` alone."""
        return [None] * len(rows)

    def substitute(self, source: int, step: int, position: int, attempt: int) -> tuple[int, int]:
        """(shard, row) that replaces row `position` of batch `step`."""
        segment = self._segment_at(step)
        shard, row = self._order(segment).substitute(source, step, position, attempt)
        return shard + segment.start, row

    def repeats(self, steps: int) -> dict[str, Repeats]:
        """What `steps` steps draw, as far as their segments are known. `unique` is an estimate
        where shards were drawn again.
        """
        rows = self._rows_of()
        all_rows, drawn, unique = sum(rows), 0, 0.0
        for segment in self._segments():
            draws = (min(steps, segment.end) - segment.first) * self.batch_size
            if draws <= 0:
                break
            drawn += int(draws)
            if segment.is_repeated:
                of_segment = sum(rows[: segment.stop])
                unique += (of_segment - unique) * min(1.0, draws / of_segment)
            else:
                unique += draws
        return {
            self.name: Repeats(
                drawn=drawn,
                rows=all_rows,
                repeats=drawn / all_rows if all_rows else 0.0,
                share=1.0,
                unique=round(unique),
            )
        }

    def identity(self) -> dict[str, Any]:
        """What decides the order beside the segments, which the run writes down."""
        return {
            "version": ORDER_VERSION,
            "batch_size": self.batch_size,
            "lanes": self.lanes,
            "window": self.window,
            "seed": self.seed,
            "live": self.name,
        }

    def fingerprint(self) -> str:
        """Hash of the identity."""
        return content_hash(self.identity())

    def _make_order(self, segment: Segment) -> Order:
        rows = np.asarray(self._rows_of()[segment.start : segment.stop], np.int64)
        source = SourceRows(name=self.name, weight=1, shard_rows=rows)
        seed = derive_key(self.seed, SEGMENT, segment.number)
        return Order([source], self.batch_size, self.lanes, self.window, seed)
