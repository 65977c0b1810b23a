"""The views of the arms, all shards joined, and columns of their pools. Each file is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned.bundles import AlignedFiles
from manifests.commits import Commits, read_commits
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import NOT_STORED, PoolLayout, shard_folder
from manifests.schema import Blend
from train.data import covers, load_aligned, open_masks
from train.evaluation import BoolArray

KEPT = -1  # the code of a row that no rule rejects
FloatArray = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class PoolColumns:
    """Columns of a pool. Its views share them: a column that two ask for is read once.

    shards and sizes: names of the shards and their numbers of rows.
    """

    path: str
    commits: Commits
    _scores: dict[str, FloatArray | None] = field(default_factory=dict)
    _sets: dict[str, str] | None = None

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(self.commits.names())

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.commits.column("count").to_pylist())

    def score_sets(self) -> dict[str, str]:
        """{column: score set that has it}, of the score sets of all shards; tokens left out."""
        if self._sets is None:
            layout, of_column = PoolLayout(self.path), {}
            folder = layout.scores
            for name in sorted(disk.list_names(folder)) if disk.exists(folder) else ():
                path = layout.score_set_json(name)
                if name.startswith("tokens@") or not disk.exists(path):
                    continue
                document = read_document(path, ScoreSetDocument)
                commits = self.commits
                if covers(self.path, document, commits.fingerprint, commits.shards):
                    of_column.update(dict.fromkeys(document.columns, name))
            self._sets = of_column
        return self._sets

    def scores(self, name: str, score_set: str) -> FloatArray:
        """A score column over all rows, NaN for NULL. ValueError for a file of other rows."""
        key = f"{score_set}/{name}"
        values = self._scores.get(key)
        if values is None:
            parts = [self.score_column(name, score_set, shard) for shard in self.shards]
            values = np.concatenate([_as_floats(part) for part in parts])
            self._scores[key] = values
        return values

    def score_column(self, name: str, score_set: str, shard: str) -> pa.ChunkedArray:
        """A score column of one shard. ValueError where it is of other rows than its shard."""
        files = AlignedFiles.of_scores(self.path, score_set)
        path = files.path(shard)
        if shard_folder(shard):
            column = load_aligned(files, shard, [name])[name]
        else:
            column = read_columns(path, [name])[name]
        position = self.commits.position(shard)
        rows = self.commits.column("count")[position].as_py()
        if len(column) != rows:
            raise ValueError(f"{path} has {len(column)} rows, its shard {rows}; score it again")
        return column

    def sidecar_names(self) -> list[str]:
        """The columns of the first shard's sidecar."""
        names: list[str] = disk.read_schema(self.commits.sidecar(self.shards[0])).names
        return names

    def sidecar(self, shard: str, columns: Sequence[str]) -> pa.Table:
        """Columns of a shard's sidecar; those that it does not have are left out."""
        return read_columns(self.commits.sidecar(shard), columns, optional=True)


def _as_floats(column: pa.ChunkedArray) -> FloatArray:
    values: FloatArray = column.to_numpy().astype(np.float64)
    return values


def read_columns(
    path: str, columns: Sequence[str], *, texts: Sequence[str] = (), optional: bool = False
) -> pa.Table:
    """Columns of a Parquet file, in one thread: a pool has many small files.

    texts: columns that come as dictionaries, because few texts repeat. optional: a column that the
    file does not have is left out, else it is a ValueError.
    """
    if disk.is_url(path):
        known = disk.read_schema(path).names
        wanted = [name for name in columns if name in known or not optional]
        table = disk.read_parquet(path, wanted)
        for name in texts:
            index = table.column_names.index(name)
            table = table.set_column(index, name, table[name].dictionary_encode())
        return table
    with pq.ParquetFile(path, read_dictionary=list(texts)) as file:
        known = set(file.schema_arrow.names)
        missing = [name for name in columns if name not in known]
        if missing and not optional:
            raise ValueError(f"{path} has no column {missing[0]!r}")
        return file.read([name for name in columns if name in known], use_threads=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmView:
    """A view of an arm, all shards joined, with one entry per row of the pool.

    pool: its name in the ablation; path: its folder. failed: the index in `outcomes` of the first
    rule that failed, KEPT where the row is kept.
    """

    arm: str
    pool: str
    path: str
    view: str
    document: ViewDocument
    columns: PoolColumns
    kept: BoolArray
    stored: BoolArray  # rows of the pool that have an image
    failed: NDArray[np.int16]
    outcomes: tuple[str, ...]

    def rule_of(self, row: int) -> str | None:
        """The first rule that failed for a row; None where it is kept."""
        code = int(self.failed[row])
        return None if code == KEPT else self.outcomes[code]

    def scores(self, name: str) -> FloatArray | None:
        """A score column over all rows of the pool, NaN for NULL.

        None where no score set that the view was chosen from has it.
        """
        layout = PoolLayout(self.path)
        for score_set in self.document.scores.values():
            if name in read_document(layout.score_set_json(score_set), ScoreSetDocument).columns:
                return self.columns.scores(name, score_set)
        return None

    def thresholds(self, column: str) -> list[float]:
        """The resolved thresholds of the view on one column."""
        resolved = []
        for call, threshold in self.document.thresholds.items():
            if column in call:
                resolved.append(float(threshold.value))
        return resolved


def open_views(blends: Mapping[str, Blend]) -> list[ArmView]:
    """The views of every arm; each is read once, whatever number of arms use it.

    ValueError for a pool that is missing, and for a view that is missing, stale or damaged.
    """
    pools: dict[str, PoolColumns] = {}
    opened: dict[tuple[str, str], ArmView] = {}
    views = []
    for arm, blend in blends.items():
        for name in blend.views:
            pool, _, view = name.partition("/")
            path = blend.pools[pool]
            if path not in pools:
                pools[path] = PoolColumns(path=path, commits=_commits(path))
            if (path, view) not in opened:
                opened[path, view] = _open(arm, pool, view, pools[path])
            views.append(replace(opened[path, view], arm=arm, pool=pool))
    return views


def _commits(path: str) -> Commits:
    if not disk.exists(PoolLayout(path).pool_json):
        raise ValueError(f"{path} is no pool (it has no pool.json); put it back or build it again")
    return read_commits(path)


def _open(arm: str, pool: str, view: str, columns: PoolColumns) -> ArmView:
    masks = open_masks(columns.commits, view)
    document = masks.document
    kept, failed = [], []
    outcomes: dict[str, int] = {}
    for number, size in enumerate(columns.sizes):
        mask = masks.read(number, size)
        kept.append(np.asarray(mask["kept"].to_numpy(), dtype=bool))
        failed.append(_codes(mask["rule"].dictionary_encode(), outcomes))
    codes = np.concatenate(failed)
    unstored = outcomes.get(NOT_STORED)
    stored = np.ones(len(codes), dtype=bool) if unstored is None else codes != unstored
    return ArmView(
        arm=arm,
        pool=pool,
        path=columns.path,
        view=view,
        document=document,
        columns=columns,
        kept=np.concatenate(kept),
        stored=stored,
        failed=codes,
        outcomes=tuple(outcomes),
    )


def _codes(rule: pa.ChunkedArray, outcomes: dict[str, int]) -> NDArray[np.int16]:
    """A column of texts as numbers; new texts are added to `outcomes`."""
    parts = [np.empty(0, np.int16)]
    for chunk in rule.chunks:
        names = chunk.dictionary.to_pylist()
        numbers = [outcomes.setdefault(name, len(outcomes)) for name in names] + [KEPT]
        indices = pc.fill_null(chunk.indices, len(names)).to_numpy()
        parts.append(np.array(numbers, np.int16)[indices])
    return np.concatenate(parts)


def one_view_of_each_pool(views: Sequence[ArmView]) -> dict[str, dict[str, ArmView]]:
    """{pool: {view: the first arm's view of that name}}, in the order of the arms."""
    pools: dict[str, dict[str, ArmView]] = {}
    for view in views:
        pools.setdefault(view.pool, {}).setdefault(view.view, view)
    return pools
