"""Parts of 1,000 rows are deduplicated and planned, by the stages themselves.

Bar at 8x, 9,000 parts: planned in at most 4 minutes with at most 1.5 GiB in any process.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline.crawl import crawler
from clipmill.pipeline.crawl.parts import write_parts
from clipmill.pipeline.planning.plan_files import read_plan
from clipmill.pipeline.planning.planner import write_plan
from clipmill.pipeline.pool.lease import PoolWriter

ROWS_PER_PART = 1000
BASE, UNIT = 1_125_000, "rows"  # 8x is 9,000 parts
STEPS = ("deduplicate", "plan", "resume", "plan_on_ray")
HOSTS = 200_000
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
        path = disk.local_path(crawler.extracted(PoolLayout(str(folder)), part))
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
    counts = np.full(len(ids), ROWS_PER_PART)
    assert crawler.commit(str(folder), ids, {}, "inline", counts=counts) == {}
    write_parts(PoolLayout(str(folder)))


def plan(folder: Path, count: int) -> dict[str, Any]:
    """The stage plan, in this process."""
    assert write_plan(PoolWriter(str(folder)), RECIPE, engine="inline") == {}
    return {"shards": len(read_plan(PoolLayout(str(folder))))}


def resume(folder: Path, count: int) -> None:
    """The same with a plan that is there: what every later build pays."""
    plan(folder, count)


def plan_on_ray(folder: Path, count: int) -> dict[str, Any]:
    """The stage plan by workers of an embedded Ray, whose start is part of the time."""
    shutil.rmtree(folder / "plan")
    assert write_plan(PoolWriter(str(folder)), RECIPE, engine="ray") == {}
    return {"shards": len(read_plan(PoolLayout(str(folder))))}
