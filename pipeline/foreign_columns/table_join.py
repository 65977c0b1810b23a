"""The columns of a table for the rows of a pool, shard by shard.

Three passes: the uids of pool and table are matched; each file of the table is read once, and the
values of its matched rows go to partitions of consecutive shards on local disk; each partition is
sorted and cut into shards. Memory is bounded by a partition and by the arrays of one .npz.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from filters.table import Table
from manifests import disk
from manifests.commits import Commits
from manifests.pool_layout import uids_checksum
from pipeline.foreign_columns.key_match import (
    LOCATION,
    ORDINAL,
    MatchCounts,
    Matches,
    match_keys,
    payload,
)
from pipeline.foreign_columns.keys import key_records
from pipeline.foreign_columns.table_files import TableFile
from pipeline.foreign_columns.uid_arrays import UID_BYTES, uid_bits
from pipeline.pool import Bytes, RecordSpill
from pipeline.progress import counted_stage

READERS = 4  # sidecars that are read at a time
PARTITION_BYTES = 128 * 2**20  # of values that are sorted in memory
MAX_PARTITIONS = 512  # files that are open at once
TEXT_BYTES = 64  # of a string, about
# A match in the order of the files: bucket of the file, file, row, ordinal.
MATCH = np.dtype([("bucket", ">u2"), ("file", ">u4"), ("row", ">u4"), ("ordinal", ">u8")])
MATCH_BITS = 8
ORDINAL_COLUMN = "__ordinal"
Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardColumns:
    """The columns of one shard, a row for each of its rows."""

    position: int  # in the commit records
    table: pa.Table
    uids: str  # uids_checksum of the shard
    stored: int


class TableJoin:
    """`with TableJoin(commits, positions, table) as join: for each in join.shards(): …`."""

    def __init__(self, commits: Commits, positions: Integers, table: Table) -> None:
        """positions: of the shards in `commits`."""
        self.counts = MatchCounts()
        self._commits, self._positions, self._table = commits, positions, table
        self._files = [TableFile(table, path) for path in table.files()]
        counts = np.asarray(commits.column("count").to_numpy(), np.int64)[positions]
        self._ends: Integers = np.cumsum(counts)
        self._starts: Integers = self._ends - counts
        self._uids: list[tuple[str, int]] = []  # of each shard: checksum, stored rows
        self._stack = ExitStack()

    def __enter__(self) -> TableJoin:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def shards(self) -> Iterator[ShardColumns]:
        """The columns of each shard, in the order of `positions`.

        ValueError for a file that is damaged or lacks a column, and for a pool without `on`.
        """
        if not len(self._positions):
            return
        folder = self._stack.enter_context(disk.scratch_folder("clipmill-join-"))
        matches = self._stack.enter_context(RecordSpill(MATCH.itemsize, MATCH_BITS))
        self._match(matches)
        bounds = self._partition_bounds()
        self._spill_values(matches, folder, bounds)
        for number, (first, last) in enumerate(itertools.pairwise(bounds)):
            yield from self._of_partition(folder / f"{number}.arrow", first, last)

    # --- keys -------------------------------------------------------------------------------------

    def _match(self, matches: RecordSpill) -> None:
        bits = uid_bits(int(self._ends[-1]))
        table = self._stack.enter_context(RecordSpill(UID_BYTES + LOCATION.itemsize, bits))
        pool = self._stack.enter_context(RecordSpill(UID_BYTES + ORDINAL.itemsize, bits))
        self._spill_pool(pool)
        with counted_stage("read keys", len(self._files), brief=True) as counter:
            for number, file in enumerate(self._files):
                row = 0
                for keys in file.read_keys():
                    location = np.zeros(len(keys), LOCATION)
                    location["file"] = number
                    location["row"] = np.arange(row, row + len(keys))
                    row += len(keys)
                    table.add(np.hstack([keys, payload(location)]))
                counter.ended(str(number), {})
        for part_matches in match_keys(pool, table, self.counts):
            matches.add(self._match_records(part_matches))

    def _match_records(self, part_matches: Matches) -> Bytes:
        records = np.zeros(len(part_matches.ordinals), MATCH)
        records["bucket"] = part_matches.files * 65_536 // max(1, len(self._files))
        records["file"], records["row"] = part_matches.files, part_matches.rows
        records["ordinal"] = part_matches.ordinals
        return payload(records)

    def _spill_pool(self, pool: RecordSpill) -> None:
        """The uids of the stored rows with their numbers."""
        on, name = self._table.on, self._table.name

        def read(number: int) -> tuple[Bytes, str, int]:
            shard = int(self._commits.shards[self._positions[number]])
            path = self._commits.sidecar(shard)

            def read_columns(source: Any) -> pa.Table:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                if on not in file.schema_arrow.names:
                    names = file.schema_arrow.names
                    raise ValueError(
                        f"filter {name}: {self._commits.pool} has no column {on!r}"
                        f"{disk.did_you_mean(on, names)}"
                    )
                return file.read(list(dict.fromkeys(["uid", "status", on])), use_threads=False)

            table = disk.read_with(path, read_columns)
            stored = pc.and_(pc.equal(table["status"], "success"), table[on].is_valid())
            chosen = np.flatnonzero(stored.to_numpy())
            ordinals = (self._starts[number] + chosen).astype(ORDINAL)
            try:
                keys = key_records(table[on].filter(stored), self._table)
            except ValueError as error:
                raise ValueError(f"filter {name}: column {on!r} of {path}: {error}") from None
            stored_rows = int(pc.sum(pc.equal(table["status"], "success")).as_py() or 0)
            records = np.hstack([keys, payload(ordinals)])
            return records, uids_checksum(table["uid"]), stored_rows

        numbers = iter(range(len(self._positions)))
        with ThreadPoolExecutor(READERS) as threads:
            while batch := list(itertools.islice(numbers, 4 * READERS)):
                for records, uids, stored_rows in threads.map(read, batch):
                    pool.add(records)
                    self._uids.append((uids, stored_rows))

    # --- values -----------------------------------------------------------------------------------

    def _partition_bounds(self) -> list[int]:
        """Numbers of shards at which the partitions begin, and the end."""
        row_bytes = sum(_width(kind) for kind in self._table.columns().values())
        total = int(self._ends[-1]) * row_bytes
        size = max(PARTITION_BYTES, total // MAX_PARTITIONS + 1)
        partition = self._starts * row_bytes // size
        starts = np.flatnonzero(np.diff(partition, prepend=-1))
        return [*starts.tolist(), len(self._positions)]

    def _spill_values(self, matches: RecordSpill, folder: Path, bounds: Sequence[int]) -> None:
        """Read each file once and write its values to the partitions of their shards."""
        first_rows = self._starts[list(bounds[:-1])]
        kinds = {ORDINAL_COLUMN: pa.int64(), **self._table.columns()}
        schema = pa.schema(list(kinds.items()))
        with (
            ExitStack() as stack,
            counted_stage("read values", len(self._files), brief=True) as counter,
        ):
            writers: dict[int, Any] = {}
            for file_matches in _by_file(matches):
                for start, table in self._files[file_matches.file].read_values(file_matches.rows):
                    ordinals = file_matches.ordinals[start : start + len(table)]
                    table = table.add_column(0, ORDINAL_COLUMN, pa.array(ordinals))
                    partitions = np.searchsorted(first_rows, ordinals, side="right") - 1
                    for number in np.unique(partitions).tolist():
                        if number not in writers:
                            path = str(folder / f"{number}.arrow")
                            sink = stack.enter_context(pa.OSFile(path, "wb"))
                            writer = pa.ipc.new_stream(sink, schema)
                            writers[number] = stack.enter_context(writer)
                        here = partitions == number
                        part = table if here.all() else table.filter(pa.array(here))
                        writers[number].write_table(part.cast(schema))
                counter.ended(str(file_matches.file), {})

    def _of_partition(self, path: Path, first: int, last: int) -> Iterator[ShardColumns]:
        schema = pa.schema([(ORDINAL_COLUMN, pa.int64()), *self._table.columns().items()])
        table = schema.empty_table()
        if path.exists():
            with pa.OSFile(str(path), "rb") as source:
                table = pa.ipc.open_stream(source).read_all()
            path.unlink()
        ordinals = table[ORDINAL_COLUMN].to_numpy()
        order = np.argsort(ordinals, kind="stable")
        ordinals = ordinals[order]
        values = table.drop_columns([ORDINAL_COLUMN]).combine_chunks()
        for number in range(first, last):
            start, end = int(self._starts[number]), int(self._ends[number])
            low, high = np.searchsorted(ordinals, [start, end])
            index = np.full(end - start, -1, np.int64)
            index[ordinals[low:high] - start] = order[low:high]
            uids, stored = self._uids[number]
            yield ShardColumns(
                position=int(self._positions[number]),
                table=values.take(pa.array(index, mask=index < 0)),
                uids=uids,
                stored=stored,
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FileRows:
    file: int
    rows: Integers  # ascending
    ordinals: Integers


def _by_file(matches: RecordSpill) -> Iterator[_FileRows]:
    """The matches of each file that has some, in the order of the files."""
    for partition in matches.partitions():
        records = np.ascontiguousarray(partition).view(MATCH).ravel()
        order = np.lexsort((records["row"], records["file"]))
        records = records[order]
        files = records["file"].astype(np.int64)
        for file in np.unique(files).tolist():
            low, high = np.searchsorted(files, [file, file + 1])
            yield _FileRows(
                file=file,
                rows=records["row"][low:high].astype(np.int64),
                ordinals=records["ordinal"][low:high].astype(np.int64),
            )


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * 2
    return TEXT_BYTES if pa.types.is_string(kind) else 8
