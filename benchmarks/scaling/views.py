"""Three views over columns of the sidecars, of shards whose sidecars are links to a few.

Bar at 8x, 50 million rows: the three views in at most 60 s on two cores.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.scaling.index import write_index
from clipmill.manifests import disk
from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Recipe, Rule, Source, View
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import choose_views, random_like

BASE, UNIT = 6_250_000, "rows"
STEPS = ["three_views", "random_view"]
ROWS = 10_000
TEMPLATES = 16
VIEWS = (
    View(
        name="basic",
        rules=(
            Rule(name="side", where="least(original_width, original_height) >= 200"),
            Rule(name="shape", where="aspect <= 3"),
        ),
    ),
    View(name="english", rules=(Rule(name="language", where="page_lang = 'en'"),)),
    View(
        name="large",
        rules=(Rule(name="bytes", where="image_length >= top(image_length, 0.30)"),),
    ),
)


def sidecar(seed: int) -> pa.Table:
    """10,000 attempts, about 90 % stored."""
    rng = np.random.default_rng(seed)
    stored = rng.random(ROWS) < 0.9

    def numbers(low: int, high: int, kind: pa.DataType) -> pa.Array:
        return pa.array(rng.integers(low, high, ROWS), mask=~stored).cast(kind)

    hexes = [rng.bytes(16).hex() for _ in range(ROWS)]
    hosts = rng.integers(0, 2000, ROWS)
    columns = {
        "url": pa.array(
            [f"https://h{h}.example/{x}.jpg" for h, x in zip(hosts, hexes, strict=True)]
        ),
        "caption": pa.array([f"a photograph of {x[:9]} in {x[9:20]}" for x in hexes]),
        "key": pa.array([f"{seed:05d}{row:04d}" for row in range(ROWS)]),
        "uid": pa.array(hexes),
        "status": pa.array(np.where(stored, "success", "failed_to_download")),
        "reason": pa.array(np.where(stored, "", "dns"), mask=stored),
        "original_width": numbers(50, 2000, SIDECAR.field("original_width").type),
        "original_height": numbers(50, 2000, SIDECAR.field("original_height").type),
        "image_length": numbers(3_000, 90_000, SIDECAR.field("image_length").type),
        "page_lang": pa.array(rng.choice(["en", "de", "fr", "ru", "ja"], ROWS)),
        "sha256": pa.array([x + x for x in hexes], mask=~stored),
    }
    arrays = []
    for field in SIDECAR:
        values = columns.get(field.name)
        arrays.append(pa.nulls(ROWS, field.type) if values is None else values.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=SIDECAR)


def prepare(folder: Path, count: int) -> None:
    """The index and the sidecars."""
    shards = count // ROWS
    pool, layout = str(folder), PoolLayout(str(folder))
    for template in range(TEMPLATES):
        disk.write_parquet(folder / f"template-{template}.parquet", sidecar(template), {})
    for shard in range(shards):
        path = disk.local_path(layout.sidecar(shard))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / f"template-{shard % TEMPLATES}.parquet", path)
        record = path.with_name(path.name.replace(".parquet", "_stats.json"))
        record.write_text("{}")  # it is listed, and not read: the index has it
    write_index(pool, shards)


def three_views(folder: Path, count: int) -> None:
    """One command that makes all three."""
    recipe = Recipe(
        name="scale", source=Source(kind="files", paths=("x.csv",)), filters=(), views=VIEWS
    )
    documents = choose_views(PoolWriter(str(folder)), recipe, commits=read_commits(str(folder)))
    assert documents["basic"].funnel[0][1] == count
    assert abs(documents["large"].thresholds["top(image_length, 0.30)"].share - 0.3) < 0.01


def random_view(folder: Path, count: int) -> None:
    """A random view as large as one of them: every uid is hashed."""
    documents = random_like(PoolWriter(str(folder)), "large")
    assert documents["random_like_large"].kept > 0
