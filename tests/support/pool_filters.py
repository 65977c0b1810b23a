"""A filter over a pool, run in this process over tables: what the engine does with tickets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from filters.base import PoolFilter


def run_inline(
    filter_: PoolFilter, shards: Sequence[pa.Table], partitions: int
) -> dict[str, dict[str, Any]]:
    """uid -> columns of the rows that `route` sends to a partition. Without `linked` only."""
    summaries = [filter_.summarise(rows) for rows in shards]
    known = [table for table in summaries if table is not None]
    state = filter_.combine(pa.concat_tables(known)) if known else None
    filter_.setup()
    parts: list[list[pa.Table]] = [[] for _ in range(partitions)]
    for rows in shards:
        numbers, targets = filter_.route(rows, state, partitions)
        for number, target in zip(numbers.tolist(), targets.tolist(), strict=True):
            parts[target].append(rows.slice(number, 1))
    values: dict[str, dict[str, Any]] = {}
    for part in parts:
        if not part:
            continue
        rows = pa.concat_tables(part).combine_chunks().sort_by("uid")
        columns = filter_.judge(rows, state)
        arrays = {}
        for column, kind in filter_.columns().items():
            arrays[column] = pa.array(columns[column], kind)
        for uid, row in zip(rows["uid"].to_pylist(), pa.table(arrays).to_pylist(), strict=True):
            assert uid not in values, "a row is in one partition at most"
            values[uid] = row
    return values
