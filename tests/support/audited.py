"""A pool with everything in it: pairs, plan, shards, a score set and views, written as a build
writes them."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.layout import CommitRecord, PoolLayout
from clipmill.manifests.schema import Fetch, FilterSpec, Recipe, Rule, Source, View
from clipmill.pipeline.planning.plan_files import PlannedShard, read_shard, rows_of_shard
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter
from clipmill.pipeline.scoring import scorer
from clipmill.pipeline.views import files
from tests.support import plans
from tests.support.commit_records import read_commit_records
from tests.support.pairs import write_part
from tests.support.sidecars import read_sidecar

VIEWS = (
    View(name="raw"),
    View(
        name="words",
        rules=(
            Rule(name="big", where="original_width >= 20"),
            Rule(name="many", where="caption_words >= top(caption_words, 0.5)"),
        ),
    ),
    View(name="drawn", rules=(Rule(name="random", random_like="words"),)),
)
RECIPE = Recipe(
    name="audited",
    source=Source(kind="wat", paths=("crawl.wat.gz",)),
    fetch=Fetch(rows_per_shard=10, user_agent="x/1"),
    filters=(FilterSpec(name="caption"),),
    views=VIEWS,
)


def write_pairs(pool: str, count: int = 24) -> list[dict[str, Any]]:
    """One part with two rows that were dropped."""
    rows = []
    for i in range(count):
        url, caption = f"http://host{i % 3}.test/{i}.jpg", " ".join(["word"] * (i % 7 + 1))
        rows.append(
            {
                "uid": disk.uid_of(url, caption),
                "url": url,
                "caption": caption,
                "title": f"title {i}",
                "link": i,
                "page_url": "http://page.test/",
                "wat": "crawl.wat.gz",
                "warc_offset": 100 * i,
            }
        )
    table = pa.Table.from_pylist(rows, schema=PAIRS)
    write_part(pool, table, links=count + 2, reasons={"empty_alt": 2})
    return rows


def image_bytes(width: int, shade: int) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (width, 10), (shade, 90, 10)).save(sink, "JPEG")
    return sink.getvalue()


def write_shard(pool: str, task: PlannedShard) -> CommitRecord:
    """Every fifth link is dead, every eleventh host silent; a retry finds the picture."""
    retried = read_shard(PoolLayout(pool), task.shard)[1]
    with ShardWriter(PoolWriter(pool), task.shard, task.id, str(task.group)) as writer:
        for row, pair in enumerate(rows_of_shard(PoolLayout(pool), task.shard)):
            number = pair.link or 0
            dead = retried[row] is None and (number % 5 == 4 or number % 11 == 2)
            reason = None if not dead else "http_4xx" if number % 5 == 4 else "dns"
            width = 10 + number
            record: dict[str, Any] = {
                "url": pair.url,
                "caption": pair.caption,
                "uid": pair.uid,
                "reason": reason,
            }
            record |= {
                "wat": pair.wat,
                "warc_offset": pair.warc_offset,
                "link": pair.link,
                "page_url": pair.page_url,
            }
            record |= {"retry_of": retried[row], "error_message": reason and "it failed"}
            size = {"width": width, "height": 10, "original_width": width, "original_height": 10}
            writer.add(
                row,
                record if reason else record | size,
                None if reason else image_bytes(width, number),
            )
        return writer.commit(task.size)


def make(folder: Path) -> str:
    """The pool: 24 pairs in two host groups, 3 shards of at most 10."""
    pool = str(folder)
    write_pairs(pool)
    for task in plans.planned(pool, RECIPE):
        write_shard(pool, task)
    score_and_choose(pool)
    return pool


def score_and_choose(pool: str) -> None:
    scorer.score(PoolWriter(pool), RECIPE.filters, engine="inline")
    files.choose_views(PoolWriter(pool), RECIPE)


def recipe_with(*views: View) -> Recipe:
    """RECIPE with other views."""
    return dataclasses.replace(RECIPE, views=views)


def retry_transient(pool: str) -> None:
    """Retry all rows that failed with a transient reason; each of them is stored now."""
    keys = []
    for shard in read_commit_records(pool):
        rows = read_sidecar(pool, shard, ["key", "class"]).to_pylist()
        keys += [row["key"] for row in rows if row["class"] == "transient"]
    for task in plans.retried(pool, RECIPE, keys):
        write_shard(pool, task)


def local_recipe(folder: Path, rows: int = 9, missing: int = 0, **changes: Any) -> Recipe:
    """A recipe of local files in a folder `source`; the last `missing` of them are not there."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    for i in range(rows - missing):
        (source / f"{i}.jpg").write_bytes(image_bytes(30 + i, i))
    table = "\n".join(f"{i}.jpg,image number {i}" for i in range(rows))
    (source / "captions.csv").write_text(f"file,caption\n{table}\n")
    values: dict[str, Any] = {
        "name": "local",
        "source": Source(kind="files", paths=(str(source / "captions.csv"),)),
        "fetch": Fetch(rows_per_shard=4),
        "filters": (FilterSpec(name="caption"),),
        "views": (View(name="raw"),),
    }
    return Recipe(**{**values, **changes})
