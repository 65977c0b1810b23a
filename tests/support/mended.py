"""A pool with damages of every kind that a repair mends, for repairs that are killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from manifests.commits import read_commits, update_index
from manifests.layout import PoolLayout
from manifests.schema import Fetch, FilterSpec, Recipe, Source, View
from pipeline import recipe_run
from pipeline.audit.repair import repair_pool
from pipeline.pool.lease import read_sidecar
from tests.support import audited

VOLATILE = ["fetched_at", "elapsed_ms", "attempts"]


def build_pool(folder: Path, rows: int = 12, per_shard: int = 5) -> str:
    """A pool of local files with a score set and a view."""
    source = folder / "source"
    source.mkdir(parents=True)
    for i in range(rows):
        (source / f"{i}.jpg").write_bytes(audited.image_bytes(30 + i, i))
    table = "\n".join(f"{i}.jpg,image {i}" for i in range(rows))
    (source / "captions.csv").write_text(f"file,caption\n{table}\n")
    recipe = Recipe(
        name="mended",
        source=Source(kind="files", paths=(str(source / "captions.csv"),)),
        fetch=Fetch(rows_per_shard=per_shard),
        filters=(FilterSpec(name="caption"),),
        views=(View(name="raw"),),
    )
    pool = str(folder / "pool")
    recipe_run.build(recipe, pool, engine="inline")
    update_index(pool)
    return pool


def damage(pool: Path) -> None:
    """A tar, a sidecar and a commit record of three shards."""
    tar = pool / "shards/00000.tar"
    data = bytearray(tar.read_bytes())
    data[2000] ^= 1
    tar.write_bytes(data)
    (pool / "shards/00001.parquet").write_bytes(b"PAR1")
    record = pool / "shards/00002_stats.json"
    record.write_bytes(record.read_bytes()[:40])


def copy_of(whole: Path, pool: Path) -> str:
    """A damaged copy of a pool."""
    shutil.copytree(whole, pool)
    damage(pool)
    return str(pool)


def repair(pool: str) -> None:
    """What a killed process runs."""
    repair_pool(pool)


def contents(pool: str) -> dict[str, Any]:
    """What readers get: rows without what two fetches never share, and the bytes of the tars."""
    commits, layout = read_commits(pool), PoolLayout(pool)
    contents: dict[str, Any] = {}
    for name in commits.names():
        record = commits.record(name)
        rows = read_sidecar(pool, name).drop_columns(VOLATILE).to_pylist()
        contents[name] = rows, Path(layout.tar(record)).read_bytes(), record.sidecar_sha256
    for path in [*Path(pool).glob("scores/**/*"), *Path(pool).glob("views/**/*")]:
        if path.is_file():
            contents[str(path.relative_to(pool))] = path.read_bytes()
    return contents
