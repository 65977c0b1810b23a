"""What the audit says about a whole pool: counts, problems, damaged files and notes, as lines
and as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from manifests import disk
from manifests.columns import REASONS
from manifests.commits import Commits, read_commits
from manifests.documents import PoolCounts
from manifests.text import printable
from pipeline.accounting import counts as counting
from pipeline.accounting.integrity import verify
from pipeline.executor import Engine
from pipeline.external import tar_changed
from pipeline.scoring import example_row
from pipeline.views import differing_views, unlisted_views_line, views_not_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit. `counts` is None if damaged files make counting impossible."""

    counts: PoolCounts | None
    problems: tuple[str, ...]  # counts that contradict each other, tars that changed
    damaged: tuple[str, ...]  # one line for each file; empty unless `verified`
    notes: tuple[str, ...]  # nothing is wrong, but worth knowing
    verified: bool

    @property
    def is_fine(self) -> bool:
        """True if the pool is complete and nothing is wrong."""
        complete = self.counts is not None and self.counts.complete
        return complete and not self.problems and not self.damaged


def audit_pool(pool: str, *, verify_files: bool = False, engine: Engine = "inline") -> Audit:
    """Count a pool; with `verify_files` read every file too. ValueError where there is no pool."""
    damaged = tuple(verify(pool, engine=engine)) if verify_files else ()
    try:
        commits = read_commits(pool)
        counts = counting.count_pool(pool, commits)
    except Exception as error:
        if not damaged:
            raise
        problems = (f"the pool cannot be counted: {error}",)
        return Audit(counts=None, problems=problems, damaged=damaged, notes=(), verified=True)
    return Audit(
        counts=counts,
        problems=(*counts.problems, *changed_tars(commits)),
        damaged=damaged,
        notes=tuple(_notes(commits, counts)),
        verified=verify_files,
    )


def changed_tars(commits: Commits) -> Iterator[str]:
    """One line for each adopted tar that is missing or has other content than at adoption."""
    adopted = np.asarray(commits.column("adopted").to_numpy(zero_copy_only=False), bool)
    for record in commits.records(adopted):
        if not tar_changed(record):
            continue
        from_it = f"shard {record.shard} was adopted from it"
        if not disk.exists(record.tar):
            yield f"{record.tar}: missing; {from_it}"
        else:
            yield (
                f"{record.tar}: changed since {from_it}: another program rewrote it; give the old "
                "tar back, or build into another folder"
            )


def audit_lines(audit: Audit) -> list[str]:
    """The audit for a terminal. Characters that a terminal would act on are escaped."""
    lines: list[str] = []
    if audit.counts is not None:
        lines += count_lines(audit.counts)
    lines += [f"note    {note}" for note in audit.notes]
    lines += [f"WRONG   {problem}" for problem in (*audit.problems, *audit.damaged)]
    return [printable(line) for line in (*lines, conclusion(audit))]


def audit_plain(audit: Audit) -> dict[str, Any]:
    """The audit as plain values, for JSON."""
    plain: dict[str, Any] = {"complete": False}
    if audit.counts is not None:
        plain = disk.to_plain(audit.counts)
    return {
        **plain,
        "problems": list(audit.problems),
        "damaged": list(audit.damaged),
        "notes": list(audit.notes),
    }


def count_lines(counts: PoolCounts) -> Iterator[str]:
    """The counts of each stage."""
    if counts.crawl:
        crawl = counts.crawl
        yield (
            f"crawl   {crawl.links} links of {crawl.parts} parts = {crawl.pairs} pairs + "
            f"{sum(crawl.reasons.values())} dropped"
        )
        yield from _reason_lines(crawl.reasons, {})
    fetch = counts.fetch
    yield f"fetch   {fetch.shards} of {fetch.planned} shards, {fetch.bytes:,} bytes of tar"
    retries = f" ({fetch.retries} of them retries)" if fetch.retries else ""
    yield (
        f"        {fetch.attempted} attempted{retries} = {fetch.stored} stored + "
        f"{sum(fetch.reasons.values())} not stored"
    )
    yield from _reason_lines(fetch.reasons, REASONS)
    for name, scores in counts.scores.items():
        yield f"score   {name}: {scores.scored} of {scores.stored} stored rows"
    for name, view in counts.views.items():
        steps = " → ".join(f"{step} {left}" for step, left in view.funnel)
        yield f"view    {name}: {steps}"


def conclusion(audit: Audit) -> str:
    """The last line: what is wrong, or what to do next, or that nothing is wrong."""
    if wrong := len(audit.damaged) + len(audit.problems):
        return f"{wrong} {'problems' if wrong > 1 else 'problem'} found"
    assert audit.counts is not None
    crawl, fetch = audit.counts.crawl, audit.counts.fetch
    if crawl and crawl.links and not crawl.pairs:
        return "all counts are consistent; the source gave no pair: correct it in the recipe"
    if not audit.counts.complete and not fetch.planned:
        return (
            "all counts are consistent so far; no shard is planned yet: "
            "run pipeline/build.py with its recipe again"
        )
    if not audit.counts.complete:
        return (
            f"all counts are consistent so far; {fetch.planned - fetch.shards} shards are missing: "
            "run pipeline/build.py with its recipe again"
        )
    return "all counts are consistent" + (" and all files are intact" if audit.verified else "")


def _notes(commits: Commits, counts: PoolCounts) -> Iterator[str]:
    pool, fetch = commits.pool, counts.fetch
    if fetch.attempted and not fetch.stored:
        reason = min(fetch.reasons, key=lambda name: (-fetch.reasons[name], name))
        yield (
            f"none of the {fetch.attempted} rows is stored; an example of {reason}: "
            f"{example_row(commits, reason)}"
        )
    recipe = counting.recipe_of_pool(pool)
    if recipe is not None and (unlisted := views_not_in(recipe, pool)):
        yield unlisted_views_line(recipe, unlisted)
    for view, changes in (differing_views(recipe, pool) if recipe else {}).items():
        yield (
            f"view {view} has other rules than recipe.json of the pool: {changes}; "
            "pipeline/filter.py made it with another recipe"
        )


def _reason_lines(reasons: Mapping[str, int], classes: Mapping[str, str]) -> Iterator[str]:
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        yield f"          {reason:<20}{count:>10}  {classes.get(reason, '')}".rstrip()
