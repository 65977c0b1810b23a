"""Removes rows from the files of a pool. What stays of a row is its uid and its key, as a tombstone
with the reason `purged`, so that all counts agree and it is never fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.aligned import AlignedFiles, Bundle, Change, parquet_bytes, write_changed
from manifests.columns import REASONS
from manifests.commits import Commits
from manifests.pool_layout import (
    NOT_STORED,
    CommitRecord,
    PoolLayout,
    shard_folder,
    shard_name,
)
from pipeline.pool import (
    TarFile,
    check_fence,
    copy_tar_without,
    moved_offsets,
    replace_shard,
    staged_file,
)

PURGED = "purged"
KEPT_COLUMNS = ("uid", "key", "retry_of")  # of a tombstone in a sidecar
KEPT_IN_PLAN = ("uid", "part", "row", "shard", "position", "retry_of")
THREADS = 4  # files that are written again at a time; Arrow, zlib and hashlib free the GIL
Mask = npt.NDArray[np.bool_]
Plain = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


def rows_with(table: pa.Table, uids: pa.Array) -> Mask:
    """(rows,) True where the uid is one of `uids`."""
    return np.asarray(pc.is_in(table["uid"], uids).to_numpy(zero_copy_only=False), np.bool_)


def without_content(table: pa.Table, purged: Mask, kept: Sequence[str] = ("uid",)) -> pa.Table:
    """The table with NULL in every column but `kept` for the rows of a mask."""
    mask = pa.array(purged)
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if field.name in kept:
            columns.append(column)
        else:
            columns.append(pc.if_else(mask, pa.scalar(None, field.type), column))
    return pa.Table.from_arrays(columns, schema=table.schema)


# --- shards ---------------------------------------------------------------------------------------


def purge_shard(
    pool: str, record: CommitRecord, purged: Mask, fence: int | None
) -> CommitRecord | None:
    """Replace a shard by one without the content of some rows; its new record.

    None where these rows have no content any more. The members of the other rows are copied byte
    for byte. A tar that was adopted stays where it is: the pool gets a copy without these rows.
    ValueError for a tar that is damaged or was changed.
    """
    layout, shard = PoolLayout(pool), int(record.shard)
    table = disk.read_parquet(layout.sidecar(shard, record.revision)).replace_schema_metadata(None)
    if not has_content(table, purged).any():
        return None
    rows = _tombstones(table, purged)
    if not len(table.filter(pa.array(purged))["image_name"].drop_null()):
        return replace_shard(pool, shard, rows, fence=fence)
    with staged_file(layout.shard_tar(shard)) as staged:
        copy = copy_tar_without(layout.tar(record), staged, table, purged, record.tar_sha256)
        rows = moved_offsets(rows, copy.removed)
        tar = TarFile(name=f"{shard_name(shard)}.tar", bytes=copy.bytes, sha256=copy.sha256)
        return replace_shard(pool, shard, rows, tar, staged_tar=staged, fence=fence)


def has_content(table: pa.Table, chosen: Mask) -> Mask:
    """(rows,) True for the chosen rows that are no tombstones yet: of a sidecar by their reason,
    of pairs and plan by their URL.
    """
    if "reason" in table.column_names:
        is_tombstone = pc.fill_null(pc.equal(table["reason"], PURGED), False)
    else:
        is_tombstone = table["url"].is_null()
    return chosen & ~np.asarray(is_tombstone.to_numpy(), np.bool_)


def _tombstones(table: pa.Table, purged: Mask) -> pa.Table:
    """The rows of a sidecar with tombstones for those of a mask."""
    rows = without_content(table, purged, KEPT_COLUMNS)
    mask = pa.array(purged)
    values = {"status": "failed_to_download", "reason": PURGED, "class": REASONS[PURGED]}
    for name, value in values.items():
        column = pc.if_else(mask, pa.scalar(value, pa.string()), rows[name])
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


# --- score columns and masks ----------------------------------------------------------------------


def purge_scores(
    pool: str,
    name: str,
    purged: Mapping[int, Mask],
    commits: Commits,
    fence: int | None = None,
) -> int:
    """NULL for the purged rows in the columns of a score set, complete or not; how many rows of
    these shards have all columns afterwards.
    """
    layout = PoolLayout(pool)
    scored: dict[int, int] = {}

    def change(shard: int, table: pa.Table, metadata: Plain) -> tuple[pa.Table, Plain]:
        record = commits.record(shard)
        table = without_content(table, purged[shard], ())
        is_scored = np.ones(table.num_rows, np.bool_)
        for column in table.columns:
            is_scored &= np.asarray(column.is_valid().to_numpy(), np.bool_)
        scored[shard] = int(is_scored.sum())
        changed = {"sidecar": record.sidecar_sha256, "stored": record.successes}
        return table, {**metadata, **changed, "scored": scored[shard]}

    # A set that is being made has files of their own for shards of bundles too.
    files = {shard: layout.score_columns(name, shard) for shard in purged}
    bundles = AlignedFiles.of_scores(pool, name)
    _rewrite(pool, {s: path for s, path in files.items() if disk.exists(path)}, change, fence)
    _rewrite_bundles(pool, bundles, purged, change, fence)
    return sum(scored.values())


def purge_masks(
    pool: str, view: str, purged: Mapping[int, Mask], fence: int | None = None
) -> dict[int, int]:
    """`not_stored` for the purged rows in the masks of a view; rows kept of each shard then."""
    layout = PoolLayout(pool)
    now_kept: dict[int, int] = {}

    def change(shard: int, table: pa.Table, metadata: Plain) -> tuple[pa.Table, Plain]:
        mask = pa.array(purged[shard])
        kept = pc.and_(table["kept"], pc.invert(mask))
        rule = pc.if_else(mask, pa.scalar(NOT_STORED), table["rule"])
        now_kept[shard] = pc.sum(kept).as_py() or 0
        changed = pa.Table.from_arrays([kept, rule], schema=table.schema)
        # Masks of a pool of the first form have no metadata.
        return changed, {**metadata, "kept": now_kept[shard]} if metadata else {}

    files = {shard: layout.view_mask(view, shard) for shard in purged if not shard_folder(shard)}
    _rewrite(pool, {s: path for s, path in files.items() if disk.exists(path)}, change, fence)
    _rewrite_bundles(pool, AlignedFiles.of_view(pool, view), purged, change, fence)
    return now_kept


def _rewrite(pool: str, files: Mapping[int, str], change: Change, fence: int | None) -> None:
    """Write the files of single shards again, some at a time."""

    def rewrite(shard: int) -> None:
        path = files[shard]
        table = disk.read_parquet(path).replace_schema_metadata(None)
        changed = change(shard, table, dict(disk.read_metadata(path)))
        disk.write_bytes(path, parquet_bytes(*changed))

    check_fence(pool, fence)
    in_threads(rewrite, files)


def _rewrite_bundles(
    pool: str,
    files: AlignedFiles,
    shards: Iterable[int],
    change: Change,
    fence: int | None,
) -> None:
    """Write the bundles again that have some of these shards."""
    by_bundle: dict[str, set[int]] = {}
    for shard in shards:
        if shard_folder(shard):
            by_bundle.setdefault(files.path(shard), set()).add(shard)

    def rewrite(path: str) -> None:
        with staged_file(path, alone=True) as staged:
            write_changed(Bundle(path), staged, by_bundle[path], change)
            check_fence(pool, fence)
            disk.publish(staged, path)

    in_threads(rewrite, [path for path in by_bundle if disk.exists(path)])


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The results of some calls, several at a time. The first error ends it."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(work, items))


# --- pairs and plan -------------------------------------------------------------------------------


def purge_parquet(
    path: str, uids: pa.Array, drop: bool, *, pool: str = "", fence: int | None = None
) -> int:
    """Remove the content of rows of a part of the pairs or of a file of the plan; how many.

    Row groups stay, and their sizes unless the rows go whole: with `drop`, when the footer counts
    them as lost. One row group is in memory at a time, and only those with such rows are decoded.
    """
    keys = disk.read_parquet(path, ["uid", "url"])
    chosen = rows_with(keys, uids)
    purged_rows = int(chosen.sum() if drop else has_content(keys, chosen).sum())
    if not purged_rows:
        return 0
    metadata = disk.read_metadata(path)
    if drop:
        reasons = dict(metadata["reasons"])
        reasons[PURGED] = reasons.get(PURGED, 0) + purged_rows
        metadata |= {"pairs": metadata["pairs"] - purged_rows, "reasons": reasons}
    with staged_file(path, alone=True) as staged:
        _write_without(path, staged, chosen, drop, metadata)
        check_fence(pool, fence)
        disk.publish(staged, path)
    return purged_rows


def _write_without(path: str, staged: Path, chosen: Mask, drop: bool, metadata: Plain) -> None:
    """A copy of a Parquet file. Row groups without a chosen row are copied as bytes."""
    with disk.open_file(path) as source:
        file = pq.ParquetFile(source)
        schema = disk.with_metadata(file.schema_arrow, metadata)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        masks = np.split(chosen, np.cumsum(sizes)[:-1])

        def changed(group: int) -> pa.Table:
            table = file.read_row_group(group).cast(schema)
            if drop:
                return table.filter(pa.array(~masks[group]))
            return without_content(table, masks[group], KEPT_IN_PLAN)

        options = {"compression": "zstd", "write_page_checksum": True}
        if all(mask.any() for mask in masks):  # nothing to copy, as in a part of one row group
            with disk.parquet_writer(staged, schema, **options) as plain:
                for group in range(len(sizes)):
                    table = changed(group)
                    plain.write_table(table, row_group_size=max(1, table.num_rows))
            return
        footer = disk.Footer.read(path)
        with disk.CountedFile(staged) as target:
            writer = disk.RowGroupWriter(target, schema, **options)
            fits = writer.fits(footer)
            for group, mask in enumerate(masks):
                if fits and not mask.any():
                    writer.copy(footer, group, disk.read_bytes(path, *footer.range(group)))
                else:
                    writer.write(changed(group))
            writer.finish({})


def minus(document: Any, decided: Mapping[str, int], fingerprint: str) -> Any:
    """The document of a view without the purged rows: its funnel, rows kept and fingerprint.

    decided: by rule, the purged rows that it decided; "" for those that the view kept.
    """
    stored = {rule: count for rule, count in decided.items() if rule != NOT_STORED}
    left = sum(stored.values())
    funnel = [document.funnel[0]]
    for number, (step, rows) in enumerate(document.funnel[1:]):
        if number:  # behind `stored`: the rows that this step rejected are not in it
            left -= stored.get(step, 0) + stored.get(f"{step}:missing", 0)
        funnel.append((step, rows - left))
    kept = document.kept - stored.get("", 0)
    changes = {"funnel": tuple(funnel), "kept": kept, "fingerprint": fingerprint}
    if document.rows_sha256 is not None and kept < document.kept:
        changes["rows_sha256"] = None  # the view has other rows now
    return replace(document, **changes)
