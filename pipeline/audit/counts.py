"""Counts of every stage of a pool, from footers and commit records alone, and the counts that
contradict each other."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk, identity, reader
from clipmill.manifests.aligned import view_names
from clipmill.manifests.arrays import Integers
from clipmill.manifests.columns import REASONS, frequencies
from clipmill.manifests.commits import Commits
from clipmill.manifests.layout import PoolLayout, shard_name
from clipmill.manifests.pool import Pool, score_set_names
from clipmill.manifests.records import (
    CrawlCounts,
    FetchCounts,
    FinalCounts,
    PoolCounts,
    PoolDocument,
    ScoreCounts,
    ScoreSetDocument,
    ViewCounts,
    ViewDocument,
    read_document,
)
from clipmill.manifests.schema import ROWS_PER_SHARD_LIMIT, Recipe
from clipmill.pipeline.crawl.parts import dropped_rows, part_totals, read_parts
from clipmill.pipeline.external.adopt import tar_tickets
from clipmill.pipeline.planning import plan_files
from clipmill.pipeline.planning.plan_files import read_plan

# What rows and bytes depend on.
LIBRARIES = ("aiohttp", "duckdb", "fastwarc", "numpy", "pillow", "pyarrow", "simplejpeg")
logger = logging.getLogger(__name__)
T = TypeVar("T")


def count_pool(commits: Commits) -> PoolCounts:
    """Counts and reasons of each stage.

    `problems` has a line for each count that contradicts another. For a row that was retried,
    fetch.final counts the newest outcome only. ValueError where there is no pool.
    """
    problems: list[str] = []
    crawl = _count_crawl(commits.layout, problems)
    if crawl is None and not len(commits) and not plan_files.is_planned(commits.layout):
        raise ValueError(
            f"{commits.pool} has neither pairs nor committed shards; is it the folder of a pool?"
        )
    fetch = _count_fetch(commits, problems)
    complete = fetch.shards == fetch.planned > 0
    first_attempts = fetch.attempted - fetch.retries
    if crawl and complete and crawl.pairs != first_attempts:
        problems.append(
            f"all shards are committed with {first_attempts} rows, "
            f"but there are {crawl.pairs} pairs"
        )
    return PoolCounts(
        crawl=crawl,
        fetch=fetch,
        scores=_count_scores(commits.layout, problems),
        views=_count_views(commits.layout, problems),
        complete=complete,
        problems=tuple(problems),
    )


def recipe_of_pool(layout: PoolLayout) -> Recipe | None:
    """The recipe that the pool was built by, None before its first build has ended."""
    path = layout.recipe_json
    return reader.read_manifest(path, Recipe) if disk.exists(path) else None


def _seconds_before(path: str) -> dict[str, float]:
    """The times of earlier builds; {} with a warning where pool.json is damaged, because all else
    in it is computed again.
    """
    if not disk.exists(path):
        return {}
    try:
        return read_document(path, PoolDocument).seconds
    except ValueError as error:
        logger.warning("%s is written again without the times of earlier builds: %s", path, error)
        return {}


def write_pool_json(
    commits: Commits, recipe: Recipe, seconds: Mapping[str, float]
) -> dict[str, object]:
    """Write pool.json from what is committed, and return it as plain values.

    seconds: time of this build's stages; it is added to that of the builds before. Everything else
    can be computed again at any time.
    """
    layout = commits.layout
    counts = count_pool(commits)
    before = _seconds_before(layout.pool_json)
    total_seconds = {}
    for name in {*before, *seconds}:
        total_seconds[name] = round(before.get(name, 0.0) + seconds.get(name, 0.0), 2)
    sources = read_parts(layout)["source_id"].to_pylist()
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    document = PoolDocument(
        **{field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)},
        recipe=recipe.name,
        recipe_hash=identity.recipe_hash(recipe),
        source=disk.content_hash(sources) if sources else commits.hash_of("tar_sha256"),
        fingerprint=commits.fingerprint,
        seconds=total_seconds,
        task_seconds=commits.totals.duration_s,
        versions={
            "shard": list(commits.totals.versions),
            "python": platform.python_version(),
            **libraries,
        },
    )
    for problem in counts.problems:
        logger.error("%s", problem)
    disk.write_json(layout.pool_json, document, sealed=True)
    plain: dict[str, object] = disk.to_plain(document)
    return plain


# --- stages ---------------------------------------------------------------------------------------


def _count_crawl(layout: PoolLayout, problems: list[str]) -> CrawlCounts | None:
    parts = read_parts(layout)
    if not len(parts):
        return None
    totals, dropped = part_totals(parts), dropped_rows(parts)
    links, pairs = parts["links"].to_numpy(), parts["pairs"].to_numpy()
    for i in np.flatnonzero(links != pairs + dropped).tolist():
        name = PoolLayout("").pairs_part(parts["part"][i].as_py()).lstrip("/")
        problems.append(f"{name}: {links[i]} links, but {pairs[i]} pairs + {dropped[i]} dropped")
    return CrawlCounts(
        parts=len(parts),
        links=totals["links"],
        pairs=totals["pairs"],
        reasons=totals["reasons"],
        damaged_records=totals["damaged_records"],
    )


def _count_fetch(commits: Commits, problems: list[str]) -> FetchCounts:
    problems += _record_problems(commits)
    totals = commits.totals
    retried = _total(_retried_reasons(commits, problems))
    final_reasons = {}
    for reason, count in totals.reasons.items():
        if count > retried.get(reason, 0):
            final_reasons[reason] = count - retried.get(reason, 0)
    known = {reason: count for reason, count in totals.reasons.items() if reason in REASONS}
    problems += [
        f"shards/: {totals.reasons[reason]} rows have the reason {reason!r}, which is none of this "
        "version: a newer clipmill wrote them, or a commit record was changed (`audit verify`)"
        for reason in sorted(totals.reasons.keys() - known.keys())
    ]
    return FetchCounts(
        shards=totals.shards,
        planned=_planned_shards(commits, problems),
        attempted=totals.rows,
        retries=totals.retries,
        stored=totals.stored,
        reasons=totals.reasons,
        classes=_total({REASONS[reason]: count} for reason, count in known.items()),
        final=FinalCounts(stored=totals.stored, reasons=final_reasons),
        bytes=totals.bytes,
        strays=int(_ints(commits, "strays").sum()),
    )


def _record_problems(commits: Commits) -> Iterator[str]:
    """Counts of one commit record that contradict each other."""
    count, stored, lost = _ints(commits, "count"), _ints(commits, "successes"), commits.lost()
    failures = _ints(commits, "failed_to_download") + _ints(commits, "failed_to_resize")
    for i in np.flatnonzero((count != stored + lost) | (lost != failures)).tolist():
        shard = shard_name(int(commits.shards[i]))
        if count[i] != stored[i] + lost[i]:
            yield (
                f"shards/{shard}: {count[i]} attempted, but {stored[i]} stored + "
                f"{lost[i]} with a reason"
            )
        if lost[i] != failures[i]:
            yield (
                f"shards/{shard}: {lost[i]} rows with a reason, but failed_to_download + "
                f"failed_to_resize = {failures[i]}"
            )


def _ints(commits: Commits, name: str) -> Integers:
    return np.asarray(commits.column(name).to_numpy(), np.int64)


def _retried_reasons(commits: Commits, problems: list[str]) -> Iterator[Mapping[str, int]]:
    """The reasons of the rows that a later row retries, shard by shard."""
    parts = [np.zeros(0, np.int64)]
    for shard in commits.shards[_ints(commits, "retries") > 0].tolist():
        column = Pool(commits).read(shard, ["retry_of"])["retry_of"]
        parts.append(pc.cast(column.drop_null(), pa.int64()).to_numpy())
    retried_keys = np.unique(np.concatenate(parts))
    if not len(retried_keys):
        return
    shards, starts = np.unique(retried_keys // ROWS_PER_SHARD_LIMIT, return_index=True)
    for shard, keys in zip(shards.tolist(), np.split(retried_keys, starts[1:]), strict=True):
        rows = Pool(commits).read(shard, ["key", "reason"])
        is_retried = np.isin(pc.cast(rows["key"], pa.int64()).to_numpy(), keys)
        reasons = rows["reason"].filter(pa.array(is_retried))
        if stored := reasons.null_count:
            problems.append(
                f"shards/{shard_name(shard)}: {stored} rows are stored and were retried"
            )
        yield frequencies(reasons)


def _planned_shards(commits: Commits, problems: list[str]) -> int:
    """The number of shards of the plan, 0 before there is one. Shards that differ from the plan
    are problems."""
    if not plan_files.is_planned(commits.layout):
        has_pairs = bool(disk.list_names(commits.layout.pairs, ".parquet"))
        return 0 if has_pairs else _tars_of_recipe(commits, problems)
    plan = read_plan(commits.layout)
    is_planned = commits.shards < len(plan)
    planned = np.where(is_planned, commits.shards, 0)  # where a shard is in the plan
    rows, tasks = _ints(commits, "count"), commits.column("task")
    if len(plan):
        same_task = pc.equal(tasks, plan.ids.take(pa.array(planned))).to_numpy()
        fits = is_planned & (rows == plan.rows[planned]) & same_task
    else:
        fits = is_planned
    for i in np.flatnonzero(~fits).tolist():
        number = int(commits.shards[i])
        if not is_planned[i]:
            problems.append(
                f"shards/{shard_name(number)}: not among the {len(plan)} shards of the plan"
            )
            continue
        task = plan.shard(number)
        problems.append(
            f"shards/{shard_name(number)}: {rows[i]} rows of task {tasks[i].as_py()}; "
            f"the plan has {task.size} of task {task.id}"
        )
    return len(plan)


def _tars_of_recipe(commits: Commits, problems: list[str]) -> int:
    """The number of tars of the recipe that this pool was built by, if it is there and adopts
    tars."""
    recipe = recipe_of_pool(commits.layout)
    if recipe is None or recipe.source.kind != "shards":
        return len(commits)
    try:
        return len(tar_tickets(recipe.source))
    except ValueError as error:
        problems.append(str(error))
        return len(commits)


def _count_scores(layout: PoolLayout, problems: list[str]) -> dict[str, ScoreCounts]:
    paths = {name: layout.score_set_json(name) for name in score_set_names(layout)}
    return {
        name: ScoreCounts(rows=each.rows, stored=each.stored, scored=each.scored)
        for name, each in _documents(paths, ScoreSetDocument, problems)
    }


def _count_views(layout: PoolLayout, problems: list[str]) -> dict[str, ViewCounts]:
    paths = {name: layout.view_json(name) for name in view_names(layout)}
    remedy = "; make the view again with clipmill filter, or remove it"
    return {
        name: ViewCounts(kept=each.kept, funnel=each.funnel, thresholds=each.thresholds)
        for name, each in _documents(paths, ViewDocument, problems, remedy)
    }


def _documents(
    paths: Mapping[str, str], kind: type[T], problems: list[str], remedy: str = ""
) -> Iterator[tuple[str, T]]:
    """The documents of some names; damaged ones are problems."""
    for name, path in paths.items():
        try:
            yield name, read_document(path, kind)
        except ValueError as error:
            problems.append(f"{error}{remedy}")


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
