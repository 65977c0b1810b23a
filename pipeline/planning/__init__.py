"""Pairs to shards in fetch order: the stage plan."""

from __future__ import annotations

from pipeline.planning.given_shards import group_count, lock_of_plan, write_given_plan
from pipeline.planning.host_groups import PlannedShard
from pipeline.planning.plan_files import (
    Plan,
    is_planned,
    read_plan,
    read_row_group,
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
    "group_count",
    "is_planned",
    "lock_of_plan",
    "read_plan",
    "read_row_group",
    "read_shard",
    "read_ticket",
    "retries_of_shard",
    "rows_of_shard",
    "write_given_plan",
    "write_plan",
]
