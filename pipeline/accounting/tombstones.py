"""Removes rows from the files of a pool. What stays of a row is its uid and its key, as a tombstone
with the reason `purged`, so that all counts agree and it is never fetched again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.aligned import AlignedFiles, Bundle, BundleWriter, parquet_bytes
from manifests.columns import REASONS
from manifests.pool_layout import (
    NOT_STORED,
    CommitRecord,
    PoolLayout,
    revised_name,
    shard_folder,
)
from pipeline.pool import TarFile, index_tar, local_copy, replace_shard
from pipeline.scoring import staged_bundle

BLOCK = 512  # of a tar
TAR_RECORD = 20 * BLOCK  # a tar's length is a multiple of it
PURGED = "purged"
KEPT_COLUMNS = ("uid", "key", "retry_of")  # of a tombstone
Mask = npt.NDArray[np.bool_]
Change = Callable[[pa.Table, dict[str, Any]], tuple[pa.Table, dict[str, Any]]]


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
    pool: str, record: CommitRecord, table: pa.Table, purged: Mask, fence: int | None
) -> CommitRecord:
    """Replace a shard by one without the content of some rows; its new record.

    The members of the other rows are copied byte for byte. A tar that was adopted stays where it
    is: the pool gets a copy without these rows.
    """
    layout = PoolLayout(pool)
    shard = int(record.shard)
    names = table.filter(pa.array(purged))["image_name"].drop_null().to_pylist()
    rows = _tombstones(table, purged)
    if not names:
        return replace_shard(pool, shard, rows.to_pylist(), schema=rows.schema, fence=fence)
    staged = _staged_tar(layout, record)
    try:
        sha256, size, removed = _copy_tar(layout.tar(record), staged, {_stem(n) for n in names})
        rows = _moved(rows, removed)
        tar = TarFile(name=f"{revised_name(shard)}.tar", bytes=size, sha256=sha256)
        return replace_shard(
            pool, shard, rows.to_pylist(), tar, staged_tar=staged, schema=rows.schema, fence=fence
        )
    finally:
        staged.unlink(missing_ok=True)


def _staged_tar(layout: PoolLayout, record: CommitRecord) -> Path:
    """Where the new tar is written before it is published; `remove_uncommitted` knows its name."""
    if disk.is_url(layout.root):
        return Path(tempfile.mkdtemp(prefix="clipmill-purge-")) / "staged"
    folder = disk.local_path(layout.shard_folder(record.shard))
    return folder / f".{record.shard}.tar.partial.purged"


def _tombstones(table: pa.Table, purged: Mask) -> pa.Table:
    """The rows of a sidecar with tombstones for those of a mask."""
    rows = without_content(table, purged, KEPT_COLUMNS)
    mask = pa.array(purged)
    values = {"status": "failed_to_download", "reason": PURGED, "class": REASONS[PURGED]}
    for name, value in values.items():
        column = pc.if_else(mask, pa.scalar(value, pa.string()), rows[name])
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def _stem(name: str) -> str:
    """What the members of one sample share: the path up to the first dot of the base name."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _copy_tar(path: str, staged: Path, purged: set[str]) -> tuple[str, int, Sequence[Any]]:
    """Copy a tar without some samples: (sha256, size, [(begin, end) of what was left out])."""
    content, written = hashlib.sha256(), 0
    removed = []
    with local_copy(path) as source, open(source, "rb") as old, open(staged, "wb") as new:

        def write(data: bytes) -> None:
            nonlocal written
            content.update(data)
            new.write(data)
            written += len(data)

        begin = 0
        for member in index_tar(path, source):
            end = member.offset + member.length + -member.length % BLOCK
            if _stem(member.name) in purged:
                removed.append((begin, end))
            else:
                old.seek(begin)
                write(old.read(end - begin))
            begin = end
        write(bytes(2 * BLOCK + -(written + 2 * BLOCK) % TAR_RECORD))
    return content.hexdigest(), written, removed


def _moved(rows: pa.Table, removed: Sequence[tuple[int, int]]) -> pa.Table:
    """The offsets of the members after parts of the tar were left out."""
    begins = np.array([begin for begin, _ in removed], np.int64)
    lengths = np.array([0, *(end - begin for begin, end in removed)], np.int64)
    before = np.cumsum(lengths)
    for name in ("image_offset", "text_offset", "json_offset"):
        offsets = pc.fill_null(rows[name], 0).to_numpy()
        moved = offsets - before[np.searchsorted(begins, offsets, side="right")]
        column = pa.array(moved, pa.int64(), mask=pc.is_null(rows[name]).to_numpy())
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


# --- score columns and masks ----------------------------------------------------------------------


def purge_scores(
    pool: str, name: str, purged: Mapping[int, Mask], records: Mapping[int, CommitRecord]
) -> None:
    """NULL for the purged rows in the columns of a score set, complete or not."""
    layout = PoolLayout(pool)

    def change(shard: int) -> Change:
        def apply(table: pa.Table, metadata: dict[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
            table = without_content(table, purged[shard], ())
            scored = table.num_rows
            if table.num_columns:
                valid = [column.is_valid().to_numpy() for column in table.columns]
                scored = int(np.logical_and.reduce(valid).sum())
            record = records[shard]
            changed = {"sidecar": record.sidecar_sha256, "stored": record.successes}
            return table, {**metadata, **changed, "scored": scored}

        return apply

    changes = {shard: change(shard) for shard in purged}
    for shard in purged:
        path = layout.score_columns(name, shard)
        if disk.exists(path):
            _rewrite_file(path, changes[shard])
    _rewrite_bundles(AlignedFiles.of_scores(pool, name), changes)


def purge_masks(pool: str, view: str, purged: Mapping[int, Mask]) -> None:
    """`not_stored` for the purged rows in the masks of a view."""
    layout = PoolLayout(pool)

    def change(shard: int) -> Change:
        def apply(table: pa.Table, metadata: dict[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
            mask = pa.array(purged[shard])
            kept = pc.and_(table["kept"], pc.invert(mask))
            rule = pc.if_else(mask, pa.scalar(NOT_STORED), table["rule"])
            changed = pa.Table.from_arrays([kept, rule], schema=table.schema)
            return changed, {**metadata, "kept": pc.sum(kept).as_py() or 0}

        return apply

    changes = {shard: change(shard) for shard in purged}
    for shard in purged:
        if not shard_folder(shard) and disk.exists(layout.view_mask(view, shard)):
            _rewrite_file(layout.view_mask(view, shard), changes[shard])
    _rewrite_bundles(AlignedFiles.of_view(pool, view), changes)


def _rewrite_file(path: str, change: Change) -> None:
    table = disk.read_parquet(path).replace_schema_metadata(None)
    metadata = disk.read_metadata(path)
    changed = change(table, dict(metadata))
    if not metadata:  # masks of a pool of the first form have none
        changed = changed[0], {}
    disk.write_bytes(path, parquet_bytes(*changed))


def _rewrite_bundles(files: AlignedFiles, changes: Mapping[int, Change]) -> None:
    """Write the bundles again that have one of the shards."""
    by_bundle: dict[str, dict[str, Change]] = {}
    for shard, change in changes.items():
        if shard_folder(shard):
            by_bundle.setdefault(files.path(shard), {})[f"{shard:05d}"] = change
    for path, of_bundle in by_bundle.items():
        if not disk.exists(path):
            continue
        bundle = Bundle(path)
        with staged_bundle(path) as staged:
            first = bundle.read(next(iter(bundle.shards)))
            with BundleWriter(staged, first.schema) as writer:
                for name in bundle.shards:
                    table, metadata = bundle.read(name), dict(bundle.metadata(name))
                    if name in of_bundle:
                        table, metadata = of_bundle[name](table, metadata)
                    writer.add(name, table, metadata)
            disk.publish(staged, path)


# --- pairs and plan -------------------------------------------------------------------------------


def purge_parquet(path: str, uids: pa.Array, drop: bool) -> int:
    """Remove the content of rows of a part of the pairs or of a file of the plan; how many.

    Row groups and their sizes stay. `drop`: the rows go whole, and the footer counts them as lost.
    """
    if not rows_with(disk.read_parquet(path, ["uid"]), uids).any():
        return 0
    purged_rows = 0
    with disk.open_file(path) as source, staged_bundle(path) as staged:
        file = pq.ParquetFile(source)
        schema = file.schema_arrow
        tables = []
        for group in range(file.num_row_groups):
            table = file.read_row_group(group).cast(schema)
            purged = rows_with(table, uids)
            has_content = purged & np.asarray(table["url"].is_valid().to_numpy(), np.bool_)
            purged_rows += int(purged.sum() if drop else has_content.sum())
            if drop:
                table = table.filter(pa.array(~purged))
            elif purged.any():
                kept = ("uid", "part", "row", "shard", "position", "retry_of")
                table = without_content(table, purged, kept)
            tables.append(table)
        if not purged_rows:
            return 0
        metadata = disk.read_metadata(path)
        if drop:
            reasons = dict(metadata["reasons"])
            reasons[PURGED] = reasons.get(PURGED, 0) + purged_rows
            changed = {"pairs": metadata["pairs"] - purged_rows, "reasons": reasons}
            metadata |= changed
        schema = disk.with_metadata(schema, metadata)
        with pq.ParquetWriter(
            staged, schema, compression="zstd", write_page_checksum=True
        ) as writer:
            for table in tables:
                writer.write_table(table.cast(schema), row_group_size=max(1, table.num_rows))
        disk.publish(staged, path)
    return purged_rows


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
