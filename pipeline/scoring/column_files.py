"""The columns of one shard in a file of its own: committed once, renamed, never overwritten by
another command's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from manifests import disk
from manifests.aligned import AlignedFiles, parquet_bytes
from manifests.pool_layout import PoolLayout
from pipeline.executor import Ticket
from pipeline.pool import check_fence

SAME_ROWS = ("uids", "sidecar", "rows", "stored", "pool")  # metadata of columns of the same rows


def commit_columns(
    layout: PoolLayout,
    name: str,
    shard: str | int,
    content: bytes,
    metadata: Mapping[str, Any],
    scored: int,
    fence: int | None,
) -> int:
    """Create the file of a shard in the set `name`; returns the rows that have all columns.

    Columns of the same rows that another worker has committed in the meantime stay.
    """
    path = layout.score_columns(name, shard)
    check_fence(layout.root, fence)
    try:
        disk.create_bytes(path, content)
    except FileExistsError:
        there = _metadata_of_same_rows(path, metadata)
        if there is not None:
            return int(there["scored"])
        check_fence(layout.root, fence)
        disk.write_bytes(path, content)  # in place of columns of other rows, or damaged ones
    return scored


def _metadata_of_same_rows(path: str, expected: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is written about columns that are there; None where they are of other rows."""
    try:
        there = disk.read_metadata(path)
    except (FileNotFoundError, pa.ArrowException, ValueError):
        return None
    same = all(there.get(name) == expected.get(name) for name in SAME_ROWS)
    return there if same and "scored" in there else None


def make_copier(config: Mapping[str, Any]) -> Callable[[Ticket], dict[str, Any]]:
    """Factory of the stage that copies the columns of shards to a set of another instance.

    config: {"pool", "fence", "source": NAME@ID, "target": NAME@ID, "columns": {name: new name}}. A
    ticket's id is the name of a shard.
    """
    layout, fence = PoolLayout(str(config["pool"])), config.get("fence")
    target, names = str(config["target"]), dict(config["columns"])
    source = AlignedFiles.of_scores(layout.root, str(config["source"]))

    def work(ticket: Ticket) -> dict[str, Any]:
        table, metadata = source.read(ticket.id, list(names))
        renamed = table.select(list(names)).rename_columns(list(names.values()))
        content = parquet_bytes(renamed, metadata)
        scored = int(metadata["scored"])
        commit_columns(layout, target, ticket.id, content, metadata, scored, fence)
        return {"scored": {target: scored}}

    return work
