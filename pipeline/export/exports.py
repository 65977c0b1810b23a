"""`filter.py --export VIEW --to X`: the kept rows of a view for other programs, with a dataset card
and Croissant metadata beside them.

A file is written beside its place and gets its name when it is whole. A folder has `export.json`,
which says whether all of its shards are there; the same command finishes a folder after a kill.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from manifests import disk
from manifests.folder_lock import locked_folder
from pipeline.accounting import recipe_of_pool
from pipeline.dataset_lock import DataFile, croissant_metadata
from pipeline.export.card import dataset_card, is_card_of
from pipeline.export.kept_rows import KeptRows
from pipeline.export.row_files import CSV_COLUMNS, write_rows_csv, write_rows_parquet
from pipeline.export.shard_folder import SIDECARS, folder_hash, write_shard_folder
from pipeline.export.targets import Target, target_of
from pipeline.foreign_columns import uid_records, uid_spill, write_uid_array
from pipeline.pool import staged_file

UID = "uid"
RECORD = "export.json"
ENCODINGS = {
    "parquet": "application/x-parquet",
    "csv": "text/csv",
    "npy": "application/octet-stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was written."""

    view: str
    to: str
    kind: str
    rows: int  # of a .npy: different uids
    bytes: int
    sha256: str  # of the file; of a folder, of the list of its tars with their hashes
    files: int
    rows_sha256: str | None  # hash of the view's rows


def export_view(pool: str, view: str, to: str, uid_column: str = UID) -> Export:
    """Write the kept rows of a view. uid_column: whose values a .npy has.

    ValueError for a view that is not there or stale, a path that another file or folder has, a
    column that is missing or holds no uids, and a pool that changes meanwhile.
    """
    target = target_of(to, pool)
    if uid_column != UID and target.kind != "npy":
        raise ValueError(f"--uid-column belongs to a .npy, not to {to}")
    rows = KeptRows(pool, view)
    if uid_column not in rows.sidecar_schema.names:
        names = rows.sidecar_schema.names
        raise ValueError(
            f"{pool} has no column {uid_column!r}{disk.did_you_mean(uid_column, names)}"
        )
    with _only_writer(target):
        _check_free(target)
        return _write(rows, target, to, uid_column)


def _write(rows: KeptRows, target: Target, to: str, uid_column: str) -> Export:
    """The data, the metadata and the card."""
    pool, view = rows.pool, rows.view
    recipe = recipe_of_pool(pool)
    name = f"{recipe.name if recipe else pool.rstrip('/').rpartition('/')[2]}-{view}"
    if target.kind == "folder":
        files, count = _write_folder(rows, target)
    else:
        disk.write_bytes(target.card, dataset_card(rows, target, name, recipe).encode())
        file, count = _write_file(rows, target, uid_column)
        files = (file,)
    document = rows.document
    sha256 = folder_hash(files) if target.kind == "folder" else files[0].sha256
    metadata = croissant_metadata(
        name=name,
        version=sha256[:12],
        description=f"{document.kept} image-caption pairs: the view {view} of a pool.",
        files=files,
        rows_are="One row for each kept pair, in the order of the pool's shards.",
        columns=_columns(rows, target),
        file_set=SIDECARS if target.kind == "folder" else None,
    )
    disk.write_json(target.croissant, metadata)
    export = Export(
        view=view,
        to=to,
        kind=target.kind,
        rows=count,
        bytes=sum(file.size for file in files),
        sha256=sha256,
        files=len(files),
        rows_sha256=document.rows_sha256,
    )
    if target.kind == "folder":
        disk.write_bytes(target.card, dataset_card(rows, target, name, recipe).encode())
        record = {**disk.to_plain(export), "to": target.name, "complete": True}
        disk.write_json(disk.join(target.path, RECORD), record, sealed=True)
    return export


def export_line(export: Export) -> str:
    """What was written, for a terminal."""
    what = {"npy": "uids", "folder": f"rows in {export.files} tars"}.get(export.kind, "rows")
    return (
        f"view {export.view}: {export.rows:,} {what}, {export.bytes / 1e6:.3g} MB, in {export.to}; "
        "README.md and Croissant metadata lie beside them"
    )


def _check_free(target: Target) -> None:
    """ValueError where something else than an earlier export to this target is there."""
    if target.kind == "folder":
        names = disk.list_names(target.path)
        if names and RECORD not in names:
            raise ValueError(
                f"{target.path} is a folder with other files ({names[0]}); name a new folder"
            )
        return
    has_card = disk.exists(target.card)
    if has_card and not is_card_of(target.card, target):
        raise ValueError(
            f"{target.card} is not the card of {target.name}; write each export into a folder of "
            "its own"
        )
    if not has_card and disk.exists(target.path):
        raise ValueError(f"{target.path} is there already; remove it or name another file")


def _write_file(rows: KeptRows, target: Target, uid_column: str) -> tuple[DataFile, int]:
    with staged_file(target.path, alone=True) as staged:
        if target.kind == "parquet":
            count = write_rows_parquet(rows, staged)
        elif target.kind == "csv":
            count = write_rows_csv(rows, staged)
        else:
            count = _write_uids(rows, staged, uid_column)
        rows.check_unchanged()
        digest, size = disk.file_sha256(staged), staged.stat().st_size
        disk.publish(staged, target.path)
    encoding = ENCODINGS[target.kind]
    return DataFile(name=target.name, size=size, sha256=digest, encoding=encoding), count


def _write_uids(rows: KeptRows, staged: Path, uid_column: str) -> int:
    with uid_spill(rows.document.kept) as spill:
        for table in rows.tables([uid_column]):
            try:
                spill.add(uid_records(table[uid_column]))
            except ValueError as error:
                raise ValueError(f"column {uid_column!r}: {error}") from None
        return write_uid_array(spill, staged)


@contextmanager
def _only_writer(target: Target) -> Iterator[None]:
    """ValueError where another process of this machine writes the same export."""
    lock = disk.join(target.folder, f".{target.name}.lock")
    if target.kind == "folder":
        lock = disk.join(target.path, ".export.lock")
    with locked_folder(lock, "an export", "--to"):
        try:
            yield
        finally:
            if not disk.is_url(lock):
                disk.remove(lock)


def _write_folder(rows: KeptRows, target: Target) -> tuple[tuple[DataFile, ...], int]:
    """The shards. Where another export into the folder began later, this one ends: object stores
    have no locks.
    """
    path, claim = disk.join(target.path, RECORD), secrets.token_hex(8)
    record = {"view": rows.view, "to": target.name, "complete": False, "claim": claim}
    disk.write_json(path, record, sealed=True)

    def check() -> None:
        if disk.read_json(path).get("claim") != claim:
            raise ValueError(
                f"another export into {target.path} began after this one; wait until it has "
                "ended, or name another folder"
            )

    copy = write_shard_folder(rows, target.path, check)
    check()
    rows.check_unchanged()
    return copy.files, copy.rows


def _columns(rows: KeptRows, target: Target) -> pa.Schema:
    """The columns of the table that the metadata describes."""
    if target.kind == "npy":
        return pa.schema([])
    if target.kind == "csv":
        return pa.schema([rows.sidecar_schema.field(name) for name in CSV_COLUMNS])
    return rows.schema
