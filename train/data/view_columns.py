"""Columns of the rows of a pool or of one of its views, shard by shard: the one reader of both.

Rows come in tar order, shards in the order of their names. One shard is in memory at a time. Every
read is repeated after a time-out or a lost connection (`retry.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests import disk
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import (
    NOT_STORED,
    CommitRecord,
    PoolLayout,
    pool_fingerprint,
    read_commit_records,
)
from train.data.retry import read_with_retries

T = TypeVar("T")
CommitRecords = Mapping[str, CommitRecord]


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
    records = commit_records(pool)
    if view is None:
        for shard in records:
            table = load_columns(
                PoolLayout(pool).sidecar(shard), _distinct(*columns, "image_offset")
            )
            kept = pc.is_valid(table["image_offset"])
            rule = pc.if_else(kept, pa.scalar(None, pa.string()), NOT_STORED)
            yield _shard_columns(shard, table.select(list(columns)), kept, rule)
        return
    document = read_view(pool, view, records)
    for shard in sorted(document.shards):
        table = _joined_columns(pool, document, shard, columns)
        mask = read_mask(pool, document, shard, len(table))
        yield _shard_columns(shard, table, mask["kept"], mask["rule"])


def _shard_columns(
    shard: str, table: pa.Table, kept: pa.ChunkedArray, rule: pa.ChunkedArray
) -> ShardColumns:
    mask = np.asarray(kept.to_numpy(), dtype=bool)
    return ShardColumns(shard=shard, columns=table, kept=mask, rule=rule)


def commit_records(pool: str) -> dict[str, CommitRecord]:
    """The commit record of every shard."""
    return read_with_retries(lambda: read_commit_records(pool), pool)


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


def read_view(pool: str, view: str, records: CommitRecords) -> ViewDocument:
    """The document of a view. ValueError where there is none, or it is older than the shards."""
    layout = PoolLayout(pool)
    names = read_with_retries(lambda: disk.list_names(layout.views, ".json"), layout.views)
    views = [name.removesuffix(".json") for name in names]
    if view not in views:
        suggestion = disk.did_you_mean(view, views)
        raise ValueError(
            f"{pool} has no view {view!r}{suggestion}; it has {', '.join(views) or 'none'}"
        )
    document = load_document(layout.view_json(view), ViewDocument)
    if document.fingerprint != pool_fingerprint(records) or set(document.shards) != set(records):
        raise ValueError(
            f"view {view!r} of {pool} is stale: the pool's shards have changed; "
            f"{choose_again(pool)}"
        )
    return document


def read_mask(pool: str, document: ViewDocument, shard: str, rows: int) -> pa.Table:
    """What a view makes of each of the `rows` rows of a shard: the columns `kept` and `rule`."""
    path = PoolLayout(pool).view_mask(document.name, shard)
    mask = load_columns(path, ["kept", "rule"])
    kept_rows = pc.sum(mask["kept"]).as_py() or 0
    if len(mask) != rows or kept_rows != document.shards[shard]:
        raise ValueError(f"{path} does not fit its shard or its view; {choose_again(pool)}")
    return mask


def _joined_columns(
    pool: str, document: ViewDocument, shard: str, columns: Sequence[str]
) -> pa.Table:
    """Columns of the sidecar and of the view's score sets, for all rows of a shard."""
    layout = PoolLayout(pool)
    score_set_of = _score_sets(layout, document)
    from_scores = [name for name in columns if name in score_set_of]
    from_sidecar = [name for name in columns if name not in score_set_of]
    table = load_columns(layout.sidecar(shard), _distinct(*from_sidecar, "uid"))
    arrays = {name: table[name] for name in from_sidecar}
    for name in from_scores:
        path = layout.score_columns(score_set_of[name], shard)
        arrays[name] = load_columns(path, [name])[name]
        if len(arrays[name]) != len(table):
            raise ValueError(f"{path} has other rows than its shard; {choose_again(pool)}")
    joined = table.select([])  # keeps the number of rows
    for name in columns:
        joined = joined.append_column(name, arrays[name])
    return joined


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
