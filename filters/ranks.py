"""What the scores of a whole pool make of a row's: a mean of ranks, and soft cap sampling.

They read columns of other filters, of the sidecars or of joined tables, and write none of them.

Invariants, in `tests/filters/test_ranks.py`:

* A rank is the mid-rank among all stored rows with a value, exactly.
* A row is drawn as often as by drawing one row after the other with the penalty, and nothing
  depends on shards, partitions or the order of rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.base import Columns, PoolFilter, described
from clipmill.filters.columns import mixed, route_by_uid
from clipmill.manifests.arrays import FloatArray, Integers, Mask
from clipmill.manifests.hashes import text_hashes

logger = logging.getLogger(__name__)

# --------------------------------------------------------------------------------------------------
# How often each value of some columns occurs in the pool: the summary of both filters.


COUNTS = pa.schema([("column", pa.string()), ("value", pa.float64()), ("rows", pa.int64())])


def numbers_of(rows: pa.Table, column: str) -> FloatArray:
    """(rows,) the values of a column as numbers; NaN for NULL and infinity. ValueError for text."""
    kind = rows[column].type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (is_number or pa.types.is_boolean(kind)):
        raise ValueError(f"the column {column} holds {kind}; name a column of numbers")
    values = rows[column].cast(pa.float64(), safe=False).to_numpy()
    return np.where(np.isfinite(values), values + 0.0, np.nan)  # 0.0 for -0.0


def count_values(columns: Mapping[str, FloatArray]) -> pa.Table:
    """COUNTS of some columns, by value; NaN is not counted."""
    tables = [COUNTS.empty_table()]
    for name, values in columns.items():
        different, rows = np.unique(values[~np.isnan(values)], return_counts=True)
        tables.append(pa.table([pa.repeat(name, len(rows)), different, rows], COUNTS))
    return pa.concat_tables(tables)


def merge_counts(tables: pa.Table) -> pa.Table:
    """The rows of several tables COUNTS as one for each value, by column and value."""
    merged = [COUNTS.empty_table()]
    for name in sorted(pc.unique(tables["column"]).to_pylist()):
        own = tables.filter(pc.equal(tables["column"], name))
        different, place = np.unique(own["value"].to_numpy(), return_inverse=True)
        rows = np.zeros(len(different), np.int64)
        np.add.at(rows, place, own["rows"].to_numpy())
        merged.append(pa.table([pa.repeat(name, len(rows)), different, rows], COUNTS))
    return pa.concat_tables(merged)


# --------------------------------------------------------------------------------------------------
# Scores that have no common scale, as one: the weighted mean of their ranks.


@dataclass(kw_only=True)
class RankMean(PoolFilter):
    """rank_mean: the weighted mean of the ranks of some columns, between 0 and 1; larger is better.

    of: column -> weight, as in {clip_score: 2, clip_loss: 1}. A weight below 0 is of a column of
    which less is better. The rank of a value is the share of the stored rows with a smaller one and
    half of those with an equal one, among the rows that have a value. A row without a value in one
    of the columns has NULL. In memory are some 40 bytes for each different value of a column.
    """

    name = "rank_mean"
    adds, meanings = described(
        rank_mean=(pa.float32(), "weighted mean of the ranks of some columns")
    )
    of: dict[str, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        for column, weight in self.of.items():
            if not (math.isfinite(weight) and weight):
                raise ValueError(f"the weight of {column} is {weight}; it must be a number but 0")
        if not self.of:
            raise ValueError("it names no column; write {clip_score: 2, clip_loss: 1}")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.of)

    def summarise(self, rows: pa.Table) -> pa.Table:
        return count_values({column: numbers_of(rows, column) for column in self.of})

    def merge(self, summaries: pa.Table) -> pa.Table:
        return merge_counts(summaries)

    def combine(self, summaries: pa.Table) -> pa.Table:
        """The rank of each value of a column: by column, then by value."""
        counts = merge_counts(summaries)
        ranks = [np.zeros(0)]
        for column in sorted(self.of):
            rows = counts.filter(pc.equal(counts["column"], column))["rows"].to_numpy()
            ranks.append((np.cumsum(rows) - rows / 2) / max(1, rows.sum()))
        return counts.set_column(2, "rank", pa.array(np.concatenate(ranks)))

    def route(self, rows: pa.Table, state: object, partitions: int) -> tuple[Integers, Integers]:
        """Rows that have a value in every column, by their uid."""
        is_known = np.ones(rows.num_rows, np.bool_)
        for column in self.of:
            is_known &= ~np.isnan(numbers_of(rows, column))
        return route_by_uid(rows, is_known, partitions)

    def judge(self, rows: pa.Table, state: pa.Table) -> Columns:
        total = np.zeros(rows.num_rows)
        for column, weight in self.of.items():
            own = state.filter(pc.equal(state["column"], column))
            place = np.searchsorted(own["value"].to_numpy(), numbers_of(rows, column))
            rank = own["rank"].to_numpy()[place]
            total += weight * rank if weight > 0 else weight * (rank - 1)
        return {"rank_mean": total / math.fsum(map(abs, self.of.values()))}


# --------------------------------------------------------------------------------------------------
# Soft cap sampling: rows are drawn one after the other with a probability proportional to
# exp(score), and each draw of a row takes `penalty` off its score.
#
# Source: Shechter and Carmon, "Filter Like You Test", arXiv 2503.08805. They draw 100,000 rows at a
# time, to be fast, and look at the whole pool each time. Here each row has a clock of its own: from
# its draw k on it rings again after an exponential time of the rate exp(score - k * penalty). The
# clocks' rings in the order of time are these draws, one by one (exponential clocks; Athreya and
# Karlin 1968 for urns). So a row needs to know nothing of the others but the time of the last draw.
# The times are logarithms, which makes a score a shift.


GRAIN = 2.0**-18  # of a logarithm of a time
STEP = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64
BINS = pa.schema([("bin", pa.float64()), ("width", pa.float64()), ("draws", pa.int64())])
MOST_BINS = 1 << 18  # of times, in memory: where more are needed, all are made wider
BIN = 2.0**-10  # the narrowest, of a logarithm of a time; some 30,000 where scores are of one size


def ring_times(
    scores: FloatArray, uids: list[str], penalty: float, most: int, seed: int
) -> FloatArray:
    """(rows, most) logarithms of the times of a row's first draws, ascending, a multiple of GRAIN.

    scores: logarithms of the weights. The random numbers are hashes of uid and seed.
    """
    state = text_hashes((f"soft_cap:{uid}" for uid in uids), seed)
    times = np.empty((len(uids), most))
    elapsed = np.full(len(uids), -np.inf)
    for draw in range(most):
        state = state + STEP
        chance = ((mixed(state) >> np.uint64(12)) + 0.5) / 2.0**52  # never 0 or 1
        elapsed = np.logaddexp(elapsed, np.log(-np.log(chance)) + penalty * draw)
        times[:, draw] = elapsed - scores
    return np.floor(times / GRAIN) * GRAIN


@dataclass(kw_only=True)
class SoftCap(PoolFilter):
    """soft_cap: how often soft cap sampling draws the row, 0 to `most`. NULL without a score.

    of: the column with the scores, larger ones better. share: draws in all, as a share of the rows
    with a score; it may be above 1. Rows are drawn one by one with a probability proportional to
    exp(score / temperature); each draw of a row divides its probability by exp(penalty), and after
    `most` draws it has none. Draws at the same time as the last one, to 1 in 260,000, count too.

    The shards are summarised as a histogram of times. Then the rows with a time in the bin of the
    last draw are in one partition, which has all times to find it among.
    """

    name = "soft_cap"
    version = 2
    adds, meanings = described(soft_cap=(pa.int16(), "how often soft cap sampling draws the row"))
    of: str
    share: float = field(metadata={"above": 0})
    penalty: float = field(default=0.15, metadata={"above": 0, "most": 20})
    temperature: float = field(default=1.0, metadata={"above": 0})
    most: int = field(default=16, metadata={"least": 1, "most": 32})
    seed: int = field(default=0, metadata={"least": 0, "most": 2**64 - 1})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.share <= self.most:
            raise ValueError(
                f"share is {self.share}, but a row is drawn {self.most} times at most; "
                f"lower it to {self.most} or less, or raise most"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    def summarise(self, rows: pa.Table) -> pa.Table:
        times = self._times(rows.filter(pa.array(self._is_known(rows)))).ravel()
        return self.merge(pa.table([times, np.full(len(times), BIN), np.ones_like(times)], BINS))

    def merge(self, summaries: pa.Table) -> pa.Table:
        """BINS of one width, by time. A bin is named by its lower end, and by any time in it."""
        lower, width, draws = (summaries[name].to_numpy() for name in BINS.names)
        wide = width.max(initial=BIN)
        while True:
            bins, place = np.unique(np.floor(lower / wide), return_inverse=True)
            if len(bins) <= MOST_BINS:
                break
            wide *= 2 ** math.ceil(math.log2(len(bins) / MOST_BINS))
        counts = np.bincount(place, draws, len(bins))
        return pa.table([bins * wide, np.full(len(bins), wide), counts.astype(np.int64)], BINS)

    def combine(self, summaries: pa.Table) -> pa.Table:
        """The bin of the last draw, and which one in it is the last; no rows without draws."""
        bins = self.merge(summaries)
        before = np.cumsum(bins["draws"].to_numpy())
        rows = int(before[-1]) // self.most if len(before) else 0
        draws = math.ceil(Fraction(str(self.share)) * rows)
        last = int(np.searchsorted(before, draws))
        logger.info("soft_cap: %d draws of %d rows by %s", draws, rows, self.of)
        own = bins.slice(last, 1)
        left = pa.array(draws - before[last : last + 1] + own["draws"].to_numpy())
        return own.set_column(2, "draws", left)

    def route(self, rows: pa.Table, state: pa.Table, partitions: int) -> tuple[Integers, Integers]:
        """Rows that have a score, by their uid; those with a time in the bin to one partition."""
        chosen, partition = route_by_uid(rows, self._is_known(rows), partitions)
        if partitions > 1 and len(chosen):
            times = self._times(rows.take(pa.array(chosen)))
            partition[self._in_bin(times, state).any(axis=1)] = 0
        return chosen, partition

    def judge(self, rows: pa.Table, state: pa.Table) -> Columns:
        times = self._times(rows)
        inside = times[self._in_bin(times, state)]
        last = state["bin"][0].as_py()
        is_drawn = times < last
        if len(inside):
            draws = state["draws"][0].as_py()
            is_drawn = times <= np.partition(inside, draws - 1)[draws - 1]
        return {"soft_cap": is_drawn.sum(axis=1).astype(np.int16)}

    def _is_known(self, rows: pa.Table) -> Mask:
        return np.isfinite(numbers_of(rows, self.of) / self.temperature)

    def _in_bin(self, times: FloatArray, state: pa.Table) -> Mask:
        lower, width = (state[name][0].as_py() for name in ("bin", "width"))
        is_inside: Mask = np.floor(times / width) == lower / width
        return is_inside

    def _times(self, rows: pa.Table) -> FloatArray:
        scores = numbers_of(rows, self.of) / self.temperature
        return ring_times(scores, rows["uid"].to_pylist(), self.penalty, self.most, self.seed)
