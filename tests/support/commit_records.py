"""Commit records: of shards without files, for tests of what is written about shards, and those of
a pool, file by file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.layout import (
    COMMIT_SUFFIX,
    SHARD_VERSION,
    CommitRecord,
    PoolLayout,
    shard_name,
)


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


def pool_fingerprint(commit_records: Mapping[str, CommitRecord]) -> str:
    """Hash over the sidecars of all committed shards: the rows that a view was chosen from."""
    hashes = {shard: record.sidecar_sha256 for shard, record in commit_records.items()}
    return disk.content_hash(hashes)


def read_commit_records(pool: str) -> dict[str, CommitRecord]:
    """Commit records of a pool by shard name, in the order of their numbers; {} where nothing is
    committed.

    ValueError for a file of that name that is not a commit record of clipmill.
    """
    folder = PoolLayout(pool).shards
    paths = {}
    for name in disk.list_names(folder, COMMIT_SUFFIX):
        paths[name.removesuffix(COMMIT_SUFFIX)] = disk.join(folder, name)
    if not paths:
        return {}
    with ThreadPoolExecutor() as readers:
        records = list(readers.map(CommitRecord.read, paths.values()))
    by_shard = dict(zip(paths, records, strict=True))
    return dict(sorted(by_shard.items(), key=lambda item: int(item[0])))
