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


def file_content(path: str) -> dict[str, Any]:
    """Of a local file its size, modification time and digest; of a remote one what its store says
    (ETag, size, modification time; {} where it says nothing)."""
    if disk.is_url(path):
        return _remote_content(path)
    status = disk.local_path(path).stat()
    digest = _local_digest(path)
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": digest}


def is_unchanged(path: str, content: Mapping[str, Any]) -> bool:
    """True where a file still has the content that `file_content` gave; also where nobody knows.

    A local file of the same size and modification time is not read. One with another time is
    hashed: a copy has another time and the same digest.
    """
    if not content:
        return True
    if disk.is_url(path):
        now = _remote_content(path)
        known = [key for key in BEST_FIRST if key in content and key in now]
        return not known or bool(content[known[0]] == now[known[0]])
    status = disk.local_path(path).stat()
    if status.st_size != content["size"]:
        return False
    same_time = bool(status.st_mtime_ns == content["mtime_ns"])
    return same_time or _local_digest(path) == content["digest"]


def _local_digest(path: str) -> str:
    """xxh3 of a whole file, or of evenly spaced chunks of one of more than WHOLE bytes."""
    size, digest = disk.local_path(path).stat().st_size, xxhash.xxh3_128()
    step = CHUNK if size <= WHOLE else (size - CHUNK) // (WHOLE // CHUNK - 1)
    with open(disk.local_path(path), "rb") as stream:
        for start in range(0, size, step):
            stream.seek(start)
            digest.update(stream.read(CHUNK))
    return digest.hexdigest()


def _remote_content(path: str) -> dict[str, Any]:
    try:
        fs, name = fsspec.core.url_to_fs(path)
        info = fs.info(name, refresh=True) if "s3" in fs.protocol else fs.info(name)
    except Exception:  # any store, any error: what cannot be asked is read, or fails, later
        return {}
    named = [(ours, info.get(theirs)) for theirs, ours in REMOTE_KEYS.items()]
    return {ours: value if ours == "size" else str(value) for ours, value in named if value}
