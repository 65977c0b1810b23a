"""Columns of score sets, shard by shard: committed once, never overwritten by another command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from clipmill.filters.columns import valid_in_all
from clipmill.manifests import disk
from clipmill.manifests.aligned import parquet_bytes
from clipmill.pipeline.pool.lease import PoolWriter

SAME_ROWS = ("uids", "sidecar", "rows", "stored", "pool")  # metadata of columns of the same rows


def commit_columns(
    out: PoolWriter,
    name: str,
    shard: str | int,
    table: pa.Table,
    metadata: Mapping[str, object],
) -> int:
    """Create the file of a shard that waits for the bundle of the set `name`; returns the rows that
    have all columns.

    Columns of the same rows that another worker has committed in the meantime stay.
    """
    path, scored = out.layout.score_part(name, shard), valid_in_all(table.columns)
    content = parquet_bytes(table, {**metadata, "scored": scored})
    try:
        out.publish_new(content, path)
    except FileExistsError:
        there = _metadata_of_same_rows(path, metadata)
        if there is not None:
            return int(there["scored"])
        out.check()
        disk.write_bytes(path, content)  # in place of columns of other rows, or damaged ones
    return scored


def _metadata_of_same_rows(path: str, expected: Mapping[str, object]) -> dict[str, Any] | None:
    """What is written about columns that are there; None where they are of other rows."""
    try:
        there = disk.read_metadata(path)
    except (FileNotFoundError, pa.ArrowException, ValueError):
        return None
    same = all(there.get(name) == expected.get(name) for name in SAME_ROWS)
    return there if same and "scored" in there else None
