"""A recipe as a sequence of stages: crawl, plan, fetch, score, choose. Each is resumed by what is
committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from clipmill.filters import check_reads, specs_of_recipe
from clipmill.filters.columns import Instance
from clipmill.manifests import disk, reader
from clipmill.manifests.columns import REASONS
from clipmill.manifests.commits import Commits, IndexWriter, read_commits
from clipmill.manifests.hashes import KnownBad
from clipmill.manifests.layout import CommitRecord, PoolLayout
from clipmill.manifests.pool import score_set_names
from clipmill.manifests.ray_runtime import Engine
from clipmill.manifests.schema import SOURCES, Recipe
from clipmill.pipeline.audit.counts import write_pool_json
from clipmill.pipeline.audit.row_index import extend_row_index
from clipmill.pipeline.crawl import crawler
from clipmill.pipeline.crawl.parts import part_totals, read_parts, top_reasons
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Tickets
from clipmill.pipeline.external.adopt import adopt_tars, check_adopted, tar_tickets
from clipmill.pipeline.external.img2dataset import check_img2dataset, img2dataset_stage
from clipmill.pipeline.fetch.download import Downloader
from clipmill.pipeline.images.transform import limits_of
from clipmill.pipeline.lock import rebuild
from clipmill.pipeline.lock.rebuild import (
    check_locked,
    check_not_locked,
    drift_lines,
    lock_of,
    write_drift,
    write_lock_plan,
    write_locked_views,
)
from clipmill.pipeline.planning.plan_files import is_planned, read_plan
from clipmill.pipeline.planning.planner import add_retries, write_plan
from clipmill.pipeline.pool.lease import PoolWriter, hold_lease
from clipmill.pipeline.pool.shard_writer import ShardJob, remove_uncommitted
from clipmill.pipeline.progress.view import shown_progress
from clipmill.pipeline.scoring.score_sets import filter_specs
from clipmill.pipeline.scoring.scorer import score
from clipmill.pipeline.views.files import HASHED_ROWS, check_views, choose_views

STAGES = ("crawl", "plan", "fetch", "score", "choose")
# Shards that a worker fetches at a time: some wait for their last rows while the others use the
# network. 25 MB each.
CONCURRENT_SHARDS = 6
TRANSIENT_SHARE = 0.1  # of the rows lost for reasons that may pass: more is worth a warning
Failed = Mapping[str, str]  # {task: reason} of tasks that ended without an outcome
logger = logging.getLogger(__name__)


def build(
    recipe: Recipe, pool: str, *, engine: Engine, until: str = "choose", retry: str | None = None
) -> dict[str, Any]:
    """Every stage up to `until`. Returns the totals of pool.json, and beside them:

    `drift`: drift.json of a pool whose source is a lock, where its rows were fetched.
    `failed`: {task: reason} of tasks that ended without an outcome; the stages after them did not
    run. `changed`: False where everything was there before. ValueError where the recipe cannot be
    built, or differs from the one that this pool was begun with, or where another command writes
    into the pool.
    """
    instances, layout = check_recipe(recipe, until, retry), PoolLayout(pool)
    if STAGES.index(until) >= STAGES.index("score"):
        scored = {name.partition("@")[0] for name in score_set_names(layout)}
        if not scored:  # nothing else can give a column before the filters run
            check_reads(instances, recipe.sidecar_extra.keys())
        for name, instance in instances.items():
            if name not in scored:  # else the stage says whether it needs the weights again
                instance.filter.check_reach()
    is_new = not disk.exists(layout.lease_json) and not disk.exists(layout.shards)
    if is_new and (others := disk.list_names(pool)):
        some = ", ".join(others[:3]) + " …" * (len(others) > 3)
        logger.warning("%s has other files (%s): the new pool is put beside them", pool, some)
    with hold_lease(pool, create=True) as out, shown_progress(pool):
        return Build(recipe, out, engine, retry).run(until)


class Build:
    """A build under the lease of its pool, and what it can do in a stage: see ROUTES."""

    def __init__(self, recipe: Recipe, out: PoolWriter, engine: Engine, retry: str | None) -> None:
        self.recipe, self.out, self.pool = recipe, out, out.pool
        self.engine, self.retry = engine, retry
        self._commits: Commits | None = None

    @property
    def commits(self) -> Commits:
        """What is committed: read once, and again after the stage that commits shards."""
        if self._commits is None:
            self._commits = read_commits(self.pool)
        return self._commits

    def run(self, until: str) -> dict[str, Any]:
        """The stages up to `until`; returns what `build` does."""
        layout = self.out.layout
        _refuse_other_source(layout, self.recipe)
        check_not_locked(layout, self.recipe)
        before = _finished_state(layout)
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        is_locked = rebuild.is_locked(self.recipe)
        stages = zip(STAGES, _route_of(self.recipe), strict=True)
        for name, stage in islice(stages, STAGES.index(until) + 1):
            started = time.monotonic()
            self.out.check()
            failed |= stage(self)
            seconds[name] = round(time.monotonic() - started, 2)
            logger.info("%s took %.1f s", name, seconds[name])
            if failed:
                break  # what comes after would be made from a pool with holes
            if name != until:
                self._refuse_no_rows(name)
        self.out.write_json(layout.recipe_json, self.recipe, sealed=True)
        totals: dict[str, object] = {"complete": False, "problems": []}
        if not failed or disk.list_names(layout.pairs, ".parquet") or len(self.commits):
            document = write_pool_json(self.commits, self.recipe, seconds)
            totals = dict(disk.to_plain(document))
            if warning := transient_warning(totals):
                logger.warning("%s", warning)
        if is_locked and disk.exists(layout.drift_json):
            totals["drift"] = disk.read_json(layout.drift_json)
        return {**totals, "failed": failed, "changed": _finished_state(layout) != before}

    # --- crawl and plan ---------------------------------------------------------------------------

    def crawl(self) -> Failed:
        return dict(crawler.crawl(self.recipe.source, self.out, self.engine)["failed"])

    def nothing(self) -> Failed:
        return {}

    def plan(self) -> Failed:
        return self._plan_retries(write_plan(self.out, self.recipe, engine=self.engine))

    def plan_lock(self) -> Failed:
        write_lock_plan(self.out, self.recipe)
        return self._plan_retries({})

    def _plan_retries(self, failed: Failed) -> Failed:
        if self.retry and not failed:
            return add_retries(self.out, self.recipe, engine=self.engine)
        return failed

    # --- fetch ------------------------------------------------------------------------------------

    def adopt(self) -> Failed:
        remove_uncommitted(self.out.layout)
        source = self.recipe.source
        records = self.commits.records()
        adopted = {record.tar: int(record.shard) for record in records if record.adopted}
        tickets = tar_tickets(source, adopted)
        check_adopted(self.commits, source, tickets)
        tars = {ticket.id: str(ticket.payload.tar) for ticket in tickets}
        job = ShardJob(out=self.out, recipe=self.recipe)
        stage = Stage(name="adopt", work=adopt_tars, job=job, result=CommitRecord)
        failed = self._add_shards(stage, lambda _: tickets)
        return {tars[ticket]: reason for ticket, reason in failed.items()}

    def fetch(self) -> Failed:
        remove_uncommitted(self.out.layout)
        plan = read_plan(self.out.layout)

        def tickets(commits: Commits) -> Tickets:
            is_committed = np.zeros(len(plan), dtype=bool)
            is_committed[commits.shards[commits.shards < len(plan)]] = True
            count = int(is_committed.sum())
            logger.info("%d of %d shards are committed already", count, len(plan))
            return plan.tickets(np.flatnonzero(~is_committed))

        job = ShardJob(out=self.out, recipe=self.recipe)
        return self._add_shards(FETCHES[self.recipe.fetch.engine](job), tickets)

    def fetch_lock(self) -> Failed:
        failed = self.fetch()
        drift = write_drift(self.out, self.commits, lock_of(self.recipe))
        if not self.commits.totals.stored:  # the build ends here: say it now
            for line in drift_lines(drift):
                logger.warning("%s", line)
        return failed

    def _add_shards(self, stage: Stage, tickets: Callable[[Commits], Iterable[Ticket]]) -> Failed:
        """Run a stage that commits shards; its tickets depend on what is committed already."""
        self._commits = None  # it would be in memory twice
        with IndexWriter(self.pool, check=self.out.check) as index:
            todo = tickets(index.commits)
            report = execute(
                stage, todo, engine=self.engine, on_done=lambda _, record: index.add(record)
            )
        self._commits = index.commits
        extend_row_index(self.out, index.commits)
        return report.failed

    # --- score and choose -------------------------------------------------------------------------

    def score(self) -> Failed:
        if not self.recipe.filters:
            return {}
        specs = filter_specs(self.recipe, [], {})
        return dict(score(self.out, specs, engine=self.engine, commits=self.commits)["failed"])

    def choose(self) -> Failed:
        hashed = self.commits.totals.stored <= HASHED_ROWS
        choose_views(self.out, self.recipe, commits=self.commits, hashed=hashed)
        return {}

    def choose_lock(self) -> Failed:
        if self.recipe.views:
            self.choose()
        own = [view.name for view in self.recipe.views]
        write_locked_views(self.out, self.commits, lock_of(self.recipe), own)
        return {}

    def _refuse_no_rows(self, stage: str) -> None:
        """ValueError with the reasons where a stage left nothing for the next one."""
        parts = read_parts(self.out.layout) if stage == "crawl" else []
        counts = part_totals(parts) if len(parts) else {"pairs": None}
        if counts["pairs"] == 0:
            problem = (
                f"the source has no pairs ({counts['links']:,} rows or links, "
                f"{counts['damaged_records']:,} damaged records)"
            )
        elif stage == "fetch" and not self.commits.totals.stored:
            problem = "none of the rows is stored"
        else:
            return
        losses = "; ".join(map(str, top_reasons(self.pool, commits=self.commits)))
        if "private_address" in losses:
            losses += (
                "; fetch.allow_private: true permits addresses that are not public, "
                "fetch.allow_ports other ports, in another --out"
            )
        raise ValueError(f"{problem}: {losses or 'no row was lost, there was none'}")


def download_stage(job: ShardJob) -> Stage:
    """The stage that fetches or reads the images of a plan in this program."""
    source = job.recipe.source
    if SOURCES[source.kind].images == "rows":
        job = replace(job, contents=crawler.contents_of_rows(job.out.layout, source))
    return Stage(
        name="fetch",
        work=Downloader,
        job=job,
        on_ray=replace(job, decoders=1),  # a worker for each core; each decodes in one child
        concurrency=CONCURRENT_SHARDS,
        result=CommitRecord,
    )


# What a build does in each of STAGES, by where the pairs come from; and by fetch.engine.
ROUTES: dict[str, tuple[Callable[[Build], Failed], ...]] = {
    "source": (Build.crawl, Build.plan, Build.fetch, Build.score, Build.choose),
    "lock": (Build.nothing, Build.plan_lock, Build.fetch_lock, Build.score, Build.choose_lock),
    "tars": (Build.nothing, Build.nothing, Build.adopt, Build.score, Build.choose),
}


def _route_of(recipe: Recipe) -> tuple[Callable[[Build], Failed], ...]:
    is_tars = SOURCES[recipe.source.kind].images == "tars"
    return ROUTES["lock" if rebuild.is_locked(recipe) else "tars" if is_tars else "source"]


FETCHES = {"clipmill": download_stage, "img2dataset": img2dataset_stage}


def transient_warning(totals: Mapping[str, Any]) -> str | None:
    """What to say where many rows may only have met a bad moment: what trains on the pool would
    not miss them.
    """
    final = totals.get("fetch", {}).get("final", {"stored": 0, "reasons": {}})
    lost = {name: n for name, n in final["reasons"].items() if REASONS[name] == "transient"}
    rows, count = final["stored"] + sum(final["reasons"].values()), sum(lost.values())
    if count <= TRANSIENT_SHARE * rows:
        return None
    most = max(lost, key=lambda name: lost[name])
    return (
        f"{count:,} of {rows:,} rows ended for reasons that may pass, {lost[most]:,} of them "
        f"{most}: `clipmill build RECIPE --out POOL --retry transient` asks for them again"
    )


def incomplete(totals: Mapping[str, Any], until: str) -> str | None:
    """Why a build that ended is not complete, in one line; None where it is, where it ended before
    the stage fetch, and where nothing was planned.
    """
    if totals["complete"] or until in ("crawl", "plan") or "fetch" not in totals:
        return None
    fetched = totals["fetch"]
    return (
        f"the pool is not complete: {fetched['shards']} of {fetched['planned']} planned shards are "
        "committed; run the same command again"
    )


# --- before the first stage -------------------------------------------------------------------


def check_recipe(
    recipe: Recipe, until: str = "choose", retry: str | None = None, *, made: Sequence[str] = ()
) -> dict[str, Instance]:
    """The filters. ValueError for everything that can be known before the first stage: settings,
    filters, weights, rules. Of filters that read one of the folders `made`, which come into being
    later, and of those that the build does not reach, whose weights may come into being later too,
    it is only that their options are right.
    """
    source = SOURCES[recipe.source.kind]
    if until not in ("crawl", "plan"):
        if source.needs_user_agent and not recipe.fetch.user_agent:
            raise ValueError(
                f"recipe {recipe.name!r} fetches from the web: "
                "set fetch.user_agent to a name and an address to write to"
            )
        limits_of(recipe.fetch)
        if recipe.fetch.known_bad is not None:
            KnownBad.read(recipe.fetch.known_bad, recipe.fetch.phash_distance)
        if recipe.fetch.engine == "img2dataset":
            check_img2dataset(recipe.fetch, recipe.source.kind)
    if retry and source.images == "tars":
        raise ValueError(
            "--retry asks the web again; shards that exist already were fetched by another program"
        )
    first = next(n for n, stage in enumerate(_route_of(recipe)) if stage is not Build.nothing)
    if STAGES.index(until) < first:
        raise ValueError(
            f"--until {until}: the first stage of a source of kind {recipe.source.kind} is "
            f"{STAGES[first]}; write --until {STAGES[first]}"
        )
    check_locked(recipe)
    try:
        instances = check_views(recipe)
        if STAGES.index(until) >= STAGES.index("score"):
            for spec, instance in zip(specs_of_recipe(recipe), instances.values(), strict=True):
                if not any(folder in str(spec.options) for folder in made):
                    instance.filter.identity()  # reads the weights, and so sees that they are there
        return instances
    except ValueError as error:  # an ablation may have several recipes
        if repr(recipe.name) in str(error):
            raise
        raise ValueError(f"recipe {recipe.name!r}: {error}") from error


def _refuse_other_source(layout: PoolLayout, recipe: Recipe) -> None:
    """ValueError, before anything is written, where a pool was built from another source, or was
    begun from one and is not far enough to have its recipe.
    """
    reader.refuse_other_source(layout.root, recipe)
    begun_with_pairs = is_planned(layout) or bool(disk.list_names(layout.pairs, ".parquet"))
    is_tars = SOURCES[recipe.source.kind].images == "tars"
    begun = ""
    if is_tars and begun_with_pairs:
        begun = "was begun from a source of pairs"
    elif not is_tars and not begun_with_pairs and disk.exists(layout.shards):
        records = read_commits(layout.root).records()
        if any(record.adopted for record in islice(records, 1)):
            begun = "was begun from tars that exist already"
    if begun:
        raise ValueError(
            f"{layout} {begun}, and recipe {recipe.name!r} has a source of kind "
            f"{recipe.source.kind}: build it into another folder"
        )


def _finished_state(layout: PoolLayout) -> dict[str, Any] | None:
    """pool.json without times; None where there is none, or a damaged one."""
    try:
        state = disk.read_json(layout.pool_json)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(state, dict):
        return None
    return {key: value for key, value in state.items() if key not in ("seconds", "versions")}
