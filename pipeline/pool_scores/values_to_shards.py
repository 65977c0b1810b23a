"""Tickets over shards: the values of their rows become the columns of a score set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from filters.values import arrow_array, valid_in_all
from manifests import disk
from manifests.aligned import parquet_bytes
from manifests.pool_layout import CommitRecord, PoolLayout, uids_checksum
from pipeline.executor import Ticket, Work
from pipeline.pool import commit_columns
from pipeline.pool_scores.job import POSITION_BITS, Ids, Integers, filter_of, job_of
from pipeline.pool_scores.partitions_to_values import VALUES

Config = dict[str, Any]


def gather(config: Config) -> Work:
    """Factory: the columns of the shards of a ticket. Payload: number, shards."""
    job = job_of(config)
    instance, filter_ = filter_of(job)
    kinds, names = filter_.columns(), instance.column_names()
    layout = PoolLayout(job.pool)
    defaults = {}
    for column, kind in kinds.items():
        value = filter_.default.get(column)
        defaults[column] = pa.nulls(1, kind) if value is None else arrow_array([value], kind)

    def columns_of(rows: Integers, values: pa.Table, is_stored: pa.Array) -> pa.Table:
        """The columns of a shard; `rows` are those of its rows that have values."""
        count = len(is_stored)
        # Behind the values: the default, for stored rows that took no part.
        index = np.where(np.asarray(is_stored), len(rows), -1)
        index[rows] = np.arange(len(rows))
        take = pa.array(index, mask=index < 0)
        arrays = {}
        for column in kinds:
            chunks = values[column].chunks if values.num_columns else []
            with_default = pa.concat_arrays([*chunks, defaults[column]])
            arrays[names[column]] = with_default.take(take)
            assert len(arrays[names[column]]) == count
        return pa.table(arrays)

    def write(shard: int, rows: Integers, values: pa.Table) -> int:
        record = CommitRecord.read(layout.commit_record(shard))
        sidecar = disk.read_parquet(layout.sidecar(shard, record.revision), ["uid", "status"])
        is_stored = pc.fill_null(pc.equal(sidecar["status"], "success"), False).to_numpy()
        table = columns_of(rows, values, is_stored)
        scored = valid_in_all(table.columns)
        metadata = {
            "uids": uids_checksum(sidecar["uid"]),
            "sidecar": record.sidecar_sha256,
            "rows": table.num_rows,
            "stored": int(is_stored.sum()),
            "pool": job.fingerprint,
            "seconds": 0.0,
        }
        content = parquet_bytes(table, {**metadata, "scored": scored})
        return commit_columns(layout, job.set_name, shard, content, metadata, scored, job.fence)

    def work(ticket: Ticket) -> dict[str, Any]:
        number = ticket.payload["number"]
        values, ids = job.exchange(VALUES, to_shards=True).read(number)
        order = np.argsort(ids)
        ids = ids[order]
        if values.num_rows:
            values = values.take(pa.array(order)).combine_chunks()
        positions = (ids >> POSITION_BITS).astype(np.int64)
        first = job.bounds[number]
        scored = 0
        for position, shard in enumerate(ticket.payload["shards"], start=first):
            low, high = np.searchsorted(positions, [position, position + 1]).tolist()
            rows = _row_numbers(ids[low:high])
            scored += write(shard, rows, values.slice(low, high - low))
        return {"scored": {job.set_name: scored}}

    return work


def _row_numbers(ids: Ids) -> Integers:
    return (ids & np.uint64((1 << 32) - 1)).astype(np.int64)
