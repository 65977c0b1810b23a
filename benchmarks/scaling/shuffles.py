"""The sort of the plan beside DuckDB's and Ray Data's, on the same rows of the same machine.

Theirs get rows that have their keys (group and order) already: the step `keys` is what that costs.
They leave sorted rows; the plan leaves files cut at shards with the content id of each shard.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scaling import plan as planned
from clipmill.manifests import disk, ray_runtime
from clipmill.pipeline.planning.planner import host_hashes, order_keys

BASE, UNIT = 1_125_000, "rows"
STEPS = ("plan", "plan_on_ray", "keys", "duckdb_sort", "ray_data_sort", "ray_data_hash_shuffle")
LARGEST = {"ray_data_sort": 1, "ray_data_hash_shuffle": 1}
MEMORY_LIMIT = "1GB"  # of DuckDB
OBJECT_STORE_BYTES = 2**30  # of Ray Data; it spills to disk beyond
BLOCKS = 64
KEYS = ["group", "order"]
plan, plan_on_ray = planned.plan, planned.plan_on_ray


def prepare(folder: Path, count: int) -> None:
    """Deduplicated pairs in parts of 1,000 rows."""
    planned.prepare(folder, count)
    planned.deduplicate(folder, count)


def keys(folder: Path, count: int) -> None:
    """Read the parts and write them with the keys that a sort needs."""
    (folder / "keyed").mkdir()
    groups = disk.read_json(folder / "plan/plan.json")["groups"]
    for path in sorted((folder / "pairs").glob("part-*.parquet")):
        table = pq.read_table(path).combine_chunks()
        url, uid = table["url"].chunk(0), table["uid"].chunk(0)
        group = (host_hashes(url, uid) % np.uint64(groups)).astype(np.int32)
        table = table.append_column("group", pa.array(group))
        table = table.append_column("order", pa.array(order_keys(uid)))
        pq.write_table(table, folder / "keyed" / path.name, compression="lz4")


def duckdb_sort(folder: Path, count: int) -> None:
    """ORDER BY of DuckDB to one file, spilling to disk."""
    with tempfile.TemporaryDirectory(dir=folder) as spill:
        settings = {"memory_limit": MEMORY_LIMIT, "temp_directory": spill, "threads": 2}
        with duckdb.connect(config=settings) as connection:
            connection.execute(
                f"COPY (SELECT * FROM read_parquet('{folder}/keyed/*.parquet') "
                f'ORDER BY "group", "order") TO \'{folder}/duckdb.parquet\' '
                "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 10000)"
            )
    assert _is_sorted(pq.read_table(folder / "duckdb.parquet", columns=KEYS), count)


def ray_data_sort(folder: Path, count: int) -> dict[str, Any]:
    """Ray Data's sort by both keys, to Parquet files."""

    def sort(data: Any) -> Any:
        return data.sort(KEYS)

    return _ray_data(folder, "ray_sort", sort)


def ray_data_hash_shuffle(folder: Path, count: int) -> dict[str, Any]:
    """Ray Data's hash shuffle by group, each partition sorted, to Parquet files."""

    def shuffle(data: Any) -> Any:
        shuffled = data.repartition(BLOCKS // 4, keys=["group"])
        return shuffled.map_batches(_sorted_batch, batch_size=None, batch_format="pyarrow")

    return _ray_data(folder, "ray_shuffle", shuffle)


def _sorted_batch(table: pa.Table) -> pa.Table:
    return table.sort_by([(key, "ascending") for key in KEYS])


def _ray_data(folder: Path, name: str, shuffle: Any) -> dict[str, Any]:
    ray_runtime.OBJECT_STORE_BYTES = OBJECT_STORE_BYTES
    ray_runtime.connect()
    import ray

    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        data = ray.data.read_parquet(str(folder / "keyed"), override_num_blocks=BLOCKS)
        shuffle(data).write_parquet(str(folder / name))
    finally:
        ray_runtime.disconnect()
    rows = sum(pq.read_metadata(path).num_rows for path in (folder / name).iterdir())
    return {"rows_written": rows}


def _is_sorted(table: pa.Table, count: int) -> bool:
    group, order = (table[key].to_numpy() for key in KEYS)
    later = (group[1:] > group[:-1]) | ((group[1:] == group[:-1]) & (order[1:] >= order[:-1]))
    return bool(later.all()) and 0 < len(table) <= count
