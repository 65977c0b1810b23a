"""One exchange: every ticket of one stage leaves a run, every ticket of the next reads a partition
of all runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifests import disk
from pipeline.exchange.runs import Run, read_index, read_keys, read_rows, write_run
from pipeline.pool import check_fence

Integers = npt.NDArray[np.int64]
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
