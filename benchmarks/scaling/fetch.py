"""Small images fetched from a web on loopback by workers of Ray, and every file verified after it.

Asked for at 8x, 200,000 images: the driver's memory stays, and every row ends as the web made it
end. The web runs in a process that is not counted.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scaling import processes, web
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.schema import Fetch, Recipe, Source
from clipmill.pipeline import recipe_run
from clipmill.pipeline.audit.integrity import audit_pool

BASE, UNIT = 25_000, "images"
STEPS = ("fetch", "fetch_again", "verify")
ROWS_PER_SHARD = 1000
HOSTS = 200


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    """The web while a size is measured; where it is, is written down for the steps."""
    with web.serving(HOSTS) as (process, port):
        disk.write_json(str(folder / "web.json"), {"pid": process.pid, "port": port})
        yield


def recipe(folder: Path) -> Recipe:
    """A list of URLs, politeness as it is by default."""
    return Recipe(
        name="scale",
        source=Source(kind="table", paths=(str(folder / "list.parquet"),)),
        fetch=Fetch(
            rows_per_shard=ROWS_PER_SHARD,
            user_agent="scale/1 (scale@clipmill.example)",
            allow_private=True,
            allow_ports=(disk.read_json(folder / "web.json")["port"],),
        ),
        filters=(),
        views={},
    )


def prepare(folder: Path, count: int) -> None:
    """The list, and the stages before the fetch."""
    port, hosts = disk.read_json(folder / "web.json")["port"], web.hosts(HOSTS)
    urls = [f"http://{hosts[n % HOSTS]}:{port}{web.path_of(n)}" for n in range(count)]
    captions = [f"the caption of image number {n}" for n in range(count)]
    pq.write_table(pa.table({"url": urls, "caption": captions}), folder / "list.parquet")
    recipe_run.build(recipe(folder), str(folder / "pool"), engine="inline", until="plan")


def fetch(folder: Path, count: int) -> dict[str, Any]:
    """The stage fetch on an embedded Ray, whose start is part of the time."""
    server = disk.read_json(folder / "web.json")
    before_s, before = processes.cpu_s(server["pid"]), _requests(server["port"])
    totals = recipe_run.build(recipe(folder), str(folder / "pool"), engine="ray", until="fetch")
    assert not totals["failed"], totals["failed"]
    counts = read_commits(str(folder / "pool")).totals
    outcomes = {"stored": counts.stored, **counts.reasons}
    assert outcomes == web.expected(count), f"{outcomes} instead of {web.expected(count)}"
    requests = _requests(server["port"]) - before
    assert requests == count, f"the web saw {requests} requests for {count} images"
    return {
        "outcomes": outcomes,
        "requests": requests,
        "server_cpu_s": round(processes.cpu_s(server["pid"]) - before_s, 3),
        "shards": counts.shards,
    }


def fetch_again(folder: Path, count: int) -> None:
    """The same when everything is there: what is found out before the first ticket."""
    totals = recipe_run.build(recipe(folder), str(folder / "pool"), engine="ray", until="fetch")
    assert not totals["changed"]


def verify(folder: Path, count: int) -> None:
    """clipmill audit verify: every byte of every file."""
    result = audit_pool(str(folder / "pool"), verify_files=True)
    assert result.is_fine, result
    assert result.counts is not None
    assert result.counts.fetch.attempted == count


def _requests(port: int) -> int:
    url = f"http://{web.hosts(1)[0]}:{port}/_requests"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(answer.read())
