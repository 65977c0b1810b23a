"""The stage plan: pairs to shards in fetch order, by tickets. This process holds counts only.

Sort, slice and merge (shuffle.py) leave scratch files in POOL/plan/.shuffle and the files of the
plan; plan.json, written last, makes them visible. A plan that was stopped goes on with the files
that are there, and ends in the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk, identity
from manifests.columns import REASONS
from manifests.commits import read_commits
from manifests.pool_layout import PoolLayout
from manifests.schema import SOURCES, Fetch, Recipe
from pipeline.crawl import ranges_of, read_parts
from pipeline.exchange import NUMBER
from pipeline.executor import Engine, Stage, Ticket, Tickets, Work, execute
from pipeline.planning.assignment import FilePart, cells_of, file_parts, shard_sizes
from pipeline.planning.host_groups import PLAN_VERSION, host_groups
from pipeline.planning.plan_files import (
    SHARDS,
    Plan,
    Round,
    is_planned,
    plan_json,
    read_plan,
    read_rounds,
    shards_file,
)
from pipeline.planning.plan_identity import check_unchanged, first_form_hash, pairs_hash
from pipeline.planning.shuffle import (
    KEYS_PER_SHARD,
    Config,
    cell_bounds,
    merge_runs,
    retried_keys,
    run_of,
    slice_groups,
    sort_pairs,
    sort_retries,
)
from pipeline.pool import check_fence

FORM = 2  # of the files of a plan
ROWS_PER_TICKET = 500_000  # of a run, and of a file of the plan
BYTES_PER_TICKET = 256 * 2**20  # of the same in memory; a ticket needs about three times that
FEW = 500_000  # rows up to which starting workers would take longer than the work
THREADS = 16  # that read small files: a remote store answers each after about 30 ms
Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


def settings_hash(fetch: Fetch) -> str:
    """Hash of the fetch settings that decide what is stored."""
    return disk.content_hash(identity.fetch_identity(fetch))


def write_plan(
    pool: str,
    recipe: Recipe,
    *,
    engine: Engine = "inline",
    workers: int | None = None,
    fence: int | None = None,
) -> Mapping[str, str]:
    """Plan the pairs of a pool, or check the plan that is there. Returns {task: error}: {} where
    there is a plan. fence: that of the lease.

    ValueError where the plan was made of another recipe or of other pairs: it names what changed.
    LeaseLost where another command has taken the lease over.
    """
    parts = read_parts(pool)
    if not len(parts):
        raise ValueError(f"{pool} has no pairs to plan; run the stage crawl first")
    expected = parts["parts"][0].as_py() or len(parts)
    if len(parts) != expected:
        raise ValueError(
            f"{pool}/pairs has {len(parts)} of {expected} parts; "
            "run the stage crawl to its end first"
        )
    rows = parts["pairs"].to_numpy()
    rows_per_shard = recipe.fetch.rows_per_shard
    by_host = SOURCES[recipe.source.kind].images == "web"
    metadata = {
        "version": PLAN_VERSION,
        "form": FORM,
        "pairs": pairs_hash(parts),
        "recipe_hash": identity.recipe_hash(recipe),
        "recipe": identity.recipe_identity(recipe),
        # None: each shard is a group of its own
        "groups": host_groups(int(rows.sum()), rows_per_shard) if by_host else None,
        "round": 0,
    }
    per_ticket = _rows_per_ticket(int(rows.sum()), int(parts["bytes"].to_numpy().sum()))
    config = _config(pool, recipe, metadata, 0, per_ticket) | {"fence": fence}
    check_fence(pool, fence)
    if is_planned(pool):
        first = read_rounds(pool)[0]
        pairs = first_form_hash(pool, parts) if first.is_first_form else metadata["pairs"]
        check_unchanged(first.metadata, {**metadata, "pairs": pairs}, recipe, pool)
        _remove_scratch(pool, config["job"])  # a round of retries may have been stopped
        return {}
    tickets = _ranges(rows, per_ticket)
    return _shuffle(config, metadata, sort_pairs, tickets, int(rows.sum()), engine, workers)


def add_retries(
    pool: str,
    recipe: Recipe,
    keys: Sequence[str] | None = None,
    *,
    engine: Engine = "inline",
    workers: int | None = None,
    fence: int | None = None,
) -> Mapping[str, str]:
    """Plan a further round that fetches rows again. Returns {task: error}. fence: as above.

    `keys` are the keys of the rows; None: those of all committed rows whose outcome is transient. A
    key that an earlier round retries already is left out: that row is still to come, or it has a
    key of its own. No round is written where no key is left. ValueError for keys of no row.
    """
    plan, rounds = read_plan(pool), read_rounds(pool)
    if keys is None:
        shards, asked = _shards_to_retry(pool), None
    else:
        asked = np.array([int(key) for key in keys], dtype=np.int64)
        _check_keys(pool, plan, asked)
        asked = np.setdiff1d(asked, retried_keys(rounds, 0, len(plan)))
        shards = np.unique(asked // KEYS_PER_SHARD)
    if not len(shards):
        _remove_scratch(pool)
        return {}
    number = len(rounds)
    inherited = ("version", "pairs", "recipe_hash", "recipe", "groups")
    metadata = {name: rounds[0].metadata[name] for name in inherited}
    metadata |= {"form": FORM, "round": number}
    rows = plan.rows[shards]
    config = _config(pool, recipe, metadata, len(plan), ROWS_PER_TICKET)
    config |= {
        "keys": None if asked is None else asked.tolist(),
        "rounds": [_round_plain(each) for each in rounds],
        "fence": fence,
    }
    check_fence(pool, fence)
    config["job"] = disk.content_hash([config["job"], config["keys"], shards.tolist()])
    tickets = _shard_ranges(shards, rows, ROWS_PER_TICKET)
    return _shuffle(config, metadata, sort_retries, tickets, int(rows.sum()), engine, workers)


def _round_plain(each: Round) -> dict[str, Any]:
    """What a ticket needs of a round, JSON."""
    needed = {}
    for name in ("shards", "files"):
        if name in each.metadata:
            needed[name] = each.metadata[name]
    return {**disk.to_plain(each), "metadata": needed}


# --- before the shuffle -------------------------------------------------------------------------


def _rows_per_ticket(rows: int, size: int) -> int:
    return max(1, min(ROWS_PER_TICKET, BYTES_PER_TICKET * rows // max(size, 1)))


def _config(
    pool: str, recipe: Recipe, metadata: Mapping[str, Any], first_shard: int, rows_per_file: int
) -> Config:
    """What the tickets of a round need, JSON."""
    folder = PoolLayout(pool).plan_round(metadata["round"])
    decides = [metadata["version"], metadata["pairs"], metadata["recipe"], metadata["groups"]]
    decides += [metadata["round"], first_shard, rows_per_file]
    return {
        "pool": pool,
        "folder": folder,
        "scratch": disk.join(PoolLayout(pool).plan_round(0), ".shuffle"),
        "job": disk.content_hash(decides),
        "round": metadata["round"],
        "groups": metadata["groups"],
        "group_count": metadata["groups"] or 1,
        "first_shard": first_shard,
        "settings": settings_hash(recipe.fetch),
        "rows_per_shard": recipe.fetch.rows_per_shard,
        "rows_per_file": rows_per_file,
        "extra_columns": recipe.source.extra_columns,
        "locked": recipe.source.kind == "lock",  # the source has the outcomes and hashes of a lock
    }


def _ranges(rows: Integers, rows_per_ticket: int) -> Tickets:
    """Tickets over (part, start, stop), each of `rows_per_ticket` rows, the last one of fewer."""
    bounds = np.concatenate([[0], np.cumsum(rows)])
    total = int(bounds[-1])

    def make(number: int) -> Ticket:
        start, stop = number * rows_per_ticket, min((number + 1) * rows_per_ticket, total)
        ranges = ranges_of(bounds, start, stop)
        return _ticket("sort", number, {"ranges": ranges})

    return Tickets(np.arange(-(-total // rows_per_ticket)), make)


def _shard_ranges(shards: Integers, rows: Integers, rows_per_ticket: int) -> Tickets:
    """Tickets over consecutive shards of about `rows_per_ticket` rows together."""
    number_of = (np.cumsum(rows) - rows) // rows_per_ticket
    numbers, first = np.unique(number_of, return_index=True)
    ends = [*first[1:].tolist(), len(shards)]

    def make(number: int) -> Ticket:
        return _ticket("sort", number, {"shards": shards[first[number] : ends[number]].tolist()})

    return Tickets(np.arange(len(numbers)), make)


def _ticket(step: str, number: int, payload: dict[str, Any]) -> Ticket:
    name = f"{step}-{number:05d}"
    return Ticket(id=name, group=name, payload={"number": number, **payload})


def _shards_to_retry(pool: str) -> Integers:
    """The committed shards that have rows to retry, as far as the counts of their reasons say."""
    commits = read_commits(pool, ["reasons"])
    is_asked = np.zeros(len(commits), dtype=bool)
    start = 0
    transient = pa.array([name for name, kind in REASONS.items() if kind == "transient"])
    for chunk in commits.column("reasons").chunks:
        flags = pc.is_in(chunk.keys, transient).to_numpy(zero_copy_only=False)
        before = np.concatenate([[0], np.cumsum(flags)])
        offsets = chunk.offsets.to_numpy()  # into the keys of all chunks that share the buffer
        is_asked[start : start + len(chunk)] = np.diff(before[offsets]) > 0
        start += len(chunk)
    return commits.shards[is_asked]


def _check_keys(pool: str, plan: Plan, keys: Integers) -> None:
    shards, positions = keys // KEYS_PER_SHARD, keys % KEYS_PER_SHARD
    is_shard = (shards >= 0) & (shards < len(plan))
    known = is_shard.copy()
    known[is_shard] = positions[is_shard] < plan.rows[shards[is_shard]]
    if not known.all():
        raise ValueError(
            f"{np.count_nonzero(~known)} of the keys to retry are not in the plan of {pool}"
        )


# --- the shuffle --------------------------------------------------------------------------------


def _shuffle(
    config: Config,
    metadata: dict[str, Any],
    sort: Callable[[Config], Work],
    tickets: Tickets,
    rows: int,
    engine: Engine,
    workers: int | None,
) -> Mapping[str, str]:
    """Sort, slice, merge, and write plan.json. Returns {task: error}."""
    engine = "inline" if rows <= FEW else engine
    runs = config["runs"] = len(tickets)

    def run(name: str, work: Callable[[Config], Work], todo: Tickets) -> Mapping[str, str]:
        stage = Stage(name=name, work=work, config=config)
        return execute(stage, todo, engine=engine, workers=workers).failed

    if failed := run("plan: sort", sort, _left(tickets, _written(config, "index"))):
        return failed
    group_rows = _sum_diffs(config, is_sliced=False)
    if not group_rows.sum() and config["round"]:
        _remove_scratch(config["pool"])
        return {}
    cells = cells_of(group_rows, config["rows_per_file"])
    config["slices"] = cells.slices.tolist()
    is_sliced = len(cells.groups) > len(cells.slices)
    if is_sliced:
        slicing = Tickets(np.arange(runs), lambda number: _ticket("slice", number, {}))
        if failed := run("plan: slice", slice_groups, _left(slicing, _written(config, "cells"))):
            return failed
    cell_rows = _sum_diffs(config, is_sliced=True) if is_sliced else group_rows
    groups, sizes = shard_sizes(group_rows, config["rows_per_shard"])
    parts = file_parts(sizes, cell_rows, config["rows_per_file"])

    def merge_ticket(number: int) -> Ticket:
        shards = slice(parts[number].first_shard, parts[number].end_shard)
        lists = {"groups": groups[shards].tolist(), "sizes": sizes[shards].tolist()}
        return _ticket("merge", number, {**disk.to_plain(parts[number]), **lists})

    merging = Tickets(np.arange(len(parts)), merge_ticket)
    if failed := run("plan: merge", merge_runs, _left(merging, _merged(config, len(parts)))):
        return failed
    _commit(config, metadata, group_rows, groups, parts)
    return {}


def _left(tickets: Tickets, done: npt.NDArray[np.bool_]) -> Tickets:
    """The tickets whose work is not done."""
    numbers = np.flatnonzero(~done[: len(tickets)])
    return Tickets(numbers, lambda position: tickets.make(int(numbers[position])))


def _written(config: Config, suffix: str) -> npt.NDArray[np.bool_]:
    """(runs,) whether a file of each run is there. One listing."""
    names = set(disk.list_names(config["scratch"]))
    paths = [run_of(config, number).path(suffix) for number in range(config["runs"])]
    return np.array([path.rpartition("/")[2] in names for path in paths], dtype=bool)


def _merged(config: Config, count: int) -> npt.NDArray[np.bool_]:
    """(files,) whether each file of the plan is there, from this job."""
    folder = config["folder"]
    names = set(disk.list_names(folder, ".parquet"))
    done = []
    for number in range(count):
        path = shards_file(folder, number)
        is_there = path.rpartition("/")[2] in names
        done.append(is_there and disk.read_metadata(path).get("job") == config["job"])
        if is_there and not done[-1]:
            check_fence(config["pool"], config["fence"])
            disk.remove(path)  # of a plan of other pairs that was not completed
    return np.array(done, dtype=bool)


def _sum_diffs(config: Config, *, is_sliced: bool) -> Integers:
    """(cells,) or (groups,) rows of each, in all runs."""
    runs = [run_of(config, number) for number in range(config["runs"])]
    total = np.zeros(config["group_count"], np.int64)
    if is_sliced:
        total = np.zeros(sum(config["slices"]), np.int64)
    with ThreadPoolExecutor(THREADS) as threads:
        for bounds in threads.map(lambda run: cell_bounds(run, is_sliced), runs):
            total += np.diff(bounds)
    return total


def _commit(
    config: Config,
    metadata: dict[str, Any],
    group_rows: Integers,
    shard_groups: Integers,
    parts: Sequence[FilePart],
) -> None:
    """Write shards.parquet and, of a round of retries, retried.parquet; then plan.json."""
    folder = config["folder"]
    shards = pa.concat_tables([SHARDS.empty_table(), *_shard_tables(config, parts)])
    check_fence(config["pool"], config["fence"])
    disk.write_parquet(disk.join(folder, "shards.parquet"), shards)
    if config["round"]:
        _write_retried(config)
    counts = np.bincount(shard_groups, minlength=len(group_rows))
    document = {
        **metadata,
        "shards": len(shards),
        "rows": int(group_rows.sum()),
        "first_shard": config["first_shard"],
        "files": [part.first_shard for part in parts],  # the first shard of each file
        "group_rows": group_rows.tolist() if metadata["groups"] else None,
        "group_shards": counts.tolist() if metadata["groups"] else None,
    }
    check_fence(config["pool"], config["fence"])
    disk.write_json(plan_json(folder), document, sealed=True)
    _remove_scratch(config["pool"])
    logger.info("planned %d pairs as %d shards", document["rows"], len(shards))


def _shard_tables(config: Config, parts: Sequence[FilePart]) -> Iterator[pa.Table]:
    """The rows of SHARDS of each file of a round, from their footers."""
    paths = [shards_file(config["folder"], number) for number in range(len(parts))]
    with ThreadPoolExecutor(THREADS) as threads:
        for number, footer in enumerate(threads.map(disk.read_metadata, paths)):
            count = len(footer["sizes"])
            shards = np.arange(count) + config["first_shard"] + footer["first_shard"]
            yield pa.table(
                {
                    "shard": shards,
                    "group": footer["groups"] if config["groups"] else shards,
                    "rows": footer["sizes"],
                    "id": footer["ids"],
                    "file": np.full(count, number),
                    "row_group": np.arange(count),
                },
                SHARDS,
            )


def _write_retried(config: Config) -> None:
    """retried.parquet: the keys that this round retries, ascending."""
    schema = pa.schema([("key", pa.int64())])
    with disk.scratch_folder("clipmill-plan-") as scratch:
        staged = Path(scratch) / "retried.parquet"
        with disk.parquet_writer(
            staged, schema, compression="zstd", write_page_checksum=True
        ) as writer:
            for number in range(config["runs"]):
                data = disk.read_bytes(run_of(config, number).path("retried"))
                writer.write_table(pa.table({"key": np.frombuffer(data, NUMBER)}, schema))
        disk.publish(staged, disk.join(config["folder"], "retried.parquet"))


def _remove_scratch(pool: str, job: str = "") -> None:
    """Remove what sort and slice left, of one job or of all."""
    folder = disk.join(PoolLayout(pool).plan_round(0), ".shuffle")
    names = [name for name in disk.list_names(folder) if name.startswith(f"run-{job}")]
    paths = [disk.join(folder, name) for name in names]
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(disk.remove, paths))
