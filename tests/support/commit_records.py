"""Commit records of shards without files, for tests of what is written about shards."""

from __future__ import annotations

import hashlib
from typing import Any

from manifests import disk
from manifests.layout import SHARD_VERSION, CommitRecord, PoolLayout, shard_name


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def commit_record(shard: int, **changes: Any) -> CommitRecord:
    """A record of 5 rows, 2 of them stored; every shard has other hashes and another task."""
    values: dict[str, Any] = {
        "shard": shard_name(shard),
        "tar": f"{shard_name(shard)}.tar",
        "tar_bytes": 10_240,
        "tar_sha256": sha256(f"tar {shard}"),
        "count": 5,
        "successes": 2,
        "reasons": {"dns": 2, "timeout": 1} if shard % 2 else {"dns": 3},
        "failed_to_download": 3,
        "failed_to_resize": 0,
        "retries": 0,
        "sidecar_bytes": 99,
        "sidecar_file_sha256": sha256(f"file {shard}"),
        "sidecar_sha256": sha256(f"sidecar {shard}"),
        "task": f"task-{shard}",
        "group": "0",
        "version": SHARD_VERSION,
        "duration_s": 0.5,
        "adopted": False,
    }
    return CommitRecord(**{**values, **changes})


def write_record(pool: str, shard: int, **changes: Any) -> CommitRecord:
    """A commit record on disk, without tar and sidecar."""
    record = commit_record(shard, **changes)
    disk.write_json(PoolLayout(pool).commit_record(shard), record)
    return record
