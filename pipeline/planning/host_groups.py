"""How many host groups a pool has, and what one planned shard is.

Pure: numbers in, numbers out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

PLAN_VERSION = 2  # a change of order or of shard ids bumps this and the golden test
MAX_GROUPS = 1024  # shards that can be fetched at a time; a host belongs to one group


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """One shard to fetch, without its rows."""

    shard: int
    group: int
    id: str  # content id, see shard_id
    size: int  # rows


def host_groups(rows: int, rows_per_shard: int) -> int:
    """The number of host groups: clamp(rows // rows_per_shard, 1, 1024)."""
    return max(1, min(rows // rows_per_shard, MAX_GROUPS))


def shard_id(uids: pa.Array, retried: pa.Array | None, settings: str) -> str:
    """Content id of a shard, 16 hex digits.

    It covers the uids of its rows in fetch order, the fetch settings, and, in a round of retries,
    the keys that the rows retry.
    """
    content = hashlib.sha256(f"{PLAN_VERSION}\n{settings}\n".encode())
    content.update(_joined(uids))
    if retried is not None:
        content.update(b"\n")
        content.update(_joined(retried))
    return content.hexdigest()[:16]


def _joined(texts: pa.Array) -> pa.Buffer:
    """The texts of an array, one per line."""
    lines = pa.LargeListArray.from_arrays([0, len(texts)], texts.cast(pa.large_string()))
    return pc.binary_join(lines, pa.scalar("\n", pa.large_string()))[0].as_buffer()
