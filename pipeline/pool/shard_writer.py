"""Rows to a tar, a sidecar and a commit record: reproducible bytes, published whole, read only when committed.

A tar can be cut or altered without its readers noticing, so everything about it is written down beside it: size,
sha256, and where the bytes of every member lie. The order of publication is tar, sidecar, commit record; a shard
without its commit record is rubbish.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from manifests import disk
from manifests.columns import DECODE_REASONS, REASONS, SIDECAR, VOLATILE_COLUMNS, with_extra
from manifests.pool_layout import pool_fingerprint, read_commit_records
from manifests.schema import ROWS_PER_SHARD_LIMIT
from pipeline.pool.tars import BLOCK

SHARD_VERSION = 1  # a change of the bytes of a tar or of the columns of a sidecar bumps this and the golden test
TAR_RECORD = 20 * BLOCK  # a tar's length is a multiple of it
WHERE = ("image_offset", "image_length", "text_offset", "text_length", "json_offset", "json_length")
ALWAYS_IN_JSON = SIDECAR.names[
    :11
]  # img2dataset's columns are in every {key}.json, the others where they are not NULL
OURS = re.compile(r"^(\d{5,})\.(tar|parquet)$")
COMMIT = "_stats.json"


# --- writing -------------------------------------------------------------------------------------------------------


class ShardWriter:
    """One shard on its way: rows come in any order, pictures are spooled to a local temporary file.

    Use it as a context manager; what was not committed when it ends leaves nothing behind.
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
        """The outcome of a row: `record` has columns of the sidecar; `image` is what is stored, or None with a reason.

        key, status, class, image_name and the places in the tar are filled in here. `extra` goes into {key}.json only,
        `extension` is the end of the picture's member name.
        """
        assert 0 <= row < ROWS_PER_SHARD_LIMIT, row
        assert row not in self._rows, f"row {row} of shard {self.shard} has two outcomes"
        key = key_of(self.shard, row)
        values = outcome(record, self.schema, stored=image is not None) | {"key": key}
        if image is not None:
            values["image_name"] = f"{key}.{extension}"
            self._spooled[row] = (self._spool.tell(), len(image))
            self._spool.write(image)
            self._extra[row] = {k: v for k, v in (extra or {}).items() if v is not None}
        self._rows[row] = values

    def commit(self, count: int, notes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Publish tar, sidecar and commit record, and return the record. `count` is how many rows were asked for,
        `notes` what else the record says.

        A shard that is committed already is not written again.
        """
        assert sorted(self._rows) == list(range(count)), (
            f"shard {self.shard}: {len(self._rows)} of {count} outcomes"
        )
        place = disk.join(self.pool, "shards", f"{self.shard:05d}.tar")
        with staging(place) as staged:
            sha256, size = self._write_tar(staged)
            if disk.exists(commit_path(self.pool, self.shard)):
                return dict(disk.read_json(commit_path(self.pool, self.shard)))
            disk.publish(staged, place)
        return publish_sidecar(
            self.pool,
            self.shard,
            [self._rows[row] for row in range(count)],
            {
                "tar": f"{self.shard:05d}.tar",
                "tar_bytes": size,
                "tar_sha256": sha256,
                **(notes or {}),
            },
            task=self.task,
            group=self.group,
            duration_s=time.monotonic() - self._started,
            schema=self.schema,
        )

    def _write_tar(self, staged: Path) -> tuple[str, int]:
        """Members in key order; their places go into the rows. Returns sha256 and size."""
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
def staging(path: str) -> Iterator[Path]:
    """A local file to fill before it is published: beside `path`, where `clean` finds it, or temporary for a URL."""
    if disk.is_url(path):
        with tempfile.TemporaryDirectory(prefix="clipmill-shard-") as folder:
            yield Path(folder) / "staged"
        return
    target = disk.local_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.partial.staged-{os.getpid()}")
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def key_of(shard: int, row: int) -> str:
    """Key of a row, which is also the base name of its members."""
    return f"{shard:05d}{row:04d}"


def outcome(
    record: Mapping[str, Any], schema: pa.Schema = SIDECAR, *, stored: bool
) -> dict[str, Any]:
    """All columns of a sidecar row, with status and class that follow from its reason."""
    reason = record.get("reason")
    assert (reason is None) == stored, f"stored is {stored} and reason is {reason!r}"
    assert record.keys() <= set(schema.names), sorted(record.keys() - set(schema.names))
    status = (
        "success"
        if stored
        else "failed_to_resize"
        if reason in DECODE_REASONS
        else "failed_to_download"
    )
    return {
        **dict.fromkeys(schema.names),
        **record,
        "status": status,
        "class": None if reason is None else REASONS[reason],
    }


def member_block(name: str, data: bytes) -> bytes:
    """A member as it stands in the tar: header, bytes, padding. No time, no user."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK)


def member_json(values: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """{key}.json: what the response decided, not when or how fast it came, nor where it lies in the tar."""
    left_out = {*VOLATILE_COLUMNS, *WHERE, "image_name"}
    known = {
        k: v
        for k, v in values.items()
        if k not in left_out and (v is not None or k in ALWAYS_IN_JSON)
    }
    return json.dumps({**known, **extra}, sort_keys=True, ensure_ascii=False).encode()


def publish_sidecar(
    pool: str,
    shard: int,
    rows: Sequence[Mapping[str, Any]],
    tar: Mapping[str, Any],
    *,
    task: str,
    group: str,
    duration_s: float,
    schema: pa.Schema = SIDECAR,
) -> dict[str, Any]:
    """Write the sidecar of rows in key order, then the commit record, which is returned. `tar` has tar, tar_bytes,
    tar_sha256 of a tar that is in its place."""
    table = pa.Table.from_pylist(list(rows), schema=schema)
    statuses = Counter(row["status"] for row in rows)
    reasons = Counter(row["reason"] for row in rows if row["reason"] is not None)
    books = {
        "count": len(rows),
        "successes": statuses["success"],
        "reasons": dict(sorted(reasons.items())),
    }
    assert books["count"] == statuses["success"] + reasons.total()
    with staging(sidecar_path(pool, shard)) as staged:
        disk.write_parquet(
            staged, table, {**books, "shard": f"{shard:05d}", "version": SHARD_VERSION}
        )
        sha256, size = file_hash(staged), staged.stat().st_size
        disk.publish(staged, sidecar_path(pool, shard))
    record = {
        "shard": f"{shard:05d}",
        **tar,
        **books,
        "sidecar_bytes": size,
        "sidecar_file_sha256": sha256,
        "sidecar_sha256": sidecar_hash(table),
        "failed_to_download": statuses["failed_to_download"],
        "failed_to_resize": statuses["failed_to_resize"],
        "retries": sum(row["retry_of"] is not None for row in rows),
        "task": task,
        "group": group,
        "version": SHARD_VERSION,
        "duration_s": round(duration_s, 3),
    }
    disk.write_json(commit_path(pool, shard), record)
    return record


def sidecar_hash(table: pa.Table) -> str:
    """sha256 of a sidecar's values without VOLATILE_COLUMNS, whatever wrote the Parquet around them."""
    content = hashlib.sha256()
    for field in table.schema:
        if field.name not in VOLATILE_COLUMNS:
            values = table[field.name].to_pylist()
            content.update(
                json.dumps([field.name, str(field.type), values], separators=(",", ":")).encode()
                + b"\n"
            )
    return content.hexdigest()


def file_hash(path: str | Path) -> str:
    """sha256 of a local file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# --- reading -------------------------------------------------------------------------------------------------------


def name_of(shard: int | str) -> str:
    """A shard as it is named in commit records: five digits or more."""
    return f"{int(shard):05d}"


def commit_path(pool: str, shard: int | str) -> str:
    """Where the commit record of a shard lies."""
    return disk.join(pool, "shards", name_of(shard) + COMMIT)


def sidecar_path(pool: str, shard: int | str) -> str:
    """Where the sidecar of a shard lies."""
    return disk.join(pool, "shards", f"{name_of(shard)}.parquet")


def tar_path(pool: str, record: Mapping[str, Any]) -> str:
    """Where the tar of a commit record lies: inside the pool, or anywhere if it was adopted."""
    tar = str(record["tar"])
    return tar if disk.is_url(tar) or Path(tar).is_absolute() else disk.join(pool, "shards", tar)


def adopted(record: Mapping[str, Any]) -> bool:
    """True where the tar was there before the pool."""
    return str(record["tar"]) != f"{record['shard']}.tar"


def committed(pool: str) -> dict[str, dict[str, Any]]:
    """Commit records by shard name, in order. ValueError for a file of that name that is no commit record."""
    return read_commit_records(pool)


def read_sidecar(pool: str, shard: int | str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a committed shard, or some columns of them. FileNotFoundError where there is none."""
    return disk.read_parquet(sidecar_path(pool, shard), columns)


def fingerprint(pool: str) -> str:
    """What a view was chosen from: hash over the sidecars of all committed shards."""
    return pool_fingerprint(read_commit_records(pool))


def clean(pool: str) -> list[str]:
    """Remove tars and sidecars without a commit record and files that were half written; returns their names.

    For the start of a build: no other build may be writing into the pool. ValueError where a tar is in the way that
    was not written here.
    """
    folder = disk.join(pool, "shards")
    done = committed(pool)
    rubbish = [
        name
        for name in disk.list_names(folder)
        if (match := OURS.match(name)) and match[1] not in done
    ]
    for name in rubbish:
        if name.endswith(".tar") and not _written_here(
            disk.read_bytes(disk.join(folder, name), 0, BLOCK), name
        ):
            raise ValueError(
                f"{disk.join(folder, name)} was not written by clipmill; move it out of the pool's folder"
            )
    if not disk.is_url(folder):
        rubbish += sorted(p.name for p in disk.local_path(folder).glob(".*.partial.*"))
    for name in rubbish:
        disk.remove(disk.join(folder, name))
    return rubbish


def _written_here(header: bytes, name: str) -> bool:
    """Whether a tar begins as ours do: nothing, or a member of that shard without a time."""
    return not header.strip(b"\0") or (
        header.startswith(name.removesuffix(".tar").encode()) and header[136:147] == b"0" * 11
    )
