"""A plan of the first form, one file with a row group a shard, as earlier versions wrote it."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk, identity
from manifests.columns import PLAN
from manifests.layout import PoolLayout
from manifests.schema import Recipe
from pipeline.planning.plan_files import PLAN_VERSION, PlannedShard, host_groups
from pipeline.planning.planner import settings_hash
from tests.support.reference_plan import Expected, plan_of


def write_first_form(pool: str, table: pa.Table, recipe: Recipe) -> list[PlannedShard]:
    """plan.parquet of a pool whose only part has the rows of `table`."""
    rows_per_shard = recipe.fetch.rows_per_shard
    shards = plan_of(table, rows_per_shard, settings_hash(recipe.fetch))
    uids = "".join(table["uid"].to_pylist()) + "\n"
    metadata = {
        "version": PLAN_VERSION,
        "pairs": hashlib.sha256(uids.encode()).hexdigest()[:16],
        "recipe_hash": identity.recipe_hash(recipe),
        "recipe": identity.recipe_identity(recipe),
        "groups": host_groups(len(table), rows_per_shard),
        "round": 0,
    }
    nothing = [None] * len(table)
    _write(PoolLayout(pool).plan, table, shards, nothing, metadata)
    return [each.shard for each in shards]


def write_first_form_retry(
    pool: str, table: pa.Table, recipe: Recipe, rows: list[int], keys: list[str], first: int
) -> list[PlannedShard]:
    """plan-retry-001.parquet that retries these rows, whose keys are `keys`."""
    metadata = {**disk.read_metadata(PoolLayout(pool).plan), "round": 1}
    shards = plan_of(
        table.take(rows),
        recipe.fetch.rows_per_shard,
        settings_hash(recipe.fetch),
        groups=metadata["groups"],
        first_shard=first,
        retry_of=keys,
    )
    _write(disk.join(pool, "plan-retry-001.parquet"), table.take(rows), shards, keys, metadata)
    return [each.shard for each in shards]


def _write(
    path: str,
    table: pa.Table,
    shards: list[Expected],
    retry_of: list[None] | list[str],
    metadata: dict[str, object],
) -> None:
    listed = [[each.shard.group, each.shard.size, each.shard.id] for each in shards]
    schema = disk.with_metadata(PLAN, {**metadata, "shards": listed})
    with pq.ParquetWriter(disk.local_path(path), schema, compression="zstd") as writer:
        for each in shards:
            count = len(each.rows)
            rows = table.take(each.rows)
            columns = {name: rows[name] for name in table.schema.names}
            columns["part"] = pa.array([0] * count, pa.int32())
            columns["row"] = pa.array(each.rows, pa.int64())
            columns["shard"] = pa.array([each.shard.shard] * count, pa.int32())
            columns["position"] = pa.array(np.arange(count), pa.int16())
            retried = [retry_of[row] for row in each.rows]
            columns["retry_of"] = pa.array(retried, pa.string())
            writer.write_table(pa.table(columns, schema), row_group_size=count)
