"""Step -> (source, shard, row): a wheel over sources, lanes over rows, windows over shards.

Pure NumPy. What a run draws is a function of (sources, batch size, lanes, window, seed) and of the
step alone:

* schedule (`schedule.py`): which source each position of the run belongs to. After any number of
  positions the share of each source is exact to less than one sample, so every prefix of every
  batch is mixed as the weights say.
* draws: the q-th draw of a source is row `q % rows` of its epoch `q // rows`. Draw counts of two
  rows of a source differ by at most 1, for any keep rates.
* lanes: an epoch permutes the shards, permutes the kept rows inside windows of `window` shards, and
  cuts the line of rows that results into `lanes` spans equal to ± 1 row. Draws go to the spans one
  after another. Inside a batch each draw is put into the lane that is nearest to its span. Lane k
  owns one block of every batch, so a rank with few blocks reads few shards.
* no row twice in a batch, where an epoch of a source ends inside of one too (`epochs.py`). A source
  with fewer rows than a batch draws of it is refused.
* no two rows of one number in a batch, where the blend is `distinct`: in a block of batches, draws
  of one source change places (`distinct.py`).
* world size does not occur here: it only decides which rows of a batch a rank asks for.

Random numbers come from `train.rng`. A change of any of this bumps ORDER_VERSION and the golden
test.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manifests.disk import content_hash, to_plain
from train.mixing.balance import choose_candidates
from train.mixing.captions import CaptionColumns
from train.mixing.distinct import put_apart
from train.mixing.epochs import exchanged_draws, shuffled_apart
from train.mixing.rules import Repeats, RowChances, RowNumbers
from train.mixing.schedule import Schedule
from train.mixing.wheel import SourceRows
from train.rng import Ints, derive_key, permutation

ORDER_VERSION = 2
# Positions that are computed at once: spreads the cost of a NumPy call, small for a single step.
BLOCK = 2_048

# What a random number is for; 4: see augment.py.
SHARDS, WINDOW, SUBSTITUTE, EPOCH, BALANCE, CAPTION = 1, 2, 3, 5, 6, 7
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
    lane: Ints  # (lanes,) the span of draw i is lane[i % lanes]
    start: Ints  # (lanes,) the first row of each span on the line of an epoch


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

    shards: Ints  # (shards with kept rows,) permuted
    ends: Ints  # where the rows of each of them end on the line
    starts: Ints  # (windows + 1,) where each window begins


class Order:
    """The order of a run. The order of `sources` does not matter: their names decide.

    schedule: which source each position belongs to; default: always by the weights of `sources`.
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
        schedule: Schedule | None = None,
        distinct: RowNumbers | None = None,
        balance: RowChances | None = None,
        captions: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        _check(sources, batch_size, lanes, window)
        self.sources = tuple(sources)
        self.batch_size, self.lanes, self.window, self.seed = batch_size, lanes, window, seed
        self.schedule = schedule or Schedule(sources)
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
        self._small_epochs: dict[int, tuple[int, Ints]] = {}  # source -> its last epoch
        self._line = functools.lru_cache(maxsize=4 * len(self.sources))(self._permute_shards)
        self._window_rows = functools.lru_cache(maxsize=2 * lanes * len(self.sources))(
            self._permute_window
        )

    def batch(self, step: int, rows: range | None = None) -> tuple[Ints, Ints, Ints]:
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
        """(shard, kept row) that replaces row `position` of batch `step`: of the same source."""
        spans = self._spans[source]
        key = derive_key(self.seed, SUBSTITUTE, spans.key, step, position, attempt)
        row = key % spans.rows
        ends, shard_rows = self._ends[source], self._shard_rows[source]
        shard = int(np.searchsorted(ends, row, side="right"))
        return shard, row - int(ends[shard]) + int(shard_rows[shard])

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

    def identity(self) -> dict[str, Any]:
        """Everything that decides the order, as plain values; `fingerprint` is its hash."""
        sources = {}
        for source in self.sources:
            sources[source.name] = {
                "weight": source.weight,
                "rows": source.rows,
                "shards": len(source.shard_rows),
                "hash": content_hash(np.asarray(source.shard_rows, np.int64).tolist()),
            }
        identity: dict[str, Any] = {
            "version": ORDER_VERSION,
            "batch_size": self.batch_size,
            "lanes": self.lanes,
            "window": self.window,
            "seed": self.seed,
            "sources": sources,
        }
        # Later keys are there only where they are used: other orders keep their fingerprint.
        identity |= self.schedule.identity()
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

    def _compute_block(self, number: int, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
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

    def _compute_draws(self, number: int) -> tuple[Ints, Ints]:
        """(source, its draw) at every position of block `number`."""
        count = self._steps_per_block * self.batch_size
        first = number * count
        if self.schedule.end is not None:  # what lies behind it is never asked for
            count = min(count, (self.schedule.end - first) // self.batch_size * self.batch_size)
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

    def _put_apart(self, number: int, source: Ints, draw: Ints) -> Ints:
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

    def _locate(self, s: int, draw: Ints) -> tuple[Ints, Ints]:
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

    def _locate_rows(self, s: int, draw: Ints) -> tuple[Ints, Ints]:
        """(shard, kept row) of draws of source `s` that take the next row each."""
        shard, row = np.empty_like(draw), np.empty_like(draw)
        epoch, within = np.divmod(draw, self._rows[s])
        for e in np.unique(epoch).tolist():
            here = epoch == e
            shard[here], row[here] = self._locate_in_epoch(s, e, within[here])
        return shard, row

    def _locate_in_epoch(self, s: int, epoch: int, within: Ints) -> tuple[Ints, Ints]:
        """(shard, kept row) of draws `within` one epoch of source `s`."""
        if epoch > 0 and self._is_small(s):
            return self._from_numbers(s, self._epoch_of_few(s, epoch)[within])
        if epoch > 0:
            draws = self._exchanged(s, epoch)
            within = np.where(
                within < len(draws), draws[np.minimum(within, len(draws) - 1)], within
            )
        return self._locate_on_line(s, epoch, within)

    def _is_small(self, s: int) -> bool:
        return bool(self._rows[s] < FEW * self._most[s])

    def _exchange(self, s: int, epoch: int) -> Ints:
        """The first draws of an epoch of source `s`: draw i is the i-th of these draws instead."""
        most, rows = self._most[s], int(self._rows[s])
        last = self._numbers(s, *self._locate_on_line(s, epoch - 1, np.arange(rows - most, rows)))
        first = self._numbers(s, *self._locate_on_line(s, epoch, np.arange(3 * most)))
        return exchanged_draws(last, first, most)

    def _epoch_of_few(self, s: int, epoch: int) -> Ints:
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

    def _numbers(self, s: int, shard: Ints, row: Ints) -> Ints:
        """Kept rows as numbers over all shards of source `s`."""
        return self._ends[s][shard] - self._shard_rows[s][shard] + row

    def _from_numbers(self, s: int, numbers: Ints) -> tuple[Ints, Ints]:
        """(shard, kept row) of `_numbers`."""
        shard = np.searchsorted(self._ends[s], numbers, side="right")
        return shard, numbers - self._ends[s][shard] + self._shard_rows[s][shard]

    def _locate_on_line(self, s: int, epoch: int, within: Ints) -> tuple[Ints, Ints]:
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
