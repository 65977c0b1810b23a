"""The kept rows of a view, shard by shard, with their columns of the sidecar and of the score sets.

Few shards are in memory at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from manifests.aligned import AlignedFiles, current_view, view_shards
from manifests.commits import read_commits
from manifests.documents import ScoreSetDocument
from pipeline.scoring import complete_score_sets
from pipeline.views import map_units

logger = logging.getLogger(__name__)
Mask = npt.NDArray[np.bool_]


class KeptRows:
    """The rows that a view keeps. ValueError where the pool has no such view, or an old one."""

    def __init__(self, pool: str, view: str) -> None:
        self.pool, self.view = pool, view
        self.commits = read_commits(pool)
        remedy = f"make it again with python pipeline/filter.py {pool} --recipe RECIPE"
        self.document = current_view(pool, view, self.commits.fingerprint, remedy)
        shards, kept = view_shards(pool, self.document)
        self.shards: list[int] = shards[kept > 0].tolist()
        if not self.shards:
            raise ValueError(f"view {view!r} of {pool} keeps nothing: its rows were purged")
        self._masks = AlignedFiles.of_view(pool, view)
        sidecar = disk.read_schema(self.commits.sidecar(self.shards[0]))
        self.sidecar_schema: pa.Schema = sidecar.remove_metadata()
        self.score_sets = self._current_sets()
        self._files = {name: AlignedFiles.of_scores(pool, name) for name in self.score_sets}
        self._renamed = self._output_names()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the sidecar, then those of the score sets."""
        fields = list(self.sidecar_schema)
        for name, columns in self._renamed.items():
            table = self._files[name].read(self.shards[0], list(columns))[0]
            for column, output in columns.items():
                fields.append(pa.field(output, table.schema.field(column).type))
        return pa.schema(fields)

    @property
    def score_columns(self) -> dict[str, tuple[str, str]]:
        """Column of `schema` -> (score set, its name there)."""
        columns = {}
        for name, of_set in self._renamed.items():
            for column, output in of_set.items():
                columns[output] = (name, column)
        return columns

    def check_unchanged(self) -> None:
        """ValueError where the pool has changed since it was opened."""
        if read_commits(self.pool).fingerprint != self.commits.fingerprint:
            raise ValueError(f"{self.pool} changed while it was read; export it again")

    def mask(self, shard: int) -> Mask:
        """(rows,) which rows of a shard are kept."""
        column = self._masks.read(shard, ["kept"])[0]["kept"]
        return np.asarray(column.to_numpy(), np.bool_)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The kept rows of each shard in order: all columns of `schema`, or some of the sidecar."""

        def read(unit: int) -> pa.Table:
            shard = self.shards[unit]
            kept = pa.array(self.mask(shard))
            if columns is not None:
                return self._sidecar(shard, columns).filter(kept)
            return self.with_scores(shard, self._sidecar(shard, None).filter(kept), kept)

        yield from map_units(len(self.shards), read, "export")

    def with_scores(self, shard: int, rows: pa.Table, kept: pa.Array) -> pa.Table:
        """The kept rows of a sidecar with the columns of the score sets behind them.

        ValueError for scores of other rows.
        """
        for name, columns in self._renamed.items():
            scores, metadata = self._files[name].read(shard, list(columns))
            sidecar = self.commits.record(shard).sidecar_sha256
            if metadata.get("sidecar") != sidecar or scores.num_rows != len(kept):
                raise ValueError(
                    f"{self._files[name].path(shard)} was scored for other rows than those of its "
                    "shard; run pipeline/score.py again"
                )
            scores = scores.filter(kept)
            for column, output in columns.items():
                rows = rows.append_column(output, scores[column])
        return rows

    def _sidecar(self, shard: int, columns: Sequence[str] | None) -> pa.Table:
        path = self.commits.sidecar(shard)

        def read_columns(source: Any) -> pa.Table:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            names = None if columns is None else list(columns)
            return file.read(names, use_threads=False)

        table: pa.Table = disk.read_with(path, read_columns).replace_schema_metadata(None)
        if table.num_rows != self.commits.record(shard).count:
            raise ValueError(f"{path} does not have the rows of its commit record; verify it")
        return table if columns is None else table.select(list(columns))

    def _current_sets(self) -> dict[str, ScoreSetDocument]:
        """The complete score sets of the pool as it is now, those of the view's rules first."""
        sets = complete_score_sets(self.pool)
        current = {}
        used = set(self.document.scores.values())
        for name in sorted(sets, key=lambda name: (name not in used, name)):
            if sets[name].fingerprint == self.commits.fingerprint:
                current[name] = sets[name]
            else:
                logger.warning("score set %s is of an older state of the pool: left out", name)
        return current

    def _output_names(self) -> dict[str, dict[str, str]]:
        """Score set -> {column there: column of the export}. A name that is taken gets @ID."""
        taken = set(self.sidecar_schema.names)
        renamed: dict[str, dict[str, str]] = {}
        for name, document in self.score_sets.items():
            renamed[name] = {}
            for column in document.columns:
                output = f"{column}@{document.id}" if column in taken else column
                taken.add(output)
                renamed[name][column] = output
        return renamed
