"""A shard becomes visible: tar, sidecar, then the commit record; nothing committed is overwritten.

Readers of a tar do not notice that it was cut or altered. The other two files therefore store its
size and sha256, and the offset and length of every member.

A file is created only where none has its name. Where an unfinished publication left another content
under the name, the shard gets the next revision, whose name the record has. A commit record is
replaced by `replace_shard` only, after the files of the next revision are complete.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.columns import SIDECAR, VOLATILE_COLUMNS
from manifests.pool_layout import (
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    revised_name,
    shard_name,
)
from pipeline.pool.commits import publication_lock, read_commit_record
from pipeline.pool.json_columns import json_array
from pipeline.pool.lease import check_fence

MAX_LEFTOVERS = 10  # revisions of unfinished publications that are passed over


@dataclass(frozen=True, slots=True, kw_only=True)
class TarFile:
    """The tar of a shard: its name inside the pool, or the path or URL of an adopted one."""

    name: str
    bytes: int
    sha256: str
    stamp: dict[str, Any] | None = None  # of an adopted one, see CommitRecord.tar_stamp


@dataclass(frozen=True, slots=True)
class _Contents:
    """What is published: the rows as a table, the counts of its outcomes, and the tar."""

    pool: str
    shard: int
    table: pa.Table
    counts: dict[str, Any]  # the fields of a CommitRecord that count rows
    tar: TarFile
    staged_tar: Path | None  # None where the tar stays where it is


def publish_new(pool: str, source: Path | bytes, path: str, fence: int | None) -> None:
    """Publish a file of a stage, a finished local file or its bytes, under the lease of the pool.

    A local file is moved. LeaseLost where another command has taken the lease over. A file that is
    there with the same content counts as success; FileExistsError with both hashes where its
    content is another one.
    """
    check_fence(pool, fence)
    if isinstance(source, bytes):
        disk.create_bytes(path, source)
    else:
        disk.create_file(source, path)
        source.unlink()  # it may be the same file: who wrote into it again would change both


def publish_shard(
    pool: str,
    shard: int,
    rows: Sequence[Mapping[str, Any]],
    tar: TarFile,
    *,
    staged_tar: Path | None = None,
    task: str,
    group: str,
    duration_s: float,
    schema: pa.Schema = SIDECAR,
    engine: str | None = None,
    engine_version: str | None = None,
    manners: Mapping[str, Any] | None = None,
    fence: int | None = None,
) -> CommitRecord:
    """Publish tar, sidecar of rows in key order, and commit record. Returns the record.

    `staged_tar` is the local file to publish in the pool; None where the tar stays where it is. A
    shard that is committed already stays as it is, and its record is returned. `fence`: that of the
    lease; LeaseLost where another command has taken it over. FileExistsError where another process
    commits the shard at the same moment.
    """
    table = pa.Table.from_pylist(list(rows), schema=schema)
    contents = _Contents(pool, shard, table, _counts(table), tar, staged_tar)
    with publication_lock(pool, shard) as exclusive:
        if (existing := read_commit_record(pool, shard)) is not None:
            return existing
        check_fence(pool, fence)
        files = _publish_files(contents, 0, exclusive)
        record = CommitRecord(
            **files,
            shard=shard_name(shard),
            version=SHARD_VERSION,
            task=task,
            group=group,
            duration_s=round(duration_s, 3),
            engine=engine,
            engine_version=engine_version,
            manners=None if manners is None else dict(manners),
            fence=fence,
        )
        check_fence(pool, fence)  # the puts may have taken minutes
        path = PoolLayout(pool).commit_record(shard)
        disk.create_json(path, record.to_plain(), sealed=True)
    return record


def replace_shard(
    pool: str,
    shard: int,
    rows: pa.Table,
    tar: TarFile | None = None,
    *,
    staged_tar: Path | None = None,
    fence: int | None,
) -> CommitRecord:
    """Give a committed shard other contents: files of the next revision, then their record.

    `rows`: the new sidecar, in key order. `tar` and `staged_tar`: the new tar; without them the tar
    stays, and only the sidecar is new. Task, group and engine stay. The index is not touched: the
    caller has it forget the shard before, and adds the record, see IndexWriter. The old files are
    removed after the record names the new ones: a reader that has the old record then misses a
    file and reads the record again. ValueError where the shard is not committed; LeaseLost and
    FileExistsError as in `publish_shard`.
    """
    layout = PoolLayout(pool)
    path = layout.commit_record(shard)
    assert (tar is None) == (staged_tar is None)
    with publication_lock(pool, shard) as exclusive:
        old = read_commit_record(pool, shard)
        if old is None:
            raise ValueError(f"shard {shard_name(shard)} of {pool} is not committed")
        before = disk.read_bytes(path)
        check_fence(pool, fence)
        same_tar = TarFile(
            name=old.tar, bytes=old.tar_bytes, sha256=old.tar_sha256, stamp=old.tar_stamp
        )
        contents = _Contents(pool, shard, rows, _counts(rows), tar or same_tar, staged_tar)
        files = _publish_files(contents, old.revision + 1, exclusive)
        if staged_tar is None:
            files["adopted"] = old.adopted
        record = replace(old, **files, version=SHARD_VERSION, fence=fence)
        check_fence(pool, fence)
        disk.replace_json(path, record.to_plain(), before, sealed=True)
        disk.remove(layout.sidecar(shard, old.revision))
        if staged_tar is not None and not old.adopted:
            disk.remove(layout.tar(old))
    return record


def _counts(table: pa.Table) -> dict[str, Any]:
    """The fields of a commit record that count the rows of its sidecar."""
    statuses, reasons = _frequencies(table["status"]), _frequencies(table["reason"])
    stored = statuses.get("success", 0)
    assert len(table) == stored + sum(reasons.values())
    return {
        "count": len(table),
        "successes": stored,
        "reasons": reasons,
        "failed_to_download": statuses.get("failed_to_download", 0),
        "failed_to_resize": statuses.get("failed_to_resize", 0),
        "retries": len(table) - table["retry_of"].null_count,
    }


def _frequencies(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value of a column of text occurs, in the order of the values."""
    counts = pc.value_counts(column.drop_null())
    values, numbers = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    return dict(sorted(zip(values, numbers, strict=True)))


def _publish_files(contents: _Contents, first: int, exclusive: bool) -> dict[str, Any]:
    """Publish tar and sidecar under one revision; returns the fields of the record about them.

    first: the lowest revision. `exclusive`: no other process publishes the shard, so that what lies
    under its name is a leftover and is removed.
    """
    layout, shard, tar = PoolLayout(contents.pool), contents.shard, contents.tar
    metadata = {name: contents.counts[name] for name in ("count", "successes", "reasons")}
    metadata |= {"shard": shard_name(shard), "version": SHARD_VERSION}
    if contents.staged_tar is not None and contents.staged_tar.stat().st_size != tar.bytes:
        size = contents.staged_tar.stat().st_size
        raise OSError(f"{contents.staged_tar} has {size} bytes of {tar.bytes}")
    with staged_file(layout.sidecar(shard)) as staged:
        disk.write_parquet(staged, contents.table, metadata)
        for revision in range(first, first + MAX_LEFTOVERS):
            files = {layout.sidecar(shard, revision): staged}
            if contents.staged_tar is not None:
                files = {layout.shard_tar(shard, revision): contents.staged_tar, **files}
            try:
                for path, source in files.items():
                    _create_file(source, path, exclusive)
                break
            except FileExistsError:
                if revision + 1 == first + MAX_LEFTOVERS:
                    raise
        return {
            **contents.counts,
            "tar": tar.name
            if contents.staged_tar is None
            else f"{revised_name(shard, revision)}.tar",
            "adopted": contents.staged_tar is None,
            "tar_bytes": tar.bytes,
            "tar_sha256": tar.sha256,
            "tar_stamp": tar.stamp,
            "sidecar_bytes": staged.stat().st_size,
            "sidecar_file_sha256": disk.file_sha256(staged),
            "sidecar_sha256": sidecar_hash(contents.table),
            "revision": revision,
        }


def _create_file(source: Path, path: str, exclusive: bool) -> None:
    """Publish one file. A leftover of that name is removed where nobody else can need it."""
    try:
        disk.create_file(source, path)
    except FileExistsError:
        if not exclusive:
            raise
        disk.remove(path)
        disk.create_file(source, path)


def remove_partial(path: str) -> None:
    """Remove what killed processes have left of a file that no other process writes now."""
    if not disk.is_url(path):
        target = disk.local_path(path)
        for left in target.parent.glob(f".{glob.escape(target.name)}.partial.*"):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_file(path: str, *, alone: bool = False) -> Iterator[Path]:
    """A local file to fill before it is published.

    It lies beside `path`, where `remove_uncommitted` finds it, or in a temporary folder where
    `path` is a URL. alone: no other process writes this file, and what killed ones have left of it
    is removed.
    """
    if disk.is_url(path):
        with disk.scratch_folder("clipmill-shard-") as folder:
            yield Path(folder) / "staged"
        return
    target = disk.local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if alone:
        remove_partial(path)
    # A token: machines that share a folder may have the same process ids.
    token = secrets.token_hex(4)
    staged = target.with_name(f".{target.name}.partial.staged-{token}")
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def sidecar_hash(table: pa.Table) -> str:
    """sha256 of a sidecar's values without VOLATILE_COLUMNS, the same for any Parquet writer.

    It is taken of a line of JSON a column: its name, its type and the array of its values.
    """
    content = hashlib.sha256()
    for field in table.schema:
        if field.name not in VOLATILE_COLUMNS:
            name = json.dumps([field.name, str(field.type)], separators=(",", ":"))
            content.update(name[:-1].encode() + b"," + json_array(table[field.name]) + b"]\n")
    return content.hexdigest()
