"""Part a of benchmarks/scale.py: parts of 1,000 rows are deduplicated and planned.

Beside them, on the same rows: DuckDB's sort in one process, and Ray Data's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import disk
from manifests.columns import PAIRS
from manifests.schema import Fetch, Recipe, Source
from pipeline import planning
from pipeline.crawl import dedup
from pipeline.crawl.parts import write_parts

ROWS_PER_PART = 1000
BASE = 1_125_000  # 8x is 9,000 parts
UNIT = "rows"
STEPS = ("deduplicate", "plan", "resume", "duckdb_sort", "ray_data_sort")
HOSTS = 200_000
MEMORY_LIMIT = "1GB"  # of DuckDB
RECIPE = Recipe(
    name="scale",
    source=Source(kind="table", paths=("list.parquet",)),
    fetch=Fetch(rows_per_shard=10_000, user_agent="scale/1 (scale@clipmill.example)"),
)


def prepare(folder: Path, count: int) -> None:
    """What the first half of crawl leaves: extracted parts, 3 % of their rows twice."""
    rng = np.random.default_rng(count)
    for part in range(count // ROWS_PER_PART):
        rows = part * ROWS_PER_PART + np.arange(ROWS_PER_PART)
        repeated = rng.random(ROWS_PER_PART) < 0.03
        rows[repeated] = rng.integers(0, rows[-1] + 1, repeated.sum())
        table = pairs_of(rows, f"list-{part:05d}.parquet")
        metadata = {
            "links": len(rows), "pairs": len(rows), "damaged_records": 0, "reasons": {},
            "examples": {}, "source_id": str(part), "content": {}, "wat": f"{part}",
        }  # fmt: skip
        path = disk.local_path(dedup.extracted(str(folder), part))
        path.parent.mkdir(parents=True, exist_ok=True)
        table = table.replace_schema_metadata(disk.with_metadata(PAIRS, metadata).metadata)
        pq.write_table(table, path, compression="lz4")


def pairs_of(rows: np.ndarray[Any, Any], name: str) -> pa.Table:
    """Pairs whose hosts are as unequal as those of the web."""
    hosts = (HOSTS * (rows * 2654435761 % 1000003 / 1000003) ** 3).astype(int)
    urls, captions = [], []
    for row, host in zip(rows.tolist(), hosts.tolist(), strict=True):
        urls.append(f"https://img{host}.host{host % 977}.example/2024/{row % 97}/photo-{row}.jpg")
        captions.append(f"a caption of about the usual length for image number {row}")
    columns: dict[str, Any] = {
        "uid": [disk.uid_of(url, text) for url, text in zip(urls, captions, strict=True)],
        "url": urls,
        "caption": captions,
        "page_url": [f"https://www.page{host}.example/article.html" for host in hosts.tolist()],
        "wat": [name] * len(urls),
        "link": list(range(len(urls))),
    }
    nothing = pa.nulls(len(urls))
    fields = []
    for field in PAIRS:
        values = columns.get(field.name)
        fields.append(nothing.cast(field.type) if values is None else pa.array(values, field.type))
    return pa.table(fields, PAIRS)


def deduplicate(folder: Path, count: int) -> None:
    """scatter, gather and write, in this process; then the table of the parts."""
    ids = [str(part) for part in range(count // ROWS_PER_PART)]
    assert dedup.commit(str(folder), ids, {}, "inline") == {}
    write_parts(str(folder))


def plan(folder: Path, count: int) -> dict[str, Any]:
    """The stage plan, in this process."""
    assert planning.write_plan(str(folder), RECIPE, engine="inline") == {}
    return {"shards": len(planning.read_plan(str(folder)))}


def resume(folder: Path, count: int) -> None:
    """The same with a plan that is there: what every later build pays."""
    plan(folder, count)


def _keyed(folder: Path) -> str:
    """A folder of the same rows with the keys that the sort needs, as one stage would leave it."""
    target = folder / "keyed"
    if not target.exists():
        target.mkdir()
        from pipeline.planning.keys import host_hashes, order_keys

        groups = disk.read_json(folder / "plan/plan.json")["groups"]
        for path in sorted((folder / "pairs").glob("part-*.parquet")):
            table = pq.read_table(path).combine_chunks()
            url, uid = table["url"].chunk(0), table["uid"].chunk(0)
            group = (host_hashes(url, uid) % np.uint64(groups)).astype(np.int32)
            table = table.append_column("group", pa.array(group))
            table = table.append_column("order", pa.array(order_keys(uid)))
            pq.write_table(table, target / path.name, compression="lz4")
    return str(target)


def duckdb_sort(folder: Path, count: int) -> None:
    """ORDER BY of DuckDB over the keyed rows to one file, spilling; keys are not counted."""
    import duckdb

    source = _keyed(folder)
    with tempfile.TemporaryDirectory(dir=folder) as spill:
        settings = {"memory_limit": MEMORY_LIMIT, "temp_directory": spill, "threads": 2}
        with duckdb.connect(config=settings) as connection:
            connection.execute(
                f"COPY (SELECT * FROM read_parquet('{source}/*.parquet') "
                f'ORDER BY "group", "order") TO \'{folder}/duckdb.parquet\' '
                "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 10000)"
            )


def ray_data_sort(folder: Path, count: int) -> None:
    """Ray Data's sort by both keys over the keyed rows, to Parquet files."""
    import ray

    from manifests import ray_runtime

    source = _keyed(folder)
    ray_runtime.OBJECT_STORE_BYTES = 2**30
    ray_runtime.connect()
    try:
        data = ray.data.read_parquet(source, override_num_blocks=64)
        data.sort(["group", "order"]).write_parquet(str(folder / "ray_data"))
    finally:
        ray_runtime.disconnect()
