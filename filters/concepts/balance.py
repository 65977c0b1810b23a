"""MetaCLIP's balancing of a pool: rows of frequent concepts are kept with a lower probability."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters.base import FREE, Columns, PoolFilter
from filters.concepts.balancing import (
    Shares,
    add_counts,
    count_entries,
    draws,
    entry_probabilities,
    merge_counts,
    row_probabilities,
    tail_share,
    threshold_for_share,
)
from filters.partitions import partition_of

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Balance(PoolFilter):
    """balance_probability: 1 - product of (1 - min(1, t / count)) over the entries of a row, 0
    where there is none. balance_keep: whether the row's draw is below it.

    of: the instance of the filter `concept` whose entries are balanced. t: rows up to which an
    entry keeps all of them; MetaCLIP took 20,000 for 400 million pairs and 170,000 for 2.5 billion.
    tail_share: t follows from the share of all matches that the tail shall have; MetaCLIP 2 gives
    every language that of English, 0.06. There is one draw for a row, a hash of uid and seed: the
    result is the same on any number of machines, and a larger t keeps all that a smaller one keeps.
    A row that was not matched has NULL.
    """

    name: ClassVar[str] = "balance"
    adds: ClassVar[dict[str, pa.DataType]] = {
        "balance_probability": pa.float32(),
        "balance_keep": pa.bool_(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "balance_probability": "probability that one of the row's concepts keeps it, 0 to 1",
        "balance_keep": "whether the row is kept by MetaCLIP's balancing",
    }
    of: str = field(default="concept", metadata=FREE)  # the id of its columns is part of ours
    t: int | None = None
    tail_share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.t is None) == (self.tail_share is None):
            raise ValueError(
                "filter balance needs either t or tail_share, as in {balance: {t: 20000}} or "
                "{balance: {tail_share: 0.06}}"
            )
        if self.t is not None and self.t < 1:
            raise ValueError(f"filter balance: t is {self.t}; it must be at least 1")
        if self.tail_share is not None and not 0 < self.tail_share < 1:
            raise ValueError(
                f"filter balance: tail_share is {self.tail_share}; it must lie between 0 and 1"
            )
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"filter balance: seed is {self.seed}; it must be 0 to 2^64 - 1")

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"{self.of}_entries",)

    def summarise(self, rows: pa.Table) -> pa.Table:
        return count_entries(rows[self.reads[0]])

    def merge(self, summaries: pa.Table) -> pa.Table:
        return merge_counts(summaries)

    def combine(self, summaries: pa.Table) -> Shares:
        counts = add_counts(summaries)
        t = self.t
        if t is None:
            assert self.tail_share is not None
            t = threshold_for_share(counts, self.tail_share)
        logger.info(
            "balance: t is %d; entries below it have %.4f of %d matches",
            t,
            tail_share(counts, t),
            counts.sum(),
        )
        return entry_probabilities(counts, t)

    def route(
        self, rows: pa.Table, state: Any, partitions: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows that were matched, by their uid."""
        is_known = rows[self.reads[0]].is_valid().to_numpy(zero_copy_only=False)
        numbers = np.flatnonzero(is_known).astype(np.int64)
        return numbers, partition_of(rows["uid"], partitions)[numbers]

    def judge(self, rows: pa.Table, state: Any) -> Columns:
        lists = rows[self.reads[0]]
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.combine_chunks()
        probabilities = row_probabilities(lists, state)
        keep = draws(rows["uid"].to_pylist(), self.seed) < probabilities
        return {"balance_probability": probabilities.astype(np.float32), "balance_keep": keep}
