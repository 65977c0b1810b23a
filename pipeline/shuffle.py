"""One shuffle: rows that tickets leave in files by place, and SQL over the rows of some places.

Every ticket of one stage leaves a Parquet file, sorted by a number that each row has, its `place`;
every ticket of the next reads the rows of some places from all files and runs one statement of
DuckDB over them. The crawl's deduplication, the plan (`pipeline/planning`) and the filters that
look at the whole pool (`pipeline/cross_row`) exchange rows in this way. `run_steps` runs the
tickets of such stages whose files are not there.

Reads and writes `run-NAME-NNNNN.parquet` in a folder that the caller removes.

Invariants, in `tests/pipeline/test_shuffle.py`:

* What goes to a place comes out of it; only the row groups that have it are read.
* A file is there as a whole or not at all; a lost lease writes nothing.
* A stage begins when the one before has left all of its files, with those that are not there.
* A statement over more rows than its memory spills into a scratch folder, and sees no other file.
* The hash of rows depends neither on their order nor on how often each is there.

DuckDB decides no order and no hash of what is stored: statements end in ORDER BY of a unique key,
and hashes are columns that were computed before.
"""

from __future__ import annotations

import hashlib
import importlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.arrays import Bytes, Hashes, Mask
from clipmill.manifests.columns import hex_bytes
from clipmill.manifests.commits import in_threads
from clipmill.manifests.ray_runtime import Engine
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets, WorkFactory
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.progress.state import Measurer

if TYPE_CHECKING:
    import duckdb as duckdb
    from duckdb import DuckDBPyConnection
else:

    class _Late:
        """The package, imported when something of it is used: a command with nothing to do takes
        twice as long with it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("duckdb"), name)

    duckdb = _Late()

MEMORY = "512MB"  # of a statement; beyond, it spills
BATCH_ROWS = 10_000  # that a statement gives at a time
FEWEST_ROWS = 256  # of a row group of a file
ROW_GROUPS = 256  # about as many has a file of more rows: each reader of a place reads the footer
THREADS = 16  # that read or remove small files: a remote store answers each after about 30 ms
PLACE = "place"
Places = Hashes


def are_there(folder: str, paths: Sequence[str]) -> Mask:
    """(paths,) which files of a folder are there. One listing."""
    names = set(disk.list_names(folder))
    return np.array([path.rpartition("/")[2] in names for path in paths], np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The files of one exchange."""

    out: PoolWriter
    folder: str
    name: str  # in the names of the files
    files: int

    def path(self, number: int) -> str:
        """The file of ticket `number`."""
        return disk.join(self.folder, f"run-{self.name}-{number:05d}.parquet")

    def lacks(self) -> Mask:
        """(files,) which are not there. One listing."""
        return ~are_there(self.folder, [self.path(number) for number in range(self.files)])

    def write(self, number: int, table: pa.Table, places: Places, **metadata: Any) -> None:
        """Leave the rows of a table at their places; those of one place stay in their order.

        `metadata` comes out of `footers`. LeaseLost where another command has taken the lease over.
        """
        order = np.argsort(places, kind="stable")
        table = table.append_column(PLACE, pa.array(places, pa.uint64())).take(pa.array(order))
        rows = max(FEWEST_ROWS, -(-table.num_rows // ROW_GROUPS))
        with disk.scratch_folder("clipmill-shuffle-") as scratch:
            staged = scratch / "run.parquet"
            with disk.parquet_writer(
                staged,
                disk.with_metadata(table.schema, metadata),
                compression="lz4",
                use_dictionary=False,
                write_statistics=[PLACE],
                write_page_checksum=True,
            ) as writer:
                writer.write_table(table, row_group_size=rows)
            self.out.publish(staged, self.path(number))

    def footers(self) -> list[dict[str, Any]]:
        """The metadata of all files."""
        paths = [self.path(number) for number in range(self.files)]
        return list(in_threads(disk.read_metadata, paths, THREADS))

    def tables(self, low: int, high: int) -> Iterator[pa.Table]:
        """The rows with low <= place < high of each file, in the order of the files."""

        def read(source: Any) -> pa.Table:
            with pq.ParquetFile(source, page_checksum_verification=True) as file:
                groups = _groups_with(file, low, high)
                return file.read_row_groups(groups, use_threads=False)

        for number in range(self.files):
            table = disk.read_with(self.path(number), read).replace_schema_metadata(None)
            places = table[PLACE].to_numpy()
            start = int(np.searchsorted(places, low))
            end = int(np.searchsorted(places, high)) if high < 1 << 64 else len(places)
            yield table.slice(start, end - start)

    def at(self, place: int) -> pa.Table:
        """The rows of one place, in the order of the files; without columns where none is left."""
        tables = [table for table in self.tables(place, place + 1) if table.num_rows]
        return pa.concat_tables(tables).drop_columns([PLACE]) if tables else pa.table({})


def _groups_with(file: pq.ParquetFile, low: int, high: int) -> range:
    """The row groups of a sorted file that have rows of some places; the footer is searched."""
    footer = file.metadata
    column = file.schema_arrow.get_field_index(PLACE)

    def bound(number: int, end: str) -> int:
        return int(getattr(footer.row_group(number).column(column).statistics, end))

    groups = range(footer.num_row_groups if footer.num_rows else 0)
    first = bisect_left(groups, low, key=lambda number: bound(number, "max"))
    return groups[first : bisect_left(groups, high, key=lambda number: bound(number, "min"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """The payload of a ticket over shards."""

    number: int
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One kind of tickets of a job, each of which leaves a file."""

    name: str  # as it is shown; its last word, behind ": ", begins those of the tickets
    work: WorkFactory
    job: Any
    lacks: Mask  # (tickets,) True for each whose file is not there: it runs
    payload: Callable[[int], Any] = lambda number: number  # of a ticket, by its number
    gpus: float = 0
    measure: Measurer | None = None
    on_done: Callable[[str, dict[str, Any]], None] | None = None

    def tickets(self) -> Tickets:
        """Those whose files are not there."""
        numbers, kind = np.flatnonzero(self.lacks), self.name.rpartition(": ")[2]

        def make(position: int) -> Ticket:
            number = int(numbers[position])
            name = f"{kind}-{number:05d}"
            return Ticket(id=name, group=name, payload=self.payload(number))

        return Tickets(numbers, make)


def run_steps(steps: Iterable[Step], engine: Engine, workers: int | None = None) -> dict[str, str]:
    """Run the tickets of some steps whose files are not there: a job that was stopped goes on with
    them. A step is asked for when all tickets of those before have left their files. Returns
    {ticket: reason} of those that failed; behind their step nothing runs.
    """
    for step in steps:
        stage = Stage(
            name=step.name, work=step.work, job=step.job, gpus=step.gpus, measure=step.measure
        )
        report = execute(
            stage, step.tickets(), engine=engine, workers=workers, on_done=step.on_done
        )
        if report.failed:
            return report.failed
    return {}


def connect(**config: Any) -> DuckDBPyConnection:
    """A new database in memory, for rules and for a shuffle: it reaches no file but those that it
    spills, no network and no Python variable. `config`: settings of DuckDB.
    """
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    # Else text and parts of a time would be those of the machine's TZ.
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


@contextmanager
def database() -> Iterator[DuckDBPyConnection]:
    """A database in one thread with MEMORY, for tables that are given to it; beyond, it spills into
    a scratch folder.
    """
    with (
        disk.scratch_folder("clipmill-sql-") as folder,
        connect(temp_directory=str(folder), memory_limit=MEMORY, threads=1) as connection,
    ):
        yield connection


def stream(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.RecordBatchReader:
    """Tables as rows that a statement reads once, one table in memory at a time."""

    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            yield from table.select(schema.names).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def select(
    sql: str, batch_rows: int = BATCH_ROWS, /, **tables: pa.Table | pa.RecordBatchReader
) -> Iterator[pa.RecordBatch]:
    """The answer of a statement over some tables, batch by batch."""
    with database() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        yield from connection.sql(sql).to_arrow_reader(batch_rows)


def blobs(rows: Bytes) -> pa.Array:
    """(rows, width) bytes as a column."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(rows.shape[1]), len(rows), buffers)


def insert(connection: DuckDBPyConnection, table: str, *columns: Any) -> None:
    """Add rows to a table of a database."""
    names = [str(number) for number in range(len(columns))]
    connection.register("part", pa.table(list(columns), names))
    connection.execute(f"INSERT INTO {table} SELECT * FROM part")


# --------------------------------------------------------------------------------------------------
# Rows by what they are, their uid and the sha256 of the received bytes; and the hash of a set of
# them. Views, locks and the rows that pools have in common are such sets: each is a flag of rows.


UID_BYTES, SHA256_BYTES = 16, 32
KEY_BYTES = UID_BYTES + SHA256_BYTES
# A key as numbers, first bytes first: DuckDB sorts them in two thirds of the time of a BLOB.
WORDS = [f"w{number}" for number in range(KEY_BYTES // 8)]
KEY = ", ".join(WORDS)


def row_keys(uids: pa.Array | pa.ChunkedArray, hashes: pa.Array | pa.ChunkedArray) -> Bytes:
    """(rows, KEY_BYTES) of two columns of hex digits. ValueError for other values."""
    binary = hex_bytes(uids, UID_BYTES, "uid"), hex_bytes(hashes, SHA256_BYTES, "sha256")
    return np.hstack(binary)


def key_columns(keys: Bytes) -> Hashes:
    """(WORDS, rows) of (rows, KEY_BYTES)."""
    words: Hashes = np.ascontiguousarray(keys).view(">u8").astype(np.uint64).T
    return words


def of_flags(form: str, flags: int) -> str:
    """Columns of a statement: `form`, with the name of each flag where it has braces."""
    return ", ".join(form.format(f"f{number}") for number in range(flags))


def create_keyed(connection: DuckDBPyConnection, table: str, columns: str) -> None:
    """Make a table of rows with their keys and further columns."""
    words = ", ".join(f"{word} UBIGINT" for word in WORDS)
    connection.execute(f"CREATE TABLE {table} ({words}, {columns})")


def hash_flagged(connection: DuckDBPyConnection, table: str, flags: int) -> list[tuple[int, str]]:
    """(different rows, their hash) of each flag of a table: sha256 over the keys of the rows that
    have it, each once, ascending.
    """
    contents = [hashlib.sha256() for _ in range(flags)]
    rows, last = [0] * flags, [np.zeros((0, len(WORDS)), np.uint64)] * flags
    ordered = connection.sql(f"SELECT {KEY}, {of_flags('{}', flags)} FROM {table} ORDER BY {KEY}")
    for batch in ordered.to_arrow_reader(BATCH_ROWS):
        words = np.stack([batch[word].to_numpy() for word in WORDS], axis=1)
        for number, content in enumerate(contents):
            has_flag = batch[len(WORDS) + number].to_numpy(zero_copy_only=False)
            keys = np.concatenate([last[number], words[has_flag]])
            is_new = np.ones(len(keys), np.bool_)
            is_new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
            is_new[: len(last[number])] = False
            rows[number] += int(is_new.sum())
            content.update(keys[is_new].astype(">u8").tobytes())
            last[number] = keys[-1:]
    return [(count, content.hexdigest()) for count, content in zip(rows, contents, strict=True)]
