"""Two labs and a web on loopback: pools of drawn images, their locks, and pools from these."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS
from clipmill.manifests.commits import read_commits, rebuild_index
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Fetch, Recipe, Rule, Source, View
from clipmill.pipeline import recipe_run
from clipmill.pipeline.fetch.download import row_not_asked, row_of
from clipmill.pipeline.fetch.fetcher import Fetched
from clipmill.pipeline.lock.rebuild import recipe_of_lock, write_lock_plan
from clipmill.pipeline.planning.plan_files import read_plan, read_shard
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter
from clipmill.pipeline.views.files import choose_views
from tests.support import plans
from tests.support.pairs import write_part
from tests.support.sidecars import read_sidecar
from tests.support.web_files import FileServer

ROWS_PER_SHARD = 20
VIEWS = (
    View(name="raw"),
    View(name="long", rules=(Rule(name="words", where="length(caption) > 14"),)),
)


def image(number: int, side: int = 24) -> bytes:
    """A JPEG that no other number has."""
    sink = io.BytesIO()
    colour = (number % 256, number // 256 % 256, 7 * number % 256)
    Image.new("RGB", (side, side), colour).save(sink, "JPEG", quality=90)
    return sink.getvalue() + number.to_bytes(4, "big")


def serve(count: int) -> FileServer:
    """A web of so many images; change `files` to change it."""
    return FileServer({f"/{i}.jpg": image(i) for i in range(count)}, ranges=False)


def url(number: int) -> str:
    return f"http://h{number % 5}.web.test/{number}.jpg"


def own_settings(web: FileServer) -> dict[str, Any]:
    """What each lab says itself about its requests."""
    return {
        "user_agent": "tests/1 (tests@example.org)",
        "allow_private": True,
        "connect_to": {"*.web.test": web.base.removeprefix("http://").rstrip("/")},
        "site_files": [],
        "robots_txt": False,
        "retries": 0,
        "per_host": 8,
        "deadline_s": 240.0,
    }


def write_list(folder: Path, count: int) -> Path:
    """A list of the images of the web; every third caption is longer than the others."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "list.csv"
    with open(path, "w", newline="") as f:
        table = csv.writer(f)
        table.writerow(["url", "caption"])
        for i in range(count):
            table.writerow([url(i), f"image number {i}" + " of the third kind" * (i % 3 == 0)])
    return path


def recipe(web: FileServer, path: Path, **fetch: Any) -> Recipe:
    settings = own_settings(web) | {"rows_per_shard": ROWS_PER_SHARD, "image_size": 16} | fetch
    return Recipe(
        name="ours",
        source=Source(kind="table", paths=(str(path),)),
        fetch=disk.from_plain(Fetch, settings),
        views=VIEWS,
    )


def build_first(web: FileServer, folder: Path, count: int, **fetch: Any) -> str:
    """The pool of the first lab."""
    pool = str(folder / "first")
    of_web = recipe(web, write_list(folder, count), **fetch)
    assert not recipe_run.build(of_web, pool, engine="inline")["failed"]
    return pool


def words(web: FileServer) -> list[str]:
    """The same as `own_settings`, as words of --set."""
    return [f"{key}={json.dumps(value)}" for key, value in own_settings(web).items()]


def rebuild(web: FileServer, lock: str, pool: Path, retry: str | None = None) -> dict[str, Any]:
    """A pool from a lock; what the build returns."""
    of_lock = recipe_of_lock(lock, words(web))
    return recipe_run.build(of_lock, str(pool), engine="inline", retry=retry)


def rows_of(pool: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of all sidecars in order."""
    rows: list[dict[str, Any]] = []
    for shard in read_commits(pool).names():
        rows += read_sidecar(pool, shard, None if columns is None else list(columns)).to_pylist()
    return rows


def tars(pool: str) -> list[bytes]:
    """The tars of a pool."""
    commits = read_commits(pool)
    return [disk.read_bytes(commits.tar(shard)) for shard in commits.names()]


# --- pools without a web --------------------------------------------------------------------------

Outcome = Callable[[int], str | None]  # of a row by its number: a reason, None where it is stored


def local_recipe(rows_per_shard: int = 10, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "name": "ours",
        "source": Source(kind="table", paths=("list.csv",)),
        "fetch": Fetch(rows_per_shard=rows_per_shard, user_agent="x/1"),
        "views": VIEWS,
    }
    return Recipe(**(values | changes))


def make_pool(
    folder: Path, count: int = 40, outcome: Outcome = lambda _: None, **changes: Any
) -> str:
    """A complete pool of so many pairs, as a build leaves it."""
    pool, recipe_ = str(folder), local_recipe(**changes)
    rows = []
    for i in range(count):
        caption = f"image number {i}" + " of the third kind" * (i % 3 == 0)
        own = {"link": i, "title": f"title {i}", "page_url": "http://page.test/", "wat": "list.csv"}
        rows.append({"uid": disk.uid_of(url(i), caption), "url": url(i), "caption": caption, **own})
    write_part(pool, pa.Table.from_pylist(rows, schema=PAIRS), wat="list.csv")
    for task in plans.planned(pool, recipe_):
        write_planned(pool, task.shard, outcome)
    finish(pool, recipe_)
    return pool


def finish(pool: str, recipe_: Recipe) -> None:
    """The views and documents of a build."""
    rebuild_index(pool)
    if recipe_.views:
        choose_views(PoolWriter(pool), recipe_)
    disk.write_json(PoolLayout(pool).recipe_json, recipe_)


def write_planned(
    pool: str,
    shard: int,
    outcome: Outcome = lambda _: None,
    body: Callable[[int], bytes] = image,
    optout: str | None = None,
) -> None:
    """Commit a planned shard; every row ends as `outcome` says of its link number."""
    task = read_plan(PoolLayout(pool)).shard(shard)
    pairs, retried = read_shard(PoolLayout(pool), shard)
    with ShardWriter(PoolWriter(pool), shard, task.id, str(task.group)) as writer:
        for row, pair in enumerate(pairs):
            record = row_not_asked(pair)
            if record is not None:
                writer.add(row, record | {"retry_of": retried[row]}, None)
                continue
            number = pair.link or 0
            reason, data = outcome(number), body(number)
            fetched = Fetched(body=None, reason=reason, optout=optout)
            record = row_of(pair, fetched, None) | {"retry_of": retried[row]}
            if reason is None:
                record["sha256"] = hashlib.sha256(data).hexdigest()
                record |= {"width": 24, "height": 24, "original_width": 24, "original_height": 24}
            writer.add(row, record, data if reason is None else None, {"title": pair.title})
        writer.commit(len(pairs))


def plan_from(lock: str, pool: Path) -> tuple[str, Recipe]:
    """The plan of a pool from a lock."""
    recipe_ = recipe_of_lock(lock, ["user_agent=x/1"])
    write_lock_plan(PoolWriter(str(pool)), recipe_)
    return str(pool), recipe_


def make_from(lock: str, folder: Path, outcome: Outcome = lambda _: None) -> str:
    """A complete pool from a lock, without its views."""
    pool, recipe_ = plan_from(lock, folder)
    for shard in range(len(read_plan(PoolLayout(pool)))):
        write_planned(pool, shard, outcome)
    finish(pool, recipe_)
    return pool
