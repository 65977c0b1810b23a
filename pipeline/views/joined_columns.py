"""The columns of a pool's shards, from sidecars and score sets, in parts of bounded size."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from manifests.commits import Commits
from manifests.documents import ScoreSetDocument
from manifests.pool_layout import FLAT_SHARDS, SHARDS_PER_FOLDER, shard_name
from pipeline.pool import ScoreColumns
from pipeline.views.choose import Part

UNIT_SHARDS = 100  # flat shards that one thread works on, at most
UNIT_ROWS = 100_000  # rows of those shards: a million rows give work to ten threads
PART_ROWS = 200_000  # rows that a thread has in memory, and at least one shard
KEPT_ROWS = 1_000_000  # a pool of at most so many rows is read once, whatever the passes over it
ScoreSets = Mapping[str, tuple[str, ScoreSetDocument]]  # instance -> (NAME@ID, scores.json)


class JoinedColumns:
    """A pool as the source of `choose_parts`: units of a thousand shards, 100 of the flat ones."""

    def __init__(self, commits: Commits, columns: Collection[str], sets: ScoreSets) -> None:
        self.commits = commits
        from_sidecar = set(columns)
        self._of_set: dict[str, tuple[ScoreColumns, list[str]]] = {}
        for instance, (name, document) in sets.items():
            of_set = sorted(set(columns) & set(document.columns))
            if of_set:
                self._of_set[instance] = ScoreColumns(commits, name, document), of_set
                from_sidecar -= set(of_set)
        self._sidecar_columns = sorted(from_sidecar)
        self._bounds = _unit_bounds(commits)
        self.units = len(self._bounds) - 1
        self._row_ends = np.cumsum(commits.column("count").to_numpy())
        self.rows = int(self._row_ends[-1])
        self._kept: dict[int, list[Part]] | None = {} if self.rows <= KEPT_ROWS else None
        self._lock = threading.Lock()
        self.schema = pa.schema([])
        self.schema = self._read_shard(0, None).schema

    def shards_of(self, unit: int) -> range:
        """Positions in `commits` of the shards of a unit."""
        return range(int(self._bounds[unit]), int(self._bounds[unit + 1]))

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[Part]:
        """The parts of a unit, with some columns (default: all).

        ValueError for score columns of other rows than those of their shard.
        """
        if self._kept is None:
            yield from self._read_unit(unit, columns)
            return
        with self._lock:
            parts = self._kept.get(unit)
        if parts is None:
            parts = list(self._read_unit(unit, None))
            with self._lock:
                self._kept[unit] = parts
        yield from parts

    def _read_unit(self, unit: int, columns: Sequence[str] | None) -> Iterator[Part]:
        tables: list[pa.Table] = []
        first = self.shards_of(unit).start
        rows = 0
        for position in self.shards_of(unit):
            tables.append(self._read_shard(position, columns))
            rows += tables[-1].num_rows
            if rows >= PART_ROWS:
                yield self._part(first, tables)
                first, tables, rows = position + 1, [], 0
        if tables:
            yield self._part(first, tables)

    def _part(self, first: int, tables: Sequence[pa.Table]) -> Part:
        shards = self.commits.shards[first : first + len(tables)].tolist()
        names = [shard_name(shard) for shard in shards]
        sizes = [table.num_rows for table in tables]
        before = int(self._row_ends[first]) - sizes[0]
        return Part(
            table=pa.concat_tables(tables),
            first_row=before,
            sizes=dict(zip(names, sizes, strict=True)),
        )

    def _read_shard(self, position: int, columns: Sequence[str] | None) -> pa.Table:
        """The columns of one shard, side by side."""
        shard = int(self.commits.shards[position])
        sidecar = self.commits.sidecar(shard)
        names = self._sidecar_columns
        if columns is not None:
            names = [name for name in names if name in columns]

        def read_columns(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            return file.read(names, use_threads=False)

        table = disk.read_with(sidecar, read_columns)
        table = self._checked(table.replace_schema_metadata(None), names, sidecar)
        if table.num_rows != self.commits.column("count")[position].as_py():
            raise ValueError(f"{sidecar} does not have the rows of its commit record; verify it")
        for scores, of_set in self._of_set.values():
            wanted = [name for name in of_set if columns is None or name in columns]
            if wanted:
                read = scores.read(position, wanted)
                for name in wanted:
                    table = table.append_column(name, read[name])
        return table

    def _checked(self, table: pa.Table, names: Sequence[str], sidecar: str) -> pa.Table:
        """The columns `names` in this order. ValueError where the sidecar does not have one of
        them, or not with the type that it has in the first shard."""
        for name in names:
            kinds = [field.type for field in table.schema if field.name == name]
            first = self.schema.field(name).type if name in self.schema.names else None
            if kinds and first in (None, kinds[0]):
                continue
            state = f"has {name!r} as {kinds[0]}" if kinds else f"has no column {name!r}"
            raise ValueError(
                f"{sidecar} {state}, unlike the first shard of the pool; its shards are of "
                "different recipes: build them again, or leave the column out of the rules"
            )
        return table.select(list(names))


def _unit_bounds(commits: Commits) -> list[int]:
    """Where the units begin and end in the list of shards: a bundle is never cut."""
    shards = commits.shards
    flat = int(np.searchsorted(shards, FLAT_SHARDS))
    rows = int(commits.column("count").slice(0, flat).to_numpy().sum())
    step = max(1, min(UNIT_SHARDS, UNIT_ROWS * flat // max(1, rows)))
    bounds = list(range(0, flat, step))
    folders = shards[flat:] // SHARDS_PER_FOLDER
    starts = np.flatnonzero(np.diff(folders, prepend=-1)) + flat
    return [*bounds, *starts.tolist(), len(shards)]
