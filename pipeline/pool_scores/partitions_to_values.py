"""Tickets over partitions: values of their rows, or near pairs, components and values of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filters.base import GROUP
from filters.values import arrow_columns
from manifests import disk
from pipeline.executor import Ticket, Work
from pipeline.pool import check_fence
from pipeline.pool_scores.components import (
    NO_UIDS,
    Uids,
    count_unfinished,
    large_star,
    local_stars,
    partition_of_uids,
    small_star,
    texts_of,
    uids_of,
)
from pipeline.pool_scores.job import Ids, PoolJob, job_of
from pipeline.pool_scores.rows_to_partitions import MEMBERS, ROUTED, PoolWorker

VALUES, GROUPED = "values", "groups"  # names of exchanges
ID = "id_of_row"
Config = dict[str, Any]


def large_input(round_number: int) -> str:
    """The exchange that a round of components begins with: edges in both directions."""
    return f"edges-{round_number}"


def small_input(round_number: int) -> str:
    """The exchange in the middle of a round: edges to smaller rows."""
    return f"stars-{round_number}"


def unfinished_path(job: PoolJob, round_number: int, partition: int) -> str:
    """How many rows of a partition were no star at the beginning of a round."""
    return disk.join(job.folder, f"unfinished-{round_number}-{partition:05d}.json")


def _sorted(table: pa.Table, ids: Ids, first: tuple[str, ...] = ()) -> tuple[pa.Table, Ids]:
    """Rows by some columns, then by uid, then by their place in the pool."""
    if not table.num_rows:
        return table, ids
    whole = table.append_column(ID, pa.array(ids))
    keys = [(name, "ascending") for name in (*first, "uid", ID)]
    order = pc.sort_indices(whole.select([*first, "uid", ID]), sort_keys=keys)
    return table.take(order).combine_chunks(), ids[order.to_numpy()]


def _write_values(worker: PoolWorker, number: int, values: Any, rows: int, ids: Ids) -> None:
    """Leave the values of some rows for the tickets over shards."""
    job = worker.job
    arrays = arrow_columns(worker.instance.name, values, worker.filter.columns(), rows)
    exchange = job.exchange(VALUES, to_shards=True)
    exchange.write(number, pa.table(arrays), job.unit_of(ids), ids)


def _no_values(worker: PoolWorker) -> dict[str, pa.Array]:
    return {name: pa.nulls(0, kind) for name, kind in worker.filter.columns().items()}


def judge(config: Config) -> Work:
    """Factory: the rows of a partition get their values."""
    worker = PoolWorker(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        number = ticket.payload["number"]
        rows, ids = _sorted(*worker.job.exchange(ROUTED, from_shards=True).read(number))
        values = _no_values(worker)
        if rows.num_rows:
            values = worker.call("judge", rows, worker.state)
        _write_values(worker, number, values, rows.num_rows, ids)
        return {"rows": rows.num_rows}

    return work


# --- linked filters -------------------------------------------------------------------------------


def links(config: Config) -> Work:
    """Factory: the near pairs of a partition, as stars, are sent to the partitions of both ends."""
    worker = PoolWorker(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        number = ticket.payload["number"]
        rows, _ = _sorted(*worker.job.exchange(ROUTED, from_shards=True).read(number))
        first = second = NO_UIDS
        if rows.num_rows:
            first, second = _linked(worker, worker.call("links", rows, worker.state))
        first, second = local_stars(first, second)
        _write_both(worker.job, large_input(0), number, first, second)
        return {"links": len(first)}

    return work


def _linked(worker: PoolWorker, pairs: Any) -> tuple[Uids, Uids]:
    name = worker.instance.name
    if not isinstance(pairs, pa.Table) or set(pairs.column_names) != {"uid_a", "uid_b"}:
        raise ValueError(f"filter {name}: links must return a table of uid_a and uid_b")
    try:
        return uids_of(pairs["uid_a"]), uids_of(pairs["uid_b"])
    except ValueError as error:
        raise ValueError(f"filter {name}: links must return uids: {error}") from None


def _write_both(job: PoolJob, name: str, number: int, first: Uids, second: Uids) -> None:
    """Send edges in both directions to the partition of their first end."""
    _write_edges(
        job, name, number, np.concatenate([first, second]), np.concatenate([second, first])
    )


def _write_edges(job: PoolJob, name: str, number: int, first: Uids, second: Uids) -> None:
    table = pa.table({"first": _as_arrow(first), "second": _as_arrow(second)})
    ids = np.arange(len(first), dtype=np.uint64)
    partition = partition_of_uids(first, job.partitions)
    job.exchange(name).write(number, table, partition, ids)


def _read_edges(job: PoolJob, name: str, number: int) -> tuple[Uids, Uids]:
    table, _ = job.exchange(name).read(number)
    if not table.num_rows:
        return NO_UIDS, NO_UIDS
    return _as_numpy(table["first"]), _as_numpy(table["second"])


def _as_arrow(uids: Uids) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(uids.itemsize), len(uids), [None, pa.py_buffer(uids.tobytes())]
    )


def _as_numpy(column: pa.ChunkedArray) -> Uids:
    parts = [NO_UIDS]
    for chunk in column.chunks:
        data = np.frombuffer(chunk.buffers()[1], "S16")
        parts.append(data[chunk.offset : chunk.offset + len(chunk)])
    return np.concatenate(parts)


def count_stars(config: Config) -> Work:
    """Factory: how many rows of a partition are not yet in a star. Payload: number, round."""
    job = job_of(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        number, round_number = ticket.payload["number"], ticket.payload["round"]
        unfinished = count_unfinished(*_read_edges(job, large_input(round_number), number))
        check_fence(job.pool, job.fence)
        disk.write_json(unfinished_path(job, round_number, number), {"unfinished": unfinished})
        return {"unfinished": unfinished}

    return work


def large_stars(config: Config) -> Work:
    """Factory: the first half of a round for a partition. Payload: number, round."""
    return _half_round(job_of(config), is_large=True)


def small_stars(config: Config) -> Work:
    """Factory: the second half of a round for a partition. Payload: number, round."""
    return _half_round(job_of(config), is_large=False)


def _half_round(job: PoolJob, *, is_large: bool) -> Work:
    def work(ticket: Ticket) -> dict[str, Any]:
        number, round_number = ticket.payload["number"], ticket.payload["round"]
        if is_large:
            edges = large_star(*_read_edges(job, large_input(round_number), number))
            _write_edges(job, small_input(round_number), number, *edges)
        else:
            edges = small_star(*_read_edges(job, small_input(round_number), number))
            _write_both(job, large_input(round_number + 1), number, *edges)
        return {}

    return work


def group(config: Config) -> Work:
    """Factory: the rows of a partition of uids get their group and are sent to its partition.

    Payload: number, round whose edges are stars.
    """
    job = job_of(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        number, round_number = ticket.payload["number"], ticket.payload["round"]
        rows, ids = job.exchange(MEMBERS, from_shards=True).read(number)
        uids = uids_of(rows["uid"]) if rows.num_rows else NO_UIDS
        first, second = _read_edges(job, large_input(round_number), number)
        is_member = second < first  # the other direction of an edge says nothing of its first end
        groups = _groups_of(uids, first[is_member], second[is_member])
        rows = rows.append_column(GROUP, texts_of(groups))
        partition = partition_of_uids(groups, job.partitions)
        job.exchange(GROUPED).write(number, rows, partition, ids)
        return {}

    return work


def _groups_of(uids: Uids, rows: Uids, smallest: Uids) -> Uids:
    """(uids,) the smallest uid of each one's component; its own where it has no near row."""
    if not len(rows):
        return uids
    order = np.argsort(rows, kind="stable")
    rows, smallest = rows[order], smallest[order]
    position = np.minimum(np.searchsorted(rows, uids), len(rows) - 1)
    return np.where(rows[position] == uids, smallest[position], uids)


def judge_groups(config: Config) -> Work:
    """Factory: the rows of a partition of groups get their values."""
    worker = PoolWorker(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        number = ticket.payload["number"]
        rows, ids = _sorted(*worker.job.exchange(GROUPED).read(number), (GROUP,))
        values = _no_values(worker)
        if rows.num_rows:
            values = worker.call("judge_groups", rows, worker.state)
        _write_values(worker, number, values, rows.num_rows, ids)
        return {"rows": rows.num_rows}

    return work
