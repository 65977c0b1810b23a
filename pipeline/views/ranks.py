"""The exact k-th value of any number of values that come in parts, in bounded memory.

Up to COLLECTED values are held, and one pass over the parts is enough. The parts of more values are
seen several times. The first time, values are counted in 2^20 bins of their order; the bin with the
wanted rank is divided again until few enough values lie in it to be collected. A column of scores
needs two passes. Memory: 8 MB a histogram, 8 bytes a collected value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = 20  # of a histogram
COLLECTED = 4_000_000  # values that are held at most
SIGN = np.uint64(1 << 63)
Values = NDArray[Any]
Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The value of a rank; of `count` values `below` are less than it, `equal` equal it."""

    value: int | float
    count: int
    below: int
    equal: int


class RankSearch:
    """Finds the value of one rank: `add` every part, then `end_pass`; again until `result` is set.

    rank(count) is the wanted rank from below, from 1 to count, once the number of values is known.
    key(values) are uint64 in the order of the values; a few different values may share one.
    Without values there is no result, and `count` is 0.
    """

    def __init__(
        self, rank: Callable[[int], int], key: Callable[[Values], Keys] | None = None
    ) -> None:
        self.result: Ranked | None = None
        self.count: int | None = None
        self._rank_of = rank
        self._prefix, self._shift = np.uint64(0), 64  # keys >> shift == prefix are searched
        self._below = 0  # values less than those
        self._histogram: NDArray[np.int64] | None = None
        self._collected: list[Values] | None = []  # all values, until they are too many
        self._held = 0  # values that are collected in the first pass
        self._tallies: dict[Any, int] | None = None  # where all keys that are left are equal
        self._key = order_keys if key is None else key
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """True where no further pass is needed."""
        return self.result is not None or self.count == 0

    def add(self, values: Values) -> None:
        """One part: (n,) numbers without NaN. May be called from several threads."""
        if self._shift == 64 and self._collected is not None:
            with self._lock:
                self._hold(values)
            return
        self._add(values)

    def _hold(self, values: Values) -> None:
        """Collect values of the first pass; once they are too many, count all in bins."""
        if self._collected is None:  # another thread has reached the limit
            self._count(self._key(values))
            return
        self._collected.append(values)
        self._held += len(values)
        if self._held > COLLECTED:
            collected, self._collected = self._collected, None
            for each in collected:
                self._count(self._key(each))

    def _count(self, keys: Keys) -> None:
        """Count keys in bins. The caller holds the lock."""
        bins = (keys >> np.uint64(self._next_shift)) & np.uint64((1 << BITS) - 1)
        counts = np.bincount(bins.astype(np.int64), minlength=1 << BITS)
        if self._histogram is None:
            self._histogram = counts
        else:
            self._histogram += counts

    def _add(self, values: Values) -> None:
        keys = self._key(values)
        if self._shift < 64:
            inside = (keys >> np.uint64(self._shift)) == self._prefix
            keys, values = keys[inside], values[inside]
        if self._tallies is not None:
            each, counts = np.unique(values, return_counts=True)
            with self._lock:
                for value, count in zip(each, counts.tolist(), strict=True):
                    self._tallies[value] = self._tallies.get(value, 0) + count
            return
        if self._collected is not None:
            with self._lock:
                self._collected.append(values)
            return
        with self._lock:
            self._count(keys)

    @property
    def _next_shift(self) -> int:
        return max(0, self._shift - BITS)

    def end_pass(self) -> None:
        """All parts were added."""
        if self._tallies is not None:
            self._finish(self._tallies)
            return
        if self._collected is not None:
            if self._shift == 64:
                self.count = self._held
            if self.count:
                self._finish(self._around(np.concatenate(self._collected)))
            return
        assert self._histogram is not None
        if self.count is None:
            self.count = int(self._histogram.sum())
        rank = self._rank_of(self.count)
        assert 1 <= rank <= self.count
        ends = self._below + np.cumsum(self._histogram)
        chosen = int(np.searchsorted(ends, rank))
        inside = int(self._histogram[chosen])
        self._below = int(ends[chosen]) - inside
        width = self._shift - self._next_shift
        high = int(self._prefix) << width if self._shift < 64 else 0
        self._prefix, self._shift = np.uint64(high | chosen), self._next_shift
        if self._shift == 0:
            self._tallies = {}
        elif inside <= COLLECTED:
            self._collected = []
        self._histogram = None

    def _around(self, values: Values) -> dict[Any, int]:
        """The value of the rank among those that were collected, and how many lie below it."""
        assert self.count is not None
        rank = self._rank_of(self.count) - self._below - 1
        assert 0 <= rank < len(values)
        value = np.partition(values, rank)[rank]
        value = values.dtype.type(value + 0)  # 0.0 for -0.0, which it equals
        self._below += int((values < value).sum())
        return {value: int((values == value).sum())}

    def _finish(self, tallies: Mapping[Any, int]) -> None:
        """tallies: how often each of the values occurs that are left."""
        assert self.count is not None
        rank, below = self._rank_of(self.count), self._below
        for value in sorted(tallies):
            if below + tallies[value] >= rank:
                self.result = Ranked(
                    value=value.item(), count=self.count, below=below, equal=tallies[value]
                )
                return
            below += tallies[value]
        raise AssertionError(f"rank {rank} lies above all {below} values")


def order_keys(values: Values) -> Keys:
    """(n,) keys in the order of the values. Whole numbers above 2^53 may share a key."""
    numbers = values.astype(np.float64) + 0.0  # -0.0 becomes 0.0, which it equals
    bits = numbers.view(np.int64)
    flipped: Keys = bits.view(np.uint64) ^ ((bits >> 63).view(np.uint64) | SIGN)
    return flipped
