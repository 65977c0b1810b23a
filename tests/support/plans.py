"""Plans for tests: the stage in this process, and the shards that it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manifests.schema import Recipe
from pipeline.executor.tickets import Ticket
from pipeline.planning.plan_files import PlannedShard, read_plan
from pipeline.planning.planner import add_retries, write_plan


def planned(pool: str, recipe: Recipe) -> list[PlannedShard]:
    """All shards of a pool, planned now or before."""
    assert write_plan(pool, recipe) == {}
    return list(read_plan(pool))


def ticket(pool: str, shard: PlannedShard) -> Ticket:
    """The ticket that fetches a shard."""
    return next(iter(read_plan(pool).tickets(np.array([shard.shard]))))


def retried(pool: str, recipe: Recipe, keys: Sequence[str] | None = None) -> list[PlannedShard]:
    """The shards of a further round of retries."""
    before = len(read_plan(pool))
    assert add_retries(pool, recipe, keys) == {}
    return list(read_plan(pool))[before:]
