"""Which shards are committed: a shard is visible from the moment that its commit record is there.

The order of publication is tar, sidecar, commit record. Tars and sidecars without a commit record
are leftovers of a build that was stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator

import pyarrow as pa

from manifests import disk
from manifests.pool_layout import (
    CommitRecord,
    PoolLayout,
    read_commit_records,
    shard_name,
)
from pipeline.pool.tars import BLOCK

SHARD_FILE = re.compile(r"^(\d{5,})\.(tar|parquet)$")


def read_commit_record(pool: str, shard: int | str) -> CommitRecord | None:
    """The commit record of a shard; None where the shard is not committed."""
    path = PoolLayout(pool).commit_record(shard)
    if not disk.exists(path):
        return None
    return CommitRecord.read(path)


def read_sidecar(pool: str, shard: int | str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a committed shard, all columns or those named. FileNotFoundError without it."""
    return disk.read_parquet(PoolLayout(pool).sidecar(shard), columns)


@contextlib.contextmanager
def publication_lock(pool: str, shard: int | str) -> Iterator[None]:
    """At most one process or thread of this machine publishes a shard of a local pool at a time.

    The lock ends with its process. A remote pool, and a file system without locks, has none: there
    only the check before publication protects a committed shard.
    """
    folder = PoolLayout(pool).shards
    if disk.is_url(folder):
        yield
        return
    path = disk.local_path(folder) / f".{shard_name(shard)}.partial.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            handle = stack.enter_context(open(path, "wb"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                break
            # The holder before removes its file: a lock on a removed file excludes nobody.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle.fileno()), os.stat(path)):
                    break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def remove_uncommitted(pool: str) -> list[str]:
    """Remove tars and sidecars without a commit record, and partial files; returns their names.

    Call it at the start of a build, while no other build writes into the pool. ValueError for a tar
    of a shard's name that another program wrote; then nothing is removed.
    """
    folder = PoolLayout(pool).shards
    committed = read_commit_records(pool)
    leftovers = []
    for name in disk.list_names(folder):
        match = SHARD_FILE.match(name)
        if match is not None and match[1] not in committed:
            leftovers.append(name)
    for name in leftovers:
        path = disk.join(folder, name)
        if name.endswith(".tar") and not _written_here(disk.read_bytes(path, 0, BLOCK), name):
            raise ValueError(
                f"{path} was not written by clipmill; move it out of the pool's folder"
            )
    if not disk.is_url(folder):
        leftovers += sorted(path.name for path in disk.local_path(folder).glob(".*.partial.*"))
    for name in leftovers:
        disk.remove(disk.join(folder, name))
    return leftovers


def _written_here(header: bytes, name: str) -> bool:
    """Whether a tar begins as ours do: empty, or with a member of that shard without a time."""
    is_empty = not header.strip(b"\0")
    has_key = header.startswith(name.removesuffix(".tar").encode())
    has_no_time = header[136:147] == b"0" * 11
    return is_empty or (has_key and has_no_time)
