"""Rows divided into partitions by files: partition files and sorted runs.

Rows divided into partitions by files: every ticket of one stage leaves a sorted run, every ticket
of the next reads a partition of all runs. The plan (`pipeline/planning`) and the filters that
look at the whole pool (`pipeline/cross_row`) exchange rows in this way.

Reads and writes `run-NAME-NNNNN.arrow`, `.keys` and `.index` in a folder that the caller removes.

Invariants:

* Any range of a run is read without the others; nothing is there before its index:
  `tests/pipeline/shuffle/test_runs.py`.
* What goes into a partition comes out of it; a lost lease writes nothing:
  `tests/pipeline/shuffle/test_partition_files.py`.

A stage that needs rows of other tickets: a `PartitionFiles` with a name of its own, `write` in
the first stage, `read` in the second, `written` to leave out what a killed command has done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifests import disk
from pipeline.pool.lease import check_fence

# --------------------------------------------------------------------------------------------------
# Sorted runs: what one map ticket leaves for the tickets that merge.
#
# A run is three files in a scratch folder: the rows sorted by (group, order) as an Arrow IPC file
# of small batches; their order keys as plain 64-bit numbers; and an index, written last, of where
# each group and each batch begins. Any range of rows is read without the others.


BATCH_ROWS = (256, 4096)  # the fewest, unless the run ends, and the most
NUMBER = np.dtype("<i8")
KEY = np.dtype("<u8")
Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Run:
    """The three files of run `number` of a job."""

    folder: str
    job: str
    number: int

    def path(self, suffix: str) -> str:
        """The path of one of its files."""
        return disk.join(self.folder, f"run-{self.job}-{self.number:05d}.{suffix}")

    @property
    def index_name(self) -> str:
        """The name of the file that is written last."""
        return self.path("index").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Where the groups and the batches of a run begin, in rows; each array ends with the total."""

    groups: Integers
    batches: Integers


def write_run(
    run: Run, table: pa.Table, groups: Integers, keys: Hashes, group_count: int, scratch: Path
) -> None:
    """Sort the rows of a table by (group, key), equal ones in their order, and write them.

    `groups` and `keys` have one value a row. `scratch` is a local folder.
    """
    order = np.lexsort((keys, groups))
    bounds = np.searchsorted(groups[order], np.arange(group_count + 1)).astype(NUMBER)
    batches = _batch_bounds(bounds)
    whole = table.combine_chunks()
    staged = scratch / "run.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        disk.CountedFile(staged) as sink,
        pa.ipc.new_file(sink, whole.schema, options=options) as writer,
    ):
        for start, stop in pairwise(batches.tolist()):
            rows = whole.take(pa.array(order[start:stop]))
            writer.write_table(rows, max_chunksize=stop - start)
    disk.publish(staged, run.path("arrow"))
    disk.write_bytes(run.path("keys"), keys[order].astype(KEY).tobytes())
    sizes = np.array([len(bounds), len(batches)], NUMBER)
    disk.write_bytes(run.path("index"), np.concatenate([sizes, bounds, batches]).tobytes())


def _batch_bounds(groups: Integers) -> Integers:
    """Where batches begin: where a group does, so that no other group's rows are read with it."""
    fewest, most = BATCH_ROWS
    bounds = [0]
    for start, stop in zip(groups[:-1].tolist(), groups[1:].tolist(), strict=True):
        if start - bounds[-1] >= fewest:
            bounds.append(start)
        while stop - bounds[-1] > most:
            bounds.append(bounds[-1] + most)
    if groups[-1] > bounds[-1]:
        bounds.append(int(groups[-1]))
    return np.array(bounds, NUMBER)


def read_index(run: Run) -> RunIndex:
    """The index of a run that was written."""
    numbers = np.frombuffer(disk.read_bytes(run.path("index")), NUMBER)
    split = 2 + int(numbers[0])
    return RunIndex(groups=numbers[2:split], batches=numbers[split:])


def read_keys(run: Run, start: int, stop: int) -> Hashes:
    """The order keys of rows `start` to `stop` of a run."""
    data = disk.read_bytes(run.path("keys"), start * KEY.itemsize, (stop - start) * KEY.itemsize)
    return np.frombuffer(data, KEY)


def read_rows(run: Run, index: RunIndex, start: int, stop: int) -> list[pa.RecordBatch]:
    """Rows `start` to `stop` of a run."""
    if start == stop:
        return []
    first = int(np.searchsorted(index.batches, start, side="right")) - 1
    end = int(np.searchsorted(index.batches, stop, side="left"))
    batches = []
    with opened(run.path("arrow")) as file, pa.ipc.open_file(file) as reader:
        for number in range(first, end):
            begin = int(index.batches[number])
            batch = reader.get_batch(number)
            low, high = max(0, start - begin), min(batch.num_rows, stop - begin)
            batches.append(batch.slice(low, high - low))
    return batches


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """A file to read at any position."""
    if not disk.is_url(path):
        with pa.OSFile(str(disk.local_path(path)), "rb") as file:
            yield file
        return
    with fsspec.open(path, "rb") as file:
        yield file


# --------------------------------------------------------------------------------------------------
# One exchange: every ticket of one stage leaves a run, every ticket of the next reads a partition
# of all runs.


Ids = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """The files of one exchange, in a folder that is removed when the job ends."""

    pool: str
    folder: str
    name: str  # of the exchange, in file names
    runs: int
    partitions: int
    fence: int | None = None

    def run(self, number: int) -> Run:
        """The run that ticket `number` leaves."""
        return Run(self.folder, self.name, number)

    def written(self) -> npt.NDArray[np.bool_]:
        """(runs,) which runs are complete. One listing."""
        names = set(disk.list_names(self.folder))
        return np.array([self.run(n).index_name in names for n in range(self.runs)], np.bool_)

    def write(self, number: int, table: pa.Table, partition: Integers, ids: Ids) -> None:
        """Leave the rows of a table in their partitions, sorted by id inside each of them.

        LeaseLost where another command has taken the lease over.
        """
        check_fence(self.pool, self.fence)
        with disk.scratch_folder("clipmill-exchange-") as scratch:
            write_run(self.run(number), table, partition, ids, self.partitions, scratch)

    def read(self, partition: int) -> tuple[pa.Table, Ids]:
        """(rows, ids) of one partition, run by run."""
        batches: list[pa.RecordBatch] = []
        ids = [np.zeros(0, np.uint64)]
        schema: pa.Schema | None = None
        for number in range(self.runs):
            run = self.run(number)
            index = read_index(run)
            start, stop = int(index.groups[partition]), int(index.groups[partition + 1])
            if start < stop:
                batches += read_rows(run, index, start, stop)
                ids.append(read_keys(run, start, stop))
        if batches:
            schema = batches[0].schema
        table = pa.Table.from_batches(batches, schema) if schema is not None else pa.table({})
        return table, np.concatenate(ids)

    def remove(self) -> None:
        """Remove the files of the exchange."""
        for name in disk.list_names(self.folder):
            if name.startswith(f"run-{self.name}-"):
                disk.remove(disk.join(self.folder, name))
