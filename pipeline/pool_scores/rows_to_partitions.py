"""Tickets over shards: summaries of their rows, and the rows sent to partitions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from filters.base import PoolFilter
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
            has_state = has_summaries(self.filter)
            self._state.append(pickle.loads(disk.read_bytes(path)) if has_state else None)
        return self._state[0]

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the filter returns. ValueError, one line, where it raises."""
        try:
            return getattr(self.filter, method)(*arguments)
        except Exception as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"filter {self.instance.name}: {method} raised {line}") from error

    def shards(self, ticket: Ticket) -> Iterator[tuple[int, pa.Table, Integers]]:
        """(position of a shard, its stored rows, their row numbers) of a ticket over shards."""
        reader = ShardRows(self.job)
        layout = PoolLayout(self.job.pool)
        first = self.job.bounds[ticket.payload["number"]]
        for position, shard in enumerate(ticket.payload["shards"], start=first):
            record = CommitRecord.read(layout.commit_record(shard))
            table, numbers = reader.read(record)
            yield position, table, numbers


def has_summaries(filter_: PoolFilter) -> bool:
    """True for a filter that has a state."""
    return type(filter_).summarise is not PoolFilter.summarise


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
        tables = []
        for _, rows, _ in worker.shards(ticket):
            summary = worker.call("summarise", rows) if rows.num_rows else None
            if isinstance(summary, pa.Table):
                tables.append(summary)
            elif summary is not None:
                raise ValueError(
                    f"filter {worker.instance.name}: summarise must return an Arrow table; it "
                    f"returned {type(summary).__name__}"
                )
        merged = pa.concat_tables(tables) if tables else pa.table({})
        check_fence(worker.job.pool, worker.job.fence)
        disk.write_parquet(summary_path(worker.job, ticket.payload["number"]), merged)
        return {}

    return work


def combine(config: Config) -> Work:
    """Factory: the summaries of all shards become the state."""
    worker = PoolWorker(config)

    def work(ticket: Ticket) -> dict[str, Any]:
        job = worker.job
        tables = []
        for number in range(job.units):
            table = disk.read_parquet(summary_path(job, number)).replace_schema_metadata(None)
            if table.num_columns:
                tables.append(table)
        state = worker.call("combine", pa.concat_tables(tables) if tables else pa.table({}))
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
