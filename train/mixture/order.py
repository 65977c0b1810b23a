"""Step -> (source, shard, row): epochs, windows, distinct rows, captions."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clipmill.manifests.arrays import FloatArray, Integers
from clipmill.manifests.disk import content_hash, to_plain
from clipmill.train.mixture.schedule import Schedule, SourceRows, wheel_sequence, wheel_slots
from clipmill.train.rng import derive_key, permutation, uniforms

# --------------------------------------------------------------------------------------------------
# Rows that are drawn by chance: min(1, limit / count), as MetaCLIP balances its entries. Pure.
#
# A draw of a balanced source looks at some candidates, rows that are next in its order, and takes
# the first that chance accepts. A row is a candidate once an epoch. Where none is accepted, one
# is taken by chance with the same weights. The number of candidates follows from the mean chance,
# so that this happens in 1 of 100 draws at most (where 256 candidates are enough).
#
# Source of the rule: Xu et al., "Demystifying CLIP data", ICLR 2024, section 3.4.


UNDECIDED = 0.01  # most draws of which no candidate is accepted
CANDIDATES = 256


def candidates_for(mean_chance: float) -> int:
    """How many rows a draw looks at."""
    if mean_chance >= 1 - UNDECIDED:
        return 1 if mean_chance >= 1 else 2
    return min(CANDIDATES, math.ceil(math.log(UNDECIDED) / math.log1p(-mean_chance)))


def choose_candidates(chances: FloatArray, key: int, draw: Integers) -> Integers:
    """(draws,) the candidate that each draw takes.

    chances: (draws, candidates), above 0 and up to 1. key: of the source's random numbers.
    """
    count = chances.shape[1]
    random = uniforms(key, draw, 2 * count)
    accepted = random[:, :count] < chances
    # The first of clocks that run at the speed of the chances.
    by_weight = np.argmin(-np.log1p(-random[:, count:]) / chances, axis=1)
    chosen: Integers = np.where(accepted.any(axis=1), np.argmax(accepted, axis=1), by_weight)
    return chosen


def expected_unique(chances: FloatArray, rows: int, drawn: int) -> float:
    """About how many different rows come in so many draws.

    chances: (sample,) of rows that stand for all `rows`. Draws are taken as independent.
    """
    share = chances / chances.sum() * len(chances) / rows  # of the draws, for each row
    return float(rows * np.mean(-np.expm1(drawn * np.log1p(-np.minimum(share, 1 - 1e-12)))))


# --------------------------------------------------------------------------------------------------
# Which caption of a row a draw takes, where a blend draws from several text columns. Pure NumPy.
#
# Of every `period` draws of a source, each column has its exact share; which of them it has is
# random. So the columns of any prefix can be counted without going through it.


class CaptionColumns:
    """The text columns of a source with their shares. ValueError for impossible shares."""

    def __init__(self, shares: Mapping[str, float], key: int) -> None:
        """key: of the source's random numbers."""
        self.names = tuple(sorted(shares))
        weighted = []
        for name in self.names:
            weighted.append(SourceRows(name=name, weight=shares[name], shard_rows=()))
        self._slots = np.array(wheel_slots(weighted))
        self._turn = wheel_sequence(self._slots.tolist())
        self._key = derive_key(key)

    def of_draws(self, draw: Integers) -> Integers:
        """(draws,) the number in `names` of the column that each draw takes."""
        turn, slot = np.divmod(draw, len(self._turn))
        turns, row = np.unique(turn, return_inverse=True)
        return self._turns(turns)[row, slot]

    def count(self, draws: int) -> dict[str, int]:
        """How many of the first so many draws take each column."""
        turns, rest = divmod(draws, len(self._turn))
        part = np.bincount(self._turns(np.array([turns]))[0, :rest], minlength=len(self.names))
        counts = (turns * self._slots + part).tolist()
        return dict(zip(self.names, counts, strict=True))

    def _turns(self, turns: Integers) -> Integers:
        """(turns, period) the column of each draw of some turns."""
        order = np.argsort(uniforms(self._key, turns, len(self._turn)), axis=1, kind="stable")
        columns: Integers = self._turn[order]
        return columns


# --------------------------------------------------------------------------------------------------
# No two rows of one number in a batch: draws that would collide change places. Pure NumPy.
#
# The rule works on a block of batches, so it needs no state, and any rank gets the same result. A
# block is the same whatever step a run starts from.


NEAR = 16  # draws on either side that are tried first: they come from the same lane


def put_apart(source: Integers, numbers: Integers, batch_size: int) -> tuple[Integers, int | None]:
    """Exchange draws of a block of batches until no batch holds a number twice.

    source, numbers: (steps × batch_size,) of the draw at each position. Sources that cannot
    collide have numbers below 0. A draw whose number is already in its batch changes places with
    a draw of the same source: the next one that fits, in a later batch if there is one.

    Returns the draw that comes at each position, and None or the position of a draw for which no
    other fits.
    """
    block = _Block(source, numbers, batch_size)
    return block.draw, block.exchange_all()


class _Block:
    """The draws of a block of batches while they are put apart."""

    def __init__(self, source: Integers, numbers: Integers, batch_size: int) -> None:
        self._batch_size, self._steps = batch_size, len(source) // batch_size
        self._source = source
        self.draw = np.arange(len(source))  # the draw that comes at each position
        self._code = np.full(len(source), -1)
        checked = np.flatnonzero(numbers >= 0)
        different, self._code[checked] = np.unique(numbers[checked], return_inverse=True)
        cell = checked // batch_size * len(different) + self._code[checked]
        counts = np.bincount(cell, minlength=self._steps * len(different))
        # How often each number is in each batch.
        self._count = counts.reshape(self._steps, len(different)).astype(np.int32)

    def exchange_all(self) -> int | None:
        """None, or the position of a draw for which no other fits."""
        for batch in range(self._steps):
            here = slice(batch * self._batch_size, (batch + 1) * self._batch_size)
            for code in np.flatnonzero(self._count[batch] > 1):
                holders = here.start + np.flatnonzero(self._code[here] == code)
                for position in holders[::-1].tolist():
                    if self._count[batch, code] > 1:
                        self._move(position, batch)
                if self._count[batch, code] > 1:
                    return int(holders[-1])
        return None

    def _move(self, position: int, batch: int) -> None:
        """Exchange the draw of a position, where another one fits."""
        same = np.flatnonzero(self._source == self._source[position])
        first, last = np.searchsorted(
            same, [batch * self._batch_size, (batch + 1) * self._batch_size]
        )
        for later in range(batch + 1, self._steps):
            target = position + (later - batch) * self._batch_size
            middle = int(np.searchsorted(same, target))
            near = same[max(last, middle - NEAR) : middle + NEAR]
            if self._exchange(position, batch, near):
                return
        if not self._exchange(position, batch, same[last:]):
            self._exchange(position, batch, same[:first][::-1])

    def _exchange(self, position: int, batch: int, candidates: Integers) -> bool:
        """Exchange with the first candidate that brings no collision, here or there."""
        code = self._code[position]
        there = candidates // self._batch_size
        fits = (self._count[batch, self._code[candidates]] == 0) & (self._count[there, code] == 0)
        chosen = np.flatnonzero(fits)
        if not len(chosen):
            return False
        other = int(candidates[chosen[0]])
        other_batch, other_code = other // self._batch_size, self._code[other]
        self._count[batch, code] -= 1
        self._count[batch, other_code] += 1
        self._count[other_batch, other_code] -= 1
        self._count[other_batch, code] += 1
        pair, reverse = [position, other], [other, position]
        self._code[pair], self.draw[pair] = self._code[reverse], self.draw[reverse]
        return True


# --------------------------------------------------------------------------------------------------
# Where one epoch of a source ends and the next begins: no row twice within so many draws. Pure.
#
# Both rules keep an epoch what it is: every row once.


def exchanged_draws(last: Integers, first: Integers, apart: int) -> Integers:
    """(3 × apart,) which draw comes at each place in the beginning of an epoch.

    last: (apart,) the rows that the epoch before ended with. first: (3 × apart,) the rows that this
    one would begin with. A row among the first `apart` that is also in `last` changes places with
    one that comes later and is not. There are enough of these: 2 × apart, of which `apart` at most
    are in `last`. Then any `apart` draws in a row are different rows, over the border too.
    """
    assert len(last) == apart
    assert len(first) == 3 * apart
    repeated = np.isin(first, last)
    early = np.flatnonzero(repeated[:apart])
    later = apart + np.flatnonzero(~repeated[apart:])[: len(early)]
    draws = np.arange(len(first))
    draws[early], draws[later] = later, early
    return draws


def shuffled_apart(before: Integers, apart: int, key: int) -> Integers:
    """The rows of an epoch in a new order, after an epoch in the order `before`.

    At each place one of the rows is drawn that came at least `apart` draws ago: at place p those
    that were at most len(before) − apart places further on. So any `apart` draws in a row are
    different rows, over the border too. With `apart` near the number of rows little is left to
    chance.
    """
    rows = len(before)
    assert 0 < apart <= rows
    slack = rows - apart
    chances = uniforms(key, np.zeros(1, np.int64), rows)[0]
    waiting = before[: slack + 1].tolist()
    upcoming = iter(before[slack + 1 :].tolist())
    order = np.empty(rows, np.int64)
    for position in range(rows):
        k = int(chances[position] * len(waiting))
        order[position] = waiting[k]
        following = next(upcoming, None)
        if following is None:
            waiting[k] = waiting[-1]
            waiting.pop()
        else:
            waiting[k] = following
    return order


# --------------------------------------------------------------------------------------------------
# What the order of a run asks about rows, and what it says about its sources.


class RowNumbers(Protocol):
    """Numbers of rows that may not be in one batch together: equal where they collide."""

    column: str
    sources: frozenset[int]  # those of which a row may collide with another one

    def __call__(self, source: int, shard: Integers, row: Integers) -> Integers:
        """(rows,) numbers ≥ 0 of kept rows of a source."""


class RowChances(Protocol):
    """Chances of the rows of balanced sources."""

    @property
    def candidates(self) -> Mapping[int, int]:
        """Balanced source -> rows that a draw looks at."""

    def __call__(self, source: int, shard: Integers, row: Integers) -> FloatArray:
        """(rows,) the chances of kept rows of a balanced source, above 0 and up to 1."""

    def unique(self, source: int, rows: int, drawn: int) -> int:
        """About how many different rows come in so many draws."""

    def identity(self) -> dict[str, object]:
        """What decides the chances: {name of the source: its rule}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What some steps draw from one source.

    repeats: the mean, drawn / rows. share: of the samples of all sources. unique: different rows,
    of a balanced source an estimate. captions: text column -> draws, where there are several.
    """

    drawn: int
    rows: int
    repeats: float
    share: float
    unique: int
    captions: dict[str, int] | None = None

    def document(self) -> dict[str, object]:
        """As plain values, without captions where there is one column."""
        plain: dict[str, object] = to_plain(self)
        if self.captions is None:
            del plain["captions"]
        return plain

    def realised(self) -> dict[str, object]:
        """As a line of the log has it."""
        values: dict[str, Any] = {"samples": self.drawn, "repeats": self.repeats}
        values["share"] = self.share
        if self.captions is not None:
            values["captions"] = self.captions
        return values

    def cells(self, is_estimate: bool) -> dict[str, str]:
        """Its columns in the table of the plan. is_estimate: `unique` is one."""
        about = "~" if is_estimate else ""
        unique = f"{about}{self.unique:,}"
        return {"rows": f"{self.rows:,}", "unique": unique, "repeats": f"{self.repeats:.2f}"}


class RunOrder(Protocol):
    """Step to rows: `Order`, or `SegmentOrder` of a live run."""

    seed: int

    def batch(self, step: int, rows: range | None = None) -> tuple[Integers, Integers, Integers]:
        """(source, shard, row) of each row of a batch, or of some of its `rows`."""

    def captions(self, step: int, rows: range) -> list[str | None]:
        """The text column of each of some rows of a batch; None: the stored tokens."""

    def substitute(self, source: int, step: int, position: int, attempt: int) -> tuple[int, int]:
        """(shard, row) that replaces row `position` of batch `step`: of the same source."""

    def repeats(self, steps: int) -> dict[str, Repeats]:
        """Per source, what `steps` steps from the start draw."""

    def identity(self) -> dict[str, object]:
        """Everything that decides the order, as plain values; `fingerprint` is its hash."""

    def fingerprint(self) -> str:
        """Hash of the identity."""


# --------------------------------------------------------------------------------------------------
# Step -> (source, shard, row): a wheel over sources, lanes over rows, windows over shards.
#
# Pure NumPy. What a run draws is a function of (sources, batch size, lanes, window, seed) and of
# the step alone:
#
# * schedule (`schedule.py`): which source each position of the run belongs to. After any number of
#   positions the share of each source is exact to less than one sample, so every prefix of every
#   batch is mixed as the weights say.
# * draws: the q-th draw of a source is row `q % rows` of its epoch `q // rows`. Draw counts of two
#   rows of a source differ by at most 1, for any keep rates.
# * lanes: an epoch permutes the shards, permutes the kept rows inside windows of `window` shards,
#   and cuts the line of rows that results into `lanes` spans equal to ± 1 row. Draws go to the
#   spans one after another. Inside a batch each draw is put into the lane that is nearest to its
#   span. Lane k owns one block of every batch, so a rank with few blocks reads few shards.
# * no row twice in a batch, where an epoch of a source ends inside of one too. A source with fewer
#   rows than a batch draws of it is refused.
# * no two rows of one number in a batch, where the blend is `distinct`: in a block of batches,
#   draws of one source change places.
# * the row that replaces a damaged one is none of its batch (`Order.substitute`).
# * world size does not occur here: it only decides which rows of a batch a rank asks for.
#
# Random numbers come from `clipmill.train.rng`. A change of any of this bumps ORDER_VERSION and the
# golden test; of substitutes, which only damaged rows have, it changes the golden test alone.


ORDER_VERSION = 2
# Positions that are computed at once: spreads the cost of a NumPy call, small for a single step.
BLOCK = 2_048

# What a random number is for; 4: see transforms.py.
SHARDS, WINDOW, SUBSTITUTE, EPOCH, BALANCE, CAPTION = 1, 2, 3, 5, 6, 7
# Substitutes of a batch are rows of batches that are fewer than so many steps away: their shards
# are being read.
NEARBY = 5
# Batches at least that a block has where draws of one batch change places with those of another.
DISTINCT_STEPS = 4
# A source with fewer rows than so many times its draws of a batch has epochs that follow from one
# another; those of a larger one are independent but for their first draws.
FEW = 4


# --- the order ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Spans of a source's kept rows: draw i of an epoch is row `start[span] + i // lanes`."""

    key: int  # of the source's name
    rows: int
    lane: Integers  # (lanes,) the span of draw i is lane[i % lanes]
    start: Integers  # (lanes,) the first row of each span on the line of an epoch


def _spans(source: SourceRows, lanes: int) -> _Spans:
    rows = source.rows
    # Strides of about 0.618 of the lanes: any few draws in a row are spread evenly over the spans.
    stride = min(
        (g for g in range(1, lanes + 1) if math.gcd(g, lanes) == 1),
        key=lambda g: abs(g - lanes * 0.618),
    )
    lane = np.arange(lanes) * stride % lanes
    sizes = np.full(lanes, rows // lanes)
    sizes[lane[: rows % lanes]] += 1
    key = int.from_bytes(hashlib.sha256(source.name.encode()).digest()[:8], "big")
    return _Spans(key=key, rows=rows, lane=lane, start=np.cumsum(sizes) - sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One epoch of a source: its shards in their order of that epoch."""

    shards: Integers  # (shards with kept rows,) permuted
    ends: Integers  # where the rows of each of them end on the line
    starts: Integers  # (windows + 1,) where each window begins


class Order:
    """The order of a run. The order of `sources` does not matter: their names decide.

    distinct: numbers of rows of which a batch holds none twice. balance: chances of rows. captions:
    shares of text columns, by the name of the source. ValueError for a source with fewer rows than
    a batch draws of it, lanes that do not divide the batch, and impossible weights.
    """

    def __init__(
        self,
        sources: Sequence[SourceRows],
        batch_size: int,
        lanes: int = 64,
        window: int = 4,
        seed: int = 0,
        *,
        distinct: RowNumbers | None = None,
        balance: RowChances | None = None,
        captions: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        _check(sources, batch_size, lanes, window)
        self.sources = tuple(sources)
        self.batch_size, self.lanes, self.window, self.seed = batch_size, lanes, window, seed
        self.schedule = Schedule(sources)
        self._distinct, self._balance = distinct, balance
        self._spans = [_spans(source, lanes) for source in self.sources]
        self._rows = np.array([spans.rows for spans in self._spans])
        self._shard_rows = [np.asarray(source.shard_rows, np.int64) for source in self.sources]
        self._ends = [np.cumsum(shard_rows) for shard_rows in self._shard_rows]
        self._most = self.schedule.most_in_a_batch(batch_size)
        _check_rows(self.sources, self._rows.tolist(), self._most, batch_size)
        # (sources,) rows that a draw looks at; 1: it takes the next one.
        self._candidates = np.ones(len(self.sources), np.int64)
        for s, count in (balance.candidates if balance is not None else {}).items():
            self._set_candidates(s, count)
        self._shares = dict(captions or {})
        self._captions: dict[int, CaptionColumns] = {}
        for s, source in enumerate(self.sources):
            if source.name in self._shares:
                key = derive_key(seed, CAPTION, self._spans[s].key)
                self._captions[s] = CaptionColumns(self._shares[source.name], key)
        self._steps_per_block = -(-BLOCK // batch_size)
        if distinct is not None:
            self._steps_per_block = max(DISTINCT_STEPS, self._steps_per_block)
        # A lane is inside one window at a time; while it passes to the next, inside two.
        self._block = functools.lru_cache(maxsize=2)(self._compute_block)
        self._draws = functools.lru_cache(maxsize=2)(self._compute_draws)
        self._exchanged = functools.lru_cache(maxsize=2 * len(self.sources))(self._exchange)
        self._small_epochs: dict[int, tuple[int, Integers]] = {}  # source -> its last epoch
        # Of batches whose damaged rows are replaced, and of those nearby.
        self._of_batch = functools.lru_cache(maxsize=2 * NEARBY)(self._rows_of_batch)
        self._taken = functools.lru_cache(maxsize=2 * NEARBY)(self._marks_of_batch)
        self._line = functools.lru_cache(maxsize=4 * len(self.sources))(self._permute_shards)
        self._window_rows = functools.lru_cache(maxsize=2 * lanes * len(self.sources))(
            self._permute_window
        )

    def batch(self, step: int, rows: range | None = None) -> tuple[Integers, Integers, Integers]:
        """(source, shard, kept row) of each row of a batch, or of some of its `rows`."""
        rows = range(self.batch_size) if rows is None else rows
        assert step >= 0
        assert rows.step == 1
        assert 0 <= rows.start <= rows.stop <= self.batch_size
        number, within = divmod(step, self._steps_per_block)
        source, shard, row = self._block(number, rows.start, rows.stop)
        ours = slice(within * len(rows), (within + 1) * len(rows))
        return source[ours], shard[ours], row[ours]

    def captions(self, step: int, rows: range) -> list[str | None]:
        """The text column of each of some rows of a batch; None where its source has one only."""
        number, within = divmod(step, self._steps_per_block)
        first = within * self.batch_size
        source, draw = self._draws(number)
        here = slice(first + rows.start, first + rows.stop)
        columns: list[str | None] = [None] * len(rows)
        for s in np.unique(source[here]).tolist():
            if s in self._captions:
                names = self._captions[s].names
                positions = np.flatnonzero(source[here] == s)
                chosen = self._captions[s].of_draws(draw[here][positions])
                for position, k in zip(positions.tolist(), chosen.tolist(), strict=True):
                    columns[position] = names[k]
        return columns

    def substitute(self, source: int, step: int, position: int, attempt: int) -> tuple[int, int]:
        """(shard, kept row) that replaces row `position` of batch `step`, which is of `source`; the
        number `attempt` of several.

        It is what comes at another place in a batch nearby, so that no two positions get the same
        one, whatever others are replaced, and it is none that the batch has. Where no batch nearby
        has such a row (a source with few more rows than a batch draws), it is one that the batch
        does not have; where there is none of these either, any other.
        """
        own, taken = self._of_batch(step, source), self._taken(step, source)
        place, left = int(np.searchsorted(own[0], position)), attempt
        for nearby in (*range(step + 1, step + NEARBY), *range(step - 1, step - NEARBY, -1)):
            if nearby < 0:
                continue
            _, shard, row = self._of_batch(nearby, source)
            key = derive_key(self.seed, SUBSTITUTE, self._spans[source].key, step, nearby)
            other = (place + key) % max(len(shard), len(own[0]))  # in another lane
            here = slice(other, other + 1)
            if other < len(shard) and self._marks(source, shard[here], row[here])[0] not in taken:
                if left == 0:
                    return int(shard[other]), int(row[other])
                left -= 1
            # A position that takes a row of this batch, and one that comes to the next, differ.
            taken = taken | self._taken(nearby, source)
        count, rows = len(own[0]), self._spans[source].rows
        key = derive_key(self.seed, SUBSTITUTE, self._spans[source].key, step)
        line = np.arange(min(rows, (2 * NEARBY + attempt) * self._most[source]))
        shard, row = self._from_numbers(source, (key % rows + line) % rows)
        marks, at = self._marks(source, shard, row).tolist(), place + attempt * count
        free = [k for k, mark in enumerate(marks) if mark not in taken]
        if at >= len(free):
            in_batch = self._taken(step, source)
            free = [k for k, mark in enumerate(marks) if mark not in in_batch] or line.tolist()
            at = place + attempt  # of few rows every one in its turn: some may be damaged
        k = free[at % len(free)]
        return int(shard[k]), int(row[k])

    def _rows_of_batch(self, step: int, source: int) -> tuple[Integers, Integers, Integers]:
        """(position, shard, row) of the rows of a source in a whole batch, in their order."""
        number, within = divmod(step, self._steps_per_block)
        sources, draw = self._draws(number)
        batch = slice(within * self.batch_size, (within + 1) * self.batch_size)
        position = np.flatnonzero(sources[batch] == source)
        return position, *self._locate(source, draw[batch][position])

    def _marks_of_batch(self, step: int, source: int) -> frozenset[int]:
        """What a row of a source may not be in a batch: `_marks` of the rows that are there."""
        apart = {source}
        if self._distinct is not None and source in self._distinct.sources:
            apart = set(self._distinct.sources)
        marks: set[int] = set()
        for s in apart:
            _, shard, row = self._of_batch(step, s)
            marks |= set(self._marks(s, shard, row).tolist())
        return frozenset(marks)

    def _marks(self, s: int, shard: Integers, row: Integers) -> Integers:
        """Numbers of rows of which a batch holds none twice: `distinct`, or the source's rows."""
        if self._distinct is not None and s in self._distinct.sources:
            return self._distinct(s, shard, row)
        return self._numbers(s, shard, row)

    def repeats(self, steps: int) -> dict[str, Repeats]:
        """Per source, what `steps` steps from the start draw."""
        of_sources = self.schedule.drawn(steps * self.batch_size).tolist()
        samples = max(1, steps * self.batch_size)
        repeats = {}
        for s, drawn in enumerate(of_sources):
            repeats[self.sources[s].name] = self._repeats_of(s, drawn, drawn / samples)
        return repeats

    def _repeats_of(self, s: int, drawn: int, share: float) -> Repeats:
        rows = self._spans[s].rows
        unique = min(drawn, rows)
        if self._balance is not None and s in self._balance.candidates:
            unique = self._balance.unique(s, rows, drawn)
        return Repeats(
            drawn=drawn,
            rows=rows,
            repeats=drawn / rows,
            share=share,
            unique=unique,
            captions=self._captions[s].count(drawn) if s in self._captions else None,
        )

    def check_repeats(self, steps: int, most: float | None) -> None:
        """ValueError where `steps` steps draw the rows of a source more than `most` times."""
        name, worst = max(self.repeats(steps).items(), key=lambda item: item[1].repeats)
        if most is not None and worst.repeats > most:
            samples = int(steps * self.batch_size * most / worst.repeats)
            raise ValueError(
                f"{name} would be repeated {worst.repeats:.1f} times ({worst.drawn:,} draws of "
                f"{worst.rows:,} rows) and max_repeats is {most:g}; train on at most {samples:,} "
                "samples, lower its weight or raise max_repeats"
            )

    def identity(self) -> dict[str, object]:
        """Everything that decides the order, as plain values; `fingerprint` is its hash."""
        sources = {}
        for source in self.sources:
            sources[source.name] = {
                "weight": source.weight,
                "rows": source.rows,
                "shards": len(source.shard_rows),
                "hash": content_hash(np.asarray(source.shard_rows, np.int64).tolist()),
            }
        identity: dict[str, object] = {
            "version": ORDER_VERSION,
            "batch_size": self.batch_size,
            "lanes": self.lanes,
            "window": self.window,
            "seed": self.seed,
            "sources": sources,
        }
        # Later keys are there only where they are used: other orders keep their fingerprint.
        if self._distinct is not None:
            identity["distinct"] = self._distinct.column
        if self._balance is not None:
            identity["balance"] = self._balance.identity()
        if self._shares:
            identity["captions"] = to_plain(self._shares)
        return identity

    def fingerprint(self) -> str:
        """Hash of the identity: orders with the same hash draw the same rows at every step."""
        return content_hash(self.identity())

    def _compute_block(
        self, number: int, start: int, stop: int
    ) -> tuple[Integers, Integers, Integers]:
        """(source, shard, row) of rows start … stop − 1 of the batches of block `number`, one
        batch after another. Only they are located.
        """
        source, draw = self._draws(number)
        source = source.reshape(-1, self.batch_size)[:, start:stop].ravel()
        draw = draw.reshape(-1, self.batch_size)[:, start:stop].ravel()
        shard, row = np.empty_like(draw), np.empty_like(draw)
        for s in np.unique(source).tolist():
            here = np.flatnonzero(source == s)
            shard[here], row[here] = self._locate(s, draw[here])
        return source, shard, row

    def _compute_draws(self, number: int) -> tuple[Integers, Integers]:
        """(source, its draw) at every position of block `number`."""
        count = self._steps_per_block * self.batch_size
        first = number * count
        n = first + np.arange(count)
        source, draw = self.schedule.draws(n)
        # Inside a batch the draws of a source go to its positions in the order of their spans.
        cell = np.arange(count) // self.batch_size * len(self.sources) + source
        # The first candidate of a draw; without chances that is its row.
        turns, nth = np.divmod(draw, self.lanes)
        first_row = turns * self._candidates[source] * self.lanes + nth
        lane = self._spans[0].lane[first_row % self._rows[source] % self.lanes]
        placed = np.empty_like(draw)
        by_position = np.argsort(cell, kind="stable")
        by_span = np.argsort(cell * self.lanes + lane, kind="stable")
        placed[by_position] = draw[by_span]
        return source, self._put_apart(number, source, placed)

    def _put_apart(self, number: int, source: Integers, draw: Integers) -> Integers:
        """The draws of a block, exchanged so that no batch holds a number twice."""
        if self._distinct is None or not self._distinct.sources:
            return draw
        numbers = np.full(len(draw), -1)
        for s in np.unique(source).tolist():
            if s in self._distinct.sources:
                here = np.flatnonzero(source == s)
                numbers[here] = self._distinct(s, *self._locate(s, draw[here]))
        exchanged, left = put_apart(source, numbers, self.batch_size)
        if left is not None:
            step = number * self._steps_per_block + left // self.batch_size
            raise ValueError(
                f"step {step} would draw a row of {self.sources[source[left]].name} that its batch "
                f"already has (distinct: {self._distinct.column}), and no other row fits: the "
                "views have too few different rows for the batch; lower batch_size, or weigh the "
                "view less"
            )
        return draw[exchanged]

    def _locate(self, s: int, draw: Integers) -> tuple[Integers, Integers]:
        """(shard, kept row) of draws of source `s`: of a balanced one, of the candidate that chance
        takes.
        """
        candidates = int(self._candidates[s])
        if self._balance is None or s not in self._balance.candidates:
            return self._locate_rows(s, draw)
        # Candidates of a draw come from its span of the epoch, as those of its lane do.
        turns, nth = np.divmod(draw, self.lanes)
        turn = (turns * candidates)[:, None] + np.arange(candidates)
        shard, row = self._locate_rows(s, (turn * self.lanes + nth[:, None]).ravel())
        chances = self._balance(s, shard, row).reshape(-1, candidates)
        key = derive_key(self.seed, BALANCE, self._spans[s].key)
        chosen = np.arange(len(draw)) * candidates + choose_candidates(chances, key, draw)
        return shard[chosen], row[chosen]

    def _set_candidates(self, s: int, wanted: int) -> None:
        """Fewer candidates than wanted where a batch would reach over more than an epoch."""
        turns = -(-self._most[s] // self.lanes) + 1  # in which the draws of a batch lie
        self._candidates[s] = max(1, min(wanted, int(self._rows[s]) // (turns * self.lanes)))
        if self._candidates[s] > 1:
            self._most[s] = turns * self.lanes * int(self._candidates[s])

    def _locate_rows(self, s: int, draw: Integers) -> tuple[Integers, Integers]:
        """(shard, kept row) of draws of source `s` that take the next row each."""
        shard, row = np.empty_like(draw), np.empty_like(draw)
        epoch, within = np.divmod(draw, self._rows[s])
        for e in np.unique(epoch).tolist():
            here = epoch == e
            shard[here], row[here] = self._locate_in_epoch(s, e, within[here])
        return shard, row

    def _locate_in_epoch(self, s: int, epoch: int, within: Integers) -> tuple[Integers, Integers]:
        """(shard, kept row) of draws `within` one epoch of source `s`."""
        if epoch > 0 and self._rows[s] < FEW * self._most[s]:
            return self._from_numbers(s, self._epoch_of_few(s, epoch)[within])
        if epoch > 0:
            draws = self._exchanged(s, epoch)
            within = np.where(
                within < len(draws), draws[np.minimum(within, len(draws) - 1)], within
            )
        return self._locate_on_line(s, epoch, within)

    def _exchange(self, s: int, epoch: int) -> Integers:
        """The first draws of an epoch of source `s`: draw i is the i-th of these draws instead."""
        most, rows = self._most[s], int(self._rows[s])
        last = self._numbers(s, *self._locate_on_line(s, epoch - 1, np.arange(rows - most, rows)))
        first = self._numbers(s, *self._locate_on_line(s, epoch, np.arange(3 * most)))
        return exchanged_draws(last, first, most)

    def _epoch_of_few(self, s: int, epoch: int) -> Integers:
        """The rows of a small source, as numbers, in the order of their draws in an epoch.

        An epoch follows from the one before it, so a resumed run repeats them from the first.
        """
        known, numbers = self._small_epochs.get(s, (epoch + 1, self._ends[s]))
        if known > epoch:
            rows = int(self._rows[s])
            known, numbers = 0, self._numbers(s, *self._locate_on_line(s, 0, np.arange(rows)))
        for e in range(known + 1, epoch + 1):
            key = derive_key(self.seed, EPOCH, self._spans[s].key, e)
            numbers = shuffled_apart(numbers, self._most[s], key)
        self._small_epochs[s] = epoch, numbers
        return numbers

    def _numbers(self, s: int, shard: Integers, row: Integers) -> Integers:
        """Kept rows as numbers over all shards of source `s`."""
        return self._ends[s][shard] - self._shard_rows[s][shard] + row

    def _from_numbers(self, s: int, numbers: Integers) -> tuple[Integers, Integers]:
        """(shard, kept row) of `_numbers`."""
        shard = np.searchsorted(self._ends[s], numbers, side="right")
        return shard, numbers - self._ends[s][shard] + self._shard_rows[s][shard]

    def _locate_on_line(self, s: int, epoch: int, within: Integers) -> tuple[Integers, Integers]:
        """(shard, kept row) of draws `within` one epoch of source `s`, before any exchange."""
        spans, line = self._spans[s], self._line(s, epoch)
        turns, nth = np.divmod(within, self.lanes)
        position = spans.start[spans.lane[nth]] + turns  # on the line of the epoch
        window = np.searchsorted(line.starts, position, side="right") - 1
        for w in np.unique(window):
            here = window == w
            first = line.starts[w]
            permuted = self._window_rows(s, epoch, int(w))
            position[here] = first + permuted[position[here] - first]
        k = np.searchsorted(line.ends, position, side="right")
        shard = line.shards[k]
        return shard, position - line.ends[k] + self._shard_rows[s][shard]

    def _permute_shards(self, s: int, epoch: int) -> _Line:
        rows = self._shard_rows[s]
        shards = np.flatnonzero(rows)
        key = derive_key(self.seed, SHARDS, self._spans[s].key, epoch)
        shards = shards[permutation(key, len(shards))]
        ends = np.cumsum(rows[shards])
        starts = np.concatenate([[0], ends[self.window - 1 :: self.window], ends[-1:]])
        return _Line(shards=shards, ends=ends, starts=np.unique(starts))

    def _permute_window(self, s: int, epoch: int, window: int) -> NDArray[np.int32]:
        starts = self._line(s, epoch).starts
        key = derive_key(self.seed, WINDOW, self._spans[s].key, epoch, window)
        return permutation(key, int(starts[window + 1] - starts[window])).astype(np.int32)


def _check(sources: Sequence[SourceRows], batch_size: int, lanes: int, window: int) -> None:
    for name, value in (("batch_size", batch_size), ("lanes", lanes), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if batch_size % lanes:
        fit = ", ".join(str(k) for k in range(1, min(batch_size, 1024) + 1) if batch_size % k == 0)
        raise ValueError(f"{lanes} lanes do not divide a batch of {batch_size}; lanes may be {fit}")
    names = [source.name for source in sources]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"a blend needs sources of different names; it has {names}")
    for source in sources:
        if not source.rows:
            raise ValueError(
                f"{source.name!r} keeps no row; choose another view or loosen its rules"
            )


def _check_rows(
    sources: Sequence[SourceRows], rows: Sequence[int], most: Sequence[int], batch_size: int
) -> None:
    """ValueError where a batch would have to hold a row twice."""
    for source, count, draws in zip(sources, rows, most, strict=True):
        if count < draws:
            raise ValueError(
                f"fewer rows than a batch: {source.name} keeps {count}, and a batch of "
                f"{batch_size} draws {draws} of it; lower batch_size or its weight, or keep more "
                "rows (a row twice in a batch would be its own wrong answer)"
            )


# --------------------------------------------------------------------------------------------------
# The order of a run on a pool that is still being built: segments of steps, each over the shards
# that were committed when it was decided. Pure, given the segments.
#
# Shards have a number in the order in which the run found them. A segment draws the shards that
# are new, each row once, or all shards again where nothing is new. So no row comes a second time
# while rows wait that have not come at all. The last segment, of a pool that is complete, has no
# end.


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


class Segments(Protocol):
    """The segments of a run, and the shards found so far."""

    segments: list[Segment]

    def at(self, step: int) -> Segment:
        """The segment of a step; it may wait for shards."""

    def rows(self) -> list[int]:
        """Kept rows of the shards found so far."""


class SegmentOrder:
    """The order of a live run, with what the loader uses of `Order`. Shards are numbered as they
    were found.
    """

    def __init__(
        self, name: str, live: Segments, batch_size: int, lanes: int, window: int, seed: int
    ) -> None:
        self.name, self.batch_size, self.lanes, self.window = name, batch_size, lanes, window
        self.seed, self._live = seed, live
        self._order = functools.lru_cache(maxsize=4)(self._make_order)

    def batch(self, step: int, rows: range | None = None) -> tuple[Integers, Integers, Integers]:
        """(source, shard, row) of each row of a batch, or of some of its `rows`."""
        segment = self._live.at(step)
        source, shard, row = self._order(segment).batch(step - segment.first, rows)
        return source, shard + segment.start, row

    def captions(self, step: int, rows: range) -> list[str | None]:
        """A live run has the column `caption` alone."""
        return [None] * len(rows)

    def substitute(self, source: int, step: int, position: int, attempt: int) -> tuple[int, int]:
        """(shard, row) that replaces row `position` of batch `step`."""
        segment = self._live.at(step)
        shard, row = self._order(segment).substitute(
            source, step - segment.first, position, attempt
        )
        return shard + segment.start, row

    def repeats(self, steps: int) -> dict[str, Repeats]:
        """What `steps` steps draw, as far as their segments are known. `unique` is an estimate
        where shards were drawn again.
        """
        rows = self._live.rows()
        all_rows, drawn, unique = sum(rows), 0, 0.0
        for segment in self._live.segments:
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

    def identity(self) -> dict[str, object]:
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
        rows = np.asarray(self._live.rows()[segment.start : segment.stop], np.int64)
        source = SourceRows(name=self.name, weight=1, shard_rows=rows)
        seed = derive_key(self.seed, SEGMENT, segment.number)
        return Order([source], self.batch_size, self.lanes, self.window, seed)
