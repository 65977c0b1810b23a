"""Which source each position of a run belongs to: the wheel, stages, where sources end."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifests.schema import Blend, CurriculumStage
from train.rng import Ints

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
    shard_rows: Sequence[int] | Ints

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


def wheel_sequence(slots: Sequence[int]) -> Ints:
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


def numbered_slots(wheel: Ints, sources: int) -> Ints:
    """(period,) how often the source of each slot has come before it on the wheel."""
    by_source = np.argsort(wheel, kind="stable")
    counts = np.bincount(wheel, minlength=sources)
    first = np.cumsum(counts) - counts
    numbers = np.empty_like(wheel)
    numbers[by_source] = np.arange(len(wheel)) - first[wheel[by_source]]
    return numbers


def most_in_a_batch(wheel: Ints, sources: int, batch_size: int, offset: int = 0) -> list[int]:
    """The most draws of each source in any batch; the first batch begins at slot `offset`."""
    period = len(wheel)
    turns, rest = divmod(batch_size, period)
    stride = math.gcd(period, batch_size)  # batches begin at every stride-th slot
    counts = np.bincount(wheel, minlength=sources)
    most = counts * turns
    if rest:
        slots = np.argsort(wheel, kind="stable")  # of source 0, then of source 1, …
        source = wheel[slots]
        first, keys = np.cumsum(counts) - counts, source * period + slots

        def drawn_before(slot: Ints) -> Ints:
            """Draws of each one's source before a slot, counted from slot 0 of the first turn."""
            turn, offset = np.divmod(slot, period)
            in_turn = np.searchsorted(keys, source * period + offset) - first[source]
            drawn: Ints = turn * counts[source] + in_turn
            return drawn

        # Of the batches with the most draws one begins at most a stride before a draw.
        begins = slots - (slots - offset) % stride
        in_rest = np.zeros(sources, np.int64)
        np.maximum.at(in_rest, source, drawn_before(begins + rest) - drawn_before(begins))
        most += in_rest
    return [int(count) for count in most]


# --------------------------------------------------------------------------------------------------
# Which source each position of a run belongs to, where weights change and sources end. Pure.
#
# A run is a line of phases. In a phase the sources follow one wheel. A phase ends where a stage
# of the blend begins, and where a source has given as many samples as it may; the other sources
# then keep their sequence without it. A source that returns goes on where it was.


# A phase takes 8 bytes for each source, and 5 ms where its wheel has the most slots.
PHASES = 1_000
NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The weights of a blend from one position on; 0: the source is not drawn."""

    start: int
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """Positions from `start` on that follow one wheel."""

    start: int
    stage: int
    base: Ints  # (sources,) draws before `start`
    ended: NDArray[np.bool_]  # (sources,) those that give no more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wheel:
    """A wheel with, for each slot, the number of the slot among those of its source."""

    source: Ints  # (period,)
    number: Ints  # (period,)
    slots: Ints  # (sources,)

    def drawn(self, positions: int) -> Ints:
        """(sources,) draws of the first so many positions."""
        turns, rest = divmod(positions, len(self.source))
        part = np.bincount(self.source[:rest], minlength=len(self.slots))
        drawn: Ints = turns * self.slots + part
        return drawn


class Schedule:
    """Position of a run -> (source, its draw). Draws of a source are counted from 0 over the whole
    run.

    limits: (sources,) the most draws of each; default: as many as come. ValueError for impossible
    weights, and for more than 1,000 phases.
    """

    def __init__(
        self,
        sources: Sequence[SourceRows],
        stages: Sequence[Stage] | None = None,
        limits: Sequence[int] | None = None,
    ) -> None:
        self.sources = tuple(sources)
        if stages is None:
            stages = [Stage(start=0, weights=tuple(source.weight for source in sources))]
        assert stages[0].start == 0
        assert all(one.start < other.start for one, other in itertools.pairwise(stages))
        self.stages = tuple(stages)
        self.limits = np.asarray(limits if limits is not None else [NO_LIMIT] * len(sources))
        self._whole = functools.lru_cache(maxsize=4)(self._stage_wheel)
        self._wheel = functools.lru_cache(maxsize=8)(self._phase_wheel)
        self._phases: list[_Phase] = []
        self.end = self._make_phases()
        self._starts = np.array([phase.start for phase in self._phases], np.int64)

    def draws(self, position: Ints) -> tuple[Ints, Ints]:
        """(source, draw) of positions, which rise."""
        phase = np.searchsorted(self._starts, position, side="right") - 1
        source, draw = np.empty_like(position), np.empty_like(position)
        for k in np.unique(phase):
            here = phase == k
            wheel = self._wheel(int(k))
            turns, slot = np.divmod(position[here] - self._starts[k], len(wheel.source))
            source[here] = wheel.source[slot]
            before = self._phases[k].base[source[here]]
            draw[here] = before + turns * wheel.slots[source[here]] + wheel.number[slot]
        return source, draw

    def drawn(self, positions: int) -> Ints:
        """(sources,) draws of each source in the first so many positions."""
        k = int(np.searchsorted(self._starts, positions, side="right")) - 1
        start = self._phases[k].start
        drawn: Ints = self._phases[k].base + self._wheel(k).drawn(positions - start)
        return drawn

    def most_in_a_batch(self, batch_size: int) -> list[int]:
        """The most draws of each source in any batch."""
        most = np.zeros(len(self.sources), np.int64)
        stops = [*self._starts[1:].tolist(), self.end]
        for k, (phase, stop) in enumerate(zip(self._phases, stops, strict=True)):
            offset = -phase.start % batch_size  # of the first batch that begins in the phase
            if stop is None or phase.start + offset + batch_size <= stop:
                wheel = self._wheel(k).source
                in_phase = most_in_a_batch(wheel, len(self.sources), batch_size, offset)
                most = np.maximum(most, in_phase)
            if offset:
                first = phase.start - phase.start % batch_size
                last = first + batch_size if self.end is None else min(first + batch_size, self.end)
                most = np.maximum(most, self.drawn(last) - self.drawn(first))
        return [int(count) for count in most]

    def identity(self) -> dict[str, Any]:
        """What decides the schedule beside the weights of the sources; {} where nothing does."""
        identity: dict[str, Any] = {}
        if len(self.stages) > 1:
            stages = []
            for stage in self.stages:
                drawn = {}
                for source, weight in zip(self.sources, stage.weights, strict=True):
                    if weight:
                        drawn[source.name] = weight
                stages.append({"start": stage.start, "weights": drawn})
            identity["stages"] = stages
        limits = {}
        for source, limit in zip(self.sources, self.limits.tolist(), strict=True):
            if limit < NO_LIMIT:
                limits[source.name] = limit
        return identity | ({"limits": limits} if limits else {})

    def _stage_wheel(self, stage: int) -> Ints:
        """The wheel of a stage. The order of the sources does not matter: their names decide."""
        weights = self.stages[stage].weights
        drawn = [s for s, weight in enumerate(weights) if weight != 0]
        drawn.sort(key=lambda s: self.sources[s].name)
        weighted = []
        for s in drawn:
            name = self.sources[s].name
            weighted.append(SourceRows(name=name, weight=weights[s], shard_rows=()))
        wheel: Ints = np.array(drawn, np.int64)[wheel_sequence(wheel_slots(weighted))]
        return wheel

    def _phase_wheel(self, k: int) -> _Wheel:
        phase = self._phases[k]
        wheel = self._whole(phase.stage)
        wheel = wheel[~phase.ended[wheel]]
        sources = len(self.sources)
        slots = np.bincount(wheel, minlength=sources)
        return _Wheel(source=wheel, number=numbered_slots(wheel, sources), slots=slots)

    def _make_phases(self) -> int | None:
        """The position at which no source is left to draw; None: there is always one."""
        base = np.zeros(len(self.sources), np.int64)
        starts: list[int | None] = [stage.start for stage in self.stages[1:]]
        for number, (stage, stop) in enumerate(zip(self.stages, [*starts, None], strict=True)):
            position: int | None = stage.start
            while position is not None and (stop is None or position < stop):
                phase = _Phase(start=position, stage=number, base=base, ended=base >= self.limits)
                self._phases.append(phase)
                if len(self._phases) > PHASES:
                    raise ValueError(
                        f"the blend changes more than {PHASES:,} times in a run (stages, and views "
                        "that reach their caps or epochs); give fewer views caps or epochs"
                    )
                wheel = self._wheel(len(self._phases) - 1)
                if not len(wheel.source):
                    self._phases.pop()
                    return position
                following = self._first_end(phase, wheel)
                if stop is not None and (following is None or following > stop):
                    following = stop
                if following is not None:
                    base = base + wheel.drawn(following - position)
                position = following
        return None

    def _first_end(self, phase: _Phase, wheel: _Wheel) -> int | None:
        """The position after which the first source of a phase has given all that it may."""
        limited = np.flatnonzero((self.limits < NO_LIMIT) & (wheel.slots > 0))
        if not len(limited):
            return None
        slots = wheel.slots[limited]
        turns, number = np.divmod(self.limits[limited] - phase.base[limited] - 1, slots)
        by_source = np.argsort(wheel.source, kind="stable")
        first = np.cumsum(wheel.slots) - wheel.slots
        last_slot = by_source[first[limited] + number]
        return phase.start + int((turns * len(wheel.source) + last_slot).min()) + 1


# --------------------------------------------------------------------------------------------------
# The schedule of a blend: its weights, curriculum, caps and epochs, for a run of so many steps.


def blend_sources(blend: Blend, shard_rows: Mapping[str, Sequence[int] | Ints]) -> list[SourceRows]:
    """The views of a blend as sources, by name, with weights that are shares of the samples."""
    sources = []
    for name in sorted(blend.views):
        weight = _weight(blend, blend.views[name], shard_rows[name])
        sources.append(SourceRows(name=name, weight=weight, shard_rows=shard_rows[name]))
    return sources


def blend_schedule(
    blend: Blend, sources: Sequence[SourceRows], steps: int, batch_size: int
) -> Schedule:
    """Which source each position of a run belongs to.

    ValueError for a stage that begins after the run or before the stage before it, and where caps
    and epochs leave nothing to draw before the run ends.
    """
    stages = [Stage(start=0, weights=tuple(source.weight for source in sources))]
    for curriculum_stage in blend.curriculum:
        stages.append(_stage(blend, curriculum_stage, stages[-1], sources, steps, batch_size))
    schedule = Schedule(sources, stages, [_limit(blend, source) for source in sources])
    samples = steps * batch_size
    if schedule.end is not None and schedule.end < samples:
        whole = schedule.end // batch_size * batch_size
        raise ValueError(
            f"blend {blend.name!r}: after {schedule.end:,} samples every view that it draws has "
            f"reached its caps or epochs, and the run has {samples:,}; raise them, or leave one "
            "without" + (f", or set samples_seen={whole}" if whole else "")
        )
    return schedule


def _weight(blend: Blend, weight: float, shard_rows: Sequence[int] | Ints) -> float:
    if blend.weights == "samples":
        return weight
    return weight * int(np.asarray(shard_rows, np.int64).sum())


def _limit(blend: Blend, source: SourceRows) -> int:
    limit = min(blend.caps.get(source.name, NO_LIMIT), NO_LIMIT)
    epochs = blend.epochs.get(source.name)
    if epochs is None:
        return limit
    return min(limit, max(1, int(min(epochs * source.rows, float(NO_LIMIT)))))


def _stage(
    blend: Blend,
    stage: CurriculumStage,
    before: Stage,
    sources: Sequence[SourceRows],
    steps: int,
    batch_size: int,
) -> Stage:
    step = stage.step if stage.at is None else round(stage.at * steps)
    assert step is not None
    begins = f"step {step}" if stage.at is None else f"{stage.at} of the run (step {step})"
    if step >= steps:
        raise ValueError(
            f"blend {blend.name!r}: a stage of the curriculum begins at {begins}, and the run has "
            f"{steps} steps; begin it earlier, leave it out or raise samples_seen"
        )
    if step * batch_size <= before.start:
        raise ValueError(
            f"blend {blend.name!r}: a stage of the curriculum begins at {begins}, and the one "
            f"before it at step {before.start // batch_size}; each must begin later"
        )
    weights = []
    for source in sources:
        weights.append(_weight(blend, stage.views.get(source.name, 0), source.shard_rows))
    return Stage(start=step * batch_size, weights=tuple(weights))
