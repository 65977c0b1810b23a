"""The step of benchmarks/growth.py that asks a web again for rows whose download failed.

The web is a process on loopback, which is not counted. It refuses every image with status 500 while
the pool is built, and serves them when the rows are tried again.
"""

from __future__ import annotations

import contextlib
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scaling import web
from benchmarks.scaling.growth_steps import Step
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline import recipe_run

HOSTS = 20


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    """The web of all sizes; its port is written down for them."""
    with web.serving(HOSTS) as (_, port):
        disk.write_json(str(folder / "web.json"), {"port": port})
        yield


def _port(folder: Path) -> int:
    port: int = disk.read_json(folder.parent / "web.json")["port"]
    return port


def _recipe(folder: Path) -> Recipe:
    return Recipe(
        name="growth",
        source=Source(kind="table", paths=(str(folder / "list.parquet"),)),
        fetch=Fetch(
            user_agent="growth/1 (growth@clipmill.example)",
            allow_private=True,
            allow_ports=(_port(folder),),
            rows_per_shard=1000,
            retries=0,
        ),
        filters=(),
        views={},
    )


def _ask(folder: Path, path: str) -> None:
    url = f"http://{web.hosts(1)[0]}:{_port(folder)}{path}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read()


def _outcomes(folder: Path) -> tuple[int, dict[str, int]]:
    """Images that are stored, and how many rows ended with each reason."""
    totals = read_commits(str(folder / "pool")).totals
    return totals.stored, dict(totals.reasons)


def make_refused(folder: Path, count: int) -> None:
    """A pool whose rows have all failed, and a copy of it."""
    hosts, port = web.hosts(HOSTS), _port(folder)
    urls = [f"http://{hosts[n % HOSTS]}:{port}/late/{n}.jpg" for n in range(count)]
    captions = [f"the caption of image number {n}" for n in range(count)]
    pq.write_table(pa.table({"url": urls, "caption": captions}), folder / "list.parquet")
    _ask(folder, "/_refuse")
    recipe_run.build(_recipe(folder), str(folder / "pool"), engine="inline", until="fetch")
    assert _outcomes(folder) == (0, {"http_5xx": count}), _outcomes(folder)
    shutil.copytree(folder / "pool", folder / "refused")
    _ask(folder, "/_serve")


def forget_retry(folder: Path) -> None:
    shutil.rmtree(folder / "pool")
    shutil.copytree(folder / "refused", folder / "pool")


def retry(folder: Path, count: int) -> None:
    """clipmill build --retry transient: every row is asked for again and stored in a new shard."""
    pool = str(folder / "pool")
    recipe_run.build(_recipe(folder), pool, engine="inline", until="fetch", retry="transient")
    assert _outcomes(folder)[0] == count, _outcomes(folder)


STEPS = {
    "retry": Step(
        stage="fetch", what="rows that failed, tried again", unit="rows", base=1_000,
        prepare=make_refused, run=retry, reset=forget_retry, around=serving,
    ),
}  # fmt: skip
