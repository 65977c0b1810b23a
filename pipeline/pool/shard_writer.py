"""Rows to a tar, a sidecar and a commit record: reproducible bytes, published as a whole.

Readers of a tar do not notice that it was cut or altered. The other two files therefore store its
size and sha256, and the offset and length of every member.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from manifests import disk
from manifests.columns import SIDECAR, VOLATILE_COLUMNS, with_extra
from manifests.pool_layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name
from manifests.schema import ROWS_PER_SHARD_LIMIT
from pipeline.pool.commits import publication_lock, read_commit_record
from pipeline.pool.rows import member_json, outcome_row, row_key
from pipeline.pool.tars import BLOCK

TAR_RECORD = 20 * BLOCK  # a tar's length is a multiple of it


class ShardWriter:
    """Collects the rows of one shard in any order and commits them; images wait in a local file.

    Use it as a context manager: what was not committed when it ends leaves no files.
    """

    def __init__(
        self,
        pool: str,
        shard: int,
        task: str,
        group: str,
        extra_columns: Mapping[str, str] | None = None,
    ) -> None:
        """`extra_columns`: those of the recipe, as Recipe.sidecar_extra has them."""
        self.pool, self.shard, self.task, self.group = pool, shard, task, group
        self.schema = with_extra(SIDECAR, extra_columns or {})
        self._rows: dict[int, dict[str, Any]] = {}
        self._extra: dict[int, dict[str, Any]] = {}
        self._spool: IO[bytes] = tempfile.TemporaryFile(prefix="clipmill-spool-")  # noqa: SIM115
        self._spooled: dict[int, tuple[int, int]] = {}
        self._started = time.monotonic()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spool.close()

    def add(
        self,
        row: int,
        record: Mapping[str, Any],
        image: bytes | None,
        extra: Mapping[str, Any] | None = None,
        extension: str = "jpg",
    ) -> None:
        """Add the outcome of a row: `record` has columns of the sidecar, `image` what is stored.

        `image` is None where the record has a reason. key, status, class, image_name and the
        offsets in the tar are filled in here. `extra` goes into {key}.json only; `extension` is
        that of the image's member name.
        """
        assert 0 <= row < ROWS_PER_SHARD_LIMIT, row
        assert row not in self._rows, f"row {row} of shard {self.shard} has two outcomes"
        values = outcome_row(record, self.schema, stored=image is not None)
        values["key"] = row_key(self.shard, row)
        if image is not None and values["reason"] is None:
            values["image_name"] = f"{values['key']}.{extension}"
            self._spooled[row] = (self._spool.tell(), len(image))
            self._spool.write(image)
            self._extra[row] = {k: v for k, v in (extra or {}).items() if v is not None}
        self._rows[row] = values

    def commit(
        self,
        count: int,
        *,
        engine: str | None = None,
        engine_version: str | None = None,
        manners: dict[str, Any] | None = None,
    ) -> CommitRecord:
        """Publish tar, sidecar and commit record. `count` is how many rows were asked for.

        A shard that is committed already is not written again: its record is returned. `engine` and
        `engine_version` name another program that fetched the images. `manners`: how they were
        asked for, see `manifests.identity.manners_of`.
        """
        assert sorted(self._rows) == list(range(count)), (
            f"shard {self.shard}: {len(self._rows)} of {count} outcomes"
        )
        with staged_file(PoolLayout(self.pool).shard_tar(self.shard)) as staged:
            sha256, size = self._write_tar(staged)
            tar = TarFile(name=f"{shard_name(self.shard)}.tar", bytes=size, sha256=sha256)
            return publish_shard(
                self.pool,
                self.shard,
                [self._rows[row] for row in range(count)],
                tar,
                staged_tar=staged,
                task=self.task,
                group=self.group,
                duration_s=time.monotonic() - self._started,
                schema=self.schema,
                engine=engine,
                engine_version=engine_version,
                manners=manners,
            )

    def _write_tar(self, staged: Path) -> tuple[str, int]:
        """Write the members in key order; set the offsets in the rows. (sha256, size in bytes)."""
        content, offset = hashlib.sha256(), 0
        with open(staged, "wb") as f:
            for row in sorted(self._spooled):
                start, length = self._spooled[row]
                self._spool.seek(start)
                values = self._rows[row]
                members = {
                    "image": (values["image_name"].rpartition(".")[2], self._spool.read(length)),
                    "text": ("txt", (values["caption"] or "").encode()),
                    "json": ("json", member_json(values, self._extra[row])),
                }
                for part, (extension, data) in members.items():
                    block = member_block(f"{values['key']}.{extension}", data)
                    values[f"{part}_offset"], values[f"{part}_length"] = offset + BLOCK, len(data)
                    content.update(block)
                    f.write(block)
                    offset += len(block)
            end = bytes(2 * BLOCK + -(offset + 2 * BLOCK) % TAR_RECORD)
            content.update(end)
            f.write(end)
        return content.hexdigest(), offset + len(end)


@contextlib.contextmanager
def staged_file(path: str) -> Iterator[Path]:
    """A local file to fill before it is published.

    It lies beside `path`, where `remove_uncommitted` finds it, or in a temporary folder where
    `path` is a URL.
    """
    if disk.is_url(path):
        with tempfile.TemporaryDirectory(prefix="clipmill-shard-") as folder:
            yield Path(folder) / "staged"
        return
    target = disk.local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A token: machines that share a folder may have the same process ids.
    token = secrets.token_hex(4)
    staged = target.with_name(f".{target.name}.partial.staged-{token}")
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def member_block(name: str, data: bytes) -> bytes:
    """A member as it stands in the tar: header, bytes, padding. No time, no user."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarFile:
    """The tar of a shard: its name inside the pool, or the path or URL of an adopted one."""

    name: str
    bytes: int
    sha256: str
    stamp: dict[str, Any] | None = None  # of an adopted one, see CommitRecord.tar_stamp


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
    manners: dict[str, Any] | None = None,
) -> CommitRecord:
    """Publish tar, sidecar of rows in key order, and commit record. Returns the record.

    `staged_tar` is the local file to move into the pool; None where the tar stays where it is. A
    shard that is committed already stays as it is, and its record is returned.
    """
    layout = PoolLayout(pool)
    table = pa.Table.from_pylist(list(rows), schema=schema)
    statuses = Counter(row["status"] for row in rows)
    reasons = Counter(row["reason"] for row in rows if row["reason"] is not None)
    assert len(rows) == statuses["success"] + reasons.total()
    with publication_lock(pool, shard), staged_file(layout.sidecar(shard)) as staged:
        if (existing := read_commit_record(pool, shard)) is not None:
            return existing
        if staged_tar is not None:
            disk.publish(staged_tar, layout.shard_tar(shard))
        counts: dict[str, Any] = {
            "count": len(rows),
            "successes": statuses["success"],
            "reasons": dict(sorted(reasons.items())),
        }
        name_and_version: dict[str, Any] = {"shard": shard_name(shard), "version": SHARD_VERSION}
        disk.write_parquet(staged, table, {**counts, **name_and_version})
        sidecar_sha256, sidecar_bytes = disk.file_sha256(staged), staged.stat().st_size
        disk.publish(staged, layout.sidecar(shard))
        record = CommitRecord(
            **counts,
            **name_and_version,
            tar=tar.name,
            adopted=staged_tar is None,
            tar_bytes=tar.bytes,
            tar_sha256=tar.sha256,
            sidecar_bytes=sidecar_bytes,
            sidecar_file_sha256=sidecar_sha256,
            sidecar_sha256=sidecar_hash(table),
            failed_to_download=statuses["failed_to_download"],
            failed_to_resize=statuses["failed_to_resize"],
            retries=sum(row["retry_of"] is not None for row in rows),
            task=task,
            group=group,
            duration_s=round(duration_s, 3),
            engine=engine,
            engine_version=engine_version,
            tar_stamp=tar.stamp,
            manners=manners,
        )
        _create_commit_record(layout.commit_record(shard), record)
    return record


def _create_commit_record(path: str, record: CommitRecord) -> None:
    """Write a commit record that is not there yet. RuntimeError where another process wrote it."""
    try:
        disk.create_json(path, record.to_plain())
    except FileExistsError:
        raise RuntimeError(
            f"{path} was written by another process in the meantime; only one build may write "
            "into a pool: end the other one, then run audit.py with --verify"
        ) from None


def sidecar_hash(table: pa.Table) -> str:
    """sha256 of a sidecar's values without VOLATILE_COLUMNS, the same for any Parquet writer."""
    content = hashlib.sha256()
    for field in table.schema:
        if field.name not in VOLATILE_COLUMNS:
            values = table[field.name].to_pylist()
            text = json.dumps([field.name, str(field.type), values], separators=(",", ":"))
            content.update(text.encode() + b"\n")
    return content.hexdigest()
