"""Rows to tar, sidecar and commit record; which shards are committed."""

from __future__ import annotations

from pipeline.pool import shard_writer, tars
from pipeline.pool.tars import Member

__all__ = ["Member", "shard_writer", "tars"]
