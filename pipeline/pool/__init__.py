"""Rows to tar, sidecar and commit record; which shards are committed."""

from __future__ import annotations

from pipeline.pool.commits import read_commit_record, read_sidecar, remove_uncommitted
from pipeline.pool.rows import outcome_row, row_key
from pipeline.pool.shard_writer import (
    ShardWriter,
    TarFile,
    member_block,
    publish_shard,
    sidecar_hash,
)
from pipeline.pool.tars import Member, index_tar, local_copy

__all__ = [
    "Member",
    "ShardWriter",
    "TarFile",
    "index_tar",
    "local_copy",
    "member_block",
    "outcome_row",
    "publish_shard",
    "read_commit_record",
    "read_sidecar",
    "remove_uncommitted",
    "row_key",
    "sidecar_hash",
]
