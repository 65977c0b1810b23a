"""A filter over a pool, run in this process over tables: what the engine does with tickets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from clipmill.filters.base import GROUP, PoolFilter


def run_inline(
    filter_: PoolFilter, shards: Sequence[pa.Table], partitions: int
) -> dict[str, dict[str, Any]]:
    """uid -> columns of the rows that `route` sends to a partition."""
    state = None
    if filter_.summarised:
        summaries = [filter_.summarise(rows) for rows in shards]
        known = [table for table in summaries if table is not None]
        state = filter_.combine(pa.concat_tables(known) if known else pa.table({}))
    filter_.setup()
    parts: list[list[pa.Table]] = [[] for _ in range(partitions)]
    for rows in shards:
        numbers, targets = filter_.route(rows, state, partitions)
        for number, target in zip(numbers.tolist(), targets.tolist(), strict=True):
            parts[target].append(rows.slice(number, 1))
    tables = [pa.concat_tables(part).combine_chunks().sort_by("uid") for part in parts if part]
    if filter_.linked:
        tables = _whole_groups(filter_, tables, state)
    values: dict[str, dict[str, Any]] = {}
    for rows in tables:
        columns = (
            filter_.judge_groups(rows, state) if filter_.linked else filter_.judge(rows, state)
        )
        arrays = {}
        for column, kind in filter_.columns().items():
            arrays[column] = pa.array(columns[column], kind)
        for uid, row in zip(rows["uid"].to_pylist(), pa.table(arrays).to_pylist(), strict=True):
            assert uid not in values, "a row is in one partition at most"
            values[uid] = row
    return values


def _whole_groups(filter_: PoolFilter, tables: Sequence[pa.Table], state: Any) -> list[pa.Table]:
    """The rows with their groups, sorted by group and uid, in two partitions."""
    group = {uid: uid for rows in tables for uid in rows["uid"].to_pylist()}
    for rows in tables:
        for link in filter_.links(rows, state).to_pylist():
            first, second = sorted((group[link["uid_a"]], group[link["uid_b"]]))
            for uid, own in group.items():
                if own == second:
                    group[uid] = first
    seen: dict[str, pa.Table] = {}
    for rows in tables:
        for number, uid in enumerate(rows["uid"].to_pylist()):
            seen.setdefault(uid, rows.slice(number, 1))
    whole = []
    for side in (0, 1):
        uids = [uid for uid in seen if int(group[uid], 16) % 2 == side]
        if uids:
            rows = pa.concat_tables([seen[uid] for uid in uids])
            rows = rows.append_column(GROUP, pa.array([group[uid] for uid in uids]))
            whole.append(
                rows.combine_chunks().sort_by([(GROUP, "ascending"), ("uid", "ascending")])
            )
    return whole
