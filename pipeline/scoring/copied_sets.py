"""A score set under another name of an instance: its columns are copied, not computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from manifests.aligned import AlignedFiles, parquet_bytes
from manifests.pool_layout import PoolLayout
from pipeline.executor import Ticket
from pipeline.pool import commit_columns


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
