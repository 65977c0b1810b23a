"""Runs a filter that looks at the whole pool: rows to partitions to values to shards.

Filters that look at the whole pool (`PoolFilter`): a map over shards, an exchange by partitions,
columns back.

Reads `shards/` and `scores/NAME@ID/` of the columns that a filter reads. Writes
`.transient/scores-NAME@ID-FINGERPRINT/`, which is removed at the end, and
`scores/NAME@ID/SHARD.parquet`.

Invariants, in `tests/pipeline/cross_row/test_cross_row.py` and `test_on_ray.py`:

* The columns depend neither on shards nor on partitions nor on workers.
* Workers of Ray, also killed ones, leave the bytes of one worker.
* A killed job is resumed to the same columns; a pool that grew makes all columns old.
* What the tickets leave are Parquet files: none can run code, whoever made the pool.
* Near pairs of all partitions end in the components of the whole graph, in memory that follows
  their number, about 240 bytes each.
* Memory is that of a partition (PARTITION_BYTES, sorted: twice), not of the pool: figures in
  `docs/reference/filters.md`. Summaries are merged beyond SUMMARY_BYTES.

A filter subclasses `PoolFilter` (`filters/base.py`); nothing changes here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clipmill.filters import Instance, WorkerSpec
from clipmill.filters.base import GROUP, PoolFilter
from clipmill.filters.columns import arrow_array, arrow_columns, mixed
from clipmill.filters.user_file import UserCodeError, error_line
from clipmill.manifests import disk
from clipmill.manifests.arrays import Integers, Mask
from clipmill.manifests.columns import hex_bytes
from clipmill.manifests.commits import Commits
from clipmill.manifests.layout import shard_name, uids_checksum
from clipmill.manifests.pool import Pool
from clipmill.manifests.ray_runtime import Engine
from clipmill.pipeline.database import UID_BYTES, database, stream
from clipmill.pipeline.executor.tickets import Ticket, Work, WorkFactory
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.score_columns import commit_columns
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.shuffle import PLACE, Exchange, Places, ShardUnit, Step, are_there, run_steps

# --------------------------------------------------------------------------------------------------
# What all tickets of one pool-level filter have in common, and how its work is divided.
#
# The number of partitions and the shards of a ticket follow from the pool's size alone. They
# decide memory and the number of files; no result depends on them.


FORM = 3  # of the files of a job: another one begins it anew
PARTITION_BYTES = 1 << 27  # rows of a partition; sorting them takes as much again
MOST_PARTITIONS = 4096
ROW_BYTES = 64  # of a row beside its columns: its id, its place in a sort
SAMPLED_SHARDS = 3  # from which the bytes of a row are estimated
POSITION_BITS = np.uint64(32)  # of an id: position of the shard above, row of the shard below
ROW_MASK = np.uint64((1 << 32) - 1)
ID = "id_of_row"

Ids = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolJob:
    """The job of one score set."""

    out: PoolWriter
    set_name: str  # NAME@ID
    fingerprint: str  # of the pool
    filter: WorkerSpec
    columns: dict[str, tuple[str, ...]]  # NAME@ID, "" for the sidecar -> columns that are read
    partitions: int
    # Position of the first shard of each ticket over shards, then the number of shards.
    bounds: tuple[int, ...]

    @property
    def folder(self) -> str:
        """Where the tickets leave files; it is removed when the job is done."""
        return self.out.layout.score_scratch(f"{self.set_name}-{self.fingerprint}")

    @property
    def units(self) -> int:
        """Tickets over shards."""
        return len(self.bounds) - 1

    def identity(self) -> dict[str, object]:
        """What decides the files of the job: they are used again only if it is the same."""
        plain: dict[str, object] = disk.to_plain(self)
        return {**{key: plain[key] for key in plain if key != "out"}, "form": FORM}

    def exchange(self, name: str, *, files: int | None = None) -> Exchange:
        """The files of one exchange, by default one of each partition."""
        number = self.partitions if files is None else files
        return Exchange(out=self.out, folder=self.folder, name=name, files=number)

    def from_shards(self, name: str) -> Exchange:
        """The files of an exchange that tickets over shards leave."""
        return self.exchange(name, files=self.units)


def plan_job(
    out: PoolWriter,
    commits: Commits,
    set_name: str,
    instance: Instance,
    columns: Mapping[str, Sequence[str]],
) -> PoolJob:
    """The job of a score set of a pool."""
    job = PoolJob(
        out=out,
        set_name=set_name,
        fingerprint=commits.fingerprint,
        filter=WorkerSpec.of(instance),
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
    return replace(job, partitions=partitions, bounds=(*first.tolist(), len(commits)))


def _row_bytes(commits: Commits, job: PoolJob) -> int:
    """Bytes of a stored row in memory, from some shards of the pool."""
    stored = commits.column("successes").to_numpy()
    with_rows = np.flatnonzero(stored)
    chosen = with_rows[np.linspace(0, len(with_rows) - 1, SAMPLED_SHARDS).astype(np.int64)]
    pool = Pool(commits)
    sizes = [ROW_BYTES]
    for position in np.unique(chosen).tolist():
        table = stored_rows(job, pool, shard_name(int(commits.shards[position])))[0]
        sizes.append(ROW_BYTES + table.nbytes // table.num_rows)
    return max(sizes)


def stored_rows(job: PoolJob, pool: Pool, shard: int | str) -> tuple[pa.Table, Integers]:
    """(the stored rows of a shard with the columns that a filter reads, their row numbers in the
    shard). ValueError for a damaged sidecar, and for columns that are missing or of other rows.
    """
    sets = {column: name for name, columns in job.columns.items() if name for column in columns}
    names = ["uid", *(name for name in job.columns.get("", ()) if name != "uid"), *sets]
    table = pool.read(shard, [*names, "status"], sets)
    numbers = np.flatnonzero(pc.equal(table["status"], "success")).astype(np.int64)
    return table.select(names).take(pa.array(numbers)).combine_chunks(), numbers


def filter_of(job: PoolJob) -> tuple[Instance, PoolFilter]:
    """The instance of a job and its filter, before `setup`."""
    instance = job.filter.instance()
    assert isinstance(instance.filter, PoolFilter)
    return instance, instance.filter


# --------------------------------------------------------------------------------------------------
# Tickets over shards: summaries of their rows, and the rows sent to partitions.


ROUTED, MEMBERS = "route", "members"  # names of exchanges
SUMMARY_BYTES = 1 << 26  # of summaries in memory before they are merged


class PoolWorker:
    """A worker of one kind of tickets: the job, its filter after `setup`, and its state."""

    def __init__(self, job: PoolJob) -> None:
        self.job = job
        self.instance, self.filter = filter_of(self.job)
        self.filter.setup()

    @functools.cached_property
    def state(self) -> pa.Table | None:
        """What `combine` returned; None for a filter without summaries."""
        if not self.filter.summarised:
            return None
        return disk.read_parquet(state_path(self.job)).replace_schema_metadata(None)

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

    def shards(self, unit: ShardUnit) -> Iterator[tuple[int, pa.Table, Integers]]:
        """(position of a shard, its stored rows, their row numbers) of a ticket over shards."""
        pool = Pool.of_tickets(self.job.out.pool)
        for position, shard in enumerate(unit.shards, start=self.job.bounds[unit.number]):
            yield position, *stored_rows(self.job, pool.of_shards(shard), shard)


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
    return disk.join(job.folder, "state.parquet")


def summary_path(job: PoolJob, number: int) -> str:
    """The file of the summaries of one ticket over shards."""
    return disk.join(job.folder, f"summary-{number:05d}.parquet")


def summarise(job: PoolJob) -> Work:
    """Factory: the summaries of the shards of a ticket become a file."""
    worker = PoolWorker(job)

    def work(ticket: Ticket) -> None:
        unit: ShardUnit = ticket.payload
        summaries = Summaries(worker)
        for _, rows, _ in worker.shards(unit):
            if rows.num_rows:
                summaries.add(worker.table_of("summarise", rows))
        path = summary_path(job, unit.number)
        job.out.write_parquet(path, summaries.table())

    return work


def combine(job: PoolJob) -> Work:
    """Factory: the summaries of all shards become the state."""
    worker = PoolWorker(job)

    def work(ticket: Ticket) -> None:
        summaries = Summaries(worker)
        for number in range(job.units):
            table = disk.read_parquet(summary_path(job, number))
            summaries.add(table.replace_schema_metadata(None))
        state = worker.table_of("combine", summaries.table())
        job.out.write_parquet(state_path(job), state)

    return work


def route(job: PoolJob) -> Work:
    """Factory: the rows of the shards of a ticket are left in their partitions; of a linked filter,
    each once more by its uid."""
    worker = PoolWorker(job)

    def work(ticket: Ticket) -> None:
        unit: ShardUnit = ticket.payload
        tables, partitions, members = [], [], []
        for position, rows, row_numbers in worker.shards(unit):
            chosen, partition = _routed(worker, rows)
            ids = np.uint64(position) << POSITION_BITS | row_numbers.astype(np.uint64)
            rows = rows.append_column(ID, pa.array(ids))
            tables.append(rows.take(pa.array(chosen)))
            partitions.append(partition)
            if worker.filter.linked:
                members.append(rows.take(pa.array(np.unique(chosen))))
        number, table = unit.number, pa.concat_tables(tables)
        places = np.concatenate(partitions).astype(np.uint64)
        job.from_shards(ROUTED).write(number, table, places)
        if worker.filter.linked:
            rows = pa.concat_tables(members)
            job.from_shards(MEMBERS).write(number, rows, partition_of_uids(job, rows["uid"]))

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


# --------------------------------------------------------------------------------------------------
# Tickets over partitions: values of their rows, or near pairs, components and values of groups.


# Names of exchanges. Of values, a row's place is its id: they are read by the ranges of shards.
VALUES, EDGES, STARS, GROUPED = "values", "edges", "stars", "groups"
PAIR = pa.schema([("first", pa.string()), ("second", pa.string())])  # of uids


def _sorted(table: pa.Table, first: tuple[str, ...] = ()) -> tuple[pa.Table, Ids]:
    """(rows by some columns, then by uid, then by their place in the pool; their ids)."""
    if not table.num_rows:
        return table, np.zeros(0, np.uint64)
    keys = [(name, "ascending") for name in (*first, "uid", ID)]
    order = pc.sort_indices(table.select([*first, "uid", ID]), sort_keys=keys)
    table = table.take(order).combine_chunks()
    return table.drop_columns([ID]), table[ID].to_numpy()


def _judging(job: PoolJob, method: str, exchange: Exchange, first: tuple[str, ...] = ()) -> Work:
    """The rows of a partition get their values by a method of the filter, and these are left for
    the tickets over shards. first: columns by which the rows are sorted."""
    worker = PoolWorker(job)
    kinds = worker.filter.columns()

    def work(ticket: Ticket) -> None:
        number: int = ticket.payload
        rows, ids = _sorted(exchange.at(number), first)
        values = {name: pa.nulls(0, kind) for name, kind in kinds.items()}
        if rows.num_rows:
            values = worker.call(method, rows, worker.state)
        arrays = arrow_columns(worker.instance.name, values, kinds, rows.num_rows)
        job.exchange(VALUES).write(number, pa.table(arrays), ids)

    return work


def judge(job: PoolJob) -> Work:
    """Factory: the rows of a partition get their values."""
    return _judging(job, "judge", job.from_shards(ROUTED))


# --- linked filters -------------------------------------------------------------------------------


def links(job: PoolJob) -> Work:
    """Factory: the near pairs of a partition, as stars."""
    worker = PoolWorker(job)

    def work(ticket: Ticket) -> None:
        number: int = ticket.payload
        rows, _ = _sorted(job.from_shards(ROUTED).at(number))
        pairs = PAIR.empty_table()
        if rows.num_rows:
            pairs = stars(_linked(worker, worker.call("links", rows, worker.state)))
        job.exchange(EDGES).write(number, pairs, np.zeros(len(pairs), np.uint64))

    return work


def _linked(worker: PoolWorker, pairs: object) -> pa.Table:
    """The answer of a filter as pairs of uids."""
    name = worker.instance.name
    if not isinstance(pairs, pa.Table) or set(pairs.column_names) != {"uid_a", "uid_b"}:
        raise ValueError(f"filter {name}: links must return a table of uid_a and uid_b")
    columns = []
    for end in ("uid_a", "uid_b"):
        try:
            hex_bytes(pairs[end], UID_BYTES, "uid")
        except ValueError as error:
            raise ValueError(f"filter {name}: links must return uids: {error}") from None
        columns.append(pc.utf8_lower(pairs[end].cast(pa.string())))
    return pa.table(columns, PAIR)


def components(job: PoolJob) -> Work:
    """Factory: the stars of all partitions become those of the pool, by the partition of a uid."""

    def work(ticket: Ticket) -> None:
        pairs = stars(stream(job.exchange(EDGES).tables(0, 1), PAIR))
        exchange = job.exchange(STARS, files=1)
        exchange.write(0, pairs, partition_of_uids(job, pairs["first"]))

    return work


def group(job: PoolJob) -> Work:
    """Factory: the rows of a partition of uids get their group, the smallest uid of their component
    or their own, and are sent to its partition."""

    def work(ticket: Ticket) -> None:
        number: int = ticket.payload
        rows = job.from_shards(MEMBERS).at(number)
        if rows.num_rows:
            (pairs,) = job.exchange(STARS, files=1).tables(number, number + 1)
            index = pc.index_in(rows["uid"], value_set=pairs["first"].combine_chunks())
            rows = rows.append_column(
                GROUP, pc.coalesce(pairs["second"].combine_chunks().take(index), rows["uid"])
            )
            job.exchange(GROUPED).write(number, rows, partition_of_uids(job, rows[GROUP]))
        else:
            job.exchange(GROUPED).write(number, pa.table({}), np.zeros(0, np.uint64))

    return work


def judge_groups(job: PoolJob) -> Work:
    """Factory: the rows of a partition of groups get their values."""
    return _judging(job, "judge_groups", job.exchange(GROUPED), (GROUP,))


def partition_of_uids(job: PoolJob, uids: pa.ChunkedArray) -> Places:
    """(rows,) the partition of each uid."""
    words = hex_bytes(uids, UID_BYTES, "uid").view("<u8").reshape(-1, 2)
    return mixed(words[:, 0] ^ mixed(words[:, 1])) % np.uint64(job.partitions)


def stars(pairs: pa.Table | pa.RecordBatchReader) -> pa.Table:
    """Near pairs as stars, PAIR: (uid, smallest uid of its component) of each uid that has a near
    one, but of the smallest ones; by uid."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    with database() as connection:
        connection.register("pairs", pairs)
        connection.execute("CREATE TABLE edges AS SELECT DISTINCT first, second FROM pairs")
        connection.execute(
            "CREATE TABLE nodes AS SELECT uid, row_number() OVER (ORDER BY uid) - 1 AS number "
            "FROM (SELECT first AS uid FROM edges UNION SELECT second FROM edges)"
        )
        ends = connection.sql(
            "SELECT a.number::INTEGER AS a, b.number::INTEGER AS b FROM edges "
            "JOIN nodes a ON a.uid = edges.first JOIN nodes b ON b.uid = edges.second"
        ).to_arrow_table()
        nodes = connection.sql("SELECT uid FROM nodes ORDER BY number").to_arrow_table()["uid"]
    if not len(nodes):
        return PAIR.empty_table()
    ones = np.ones(len(ends), np.int8)
    shape = (len(nodes), len(nodes))
    graph = coo_matrix((ones, (ends["a"].to_numpy(), ends["b"].to_numpy())), shape=shape)
    _, label = connected_components(graph, directed=False)
    # Nodes are sorted: the first of a component is its smallest.
    smallest = np.unique(label, return_index=True)[1][label]
    others = np.flatnonzero(smallest != np.arange(len(nodes)))
    return pa.table([nodes.take(pa.array(rows)) for rows in (others, smallest[others])], PAIR)


# --------------------------------------------------------------------------------------------------
# Tickets over shards: the values of their rows become the columns of a score set.


def gather(job: PoolJob) -> Work:
    """Factory: the columns of the shards of a ticket."""
    instance, filter_ = filter_of(job)
    kinds, names = filter_.columns(), instance.column_names()
    pool = Pool.of_tickets(job.out.pool)
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
        of_shard = pool.of_shards(shard_name(shard))
        sidecar = of_shard.read(shard, ["uid", "status"])
        is_stored = pc.fill_null(pc.equal(sidecar["status"], "success"), False).to_numpy()
        table = columns_of(rows, values, is_stored)
        metadata = {
            "uids": uids_checksum(sidecar["uid"]),
            "sidecar": of_shard.commits.value(shard, "sidecar_sha256").hex(),
            "rows": table.num_rows,
            "stored": int(is_stored.sum()),
            "pool": job.fingerprint,
            "seconds": 0.0,
        }
        return commit_columns(job.out, job.set_name, shard, table, metadata)

    def work(ticket: Ticket) -> Measure:
        unit: ShardUnit = ticket.payload
        first, end = job.bounds[unit.number], job.bounds[unit.number + 1]
        low, high = int(first) << int(POSITION_BITS), int(end) << int(POSITION_BITS)
        tables = [table for table in job.exchange(VALUES).tables(low, high) if len(table)]
        values = pa.table({PLACE: pa.array([], pa.uint64())})
        if tables:
            values = pa.concat_tables(tables).sort_by(PLACE).combine_chunks()
        ids = values[PLACE].to_numpy()
        values = values.drop_columns([PLACE])
        positions = (ids >> POSITION_BITS).astype(np.int64)
        scored = 0
        for position, shard in enumerate(unit.shards, start=first):
            low, high = np.searchsorted(positions, [position, position + 1]).tolist()
            rows = (ids[low:high] & ROW_MASK).astype(np.int64)
            scored += write(shard, rows, values.slice(low, high - low))
        return Measure(rows=scored, stored=scored)

    return work


# --------------------------------------------------------------------------------------------------
# `compute`: a filter that looks at the whole pool, stage by stage.
#
#     shards ──summarise, combine──▶ state
#     shards ──route──▶ partitions ──judge──▶ values ──gather──▶ columns of shards
#     shards ──route──▶ partitions ──links──▶ near pairs ──components──▶ stars
#            ──group──▶ partitions of groups ──judge_groups──▶ values ──gather──▶ columns of shards
#
# A ticket reads and writes files in a folder of the job; each is there as a whole or not
# at all, so a command that was stopped begins with the first ticket that left none. Columns of
# shards are written last and the folder is removed when all are there.


ONCE = np.ones(1, np.bool_)


def compute(
    commits: Commits, job: PoolJob, lacking: Mask, *, engine: Engine, gpus: float = 0
) -> dict[str, str]:
    """Write the columns of the shards of a mask; returns {ticket: reason} of those that failed.

    gpus: that each worker of a filter with a model asks of Ray. LeaseLost where another command has
    taken the pool over.
    """
    own = f"scores-{job.set_name}-"
    path, begun = disk.join(job.folder, "job.json"), None
    with contextlib.suppress(FileNotFoundError, ValueError):
        begun = disk.read_json(path)
    if begun != job.identity():  # of the pool as it was, or divided otherwise
        remove_transient(job.out, own)
        job.out.write_json(path, job.identity())
    failed = run_steps(_steps(commits, job, lacking, gpus), engine)
    if not failed or any("is damaged" in reason for reason in failed.values()):
        remove_transient(job.out, own)  # damaged by a kill or another's: the next one begins anew
    return failed


def remove_transient(out: PoolWriter, prefix: str = "") -> None:
    """Remove what the tickets of jobs left, of those whose folders begin with `prefix`."""
    layout = out.layout
    for job in disk.list_names(layout.transient):
        if not job.startswith(prefix):
            continue
        out.check()
        _remove_folder(disk.join(layout.transient, job))
    if not disk.is_url(layout.transient):
        with contextlib.suppress(OSError):  # another job has files in it
            disk.local_path(layout.transient).rmdir()


def _remove_folder(folder: str) -> None:
    """Remove a folder, with the partial files that killed commands left in it."""
    if not disk.is_url(folder):
        shutil.rmtree(disk.local_path(folder), ignore_errors=True)
        return
    for name in disk.list_names(folder):
        disk.remove(disk.join(folder, name))


def _steps(commits: Commits, job: PoolJob, lacking: Mask, gpus: float) -> Iterator[Step]:
    """The steps of a job. Those that call the filter's model ask for `gpus`."""
    filter_ = filter_of(job)[1]

    def unit(number: int) -> ShardUnit:
        shards = commits.shards[job.bounds[number] : job.bounds[number + 1]]
        return ShardUnit(number=number, shards=tuple(shards.tolist()))

    def step(name: str, work: WorkFactory, lacks: Mask, **options: Any) -> Step:
        return Step(name=f"{job.filter.name}: {name}", work=work, job=job, lacks=lacks, **options)

    if filter_.summarised and not are_there(job.folder, [state_path(job)]).all():
        summaries = [summary_path(job, number) for number in range(job.units)]
        lacks = ~are_there(job.folder, summaries)
        yield step("summarise", summarise, lacks, payload=unit)
        yield step("combine", combine, ONCE, gpus=gpus)
    lacks = job.from_shards(ROUTED).lacks()
    if filter_.linked:
        lacks |= job.from_shards(MEMBERS).lacks()
    yield step("route", route, lacks, payload=unit)
    if filter_.linked:
        yield step("links", links, job.exchange(EDGES).lacks(), gpus=gpus)
        yield step("components", components, job.exchange(STARS, files=1).lacks())
        yield step("group", group, job.exchange(GROUPED).lacks())
    name, work = ("judge groups", judge_groups) if filter_.linked else ("judge", judge)
    yield step(name, work, job.exchange(VALUES).lacks(), gpus=gpus)
    has_lacking = [bool(lacking[a:b].any()) for a, b in itertools.pairwise(job.bounds)]
    todo = np.array(has_lacking, np.bool_)
    yield step("gather", gather, todo, payload=unit, result=Measure)
