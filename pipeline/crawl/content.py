"""What identifies the content of a source file, so that a changed file of equal size is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec
import xxhash

from manifests import disk

CHUNK = 1 << 20  # bytes
WHOLE = 1 << 26  # bytes up to which a file is hashed as a whole; larger ones in 64 chunks, 20 ms
# What fsspec's file systems call what changes with a file's content, and our name for it.
REMOTE_KEYS = {
    "ETag": "etag", "etag": "etag", "md5Hash": "md5", "size": "size", "LastModified": "modified",
    "mtime": "modified", "updated": "modified", "last_modified": "modified",
    "Last-Modified": "modified", "Content-MD5": "md5",
}  # fmt: skip
BEST_FIRST = ("etag", "md5", "modified", "size")


def file_stamp(path: str) -> dict[str, Any]:
    """What tells cheaply that a file may have changed: of a local file its size and modification
    time; of a remote one what its store says (ETag, size, modification time; {} if nothing)."""
    if disk.is_url(path):
        return _remote_stamp(path)
    status = disk.local_path(path).stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def file_content(path: str) -> dict[str, Any]:
    """The stamp of a file, and of a local one its digest."""
    stamp = file_stamp(path)
    return stamp if disk.is_url(path) else {**stamp, "digest": _local_digest(path)}


def has_stamp(path: str, stamp: Mapping[str, Any]) -> bool:
    """True where a file has the stamp that `file_stamp` gave; also where nobody knows."""
    if not stamp:
        return True
    now = file_stamp(path)
    if not disk.is_url(path):
        return all(now[key] == stamp[key] for key in now)
    known = [key for key in BEST_FIRST if key in stamp and key in now]
    return not known or bool(stamp[known[0]] == now[known[0]])


def is_unchanged(path: str, content: Mapping[str, Any]) -> bool:
    """True where a file still has the content that `file_content` gave.

    A local file with the same stamp is not read. One of the same size with another time is hashed:
    a copy has another time and the same digest.
    """
    if has_stamp(path, content):
        return True
    if disk.is_url(path) or file_stamp(path)["size"] != content["size"]:
        return False
    return bool(_local_digest(path) == content["digest"])


def _local_digest(path: str) -> str:
    """xxh3 of a whole file, or of evenly spaced chunks of one of more than WHOLE bytes."""
    size, digest = disk.local_path(path).stat().st_size, xxhash.xxh3_128()
    step = CHUNK if size <= WHOLE else (size - CHUNK) // (WHOLE // CHUNK - 1)
    with open(disk.local_path(path), "rb") as stream:
        for start in range(0, size, step):
            stream.seek(start)
            digest.update(stream.read(CHUNK))
    return digest.hexdigest()


def _remote_stamp(path: str) -> dict[str, Any]:
    try:
        fs, name = fsspec.core.url_to_fs(path)
        info = fs.info(name, refresh=True) if "s3" in fs.protocol else fs.info(name)
    except Exception:  # any store, any error: what cannot be asked is read, or fails, later
        return {}
    named = [(ours, info.get(theirs)) for theirs, ours in REMOTE_KEYS.items()]
    return {ours: value if ours == "size" else str(value) for ours, value in named if value}
