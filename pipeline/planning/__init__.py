"""Pairs to shards in fetch order: the stage plan."""

from __future__ import annotations

from pipeline.planning.host_groups import PlannedShard
from pipeline.planning.plan_files import (
    Plan,
    is_planned,
    read_plan,
    read_shard,
    read_ticket,
    retries_of_shard,
    rows_of_shard,
)
from pipeline.planning.planner import add_retries, write_plan

__all__ = [
    "Plan",
    "PlannedShard",
    "add_retries",
    "is_planned",
    "read_plan",
    "read_shard",
    "read_ticket",
    "retries_of_shard",
    "rows_of_shard",
    "write_plan",
]
