"""Removes rows from a pool by URL, domain, sha256 or uid, and names what used them.

The uids of the rows are written into POOL/purge.json before anything changes, and the file is
removed last: after a kill, the next purge of any rows first ends this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.aligned import AlignedFiles, view_shards, write_view_shards
from manifests.commits import Commits, IndexWriter, read_commits
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import PoolLayout, shard_name
from pipeline import planning
from pipeline.accounting.counts import recipe_of_pool, view_names, write_pool_json
from pipeline.accounting.tombstones import (
    PURGED,
    Mask,
    minus,
    purge_masks,
    purge_parquet,
    purge_scores,
    purge_shard,
    rows_with,
)
from pipeline.pool import check_fence, read_sidecar, remove_uncommitted

KINDS = ("url", "domain", "sha256", "uid")
READERS = 8  # sidecars that are read at a time
RUN_DEPTH = 6  # folders below a --used-by folder in which runs are looked for
HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)"
HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "uid": re.compile(r"[0-9a-f]{32}")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """POOL/purge.json: a purge that has begun. It has no content of the rows."""

    uids: tuple[str, ...]
    fingerprint: str  # of the pool before
    views: dict[str, dict[str, int]]  # view -> rule -> rows that it decided; "" for rows kept
    scored: dict[str, int]  # score set -> scored rows of the shards that have some of these uids
    adopted: tuple[str, ...]  # tars outside of the pool that keep the images


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """What a purge did."""

    rows: int  # distinct uids
    shards: int  # that were replaced
    views: dict[str, int]  # that had kept rows -> how many
    runs: tuple[str, ...]  # folders of runs and ablations that used such a view
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
    sets and views stay what they were without these rows, and get the new fingerprint. All attempts
    and pairs of a uid go together. Under the pool's lease. ValueError where there is no pool.
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
        _finish(pool, read_document(path, Journal), fence)
        commits = read_commits(pool)
    journal = _begin(commits, criteria)
    if journal is None:
        return Purge(rows=0, shards=0, views={}, runs=(), adopted=())
    check_fence(pool, fence)
    disk.write_json(path, journal, sealed=True)
    replaced = _finish(pool, journal, fence)
    views = {view: rules[""] for view, rules in journal.views.items() if "" in rules}
    return Purge(
        rows=len(journal.uids),
        shards=replaced,
        views=views,
        runs=tuple(find_users(pool, views, used_by)),
        adopted=journal.adopted,
    )


def _finish(pool: str, journal: Journal, fence: int | None) -> int:
    """Do what a journal names, or what a killed purge left of it; how many shards were replaced."""
    layout = PoolLayout(pool)
    uids = pa.array(journal.uids, pa.string())
    purged, replaced = _purge_shards(read_commits(pool), uids, fence)
    remove_uncommitted(pool)  # what a killed purge had replaced and not removed
    commits = read_commits(pool)
    _purge_scores(commits, purged, journal)
    _purge_views(commits, purged, journal)
    drop = not planning.is_planned(pool)
    if drop:
        disk.remove(layout.parts)  # the footers of the parts say what it said
    for path in _pair_files(layout):
        check_fence(pool, fence)
        purge_parquet(path, uids, drop and path.startswith(layout.pairs))
    recipe = recipe_of_pool(pool)
    if recipe is not None:
        write_pool_json(pool, recipe, {}, commits)
    disk.remove(layout.progress_json)  # what the last build showed has names of hosts
    disk.remove(_journal(pool))
    return replaced


def purge_lines(result: Purge) -> list[str]:
    """What a purge did, for a terminal."""
    lines = [f"{result.rows} rows purged, {result.shards} shards replaced"]
    for view, rows in sorted(result.views.items()):
        lines.append(f"view    {view} had kept {rows} of them")
    lines += [f"used by {folder}" for folder in result.runs]
    for tar in result.adopted:
        lines.append(f"note    {tar} is not the pool's own file and still has the images")
    return lines


# --- which rows -----------------------------------------------------------------------------------


def _journal(pool: str) -> str:
    return disk.join(pool, "purge.json")


def _begin(commits: Commits, criteria: Mapping[str, set[str]]) -> Journal | None:
    """What there is to purge; None where no row fits."""
    layout = PoolLayout(commits.pool)
    uids = set(criteria.get("uid", ()))
    files = [*(commits.sidecar(name) for name in commits.names()), *_pair_files(layout)]
    with ThreadPoolExecutor(READERS) as threads:
        if criteria.keys() - {"uid"}:
            for matching in threads.map(lambda file: _matching(file, criteria), files):
                uids |= set(matching)
        known = pa.array(sorted(uids), pa.string())
        there: set[str] = set()
        for found in threads.map(lambda file: _found(file, known), files):
            there |= found
    if not there:
        return None
    affected = dict(_affected(commits, pa.array(sorted(there), pa.string())))
    records = [commits.record(shard) for shard in affected]
    sets = [name for name in disk.list_names(layout.scores) if "@" in name]
    return Journal(
        uids=tuple(sorted(there)),
        fingerprint=commits.fingerprint,
        views={view: _decided(commits.pool, view, affected) for view in view_names(commits.pool)},
        scored={name: _scored(layout, name, affected) for name in sets},
        adopted=tuple(sorted(record.tar for record in records if record.adopted)),
    )


def _decided(pool: str, view: str, purged: Mapping[int, Mask]) -> dict[str, int]:
    """{rule: purged rows that it decided}, "" for those that the view keeps."""
    files = AlignedFiles.of_view(pool, view)
    decided: dict[str, int] = {}
    for shard, mask in purged.items():
        if files.has(shard):
            rules = files.read(shard, ["rule"])[0]["rule"].filter(pa.array(mask))
            for rule in rules.to_pylist():
                decided[rule or ""] = decided.get(rule or "", 0) + 1
    return decided


def _pair_files(layout: PoolLayout) -> list[str]:
    """The parts of the pairs and the files of the plan that hold pairs."""
    files = [disk.join(layout.pairs, name) for name in disk.list_names(layout.pairs, ".parquet")]
    if planning.is_planned(layout.root):
        files += [path for path in planning.read_plan(layout.root).files if disk.exists(path)]
    return files


def _matching(path: str, criteria: Mapping[str, set[str]]) -> list[str]:
    """The uids of the rows of a file that fit."""
    names = disk.read_schema(path).names
    urls = [name for name in ("url", "final_url") if name in names]
    wanted = ["uid", *urls, *(["sha256"] if "sha256" in names else [])]
    table = disk.read_parquet(path, wanted)
    mask = pa.array(np.zeros(table.num_rows, np.bool_))
    for name in urls:
        if "url" in criteria:
            mask = pc.or_(mask, pc.is_in(table[name], pa.array(sorted(criteria["url"]))))
        if "domain" in criteria:
            mask = pc.or_(mask, _of_domains(table[name], criteria["domain"]))
    if "sha256" in criteria and "sha256" in names:
        mask = pc.or_(mask, pc.is_in(table["sha256"], pa.array(sorted(criteria["sha256"]))))
    uids: list[str] = table["uid"].filter(mask).to_pylist()
    return uids


def _of_domains(urls: pa.ChunkedArray, domains: set[str]) -> pa.ChunkedArray:
    """(rows,) True where the host of a URL is one of the domains or lies in one."""
    hosts = pc.utf8_lower(pc.struct_field(pc.extract_regex(urls, HOST), "host"))
    different = pc.unique(hosts).drop_null()
    fitting = []
    for host in different.to_pylist():
        parts = host.strip(".").split(".")
        if any(".".join(parts[i:]) in domains for i in range(len(parts))):
            fitting.append(host)
    return pc.is_in(hosts, pa.array(fitting, pa.string()))


def _found(path: str, uids: pa.Array) -> set[str]:
    """Which of some uids have content in a file: those that are no tombstones yet."""
    names = disk.read_schema(path).names
    column = "reason" if "reason" in names else "url"
    table = disk.read_parquet(path, ["uid", column])
    has_content = (
        pc.fill_null(pc.not_equal(table["reason"], PURGED), True)
        if column == "reason"
        else table["url"].is_valid()
    )
    mask = pc.and_(pc.is_in(table["uid"], uids), has_content)
    return set(table["uid"].filter(mask).to_pylist())


def _affected(commits: Commits, uids: pa.Array) -> Iterator[tuple[int, Mask]]:
    """(shard, which of its rows) of the shards that have some of these uids."""

    def look(name: str) -> tuple[int, Mask]:
        return int(name), rows_with(disk.read_parquet(commits.sidecar(name), ["uid"]), uids)

    with ThreadPoolExecutor(READERS) as threads:
        for shard, mask in threads.map(look, commits.names()):
            if mask.any():
                yield shard, mask


# --- shards, scores, views ------------------------------------------------------------------------


def _purge_shards(
    commits: Commits, uids: pa.Array, fence: int | None
) -> tuple[dict[int, Mask], int]:
    """Replace every shard that has content of these rows: ({shard: rows}, how many)."""
    purged = dict(_affected(commits, uids))
    todo = {}
    for shard, mask in purged.items():
        reasons = read_sidecar(commits.pool, shard, ["reason"])["reason"].filter(pa.array(mask))
        if not pc.all(pc.fill_null(pc.equal(reasons, PURGED), False)).as_py():
            todo[shard] = mask
    with IndexWriter(commits.pool) as index:
        if todo:
            index.forget(todo)
        for shard, mask in todo.items():
            table = read_sidecar(commits.pool, shard).replace_schema_metadata(None)
            record = commits.record(shard)
            index.add(purge_shard(commits.pool, record, table, mask, fence))
    return purged, len(todo)


def _purge_scores(commits: Commits, purged: Mapping[int, Mask], journal: Journal) -> None:
    """Remove the rows from the score sets, and bring their documents up to date."""
    layout = PoolLayout(commits.pool)
    records = {shard: commits.record(shard) for shard in purged}
    for name, scored_before in journal.scored.items():
        purge_scores(commits.pool, name, purged, records)
        path = layout.score_set_json(name)
        if not disk.exists(path):
            continue
        document = read_document(path, ScoreSetDocument)
        if document.fingerprint == journal.fingerprint:  # neither stale nor done already
            document = replace(
                document,
                fingerprint=commits.fingerprint,
                stored=commits.totals.stored,
                scored=document.scored - scored_before + _scored(layout, name, purged),
            )
            disk.write_json(path, document.document(), sealed=True)


def _purge_views(commits: Commits, purged: Mapping[int, Mask], journal: Journal) -> None:
    """Remove the rows from the masks, and bring the documents of the views up to date."""
    layout = PoolLayout(commits.pool)
    for view, decided in journal.views.items():
        purge_masks(commits.pool, view, purged)
        path = layout.view_json(view)
        document = read_document(path, ViewDocument)
        if document.fingerprint == journal.fingerprint:
            changed = minus(document, decided, commits.fingerprint)
            disk.remove(disk.join(layout.views, view, "rules.json"))
            changed = _with_kept(layout, commits, changed, purged)
            disk.write_json(path, changed.document(), sealed=True)


def _scored(layout: PoolLayout, name: str, purged: Mapping[int, Mask]) -> int:
    files = AlignedFiles.of_scores(layout.root, name)
    scored = 0
    for shard in purged:
        if files.has(shard):
            scored += files.metadata(shard)["scored"]
    return scored


def _with_kept(
    layout: PoolLayout, commits: Commits, document: ViewDocument, purged: Mapping[int, Mask]
) -> ViewDocument:
    """The document with the rows kept of each shard as its mask has them now."""
    files = AlignedFiles.of_view(layout.root, document.name)
    now = {}
    for shard in purged:
        now[shard] = pc.sum(files.read(shard, ["kept"])[0]["kept"]).as_py() or 0
    if document.shards is not None:
        names = {shard_name(shard): kept for shard, kept in now.items()}
        return replace(document, shards={**document.shards, **names})
    shards, kept = view_shards(layout.root, document)
    kept = kept.copy()
    for shard, count in now.items():
        kept[np.searchsorted(shards, shard)] = count
    rows = np.asarray(commits.column("count").to_numpy(), np.int64)
    table = write_view_shards(layout.root, document.name, shards, rows, kept)
    return replace(document, table=table)


# --- who used it ----------------------------------------------------------------------------------


def find_users(pool: str, views: Mapping[str, int], folders: Sequence[str]) -> Iterator[str]:
    """Folders of runs that drew from one of these views of the pool, and of their ablations.

    Looked for in `folders`; without any, beside the pool.
    """
    if not views:
        return
    beside = [] if disk.is_url(pool) else [str(disk.local_path(pool).absolute().parent)]
    named: set[str] = set()
    for folder in folders or beside:
        for path in _below(disk.local_path(folder), RUN_DEPTH):
            if not _draws(path, pool, views):
                continue
            parents = [parent for parent in path.parents if (parent / "ablation.json").is_file()]
            for user in (path.parent, *parents[:1]):
                if str(user) not in named:
                    named.add(str(user))
                    yield str(user)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The files run.json and blend.json of runs in a folder."""
    for level in range(depth):
        yield from sorted(folder.glob("*/" * level + "blend.json"))
        yield from sorted(folder.glob("*/" * level + "run.json"))


def _draws(path: Path, pool: str, views: Mapping[str, int]) -> bool:
    """Whether a run, by its resolved blend or its record, draws from a view of the pool."""
    try:
        document: Any = disk.read_json(path)
    except ValueError:
        return False
    blend = document.get("blend", document) if isinstance(document, dict) else {}
    pools = blend.get("pools") or {} if isinstance(blend, dict) else {}
    used = blend.get("views") or {} if isinstance(blend, dict) else {}
    for name in used:
        folder, _, view = str(name).rpartition("/")
        location = str(pools.get(folder, folder)).rstrip("/")
        is_pool = location.rpartition("/")[2] == pool.rstrip("/").rpartition("/")[2]
        if is_pool and view in views:
            return True
    return False
