"""Files at local paths and fsspec URLs (`file`, `s3`, `gs`, `memory` behave the same)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manifests.disk import local, remote
from manifests.disk.paths import is_url, local_path


def read_bytes(path: str | Path, start: int = 0, length: int | None = None) -> bytes:
    """Bytes of a file, or `length` of them from `start`. FileNotFoundError where there is none."""
    if is_url(path):
        return remote.read(path, start, length)
    with local.naming(path), open(local_path(path), "rb") as f:
        f.seek(start)
        return f.read() if length is None else f.read(length)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Whole or not at all, in place of a file that may be there: a temporary file, fsync and a
    rename locally, one put elsewhere.
    """
    if is_url(path):
        remote.put(path, data)
        return
    local.replace_file(local_path(path), data)


def create_bytes(path: str | Path, data: bytes) -> None:
    """Like `write_bytes`, but never over another content: FileExistsError with both hashes.

    The same content counts as success.
    """
    if is_url(path):
        remote.create(path, data)
        return
    target = local_path(path)
    local.make_folder(target.parent)
    partial = local.partial_path(target)
    try:
        local.write_synced(partial, data)
        local.create_from(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def replace_bytes(path: str | Path, data: bytes, expected: bytes) -> None:
    """Put `data` in place of a file whose content is `expected`; FileExistsError where it is not.

    Locally the check and the rename are two steps: call it under a lease.
    """
    if is_url(path):
        remote.replace(path, data, expected)
        return
    there = read_bytes(path)
    if there != expected:
        raise local.conflict(path, remote.source_sha256(there), remote.source_sha256(data))
    local.replace_file(local_path(path), data)


def publish(staged: str | Path, path: str | Path) -> None:
    """Move a finished local file to its place, in place of a file that may be there: fsync and
    rename on one filesystem, one put elsewhere.
    """
    if is_url(path):
        remote.put(path, Path(staged))
        remote.check_object(path, Path(staged))
        return
    local.move_file(Path(staged), local_path(path))


def create_file(staged: str | Path, path: str | Path) -> None:
    """Like `publish`, but never over another content: FileExistsError with both hashes.

    The same content counts as success. The staged file stays: it is linked or copied.
    """
    if is_url(path):
        remote.create(path, Path(staged))
        return
    target = local_path(path)
    local.make_folder(target.parent)
    local.sync_file(Path(staged))
    local.create_from(Path(staged), target)


def exists(path: str | Path) -> bool:
    """True where a file or folder lies at `path`."""
    if is_url(path):
        return remote.info(path) is not None
    return local_path(path).exists()


def list_names(folder: str | Path, suffix: str = "") -> list[str]:
    """Sorted names inside a folder that end in `suffix`; [] where there is no folder. Unfinished
    files are left out.
    """
    if is_url(folder):
        names = remote.list_folder(folder)
    else:
        names = os.listdir(local_path(folder)) if local_path(folder).is_dir() else []
    return sorted(name for name in names if name.endswith(suffix) and not name.startswith("."))


def remove(path: str | Path) -> None:
    """Delete one file; nothing happens where there is none."""
    if is_url(path):
        remote.remove_object(path)
        return
    local_path(path).unlink(missing_ok=True)


def sync_folder(folder: str | Path) -> None:
    """Have the names in a folder last over a power failure: new, replaced and removed ones. Those
    of a store do.
    """
    if not is_url(folder):
        local.sync_folder(local_path(folder))


@contextmanager
def open_file(path: str | Path) -> Iterator[Any]:
    """A file to read at any offset: a local path for pyarrow, or a file object of a store."""
    if not is_url(path):
        yield local_path(path)
        return
    fs, name = remote.filesystem(path)
    with fs.open(name, "rb") as f:
        yield f
