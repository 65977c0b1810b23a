"""Hashes of rows, documents and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from manifests.disk.paths import local_path
from manifests.disk.plain import to_plain


def uid_of(url: str, caption: str) -> str:
    """128-bit xxh3 of url, a NUL and caption, as 32 hex digits."""
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(f"{url}\0{caption}".encode("utf-8", "surrogatepass")))


def content_hash(value: Any, length: int = 12) -> str:
    """sha256 of the canonical JSON of a dataclass or plain value, cut to `length` hex digits."""
    return plain_hash(to_plain(value), length)


def plain_hash(value: Any, length: int = 12) -> str:
    """`content_hash` of what `json.loads` gave: three times as fast for a large document."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def file_sha256(path: str | Path) -> str:
    """sha256 of a local file, 64 hex digits; read in pieces, so that files of any size fit."""
    with open(local_path(path), "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
