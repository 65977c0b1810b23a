"""Tickets over shards: summaries of their rows, and the rows sent to partitions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from filters.user_calls import UserCodeError, error_line
from manifests import disk
from manifests.commits import Commits
from manifests.pool_layout import CommitRecord, PoolLayout
from pipeline.executor import Ticket, Work
from pipeline.pool import check_fence
from pipeline.pool_scores.components import partition_of_uids, uids_of
from pipeline.pool_scores.job import (
    POSITION_BITS,
    Ids,
    Integers,
    PoolJob,
    ShardRows,
    filter_of,
    job_of,
)

ROUTED, MEMBERS = "route", "members"  # names of exchanges
SUMMARY_BYTES = 1 << 26  # of summaries in memory before they are merged
Config = dict[str, Any]


class PoolWorker:
    """A worker of one kind of tickets: the job, its filter after `setup`, and its state."""

    def __init__(self, config: Config) -> None:
        self.job = job_of(config)
        self.instance, self.filter = filter_of(self.job)
        self.filter.setup()
        self._state: list[Any] = []

    @property
    def state(self) -> Any:
        """What `combine` returned; None for a filter without summaries."""
        if not self._state:
            path = state_path(self.job)
            is_there = self.filter.summarised
            self._state.append(pickle.loads(disk.read_bytes(path)) if is_there else None)
        return self._state[0]

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the filter returns. ValueError, one line, where it raises."""
        try:
            return getattr(self.filter, method)(*arguments)
        except Exception as error:
            raised = "" if isinstance(error, UserCodeError) else f"{method} raised "
            line = f"filter {self.instance.name}: {raised}{error_line(error)}"
            raise ValueError(line) from error

    def table_of(self, method: str, rows: pa.Table) -> pa.Table:
        """The table that a method of the filter returns, without columns for None. ValueError for
        anything else."""
        table = self.call(method, rows)
        if table is None:
            return pa.table({})
        if not isinstance(table, pa.Table):
            raise ValueError(
                f"filter {self.instance.name}: {method} must return an Arrow table; it "
                f"returned {type(table).__name__}"
            )
        return table

    def shards(self, ticket: Ticket) -> Iterator[tuple[int, pa.Table, Integers]]:
        """(position of a shard, its stored rows, their row numbers) of a ticket over shards."""
        reader = ShardRows(self.job)
        layout = PoolLayout(self.job.pool)
        first = self.job.bounds[ticket.payload["number"]]
        for position, shard in enumerate(ticket.payload["shards"], start=first):
            record = CommitRecord.read(layout.commit_record(shard))
            table, numbers = reader.read(record)
            yield position, table, numbers


class Summaries:
    """Summaries of shards in their order, merged when they take more than SUMMARY_BYTES."""

    def __init__(self, worker: PoolWorker) -> None:
        self._worker = worker
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._most_bytes = SUMMARY_BYTES

    def add(self, table: pa.Table) -> None:
        """Add the next summary; one without columns is of a shard without rows."""
        if not table.num_columns:
            return
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes > self._most_bytes:
            merged = self._worker.table_of("merge", self.table())
            self._tables, self._bytes = [merged], merged.nbytes
            # Of a filter that merges little, the same rows are not merged again for each shard.
            self._most_bytes = max(SUMMARY_BYTES, 2 * merged.nbytes)

    def table(self) -> pa.Table:
        """All of them; without columns where there is none."""
        return pa.concat_tables(self._tables) if self._tables else pa.table({})


def state_path(job: PoolJob) -> str:
    """The file that `combine` leaves."""
    return disk.join(job.folder, "state.pickle")


def summary_path(job: PoolJob, number: int) -> str:
    """The file of the summaries of one ticket over shards."""
    return disk.join(job.folder, f"summary-{number:05d}.parquet")


def unit_payload(job: PoolJob, commits: Commits, number: int) -> dict[str, Any]:
    """The payload of a ticket over shards: its number and the shards."""
    shards = commits.shards[job.bounds[number] : job.bounds[number + 1]]
    return {"number": number, "shards": shards.tolist()}


def summarise(config: Config) -> Work:
    """Factory: the summaries of the shards of a ticket become a file."""
    worker = PoolWorker(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        summaries = Summaries(worker)
        for _, rows, _ in worker.shards(ticket):
            if rows.num_rows:
                summaries.add(worker.table_of("summarise", rows))
        check_fence(worker.job.pool, worker.job.fence)
        path = summary_path(worker.job, ticket.payload["number"])
        disk.write_parquet(path, summaries.table())
        return {}

    return work


def combine(config: Config) -> Work:
    """Factory: the summaries of all shards become the state."""
    worker = PoolWorker(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        job = worker.job
        summaries = Summaries(worker)
        for number in range(job.units):
            table = disk.read_parquet(summary_path(job, number))
            summaries.add(table.replace_schema_metadata(None))
        state = worker.call("combine", summaries.table())
        try:
            data = pickle.dumps(state)
        except Exception as error:
            raise ValueError(
                f"filter {worker.instance.name}: what combine returned cannot be pickled: {error}"
            ) from error
        check_fence(job.pool, job.fence)
        disk.write_bytes(state_path(job), data)
        return {}

    return work


def route(config: Config) -> Work:
    """Factory: the rows of the shards of a ticket are left in their partitions; of a linked filter,
    each once more by its uid."""
    worker = PoolWorker(config)
    job = worker.job

    def work(ticket: Ticket) -> dict[str, Any]:
        tables, partitions, ids = [], [], []
        members, member_ids = [], []
        for position, rows, row_numbers in worker.shards(ticket):
            chosen, partition = _routed(worker, rows)
            id_of_row = np.uint64(position) << POSITION_BITS | row_numbers.astype(np.uint64)
            tables.append(rows.take(pa.array(chosen)))
            partitions.append(partition)
            ids.append(id_of_row[chosen])
            if worker.filter.linked:
                once = np.unique(chosen)
                members.append(rows.take(pa.array(once)))
                member_ids.append(id_of_row[once])
        number = ticket.payload["number"]
        exchange = job.exchange(ROUTED, from_shards=True)
        all_ids: Ids = np.concatenate(ids)
        exchange.write(number, pa.concat_tables(tables), np.concatenate(partitions), all_ids)
        if worker.filter.linked:
            rows = pa.concat_tables(members)
            by_uid = partition_of_uids(uids_of(rows["uid"]), job.partitions)
            exchange = job.exchange(MEMBERS, from_shards=True)
            exchange.write(number, rows, by_uid, np.concatenate(member_ids))
        return {"rows": len(all_ids)}

    return work


def _routed(worker: PoolWorker, rows: pa.Table) -> tuple[Integers, Integers]:
    """(row numbers, partitions) that the filter gave, checked."""
    if not rows.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    partitions = worker.job.partitions
    answer = worker.call("route", rows, worker.state, partitions)
    name = worker.instance.name
    try:
        chosen, partition = (np.asarray(each) for each in answer)
    except (TypeError, ValueError):
        raise ValueError(f"filter {name}: route must return two arrays") from None
    if chosen.shape != partition.shape or chosen.ndim != 1:
        raise ValueError(
            f"filter {name}: route must return two arrays of one length; their shapes are "
            f"{chosen.shape} and {partition.shape}"
        )
    for what, values, end in (("row", chosen, rows.num_rows), ("partition", partition, partitions)):
        if not len(values):
            continue
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= end:
            raise ValueError(
                f"filter {name}: route must return {what} numbers from 0 to {end - 1}; it "
                f"returned {values.min()} to {values.max()} of type {values.dtype}"
            )
    if not worker.filter.linked and len(np.unique(chosen)) < len(chosen):
        raise ValueError(
            f"filter {name}: route sent a row to two partitions; only a filter with "
            "linked = True may do that"
        )
    return chosen.astype(np.int64), partition.astype(np.int64)
