"""Plans for tests: the stage in this process, and the shards that it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Recipe
from clipmill.pipeline.executor.tickets import Ticket
from clipmill.pipeline.planning import planner
from clipmill.pipeline.planning.plan_files import PlannedShard, read_plan, read_rounds
from clipmill.pipeline.planning.planner import write_plan
from clipmill.pipeline.pool.lease import PoolWriter


def planned(pool: str, recipe: Recipe) -> list[PlannedShard]:
    """All shards of a pool, planned now or before."""
    assert write_plan(PoolWriter(pool), recipe) == {}
    return list(read_plan(PoolLayout(pool)))


def ticket(pool: str, shard: PlannedShard) -> Ticket:
    """The ticket that fetches a shard."""
    return next(iter(read_plan(PoolLayout(pool)).tickets(np.array([shard.shard]))))


def retried(pool: str, recipe: Recipe, keys: Sequence[str] | None = None) -> list[PlannedShard]:
    """The shards of a further round of retries. With keys, as if their rows were those with a
    transient outcome: no shard needs to be there."""
    before = len(read_plan(PoolLayout(pool)))
    if keys is None:
        assert planner.add_retries(PoolWriter(pool), recipe) == {}
        return list(read_plan(PoolLayout(pool)))[before:]
    done = planner.retried_keys(read_rounds(PoolLayout(pool)), 0, before)
    numbers = np.setdiff1d(np.array(keys, np.int64), done)

    def of_shard(_: str, shard: int) -> NDArray[np.int64]:
        return numbers[numbers // planner.KEYS_PER_SHARD == shard]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "_transient_keys", of_shard)
        shards = np.unique(numbers // planner.KEYS_PER_SHARD)
        patch.setattr(planner, "_shards_to_retry", lambda _: shards)
        assert planner.add_retries(PoolWriter(pool), recipe) == {}
    return list(read_plan(PoolLayout(pool)))[before:]
