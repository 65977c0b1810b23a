"""Columns of the rows of a pool or of one of its views, shard by shard: the one reader of both.

Rows come in tar order, shards in the order of their names. One shard is in memory at a time. Every
read is repeated after a time-out or a lost connection (`retry.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned.bundles import AlignedFiles
from manifests.aligned.current_views import current_view
from manifests.aligned.shard_tables import scored_shards, view_shards
from manifests.commits import Commits, ShardFiles, open_shard_files, read_commits
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import NOT_STORED, PoolLayout, shard_folder, shard_name
from train.data.retry import read_with_retries

T = TypeVar("T")
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardColumns:
    """Columns of one shard, with one entry per row of its sidecar."""

    shard: str
    columns: pa.Table  # the columns that were asked for, in that order
    kept: NDArray[np.bool_]  # (rows,) the view keeps the row; without a view: it has an image
    rule: pa.ChunkedArray  # (rows,) NULL where kept, else the first rule that failed

    def kept_columns(self) -> pa.Table:
        """The columns of the kept rows."""
        return self.columns.filter(pa.array(self.kept))


def read_columns(
    pool: str, view: str | None = None, columns: Sequence[str] = ()
) -> Iterator[ShardColumns]:
    """Columns of every committed shard of a pool, with what a view makes of each row.

    A column is one of the sidecar or, with a view, one of the score sets that the view's rules
    read. Without a view a row is kept where it has an image. Nothing is read before the first
    shard is asked for. ValueError for an unknown view or column and for a stale view.
    """
    if view is None:
        commits = committed(pool)
        for shard in commits.names():
            table = load_columns(commits.sidecar(shard), _distinct(*columns, "image_offset"))
            kept = pc.is_valid(table["image_offset"])
            rule = pc.if_else(kept, pa.scalar(None, pa.string()), NOT_STORED)
            yield _shard_columns(shard, table.select(list(columns)), kept, rule)
        return
    masks = open_masks(shard_files(pool), view)
    for number, shard in enumerate(masks.names()):
        table = _joined_columns(masks, shard, columns)
        mask = masks.read(number, len(table))
        yield _shard_columns(shard, table, mask["kept"], mask["rule"])


def _shard_columns(
    shard: str, table: pa.Table, kept: pa.ChunkedArray, rule: pa.ChunkedArray
) -> ShardColumns:
    mask = np.asarray(kept.to_numpy(), dtype=bool)
    return ShardColumns(shard=shard, columns=table, kept=mask, rule=rule)


def committed(pool: str) -> Commits:
    """What is committed in a pool."""
    return read_with_retries(lambda: read_commits(pool, ["tar", "count"]), pool)


def shard_files(pool: str) -> ShardFiles | Commits:
    """Where the files of a pool's shards are."""
    return read_with_retries(lambda: open_shard_files(pool), pool)


def load_document(path: str, kind: type[T]) -> T:
    """A JSON document of a pool."""
    return read_with_retries(lambda: read_document(path, kind), path)


def load_columns(path: str, columns: Sequence[str]) -> pa.Table:
    """Columns of a Parquet file of a pool. ValueError for a column that it does not have."""
    try:
        return read_with_retries(lambda: disk.read_parquet(path, list(columns)), path)
    except pa.ArrowInvalid as error:
        known = read_with_retries(lambda: disk.read_schema(path), path).names
        unknown = [name for name in columns if name not in known]
        if not unknown:
            raise ValueError(f"{path} cannot be read: {error}") from error
        suggestion = disk.did_you_mean(unknown[0], known)
        raise ValueError(
            f"{path} has no column {unknown[0]!r}{suggestion} (of {', '.join(known)})"
        ) from error


def _distinct(*names: str) -> list[str]:
    return list(dict.fromkeys(names))


def load_aligned(files: AlignedFiles, shard: str, columns: Sequence[str]) -> pa.Table:
    """Columns of the rows of a shard in a score set or view. ValueError for damage."""
    if not shard_folder(shard):
        return load_columns(files.path(shard), columns)
    return load_with_metadata(files, shard, columns)[0]


def load_with_metadata(
    files: AlignedFiles, shard: str, columns: Sequence[str]
) -> tuple[pa.Table, dict[str, Any]]:
    """As `load_aligned`, with what was written about the rows of the shard."""
    path = files.path(shard)
    if not shard_folder(shard):
        metadata = read_with_retries(lambda: files.metadata(shard), path)
        return load_columns(path, columns), metadata
    try:
        return read_with_retries(lambda: files.read(shard, columns), path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; make it again") from None


class ViewMasks:
    """A view that fits its pool: its document, its shards, and what it makes of each row."""

    def __init__(self, files: ShardFiles | Commits, document: ViewDocument) -> None:
        self.pool, self.document, self.files = files.pool, document, files
        path = PoolLayout(self.pool).view_shards(document.name)
        self.shards, self.kept = read_with_retries(lambda: view_shards(self.pool, document), path)
        self._masks = AlignedFiles.of_view(self.pool, document.name)

    def names(self) -> Iterator[str]:
        """The names of the shards."""
        return (shard_name(int(shard)) for shard in self.shards)

    def read(self, number: int, rows: int) -> pa.Table:
        """What the view makes of each of the `rows` rows of a shard: the columns `kept` and `rule`.

        number: position in `shards`. ValueError for a mask of other rows.
        """
        shard = shard_name(int(self.shards[number]))
        mask = load_aligned(self._masks, shard, ["kept", "rule"])
        self._check_mask(number, mask["kept"], rows)
        return mask

    def kept_rows(self, number: int) -> Ints:
        """(kept rows,) their rows in the sidecar of a shard. Only the mask is read."""
        mask = load_aligned(self._masks, shard_name(int(self.shards[number])), ["kept"])["kept"]
        self._check_mask(number, mask, len(mask))
        return np.flatnonzero(mask.to_numpy())

    def kept_columns(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Columns of the kept rows of a shard: of its sidecar, or of a score set that the view's
        rules read.
        """
        table = _joined_columns(self, shard_name(int(self.shards[number])), columns)
        return table.filter(self.read(number, len(table))["kept"])

    def _check_mask(self, number: int, kept: pa.ChunkedArray, rows: int) -> None:
        """ValueError for a mask of other rows, or with another number of kept rows."""
        if len(kept) != rows or (pc.sum(kept).as_py() or 0) != self.kept[number]:
            path = self._masks.path(shard_name(int(self.shards[number])))
            raise ValueError(
                f"{path} does not fit its shard or its view; {choose_again(self.pool)}"
            )


def open_masks(files: ShardFiles | Commits, view: str) -> ViewMasks:
    """A view of a pool. ValueError where there is none, or it is older than the shards."""
    return ViewMasks(files, read_view(files, view))


def read_view(files: ShardFiles | Commits, view: str) -> ViewDocument:
    """The document of a view. ValueError where there is none, or it is older than the shards."""
    pool = files.pool
    return read_with_retries(
        lambda: current_view(pool, view, files.fingerprint, choose_again(pool)),
        PoolLayout(pool).views,
    )


def covers(pool: str, document: ScoreSetDocument, fingerprint: str, shards: Ints) -> bool:
    """True where a score set has columns of all `shards`. That of the same fingerprint has."""
    if document.fingerprint == fingerprint:
        return True
    if document.whole_pool:  # its values depend on rows that have come or gone
        return False
    path = PoolLayout(pool).score_shards(f"{document.name}@{document.id}")
    scored = read_with_retries(lambda: scored_shards(pool, document), path)
    return bool(np.isin(shards, scored).all())


def _joined_columns(masks: ViewMasks, shard: str, columns: Sequence[str]) -> pa.Table:
    """Columns of the sidecar and of the view's score sets, for all rows of a shard."""
    pool = masks.pool
    score_set_of = _score_sets(PoolLayout(pool), masks.document)
    from_scores = [name for name in columns if name in score_set_of]
    from_sidecar = [name for name in columns if name not in score_set_of]
    try:
        table = load_columns(masks.files.sidecar(shard), _distinct(*from_sidecar, "uid"))
    except ValueError as error:
        raise _not_read(masks, from_sidecar) or error from None
    arrays = {name: table[name] for name in from_sidecar}
    for name in from_scores:
        files = AlignedFiles.of_scores(pool, score_set_of[name])
        arrays[name] = load_aligned(files, shard, [name])[name]
        if len(arrays[name]) != len(table):
            raise ValueError(
                f"{files.path(shard)} has other rows than its shard; {choose_again(pool)}"
            )
    joined = table.select([])  # keeps the number of rows
    for name in columns:
        joined = joined.append_column(name, arrays[name])
    return joined


def _not_read(masks: ViewMasks, columns: Sequence[str]) -> ValueError | None:
    """The error for a column that the pool has and the view does not read; None for others.

    A view names the score sets that its rules read, so that a run with its hash has their values.
    """
    layout, view = PoolLayout(masks.pool), masks.document.name
    for name in disk.list_names(layout.scores):
        path = layout.score_set_json(name)
        document = load_document(path, ScoreSetDocument) if disk.exists(path) else None
        for column in columns:
            if document is not None and column in document.columns:
                return ValueError(
                    f"view {view!r} of {masks.pool} does not read the column {column!r}, which is "
                    f"of the score set {name}: name it in a rule of the view, such as "
                    f"{{{column}: {column} IS NOT NULL}}, and choose the view again"
                )
    return None


def _score_sets(layout: PoolLayout, document: ViewDocument) -> dict[str, str]:
    """Column -> the score set that has it, for the score sets that the view's rules read."""
    of_column: dict[str, str] = {}
    for score_set in document.scores.values():
        scores = load_document(layout.score_set_json(score_set), ScoreSetDocument)
        of_column.update(dict.fromkeys(scores.columns, score_set))
    return of_column


def choose_again(pool: str) -> str:
    """The command that chooses a pool's views."""
    return f"run python pipeline/filter.py {pool} --recipe RECIPE"
