"""Which source each position of a run belongs to: the wheel."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from clipmill.manifests.arrays import Integers
from clipmill.manifests.schema import Blend

# --------------------------------------------------------------------------------------------------
# The wheel: which source each position of a run belongs to. Pure NumPy.
#
# Position n belongs to source `wheel[n % period]`. After any number of positions the share of
# each source is exact to less than one sample.


# Most slots of a wheel. Shares that need more are rounded to 1/65536 (largest remainder).
PERIOD = 65_536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceRows:
    """A source of a blend: its weight (any positive number) and the kept rows of each of its
    shards."""

    name: str
    weight: float
    shard_rows: Sequence[int] | Integers

    @property
    def rows(self) -> int:
        """Kept rows of all shards."""
        return int(np.asarray(self.shard_rows, np.int64).sum())


def wheel_slots(sources: Sequence[SourceRows]) -> list[int]:
    """Slots of each source on the wheel; their sum is the wheel's period.

    Exact where the shares have a common denominator up to 65,536 (0.7 : 0.3, 1 : 2 : 5, any three
    decimals); else 65,536 slots shared out by largest remainder. ValueError for a weight that is no
    positive number or gets no slot.
    """
    for source in sources:
        if not 0 < source.weight < math.inf:
            raise ValueError(
                f"the weight of {source.name!r} is {source.weight}; it must be a number above 0"
            )
    weights = [Fraction(str(source.weight)) for source in sources]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= PERIOD:
        return [int(share * period) for share in shares]
    slots = [int(share * PERIOD) for share in shares]
    by_remainder = sorted(
        range(len(slots)), key=lambda s: (slots[s] - shares[s] * PERIOD, sources[s].name)
    )
    for s in by_remainder[: PERIOD - sum(slots)]:
        slots[s] += 1
    if 0 in slots:
        name = sources[slots.index(0)].name
        raise ValueError(
            f"the share of {name!r} is less than one in {PERIOD:,} samples; "
            "raise its weight or drop it"
        )
    return slots


def wheel_sequence(slots: Sequence[int]) -> Integers:
    """The source of each slot; in every prefix each source is within one slot of its share.

    Draw q of a source with m of P slots may come from slot ⌊qP/m⌋ on and must come before slot
    ⌈(q+1)P/m⌉. Earliest deadline first meets all of these (the quota theorem of just-in-time
    sequencing). A source without slots does not occur.
    """
    period = sum(slots)
    # (first slot that the source's next draw may take, source).
    waiting = [(0, s) for s in range(len(slots)) if slots[s]]
    # (slot before which the source's next draw must come, source).
    ready: list[tuple[int, int]] = []
    drawn = [0] * len(slots)
    order = np.empty(period, np.int64)
    for n in range(period):
        while waiting and waiting[0][0] <= n:
            s = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (-(-(drawn[s] + 1) * period // slots[s]), s))
        deadline, s = heapq.heappop(ready)
        assert n < deadline
        order[n] = s
        drawn[s] += 1
        heapq.heappush(waiting, (drawn[s] * period // slots[s], s))
    return order


def numbered_slots(wheel: Integers, sources: int) -> Integers:
    """(period,) how often the source of each slot has come before it on the wheel."""
    by_source = np.argsort(wheel, kind="stable")
    counts = np.bincount(wheel, minlength=sources)
    first = np.cumsum(counts) - counts
    numbers = np.empty_like(wheel)
    numbers[by_source] = np.arange(len(wheel)) - first[wheel[by_source]]
    return numbers


def most_in_a_batch(wheel: Integers, sources: int, batch_size: int, offset: int = 0) -> list[int]:
    """The most draws of each source in any batch; the first batch begins at slot `offset`."""
    period = len(wheel)
    turns, rest = divmod(batch_size, period)
    stride = math.gcd(period, batch_size)  # batches begin at every stride-th slot
    counts = np.bincount(wheel, minlength=sources)
    most = counts * turns
    if rest:
        slots = np.argsort(wheel, kind="stable")  # of source 0, then of source 1, …
        source = wheel[slots]
        keys = source * period + slots

        def drawn_before(slot: Integers) -> Integers:
            """Draws of each one's source before a slot, plus a number that is its source's."""
            turn, offset = np.divmod(slot, period)
            drawn: Integers = turn * counts[source] + np.searchsorted(
                keys, source * period + offset
            )
            return drawn

        # Of the batches with the most draws one begins at most a stride before a draw.
        begins = slots - (slots - offset) % stride
        in_rest = np.zeros(sources, np.int64)
        np.maximum.at(in_rest, source, drawn_before(begins + rest) - drawn_before(begins))
        most += in_rest
    return [int(count) for count in most]


class Schedule:
    """Position of a run -> (source, its draw). Draws of a source are counted from 0 over the whole
    run. The order of the sources does not matter: their names decide.
    """

    def __init__(self, sources: Sequence[SourceRows]) -> None:
        by_name = sorted(range(len(sources)), key=lambda s: sources[s].name)
        slots = wheel_slots([sources[s] for s in by_name])
        self._wheel: Integers = np.array(by_name, np.int64)[wheel_sequence(slots)]  # (period,)
        self._numbers = numbered_slots(self._wheel, len(sources))
        self._slots = np.bincount(self._wheel, minlength=len(sources))  # (sources,)

    def draws(self, position: Integers) -> tuple[Integers, Integers]:
        """(source, draw) of positions."""
        turns, slot = np.divmod(position, len(self._wheel))
        source = self._wheel[slot]
        return source, turns * self._slots[source] + self._numbers[slot]

    def drawn(self, positions: int) -> Integers:
        """(sources,) draws of each source in the first so many positions."""
        turns, rest = divmod(positions, len(self._wheel))
        part = np.bincount(self._wheel[:rest], minlength=len(self._slots))
        drawn: Integers = turns * self._slots + part
        return drawn

    def most_in_a_batch(self, batch_size: int) -> list[int]:
        """The most draws of each source in any batch."""
        return most_in_a_batch(self._wheel, len(self._slots), batch_size)


def blend_sources(
    blend: Blend, shard_rows: Mapping[str, Sequence[int] | Integers]
) -> list[SourceRows]:
    """The views of a blend as sources, by name, with weights that are shares of the samples."""
    sources = []
    for name in sorted(blend.views):
        weight = _weight(blend, blend.views[name], shard_rows[name])
        sources.append(SourceRows(name=name, weight=weight, shard_rows=shard_rows[name]))
    return sources


def _weight(blend: Blend, weight: float, shard_rows: Sequence[int] | Integers) -> float:
    if blend.weights == "samples":
        return weight
    return weight * int(np.asarray(shard_rows, np.int64).sum())
