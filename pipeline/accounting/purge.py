"""Removes rows from a pool by URL, domain, sha256 or uid, and names what used them.

The uids of the rows are written into POOL/purge.json before anything changes, and the file is
removed last: after a kill, the next purge of any rows first ends this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.aligned import AlignedFiles, view_names, view_shards, write_view_shards
from manifests.commits import Commits, IndexWriter, read_commits
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import CommitRecord, PoolLayout, shard_name
from pipeline import planning
from pipeline.accounting.counts import recipe_of_pool, write_pool_json
from pipeline.accounting.purge_records import (
    PurgeRecord,
    hashes_of_urls,
    now,
    selectors_of,
    write_record,
)
from pipeline.accounting.row_search import FoundRows, find_rows, locate_rows
from pipeline.accounting.tombstones import (
    THREADS,
    Mask,
    in_threads,
    minus,
    purge_masks,
    purge_parquet,
    purge_scores,
    purge_shard,
)
from pipeline.accounting.used_by import find_users
from pipeline.crawl import write_parts
from pipeline.pool import check_fence, remove_uncommitted
from pipeline.pool_scores import remove_transient
from pipeline.scoring import complete_score_sets
from pipeline.views import remove_copies

KINDS = ("url", "domain", "sha256", "uid")
HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "uid": re.compile(r"[0-9a-f]{32}")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """POOL/purge.json: a purge that has begun. It has no content of the rows."""

    uids: tuple[str, ...]
    fingerprint: str  # of the pool before
    views: dict[str, dict[str, int]]  # view -> rule -> rows that it decided; "" for rows kept
    scored: dict[str, int]  # score set -> scored rows of the shards that have some of these uids
    adopted: tuple[str, ...]  # tars outside of the pool that keep the images
    at: str = ""  # "" of an earlier version, which left no record
    selectors: dict[str, int] = field(default_factory=dict)  # see PurgeRecord
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """What a purge did."""

    rows: int  # distinct uids
    shards: int  # that were replaced
    views: dict[str, int]  # that had kept rows -> how many
    old: tuple[str, ...]  # score sets and views that depend on other rows, and are old now
    runs: tuple[str, ...]  # folders of runs and ablations that used such a view, and reports
    adopted: tuple[str, ...]  # tars outside of the pool, which were left as they are


def read_criteria(words: Iterable[str]) -> dict[str, set[str]]:
    """{kind: values} of KIND=VALUE words, and of files of such lines. ValueError for others."""
    criteria: dict[str, set[str]] = {}
    for word in words:
        kind, equals, value = word.partition("=")
        if not (equals and kind in KINDS) and Path(word).is_file():
            lines = [line.strip() for line in Path(word).read_text().splitlines()]
            from_file = read_criteria(line for line in lines if line and line[0] != "#")
            for other, values in from_file.items():
                criteria.setdefault(other, set()).update(values)
            continue
        if kind not in KINDS or not value:
            raise ValueError(
                f"--purge {word}: write url=URL, domain=HOST, sha256=HEX or uid=HEX, or name a "
                "file of such lines"
            )
        if kind in ("domain", "sha256", "uid"):
            value = value.lower().strip(".") if kind == "domain" else value.lower()
        if kind in HEX and not HEX[kind].fullmatch(value):
            digits = 64 if kind == "sha256" else 32
            raise ValueError(f"--purge {word}: a {kind} has {digits} hex digits")
        criteria.setdefault(kind, set()).add(value)
    return criteria


def purge_rows(
    pool: str,
    criteria: Mapping[str, set[str]],
    *,
    used_by: Sequence[str] = (),
    fence: int | None = None,
) -> Purge:
    """Remove the images, captions and URLs of rows from tars, sidecars, pairs, plan and scores.

    A row stays as a tombstone: its uid, its key and the reason `purged`. Masks stay aligned; score
    sets and views stay what they were without these rows, and get the new fingerprint. Score sets
    whose values depend on other rows, and views whose rules read one, keep the old fingerprint:
    they are old and must be made again. All attempts and pairs of a uid go together. Under the
    pool's lease. ValueError where there is no pool.
    """
    layout = PoolLayout(pool)
    for folder in used_by:
        if not disk.local_path(folder).is_dir():
            raise ValueError(f"--used-by {folder} is not a folder")
    commits = read_commits(pool)
    if not len(commits) and not disk.list_names(layout.pairs):
        raise ValueError(f"{pool} has neither pairs nor shards; is it the folder of a pool?")
    path = _journal(pool)
    if disk.exists(path):
        remove_uncommitted(pool)  # what the killed purge had replaced and not removed
        _finish(commits, read_document(path, Journal), None, fence)
        commits = read_commits(pool)
    rows = find_rows(commits, criteria)
    if not len(rows.uids):
        return Purge(rows=0, shards=0, views={}, old=(), runs=(), adopted=())
    journal = _begin(commits, rows, criteria)
    check_fence(pool, fence)
    disk.write_json(path, journal, sealed=True)
    replaced = _finish(commits, journal, rows, fence)
    views = {view: rules[""] for view, rules in journal.views.items() if "" in rules}
    return Purge(
        rows=len(journal.uids),
        shards=replaced,
        views=views,
        old=_old(pool),
        runs=tuple(find_users(pool, views, used_by)),
        adopted=journal.adopted,
    )


def _finish(commits: Commits, journal: Journal, rows: FoundRows | None, fence: int | None) -> int:
    """Do what a journal names; how many shards were replaced.

    rows: where its rows are; None where a purge was killed, which has done a part of it.
    """
    pool = commits.pool
    layout, uids = PoolLayout(pool), pa.array(journal.uids, pa.string())
    if rows is None:
        rows = locate_rows(commits, uids, tombstones=True)
    replaced = 0
    remove_transient(pool, fence)  # it has columns of the rows
    if rows.shards:
        commits, replaced = _purge_shards(pool, rows, fence)
        _purge_scores(commits, rows, journal, fence)
        _purge_views(commits, rows, journal, fence)
        remove_copies(pool, rows.shards)
    drop = not planning.is_planned(pool)
    check_fence(pool, fence)
    if drop and rows.files:
        disk.remove(layout.parts)  # the footers of the parts have the same counts

    def purge_file(path: str) -> None:
        purge_parquet(path, uids, drop and path.startswith(layout.pairs), pool=pool, fence=fence)

    in_threads(purge_file, rows.files)
    if drop and rows.files:
        write_parts(pool)
    recipe = recipe_of_pool(pool)
    if recipe is not None:
        write_pool_json(pool, recipe, {}, commits)
    disk.remove(layout.progress_json)  # what the last build showed has names of hosts
    if journal.at:
        record = PurgeRecord(
            at=journal.at,
            selectors=journal.selectors,
            hashes=journal.hashes,
            uids=journal.uids,
        )
        write_record(pool, record)
    disk.remove(_journal(pool))
    return replaced


def purge_lines(result: Purge) -> list[str]:
    """What a purge did, for a terminal."""
    lines = [f"{result.rows} rows purged, {result.shards} shards replaced"]
    for view, rows in sorted(result.views.items()):
        lines.append(f"view    {view} had kept {rows} of them")
    if result.old:
        lines.append(
            f"old     {', '.join(result.old)}: their values depended on these rows; run "
            "pipeline/score.py, then pipeline/filter.py with the recipe"
        )
    lines += [f"used by {folder}" for folder in result.runs]
    for tar in result.adopted:
        lines.append(f"note    {tar} is not the pool's own file and still has the images")
    return lines


def _old(pool: str) -> tuple[str, ...]:
    """The score sets that depend on other rows of the pool, and the views that read one."""
    sets = complete_score_sets(pool)
    dependent = {name for name, document in sets.items() if document.whole_pool}
    views = []
    for view in view_names(pool) if dependent else ():
        document = read_document(PoolLayout(pool).view_json(view), ViewDocument)
        if dependent & set(document.scores.values()):
            views.append(view)
    return (*sorted(dependent), *views)


def _journal(pool: str) -> str:
    return disk.join(pool, "purge.json")


def _begin(commits: Commits, rows: FoundRows, criteria: Mapping[str, set[str]]) -> Journal:
    """What is to be purged, and what is to be subtracted from the documents of scores and views."""
    pool, layout = commits.pool, PoolLayout(commits.pool)
    sets = [name for name in disk.list_names(layout.scores) if "@" in name]
    positions = np.searchsorted(commits.shards, np.array(list(rows.shards), np.int64))
    records = commits.table.select(["tar", "adopted"]).take(pa.array(positions))
    adopted = records["tar"].filter(pc.fill_null(records["adopted"], False)).to_pylist()
    selectors, hashes = selectors_of(criteria)
    if criteria.keys() & {"uid", "sha256"}:  # a person who asks for the URL learns it too
        hashes = tuple(sorted({*hashes, *hashes_of_urls(_urls(commits, rows))}))
    return Journal(
        at=now(),
        selectors=selectors,
        hashes=hashes,
        uids=tuple(rows.uids.to_pylist()),
        fingerprint=commits.fingerprint,
        views={view: _decided(pool, view, rows.shards) for view in view_names(pool)},
        scored={name: _scored(layout, name, rows.shards) for name in sets},
        adopted=tuple(sorted(adopted)),
    )


def _urls(commits: Commits, rows: FoundRows) -> set[str]:
    """The URLs of rows that are to be purged."""

    def look(path: str) -> list[str | None]:
        table = disk.read_parquet(path, ["uid", "url"])
        urls: list[str | None] = table.filter(pc.is_in(table["uid"], rows.uids))["url"].to_pylist()
        return urls

    paths = [*(commits.sidecar(shard) for shard in rows.shards), *rows.files]
    return {url for urls in in_threads(look, paths) for url in urls if url}


def _decided(pool: str, view: str, purged: Mapping[int, Mask]) -> dict[str, int]:
    """{rule: purged rows that it decided}, "" for those that the view keeps."""
    files = AlignedFiles.of_view(pool, view)
    decided: dict[str, int] = {}

    def look(shard: int) -> list[str | None]:
        if not files.has(shard):
            return []
        rules: list[str | None] = (
            files.read(shard, ["rule"])[0]["rule"].filter(pa.array(purged[shard])).to_pylist()
        )
        return rules

    for rules in in_threads(look, purged):
        for rule in rules:
            decided[rule or ""] = decided.get(rule or "", 0) + 1
    return decided


def _scored(layout: PoolLayout, name: str, purged: Mapping[int, Mask]) -> int:
    files = AlignedFiles.of_scores(layout.root, name)

    def look(shard: int) -> int:
        return int(files.metadata(shard)["scored"]) if files.has(shard) else 0

    return sum(in_threads(look, purged))


# --- shards, scores, views ------------------------------------------------------------------------


def _purge_shards(pool: str, rows: FoundRows, fence: int | None) -> tuple[Commits, int]:
    """Replace every shard that has content of these rows: (what is committed then, how many).

    A shard is forgotten by the index before its record is replaced, and added again with the new
    record: a reader of the open index reads the record itself in between.
    """
    replaced = 0
    check = partial(check_fence, pool, fence)
    with IndexWriter(pool, check=check) as index, ThreadPoolExecutor(THREADS) as threads:
        before = index.commits
        index.forget(rows.shards)

        def purge(shard: int) -> CommitRecord | None:
            return purge_shard(pool, before.record(shard), rows.shards[shard], fence)

        for shard, record in zip(rows.shards, threads.map(purge, rows.shards), strict=True):
            index.add(record or before.record(shard))
            replaced += record is not None
    return index.commits, replaced


def _purge_scores(commits: Commits, rows: FoundRows, journal: Journal, fence: int | None) -> None:
    """Remove the rows from the score sets, and bring their documents up to date."""
    layout = PoolLayout(commits.pool)
    for name, scored_before in journal.scored.items():
        scored = purge_scores(commits.pool, name, rows.shards, commits, fence)
        path = layout.score_set_json(name)
        if not disk.exists(path):
            continue
        document = read_document(path, ScoreSetDocument)
        is_current = document.fingerprint == journal.fingerprint  # neither stale nor done already
        if is_current and not document.whole_pool:
            document = replace(
                document,
                fingerprint=commits.fingerprint,
                stored=commits.totals.stored,
                scored=document.scored - scored_before + scored,
            )
            disk.write_json(path, document.document(), sealed=True)


def _purge_views(commits: Commits, rows: FoundRows, journal: Journal, fence: int | None) -> None:
    """Remove the rows from the masks, and bring the documents of the views up to date."""
    layout = PoolLayout(commits.pool)
    old = _old(commits.pool)
    for view, decided in journal.views.items():
        kept = purge_masks(commits.pool, view, rows.shards, fence)
        path = layout.view_json(view)
        if not disk.exists(path):
            continue
        document = read_document(path, ViewDocument)
        if document.fingerprint == journal.fingerprint and view not in old:
            changed = minus(document, decided, commits.fingerprint)
            disk.remove(layout.view_rules(view))
            changed = _with_kept(commits, changed, kept)
            disk.write_json(path, changed.document(), sealed=True)


def _with_kept(commits: Commits, document: ViewDocument, now: Mapping[int, int]) -> ViewDocument:
    """The document with the rows that some masks keep now."""
    if document.shards is not None:
        names = {shard_name(shard): kept for shard, kept in now.items()}
        return replace(document, shards={**document.shards, **names})
    shards, kept = view_shards(commits.pool, document)
    kept = kept.copy()
    for shard, count in now.items():
        kept[np.searchsorted(shards, shard)] = count
    rows = np.asarray(commits.column("count").to_numpy(), np.int64)
    table = write_view_shards(commits.pool, document.name, shards, rows, kept)
    return replace(document, table=table)
