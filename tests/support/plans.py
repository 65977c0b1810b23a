"""Plans for tests: the stage in this process, and the shards that it leaves."""

from __future__ import annotations

from collections.abc import Sequence

from manifests.schema import Recipe
from pipeline import planning
from pipeline.planning import PlannedShard


def planned(pool: str, recipe: Recipe) -> list[PlannedShard]:
    """All shards of a pool, planned now or before."""
    assert planning.write_plan(pool, recipe) == {}
    return list(planning.read_plan(pool))


def retried(pool: str, recipe: Recipe, keys: Sequence[str] | None = None) -> list[PlannedShard]:
    """The shards of a further round of retries."""
    before = len(planning.read_plan(pool))
    assert planning.add_retries(pool, recipe, keys) == {}
    return list(planning.read_plan(pool))[before:]
