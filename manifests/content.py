"""What the content of a file is: one answer for all that is derived from files.

Of a local file it is the xxh3 of all its bytes; names, sizes and times are no content. What the
system says of a file (its stamp) only saves the reading where nothing can have changed. Of a remote
file it is what its store says (ETag, MD5, time, size): to read it would be to download it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from clipmill.manifests import disk

REMEMBERED = 1 << 26  # bytes from which a digest is kept on this machine: reading them takes 20 ms
# A file that changed so lately may change again within one tick: its times say nothing.
SETTLED_NS = 2_000_000_000
# What fsspec's file systems call what changes with a file's content, and our name for it.
REMOTE_KEYS = {
    "ETag": "etag", "etag": "etag", "md5Hash": "md5", "size": "size", "LastModified": "modified",
    "mtime": "modified", "updated": "modified", "last_modified": "modified", "blob_id": "etag",
    "Last-Modified": "modified", "Content-MD5": "md5",
}  # fmt: skip
BEST_FIRST = ("etag", "md5", "modified", "size")
LISTINGS_KEPT = {"s3", "hf"}  # file systems that answer from what they saw before, unless asked
Stamp = Mapping[str, Any]


def file_stamp(path: str) -> dict[str, Any]:
    """What tells cheaply that a file may have changed: of a local file its size, times and inode,
    without the times where it was changed just now; of a remote one what its store says ({} if
    nothing)."""
    if disk.is_url(path):
        return _remote_stamp(path)
    status = disk.local_path(path).stat()
    stamp = {"size": status.st_size, "inode": status.st_ino}
    if max(status.st_mtime_ns, status.st_ctime_ns) < time.time_ns() - SETTLED_NS:
        stamp |= {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
    return stamp


def file_content(path: str) -> dict[str, object]:
    """The size and the digest of a local file; the stamp of a remote one."""
    stamp = file_stamp(path)
    if disk.is_url(path):
        return stamp
    return {"size": stamp["size"], "xxh3": _local_digest(path, stamp)}


def content_digest(path: str) -> str:
    """The content of a file alone, as text. A remote file whose store says nothing better than its
    size is read."""
    if not disk.is_url(path):
        return _local_digest(path, file_stamp(path))
    stamp = _remote_stamp(path)
    if best := next((key for key in BEST_FIRST[:-1] if key in stamp), None):
        return f"{best} {stamp[best]}"
    with disk.open_file(path) as stream:
        return _digest_of(stream)


def has_stamp(path: str, stamp: Stamp) -> bool:
    """True where a file has the stamp that `file_stamp` gave; of a remote file also where nobody
    knows."""
    now = file_stamp(path) if stamp else {}
    if not disk.is_url(path):
        return not stamp or ("ctime_ns" in now and all(stamp.get(k) == now[k] for k in now))
    best = next((key for key in BEST_FIRST if key in stamp and key in now), None)
    # Some stores keep an ETag where the bytes have changed.
    return all(stamp[key] == now[key] for key in (best, "size") if key in stamp and key in now)


def is_unchanged(path: str, content: Stamp) -> bool:
    """True where a file still has the content that `file_content` gave. A copy of it has."""
    if disk.is_url(path):
        return has_stamp(path, content)
    stamp = file_stamp(path)
    return not content or (
        stamp["size"] == content["size"] and _local_digest(path, stamp) == content.get("xxh3")
    )


# --- local ----------------------------------------------------------------------------------------


def _local_digest(path: str, stamp: Stamp) -> str:
    """The digest of a local file that has this stamp. That of a large file is kept on this machine,
    under its path and its stamp."""
    local = disk.local_path(path)
    if "ctime_ns" not in stamp:
        return _digest_of_file(local)
    key = disk.content_hash([os.path.realpath(local), stamp], 32)
    return _settled_digest(local, key, is_large=stamp["size"] >= REMEMBERED)


@functools.lru_cache(maxsize=4096)
def _settled_digest(local: Path, key: str, is_large: bool) -> str:
    if not is_large:
        return _digest_of_file(local)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clipmill/content"
    with suppress(OSError):
        if len(kept := (folder / key).read_text()) == 32:
            return kept
    digest = _digest_of_file(local)
    with suppress(OSError):  # a home that cannot be written costs the reading, next time
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_bytes(str(folder / key), digest.encode())
    return digest


def _digest_of_file(local: Path) -> str:
    with open(local, "rb") as stream:
        return _digest_of(stream)


def _digest_of(stream: Any) -> str:
    return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


# --- remote ---------------------------------------------------------------------------------------


def _remote_stamp(path: str) -> dict[str, object]:
    fs, name = disk.filesystem(path)
    try:
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        info = fs.info(name, **({"refresh": True} if protocols & LISTINGS_KEPT else {}))
    except Exception:  # any store, any error: what cannot be asked is read, or fails, later
        return {}
    named = [(ours, info.get(theirs)) for theirs, ours in REMOTE_KEYS.items()]
    return {ours: value if ours == "size" else str(value) for ours, value in named if value}
