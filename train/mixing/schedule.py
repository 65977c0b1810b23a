"""Which source each position of a run belongs to, where weights change and sources end. Pure.

A run is a line of phases. In a phase the sources follow one wheel. A phase ends where a stage of
the blend begins, and where a source has given as many samples as it may; the other sources then
keep their sequence without it. A source that returns goes on where it was.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.mixing.wheel import (
    SourceRows,
    most_in_a_batch,
    numbered_slots,
    wheel_sequence,
    wheel_slots,
)
from train.rng import Ints

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
