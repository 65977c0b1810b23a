"""One shuffle: rows that tickets leave in files by place, and the tickets that are not done.

Every ticket of one stage leaves a Parquet file, sorted by a number that each row has, its `place`;
every ticket of the next reads the rows of some places from all files and runs one statement of
`pipeline/database` over them. The crawl's deduplication, the plan (`pipeline/planning`) and the
filters that look at the whole pool (`pipeline/cross_row`) exchange rows in this way. `run_steps`
runs the tickets of such stages whose files are not there.

Reads and writes `run-NAME-NNNNN.parquet` in a folder that the caller removes.

Invariants, in `tests/pipeline/test_shuffle.py`:

* What goes to a place comes out of it; only the row groups that have it are read.
* A file is there as a whole or not at all; a lost lease writes nothing.
* A stage begins when the one before has left all of its files, with those that are not there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.arrays import Hashes, Mask
from clipmill.manifests.commits import in_threads
from clipmill.manifests.ray_runtime import Engine
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets, WorkFactory
from clipmill.pipeline.pool.lease import PoolWriter

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

    def write(self, number: int, table: pa.Table, places: Places, **metadata: object) -> None:
        """Leave the rows of a table at their places; those of one place stay in their order.

        `metadata` comes out of `footers`. LeaseLost where another command has taken the lease over.
        """
        order = np.argsort(places, kind="stable")
        table = table.append_column(PLACE, pa.array(places, pa.uint64())).take(pa.array(order))
        rows = max(FEWEST_ROWS, -(-table.num_rows // ROW_GROUPS))
        with self.out.parquet_writer(
            self.path(number),
            disk.with_metadata(table.schema, metadata),
            compression="lz4",
            use_dictionary=False,
            write_statistics=[PLACE],
        ) as writer:
            writer.write_table(table, row_group_size=rows)

    def footers(self) -> Iterator[dict[str, Any]]:
        """The metadata of all files, of some in memory at a time."""
        paths = [self.path(number) for number in range(self.files)]
        return in_threads(disk.read_metadata, paths, THREADS)

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
    result: Any = object
    on_done: Callable[[str, Any], None] | None = None

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
            name=step.name, work=step.work, job=step.job, gpus=step.gpus, result=step.result
        )
        report = execute(
            stage, step.tickets(), engine=engine, workers=workers, on_done=step.on_done
        )
        if report.failed:
            return report.failed
    return {}
