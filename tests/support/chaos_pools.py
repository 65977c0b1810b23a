"""Small pools and the commands that change them, for tests that kill the commands anywhere.

The functions run in children of `forked_commands`. In these children the durations that end up in
files are 0 and all times equal, so that the files of two runs can be compared byte by byte; images
are decoded in the process itself, because its children for that write no files.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from clipmill.manifests import disk
from clipmill.manifests.commits import IndexWriter, read_commits
from clipmill.manifests.disk import files as retry
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import Pair
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.audit.integrity import verify
from clipmill.pipeline.fetch import download
from clipmill.pipeline.fetch.fetcher import Fetched
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import contained, limits_of
from clipmill.pipeline.lock.lock_writer import write_lock
from clipmill.pipeline.pool.lease import hold_lease
from tests.conftest import draw
from tests.support import commands, locked_pools, small_pool
from tests.support.bundles import damage_shard
from tests.support.commit_records import read_commit_records
from tests.support.sidecars import read_sidecar

RECIPE = """
name: chaos
source: {{kind: files, paths: [{captions}]}}
fetch: {{image_size: 32, rows_per_shard: 4}}
filters: [caption, picture]
views:
  raw: []
  long: [{{words: caption_words > 3}}, {{half: "caption_chars >= top(caption_chars, 0.5)"}}]
"""
TOYS = Path(__file__).with_name("toy_pool_filters.py")
# Filters that look at the whole pool, one of each form.
WHOLE_POOL = """
name: chaos
source: {{kind: files, paths: [{captions}]}}
fetch: {{image_size: 32, rows_per_shard: 4}}
filters: [{{often: {{{toys}:Often: {{}}}}}}, {{near: {{{toys}:Near: {{}}}}}}]
"""
PARTITION_BYTES = 1_000  # so that these filters have several partitions
ROWS = 10
real_read_file = download.read_file
NOW = 1_800_000_000.0
VOLATILE = ("lease.json", "progress.json")
# Modules whose durations are written down.
CLOCKS = (
    "clipmill.pipeline.audit.purge",
    "clipmill.pipeline.recipe_run",
    "clipmill.pipeline.fetch.download", "clipmill.pipeline.pool.shard_writer",
    "clipmill.pipeline.scoring.scorer", "clipmill.pipeline.scoring.worker",
)  # fmt: skip


class DecodersHere:
    """In place of Decoders: the same answers, without child processes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> DecodersHere:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    async def decode(
        self, body: bytes, settings: Any, boxes: Any = (), *, hashed: bool = False
    ) -> Any:
        try:
            return contained(body, limits_of(settings), boxes, hashed)
        except RejectedImage as rejected:
            return rejected


class FetcherHere:
    """In place of Fetcher: the images of `locked_pools`, without requests."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def fetch(
        self, pairs: Sequence[Pair], number: int
    ) -> AsyncGenerator[tuple[int, Fetched], None]:
        for row, pair in enumerate(pairs):
            body = locked_pools.image(int(pair.url.rpartition("/")[2][:-4]))
            yield row, Fetched(body=body, reason=None, fetched_at=NOW, attempts=1)

    async def close(self) -> None:
        pass


def make_comparable() -> None:
    """Let what this process writes depend on no clock."""
    clock = SimpleNamespace(
        time=lambda: NOW, monotonic=lambda: 0.0, perf_counter=lambda: 0.0, sleep=lambda _: None
    )
    for name in CLOCKS:
        importlib.import_module(name).time = clock  # type: ignore[attr-defined]
    download.Decoders = DecodersHere  # type: ignore[misc, assignment]
    download.Fetcher = FetcherHere  # type: ignore[misc, assignment]
    download.read_file = read_file  # type: ignore[assignment]
    retry.FIRST_PAUSE_S = 0.01
    outcomes = importlib.import_module("clipmill.pipeline.executor.tickets")
    outcomes.RETRY_PAUSE_S = 0.0  # type: ignore[attr-defined]


def read_file(path: str, max_bytes: int) -> Fetched:
    """As that of the fetch, but files listed in `offline` beside them cannot be reached."""
    offline = Path(path).parent / "offline"
    if offline.exists() and Path(path).name in offline.read_text().split():
        return Fetched(body=None, reason="dns", detail="", fetched_at=NOW, attempts=1)
    return real_read_file(path, max_bytes)


def command(entry: str, *words: str) -> int:
    """The exit status of a command, such as `build`."""
    make_comparable()
    return commands.run(entry, words)


# --- commands -------------------------------------------------------------------------------------


def write_inputs(inputs: Path) -> None:
    draw(inputs, ROWS)
    (inputs / "recipe.yaml").write_text(RECIPE.format(captions=inputs / "captions.csv"))
    whole_pool = WHOLE_POOL.format(captions=inputs / "captions.csv", toys=TOYS)
    (inputs / "whole_pool.yaml").write_text(whole_pool)


def nothing(inputs: Path, pool: Path) -> None:
    pass


def build(inputs: str, pool: str) -> int:
    recipe = f"{inputs}/recipe.yaml"
    return command("build", recipe, "--out", pool, "--engine", "inline")


def build_until_fetch(inputs: Path, pool: Path) -> None:
    recipe = str(inputs / "recipe.yaml")
    words = ("--out", str(pool), "--engine", "inline", "--until", "fetch")
    assert command("build", recipe, *words) == 0


def build_all(inputs: Path, pool: Path) -> None:
    assert build(str(inputs), str(pool)) == 0


def score(inputs: str, pool: str) -> int:
    return command("score", pool, "--recipe", f"{inputs}/recipe.yaml", "--engine", "inline")


def score_pool(inputs: str, pool: str) -> int:
    job = importlib.import_module("clipmill.pipeline.cross_row")
    job.PARTITION_BYTES = PARTITION_BYTES  # type: ignore[attr-defined]
    return command("score", pool, "--recipe", f"{inputs}/whole_pool.yaml", "--engine", "inline")


def choose(inputs: str, pool: str) -> int:
    return command("filter", pool, "--recipe", f"{inputs}/recipe.yaml")


def numbered_pool(inputs: Path, pool: Path) -> None:
    """Shards of three bundles."""
    given = list(enumerate(small_pool.rows(12)))
    for i, number in enumerate((2999, 3000, 3001, 4002)):
        small_pool.write_shard(str(pool), number, given[3 * i : 3 * i + 3])


def scored_numbered_pool(inputs: Path, pool: Path) -> None:
    numbered_pool(inputs, pool)
    assert score(str(inputs), str(pool)) == 0


def reindex(inputs: str, pool: str) -> int:
    return command("audit", "reindex", pool)


def extend_index(inputs: str, pool: str) -> int:
    """A batch for each shard, so that files of the index are merged."""
    make_comparable()
    with hold_lease(pool), IndexWriter(pool, batch_rows=1) as index:
        known = {f"{shard:05d}" for shard in index.commits.shards.tolist()}
        records = read_commit_records(pool)
        index.forget([int(shard) for shard in sorted(known)[:2]])
        for record in records.values():
            index.add(record)
    return 0


def many_shards(inputs: Path, pool: Path) -> None:
    given = list(enumerate(small_pool.rows(10)))
    for number in range(10):
        small_pool.write_shard(str(pool), number, given[number : number + 1])


def damage(inputs: Path, pool: Path) -> None:
    """A flipped bit in a tar, a missing sidecar, a cut record, score columns and a mask."""
    build_all(inputs, pool)
    flip(next((pool / "shards").glob("00000.tar")), 700)
    (pool / "shards" / "00001.parquet").unlink()
    record = pool / "shards" / "00002_stats.json"
    record.write_bytes(record.read_bytes()[:-20])
    damage_shard(next((pool / "scores").glob("caption@*/bundle-00000.parquet")), 1)
    damage_shard(pool / "views" / "long" / "bundle-00000.parquet", 0)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def repair(inputs: str, pool: str) -> int:
    """Repair, and make again what a repair only removes."""
    status = command("audit", "repair", pool)
    if status not in (0, 3):
        return status
    return build(inputs, pool)


def purge(inputs: str, pool: str) -> int:
    return command("audit", "purge", pool, f"url={inputs}/1.jpg", f"url={inputs}/6.jpg")


def lock(_: str, pool: str) -> int:
    return command("audit", "lock", pool, f"{pool}/pool.lock.parquet")


def lock_elsewhere(inputs: Path, pool: Path) -> None:
    """The lock of another lab's pool."""
    path = inputs.parent / "their.lock.parquet"
    if not path.exists():
        theirs = locked_pools.make_pool(inputs.parent / "theirs", 12, rows_per_shard=5)
        write_lock(theirs, str(path))


def build_from_lock(inputs: str, pool: str) -> int:
    words = ("--out", pool, "--engine", "inline", "--set", "user_agent=tests/1 (x@example.org)")
    return command("build", "--from-lock", str(Path(inputs).parent / "their.lock.parquet"), *words)


# --- what is there afterwards ---------------------------------------------------------------------


def visible_problems(pool: str) -> list[str]:
    """What a reader of the pool can see that is not complete and whole; staleness is allowed."""
    try:
        lines = verify(pool)
    except ValueError as error:
        return [] if "neither pairs nor committed shards" in str(error) else [str(error)]
    problems = [line for line in lines if ": stale: " not in line]
    for shard, record in read_commit_records(pool).items():
        rows = read_sidecar(pool, shard).num_rows
        if rows != record.count:
            problems.append(f"{shard}: {rows} rows of {record.count}")
    return problems


def state(pool: str) -> dict[str, Any]:
    """Every file of a pool by its content, without the number of the lease that wrote it."""
    files: dict[str, Any] = {}
    for path in sorted(Path(pool).rglob("*")):
        name = str(path.relative_to(pool))
        if path.is_dir() or path.name in VOLATILE or path.name.startswith("."):
            continue
        if name.endswith("_stats.json"):
            files[name] = disk.read_json(path) | {"fence": None}
        elif not name.startswith("index/"):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    commits = read_commits(pool)
    table = commits.table.drop_columns(["fence"])
    index = PoolLayout(pool).index_json
    files["index"] = disk.read_json(index)["closed"] if disk.exists(index) else None
    files["commits"] = (commits.fingerprint, table.to_pylist())
    return files


def problems_at_end(pool: str) -> list[str]:
    """What is wrong with a pool whose command has ended."""
    return [*verify(pool), *count_pool(read_commits(pool)).problems]


# --- what is killed -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool or a run, a command that changes it, and how to look at it. `inputs` has captions.csv
    and recipe.yaml.
    """

    prepare: Callable[[Path, Path], None]  # (inputs, folder): fill the folder before the command
    run: Callable[[str, str], int]  # (inputs, folder) -> exit status
    damaged_before: bool = False  # it may be damaged until the command has ended
    visible: Callable[[str], list[str]] = visible_problems
    problems: Callable[[str], list[str]] = problems_at_end
    state: Callable[[str], dict[str, Any]] = state


SCENARIOS = {
    "build": Scenario(nothing, build),
    "score": Scenario(numbered_pool, score),
    "score_pool": Scenario(build_until_fetch, score_pool),
    "choose": Scenario(scored_numbered_pool, choose),
    "reindex": Scenario(build_all, reindex),
    "extend_index": Scenario(many_shards, extend_index),
    "repair": Scenario(damage, repair, damaged_before=True),
    "purge": Scenario(build_all, purge),
    "lock": Scenario(build_all, lock),
    "from_lock": Scenario(lock_elsewhere, build_from_lock),
}


def prepare(scenario: Scenario, inputs: str, folder: str) -> None:
    make_comparable()
    if not Path(inputs).exists():
        write_inputs(Path(inputs))
    Path(folder).mkdir(parents=True)
    scenario.prepare(Path(inputs), Path(folder))


# --- on a store -----------------------------------------------------------------------------------


def build_on_store(inputs: str, pool: str, pid_file: str) -> int:
    """A build whose process says its id."""
    Path(pid_file).write_text(str(os.getpid()))
    return build(inputs, pool)


def look_at_store(pool: str) -> dict[str, Any]:
    """Commit records without the number of the lease, the counts, and what is wrong."""
    document = disk.read_json(PoolLayout(pool).pool_json)
    table = read_commits(pool).table.drop_columns(["fence"])
    return {
        "commits": table.to_pylist(),
        "counts": {name: document[name] for name in ("complete", "crawl", "fetch", "views")},
        "problems": [*verify(pool), *document["problems"]],
    }


# --- pools to damage ------------------------------------------------------------------------------


def whole_pool(inputs: str, pool: str) -> None:
    """A built pool with everything in it."""
    prepare(SCENARIOS["purge"], inputs, pool)


def bundled_pool(inputs: str, pool: str) -> None:
    """A pool of several bundles, with an index."""
    prepare(SCENARIOS["choose"], inputs, pool)
    assert choose(inputs, pool) == 0
    assert reindex(inputs, pool) == 0
