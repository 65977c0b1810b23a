"""Which shards are committed: a shard is visible from the moment that its commit record is there.

The order of publication is tar, sidecar, commit record. Tars and sidecars without a commit record
are leftovers of a build that was stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.commits import Commits, read_commits
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    FLAT_SHARDS,
    SHARDS_PER_FOLDER,
    CommitRecord,
    PoolLayout,
    list_shard_files,
    revised_name,
    shard_name,
)
from pipeline.pool.tars import BLOCK

SHARD_FILE = re.compile(r"^(\d{5,})(\.r\d+)?\.(tar|parquet)$")
# Where files are written beside their place, and nobody else looks for what was left there.
PARTIAL_FOLDERS = (
    "",
    "index/",
    "index/*/",
    "plan/",
    "plan/*/",
    "scores/*/",
    "scores/*/*/",
    "views/",
    "views/*/",
)


def read_commit_record(pool: str, shard: int | str) -> CommitRecord | None:
    """The commit record of a shard; None where the shard is not committed."""
    try:
        return CommitRecord.read(PoolLayout(pool).commit_record(shard))
    except FileNotFoundError:
        return None


def read_sidecar(pool: str, shard: int | str, columns: list[str] | None = None) -> pa.Table:
    """The rows of a committed shard, all columns or those named.

    A shard that is replaced meanwhile is read again, once. FileNotFoundError where the shard is not
    committed or its sidecar is missing.
    """
    layout = PoolLayout(pool)
    record = CommitRecord.read(layout.commit_record(shard))
    try:
        return disk.read_parquet(layout.sidecar(shard, record.revision), columns)
    except FileNotFoundError:
        newer = CommitRecord.read(layout.commit_record(shard))
        if newer.revision == record.revision:
            raise
        return disk.read_parquet(layout.sidecar(shard, newer.revision), columns)


@contextlib.contextmanager
def publication_lock(pool: str, shard: int | str) -> Iterator[bool]:
    """At most one process or thread of this machine publishes a shard of a local pool at a time.

    The lock ends with its process. A remote pool, and a file system without locks, has none: the
    body gets False.
    """
    folder = PoolLayout(pool).shards
    if disk.is_url(folder):
        yield False
        return
    path = disk.local_path(folder) / f".{shard_name(shard)}.partial.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        locked = True
        while True:
            handle = stack.enter_context(open(path, "wb"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                locked = False
                break
            # The holder before removes its file: a lock on a removed file excludes nobody.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle.fileno()), os.stat(path)):
                    break
        try:
            yield locked
        finally:
            path.unlink(missing_ok=True)


def remove_uncommitted(pool: str) -> list[str]:
    """Remove tars and sidecars that no commit record names, and partial files; returns their names.

    What is committed is read from the index, where there is one. Call it under the lease of the
    pool. ValueError for a tar of a shard's name that another program wrote; then nothing is
    removed.
    """
    folder = PoolLayout(pool).shards
    commits = read_commits(pool, ["tar"])
    leftovers: list[str] = []
    for path, names in list_shard_files(pool):
        in_folder = path.rpartition("/")[2] if path != folder else ""
        leftovers += _leftovers(path, names, _committed_files(commits, in_folder))
    for path in leftovers:
        disk.remove(path)
    return [path.removeprefix(f"{folder}/") for path in leftovers]


def remove_partial_files(pool: str) -> list[str]:
    """Remove what killed processes had not yet given its name, outside of the shards; their names.

    Call it under the lease of the pool, before anything is written. Files of the lease itself stay:
    another command may just be asking for it.
    """
    if disk.is_url(pool):
        return []  # an object is there whole or not at all
    root = disk.local_path(pool)
    removed = []
    for path in sorted(root.glob("views/.*.partial-*")):  # masks in the making
        shutil.rmtree(path, ignore_errors=True)
        removed.append(str(path.relative_to(root)))
    for folder in PARTIAL_FOLDERS:
        for path in sorted(root.glob(f"{folder}.*.partial.*")):
            if path.is_file() and "lease" not in path.name:
                path.unlink(missing_ok=True)
                removed.append(str(path.relative_to(root)))
    return removed


def _committed_files(commits: Commits, folder: str) -> set[str]:
    """The names of the tars and sidecars of the shards of one folder; "" is the flat one."""
    first = int(folder) * SHARDS_PER_FOLDER if folder else 0
    end = first + SHARDS_PER_FOLDER if folder else FLAT_SHARDS
    start, stop = np.searchsorted(commits.shards, [first, end]).tolist()
    rows = commits.table.slice(start, stop - start)
    files = set(rows["tar"].to_pylist())
    revisions = pc.fill_null(rows["revision"], 0).to_pylist()
    for shard, revision in zip(rows["shard"].to_pylist(), revisions, strict=True):
        files.add(f"{revised_name(shard, revision)}.parquet")
    return files


def _leftovers(folder: str, names: Sequence[str], committed: set[str]) -> list[str]:
    """Paths of the files of shards in one folder that are not committed, and of partial files."""
    leftovers = []
    for name in sorted(set(names) - committed):
        match = SHARD_FILE.match(name)
        if match is None:
            continue
        record = f"{match[1]}{COMMIT_SUFFIX}"
        if record in names and _is_named(disk.join(folder, record), name):
            continue  # by a record that the index does not have
        path = disk.join(folder, name)
        if match[3] == "tar" and not _written_here(disk.read_bytes(path, 0, BLOCK), match[1]):
            raise ValueError(
                f"{path} was not written by clipmill; move it out of the pool's folder"
            )
        leftovers.append(path)
    if not disk.is_url(folder):
        partial = [path.name for path in disk.local_path(folder).glob(".*.partial.*")]
        leftovers += [disk.join(folder, name) for name in sorted(partial)]
    return leftovers


def _is_named(record: str, file: str) -> bool:
    """Whether the commit record at a path names a file."""
    of_shard = CommitRecord.read(record)
    return file in (of_shard.tar, of_shard.sidecar)


def _written_here(header: bytes, shard: str) -> bool:
    """Whether a tar begins as ours do: empty, or with a member of that shard without a time."""
    is_empty = not header.strip(b"\0")
    has_key = header.startswith(shard.encode())
    has_no_time = header[136:147] == b"0" * 11
    return is_empty or (has_key and has_no_time)
