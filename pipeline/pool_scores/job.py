"""What all tickets of one pool-level filter have in common, and how its work is divided.

The number of partitions and the shards of a ticket follow from the pool's size alone. They decide
memory and the number of files; no result depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters import Instance, instance_of_worker_spec, worker_spec
from filters.base import PoolFilter
from manifests import disk
from manifests.aligned import AlignedFiles
from manifests.commits import Commits
from manifests.pool_layout import CommitRecord, PoolLayout
from pipeline.exchange import PartitionFiles
from pipeline.pool import read_scores

FORM = 1  # of the files of a job: another one begins it anew
PARTITION_BYTES = 1 << 27  # rows of a partition; sorting them takes as much again
MOST_PARTITIONS = 4096
ROW_BYTES = 64  # of a row beside its columns: its id, its place in a sort
SAMPLED_SHARDS = 3  # from which the bytes of a row are estimated
POSITION_BITS = np.uint64(32)  # of an id: position of the shard above, row of the shard below

Ids = NDArray[np.uint64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolJob:
    """The job of one score set. It crosses to workers as plain values."""

    pool: str
    set_name: str  # NAME@ID
    fingerprint: str  # of the pool
    fence: int | None
    filter: dict[str, Any]  # worker_spec of the instance
    columns: dict[str, tuple[str, ...]]  # NAME@ID, "" for the sidecar -> columns that are read
    partitions: int
    # Position of the first shard of each ticket over shards, then the number of shards.
    bounds: tuple[int, ...]

    @property
    def folder(self) -> str:
        """Where the tickets leave files; it is removed when the job is done."""
        return PoolLayout(self.pool).score_scratch(f"{self.set_name}-{self.fingerprint}")

    @property
    def units(self) -> int:
        """Tickets over shards."""
        return len(self.bounds) - 1

    def identity(self) -> dict[str, Any]:
        """What decides the files of the job: they are used again only if it is the same."""
        plain: dict[str, Any] = disk.to_plain(self)
        return {**{key: plain[key] for key in plain if key != "fence"}, "form": FORM}

    def exchange(
        self, name: str, *, from_shards: bool = False, to_shards: bool = False
    ) -> PartitionFiles:
        """The files of one exchange: between partitions, from shards or to shards."""
        return PartitionFiles(
            pool=self.pool,
            folder=self.folder,
            name=name,
            runs=self.units if from_shards else self.partitions,
            partitions=self.units if to_shards else self.partitions,
            fence=self.fence,
        )

    def unit_of(self, ids: Ids) -> Integers:
        """(rows,) the ticket over shards that each row belongs to."""
        positions = (ids >> POSITION_BITS).astype(np.int64)
        return np.searchsorted(np.array(self.bounds), positions, side="right") - 1


def plan_job(
    commits: Commits,
    set_name: str,
    instance: Instance,
    columns: Mapping[str, Sequence[str]],
    fence: int | None,
) -> PoolJob:
    """The job of a score set of a pool."""
    job = PoolJob(
        pool=commits.pool,
        set_name=set_name,
        fingerprint=commits.fingerprint,
        fence=fence,
        filter=worker_spec(instance),
        columns={owner: tuple(names) for owner, names in columns.items()},
        partitions=1,
        bounds=(0, len(commits)),
    )
    filter_ = instance.filter
    assert isinstance(filter_, PoolFilter)
    row_bytes = _row_bytes(commits, job)
    stored = np.asarray(commits.column("successes").to_numpy(), np.int64)
    needed = float(stored.sum()) * row_bytes
    if needed > PARTITION_BYTES:  # one partition has each row once, whatever `copies` says
        needed *= filter_.copies
    partitions = min(MOST_PARTITIONS, max(1, -int(-needed // PARTITION_BYTES)))
    rows_per_ticket = max(1, PARTITION_BYTES // row_bytes)
    number_of = (np.cumsum(stored) - stored) // rows_per_ticket
    first = np.unique(number_of, return_index=True)[1]
    return PoolJob(
        pool=job.pool,
        set_name=job.set_name,
        fingerprint=job.fingerprint,
        fence=job.fence,
        filter=job.filter,
        columns=job.columns,
        partitions=partitions,
        bounds=(*first.tolist(), len(commits)),
    )


def _row_bytes(commits: Commits, job: PoolJob) -> int:
    """Bytes of a stored row in memory, from some shards of the pool."""
    stored = commits.column("successes").to_numpy()
    with_rows = np.flatnonzero(stored)
    chosen = with_rows[np.linspace(0, len(with_rows) - 1, SAMPLED_SHARDS).astype(np.int64)]
    reader = ShardRows(job)
    sizes = [ROW_BYTES]
    for position in np.unique(chosen).tolist():
        table = reader.read(commits.record(int(commits.shards[position])))[0]
        sizes.append(ROW_BYTES + table.nbytes // table.num_rows)
    return max(sizes)


class ShardRows:
    """Reads the stored rows of shards with the columns that a filter reads."""

    def __init__(self, job: PoolJob) -> None:
        self.layout = PoolLayout(job.pool)
        self._of_sidecar = [name for name in job.columns.get("", ()) if name != "uid"]
        self._of_sets = {name: list(each) for name, each in job.columns.items() if name}
        self._files = {name: AlignedFiles.of_scores(job.pool, name) for name in self._of_sets}

    def read(self, record: CommitRecord) -> tuple[pa.Table, Integers]:
        """(the stored rows of a shard, their row numbers in the shard).

        ValueError for a damaged sidecar, and for columns that are missing or of other rows.
        """
        sidecar = self.layout.sidecar(record.shard, record.revision)
        names = dict.fromkeys(["uid", "status", *self._of_sidecar])
        table = disk.read_parquet(sidecar, list(names)).replace_schema_metadata(None)
        if table.num_rows != record.count:
            raise ValueError(
                f"shard {record.shard} is damaged: its sidecar has {table.num_rows} rows of "
                f"{record.count}; run python pipeline/audit.py {self.layout.root} --repair"
            )
        is_stored = np.array(table["status"].to_pylist(), object) == "success"
        kept = ["uid", *self._of_sidecar]
        table = table.select(kept)
        for name, columns in self._of_sets.items():
            read = read_scores(self._files[name], record, columns)
            for column in columns:
                table = table.append_column(column, read[column])
        numbers = np.flatnonzero(is_stored).astype(np.int64)
        return table.take(pa.array(numbers)).combine_chunks(), numbers


def job_of(config: Mapping[str, Any]) -> PoolJob:
    """The job of a stage's config."""
    job: PoolJob = disk.from_plain(PoolJob, config["job"])
    return job


def filter_of(job: PoolJob) -> tuple[Instance, PoolFilter]:
    """The instance of a job and its filter, before `setup`."""
    instance = instance_of_worker_spec(job.filter)
    assert isinstance(instance.filter, PoolFilter)
    return instance, instance.filter
