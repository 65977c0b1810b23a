"""The stage score: which sets a pool lacks, and the tables that are joined to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clipmill.filters import FILTERS, Instance, WorkerSpec, specs_of_recipe
from clipmill.filters.base import Filter, FilterBase, PoolFilter, options_of
from clipmill.filters.table import Table
from clipmill.manifests import disk, ray_runtime
from clipmill.manifests.arrays import Array
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.layout import shard_name
from clipmill.manifests.ray_runtime import Engine, settled
from clipmill.manifests.records import ScoreSetDocument
from clipmill.manifests.schema import FilterSpec, Recipe
from clipmill.pipeline.cross_row import compute, plan_job, remove_transient
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets
from clipmill.pipeline.metadata_join import MatchCounts, TableJoin
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.score_columns import commit_columns
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.scoring.score_sets import (
    PoolSets,
    count_scores,
    make_bundles,
    read_score_set,
    scored_shards,
    shards_with_rows,
)
from clipmill.pipeline.scoring.worker import ScoredSet, ScoreJob, ScoreWorker

logger = logging.getLogger(__name__)

# --------------------------------------------------------------------------------------------------
# Rows to score columns: one decode of an image serves all filters of a pass, models are loaded
# once per worker.
#
# A filter that reads columns of others runs in a later pass than those. A shard's columns are
# committed by their rename into POOL/scores/NAME@ID/ and then bundled; scores.json is written when
# all shards are there. What is scored already is not scored again.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A score set that is to be made."""

    name: str  # NAME@ID
    instance: Instance
    reads: dict[str, str]  # instance -> NAME@ID
    columns: dict[str, tuple[str, ...]]  # NAME@ID that is read, "" for the sidecar -> its columns
    whole_pool: bool
    level: int  # of its pass: above those of the sets that it reads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What all passes of one command have in common."""

    out: PoolWriter
    commits: Commits
    engine: Engine
    joined: dict[str, Any] = field(default_factory=dict)  # NAME@ID -> what became of its keys
    seconds: dict[str, float] = field(
        default_factory=dict
    )  # NAME@ID of the whole pool -> wall time


def score(
    out: PoolWriter,
    specs: Sequence[FilterSpec],
    *,
    engine: Engine,
    commits: Commits | None = None,
    recipe: Recipe | None = None,
) -> dict[str, Any]:
    """Score every committed shard by every filter; what is scored already is left as it is.

    commits: what is committed, if the caller has read it. recipe: has further filters, whose
    complete columns those of `specs` may read. Returns
    {"sets": {NAME@ID: scores.json}, "failed": {shard: reason}, "joined": {NAME@ID: what became of
    the keys of a table that was joined now}}. After a failed shard a set has {}.
    A row that cannot be decoded or scored has NULL. ValueError for unknown filters, options or
    weights, for columns to read that are not there, and for a pool without a stored row.
    """
    commits = shards_with_rows(read_commits(out.pool) if commits is None else commits)
    run = _Run(out=out, commits=commits, engine=engine)
    sets = PoolSets(commits, _with_others(specs, recipe))
    jobs: dict[str, _Job] = {}
    names: list[str] = []
    for spec in specs:
        current = sets.current(spec.name, skip_damaged=True)
        if current is not None:
            names.append(current[0])
            continue
        jobs[spec.name] = _job(sets, spec.name, jobs, engine)
        names.append(jobs[spec.name].name)
    failed: dict[str, str] = {}
    for level in sorted({job.level for job in jobs.values()}):
        of_level = [job for job in jobs.values() if job.level == level]
        failed = _make_sets(run, of_level)
        if failed:
            break
    documents = {name: read_score_set(out.layout, name) for name in names}
    shown = {name: disk.to_plain(document or {}) for name, document in documents.items()}
    return {"sets": shown, "failed": failed, "joined": run.joined}


def _with_others(specs: Sequence[FilterSpec], recipe: Recipe | None) -> list[FilterSpec]:
    """The specs at their places among all filters of the recipe."""
    if recipe is None:
        return list(specs)
    given = {spec.name: spec for spec in specs}
    merged = [given.pop(spec.name, spec) for spec in specs_of_recipe(recipe)]
    return [*merged, *given.values()]


def _job(sets: PoolSets, name: str, jobs: Mapping[str, _Job], engine: Engine) -> _Job:
    """The set of an instance that is to be made. ValueError for a filter that cannot work."""
    filter_ = sets.instances[name].filter
    filter_.check()
    filter_.check_reach()  # before Ray starts
    sources = sets.sources(name)
    reads = sets.reads_of(name)
    set_name = sets.plan(name, filter_.resolved(gpu=_has_gpu(filter_, engine)))
    before = [jobs[owner].level for owner in sources if owner in jobs]
    return _Job(
        name=set_name,
        instance=sets.instances[name],
        reads=reads,
        columns={reads.get(owner, owner): columns for owner, columns in sources.items()},
        whole_pool=sets.depends_on_pool(name),
        level=max(before, default=-1) + 1,
    )


# --- one pass -------------------------------------------------------------------------------------


def _make_sets(run: _Run, jobs: Sequence[_Job]) -> dict[str, str]:
    """Make the sets of one level: score, bundle, then write the documents. Returns {shard: reason}
    of the shards that failed."""
    for job in jobs:
        if isinstance(job.instance.filter, Table):
            _join_table(run, job)
    row_local = [job for job in jobs if isinstance(job.instance.filter, Filter)]
    if row_local and (failed := _score_rows(run, row_local)):
        return failed
    for job in jobs:
        is_pool = isinstance(job.instance.filter, PoolFilter)
        if is_pool and (failed := _score_pool(run, job)):
            return failed
    if failed := make_bundles(run.out, run.commits, [job.name for job in jobs], run.engine):
        return failed
    for job in jobs:
        _write_document(run, job)
    return {}


def _join_table(run: _Run, job: _Job) -> None:
    """Commit the columns of a table of another program, joined by uid, for the shards that lack
    them. ValueError for tables that cannot be read."""
    filter_, commits = job.instance.filter, run.commits
    assert isinstance(filter_, Table)
    names = job.instance.column_names()
    lacking = lacking_shards(commits, job.name, job.whole_pool)
    started = time.perf_counter()
    join = TableJoin(commits, np.flatnonzero(lacking), filter_)
    for columns in join.shards():
        table = columns.table.rename_columns([names[c] for c in columns.table.column_names])
        metadata = {
            "uids": columns.uids,
            "sidecar": commits.column("sidecar_sha256")[columns.position].as_py().hex(),
            "rows": table.num_rows,
            "stored": columns.stored,
            "seconds": round(time.perf_counter() - started, 3),
        }
        started = time.perf_counter()
        shard = int(commits.shards[columns.position])
        commit_columns(run.out, job.name, shard, table, metadata)
    counts = join.counts
    if counts.table_rows:
        logger.info("%s", match_line(job.name, counts, filter_))
    run.joined[job.name] = {
        "by": filter_.on,
        "table_rows": counts.table_rows,
        "keys": counts.keys,
        "pool_rows": counts.pool_rows,
        "matched_rows": counts.matched_rows,
        "missing_keys": counts.missing,
    }


def match_line(name: str, counts: MatchCounts, table: Table) -> str:
    """What became of the rows of a table."""
    key = "uid" if not table.hashed_keys else table.on
    line = (
        f"{name}: {counts.matched_rows:,} of {counts.pool_rows:,} stored rows have one of the "
        f"{counts.keys:,} {key}s of the table"
    )
    if repeats := counts.table_rows - counts.keys:
        line += f"; {repeats:,} table rows repeat a {key}, the first row of each counts"
    if counts.missing:
        line += f"; {counts.missing:,} {key}s are not stored in these shards"
        if not table.hashed_keys:  # what is kept of other keys are their hashes
            line += f" ({', '.join(counts.missing_keys[:3])} …)"
        elif table.on == "url":
            line += " in this spelling: the crawl wrote them without fragments and outer blanks"
    if counts.unlike:
        line += "; the pool has such as {!r}, the table such as {!r}".format(*counts.unlike)
    return line


def _score_rows(run: _Run, jobs: Sequence[_Job]) -> dict[str, str]:
    """Score the shards that lack columns of one of these sets; returns {shard: reason} of those
    that failed."""
    fingerprint = run.commits.fingerprint
    lacking = {job.name: lacking_shards(run.commits, job.name, job.whole_pool) for job in jobs}
    tickets = _tickets(run.commits, lacking)
    shown = ", ".join(lacking)
    logger.info("%s: %d of %d shards to score", shown, len(tickets), len(run.commits))
    if not len(tickets):
        return {}
    sets = {}
    for job in jobs:
        sets[job.name] = ScoredSet(
            filter=WorkerSpec.of(job.instance),
            reads=job.columns,
            fingerprint=fingerprint if job.whole_pool else None,
        )
    filters = [job.instance.filter for job in jobs]
    on_gpu = run.engine != "inline" and any(_has_gpu(each, run.engine) for each in filters)
    stage = Stage(
        name="score",
        work=ScoreWorker,
        job=ScoreJob(out=run.out, sets=sets),
        gpus=1 if on_gpu else 0,  # inline, a filter takes the GPU that the process sees
        result=Measure,
    )
    return dict(execute(stage, tickets, engine=run.engine).failed)


def _score_pool(run: _Run, job: _Job) -> dict[str, str]:
    """Compute the columns of a filter that looks at the whole pool; returns {ticket: reason} of
    the tickets that failed."""
    lacking = lacking_shards(run.commits, job.name, job.whole_pool)
    logger.info("%s: %d of %d shards to score", job.name, int(lacking.sum()), len(run.commits))
    if not lacking.any():  # a command that was killed at its end has left its scratch files
        remove_transient(run.out, f"scores-{job.name}-")
        return {}
    if note := job.instance.filter.note():
        logger.info("%s: %s", job.name, note)
    planned = plan_job(run.out, run.commits, job.name, job.instance, job.columns)
    gpus = 1 if run.engine != "inline" and _has_gpu(job.instance.filter, run.engine) else 0
    started = time.perf_counter()
    failed = compute(run.commits, planned, lacking, engine=run.engine, gpus=gpus)
    run.seconds[job.name] = time.perf_counter() - started
    return failed


def lacking_shards(commits: Commits, name: str, whole_pool: bool) -> Array:
    """(shards,) True where the set has no columns of the shard as it is committed now; where they
    depend on the whole pool, of the pool as it is now."""
    return ~scored_shards(commits, name, commits.fingerprint if whole_pool else None)


# --- tickets and documents ------------------------------------------------------------------------


def _tickets(commits: Commits, lacking: Mapping[str, Array]) -> Tickets:
    """One ticket for each shard that lacks columns of a set. It names the sets that the shard
    lacks."""
    sets = list(lacking)
    lacks_set = np.array([lacking[name] for name in sets])  # (sets, shards)
    shards = np.flatnonzero(lacks_set.any(axis=0))

    def make(number: int) -> Ticket:
        position = int(shards[number])
        names = [name for name, lacks in zip(sets, lacks_set[:, position], strict=True) if lacks]
        shard = shard_name(int(commits.shards[position]))
        return Ticket(id=shard, group=shard, payload=tuple(names))

    return Tickets(np.arange(len(shards)), make)


def _write_document(run: _Run, job: _Job) -> None:
    """scores.json, from the metadata of all shards' columns. In the metadata the columns of a
    filter of the whole pool have no time, so that their bytes are the same each time."""
    commits, seconds = run.commits, run.seconds.get(job.name, 0.0)
    counts = count_scores(commits, job.name)
    instance, filter_ = job.instance, job.instance.filter
    document = ScoreSetDocument(
        name=instance.name,
        id=job.name.partition("@")[2],
        version=filter_.version,
        options=options_of(filter_),
        identity=filter_.identity(),
        columns=tuple(instance.columns()),
        fingerprint=commits.fingerprint,
        rows=counts["rows"],
        stored=counts["stored"],
        scored=counts["scored"],
        seconds=round(float(counts["seconds"]) + seconds, 3),
        kind=None if instance.is_own_kind else instance.kind,
        reads=job.reads or None,
        whole_pool=True if job.whole_pool else None,
        meanings=None if instance.kind in FILTERS else instance.meanings(),
    )
    run.out.write_json(run.out.layout.score_set_json(job.name), document, sealed=True)


def _has_gpu(filter_: FilterBase, engine: Engine) -> bool:
    """True where the filter will run on a GPU: `cuda` always, `auto` where Ray or this process
    has one."""
    if filter_.device != "auto":
        return filter_.device == "cuda"
    if settled(engine) != "ray":
        import torch

        return torch.cuda.is_available()
    ray_runtime.connect()
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0) >= 1
