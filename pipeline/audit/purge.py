"""Removes rows from a pool by URL, domain, sha256 or uid, and names what used them."""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.aligned import (
    AlignedFiles,
    Bundle,
    Change,
    is_current,
    own_shards,
    parquet_bytes,
    remove_view_shards,
    view_shards,
    write_changed,
    write_view_shards,
)
from clipmill.manifests.arrays import Mask
from clipmill.manifests.columns import REASONS
from clipmill.manifests.commits import Commits, IndexWriter, in_threads, read_commits
from clipmill.manifests.layout import (
    NOT_STORED,
    AblationLayout,
    CommitRecord,
    PoolLayout,
    shard_name,
)
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import ScoreSetDocument, ViewDocument, read_document
from clipmill.manifests.text import valid_text
from clipmill.pipeline.archives.urls import ascii_host, resolve, trimmed
from clipmill.pipeline.audit.counts import recipe_of_pool, write_pool_json
from clipmill.pipeline.audit.row_index import locate
from clipmill.pipeline.crawl.parts import read_parts, write_parts
from clipmill.pipeline.cross_row import remove_transient
from clipmill.pipeline.planning.plan_files import RowsOfShard, is_planned, read_plan, read_row_group
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import (
    TarFile,
    remove_uncommitted,
    replace_shard,
    staged_file,
)
from clipmill.pipeline.pool.tar_copy import copy_tar_without
from clipmill.pipeline.table_files import text_lines

# --------------------------------------------------------------------------------------------------
# Removes rows from the files of a pool. What stays of a row is its uid and its key, as a
# tombstone with the reason `purged`, so that all counts agree and it is never fetched again.


PURGED = "purged"
KEPT_COLUMNS = ("uid", "key", "retry_of")  # of a tombstone in a sidecar
KEPT_IN_PLAN = ("uid", "part", "row", "shard", "position", "retry_of")
THREADS = 4  # shards that are written again at a time; Arrow and hashlib free the GIL
Plain = dict[str, Any]


def rows_with(table: pa.Table, uids: pa.Array) -> Mask:
    """(rows,) True where the uid is one of `uids`."""
    return np.asarray(pc.is_in(table["uid"], uids).to_numpy(zero_copy_only=False), np.bool_)


def without_content(table: pa.Table, purged: Mask, kept: Sequence[str] = ("uid",)) -> pa.Table:
    """The table with NULL in every column but `kept` for the rows of a mask."""
    mask = pa.array(purged)
    columns = []
    for of_schema, column in zip(table.schema, table.columns, strict=True):
        if of_schema.name in kept:
            columns.append(column)
        else:
            columns.append(pc.if_else(mask, pa.scalar(None, of_schema.type), column))
    return pa.Table.from_arrays(columns, schema=table.schema)


# --- shards ---------------------------------------------------------------------------------------


def purge_shard(out: PoolWriter, record: CommitRecord, purged: Mask) -> CommitRecord | None:
    """Replace a shard by one without the content of some rows; its new record.

    None where these rows have no content any more. The members of the other rows are copied byte
    for byte. A tar that was adopted stays where it is: the pool gets a copy without these rows.
    ValueError for a tar that is damaged or was changed.
    """
    layout, shard = out.layout, int(record.shard)
    table = Pool(Commits.of_records(out.pool, [record])).read(shard, None)
    if not has_content(table, purged).any():
        return None
    rows = _tombstones(table, purged)
    if not len(table.filter(pa.array(purged))["image_name"].drop_null()):
        return replace_shard(out, shard, rows)
    with staged_file(layout.shard_tar(shard)) as staged:
        copy = copy_tar_without(layout.tar(record), staged, table, purged, record.tar_sha256)
        rows = copy.moved(rows)
        tar = TarFile(name=f"{shard_name(shard)}.tar", bytes=copy.bytes, sha256=copy.sha256)
        return replace_shard(out, shard, rows, tar, staged_tar=staged)


def has_content(table: pa.Table, chosen: Mask) -> Mask:
    """(rows,) True for the chosen rows that are no tombstones yet: of a sidecar by their reason,
    of pairs and plan by their URL.
    """
    if "reason" in table.column_names:
        is_tombstone = pc.fill_null(pc.equal(table["reason"], PURGED), False)
    else:
        is_tombstone = table["url"].is_null()
    return chosen & ~np.asarray(is_tombstone.to_numpy(), np.bool_)


def _tombstones(table: pa.Table, purged: Mask) -> pa.Table:
    """The rows of a sidecar with tombstones for those of a mask."""
    rows = without_content(table, purged, KEPT_COLUMNS)
    mask = pa.array(purged)
    values = {"status": "failed_to_download", "reason": PURGED, "class": REASONS[PURGED]}
    for name, value in values.items():
        column = pc.if_else(mask, pa.scalar(value, pa.string()), rows[name])
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


# --- score columns and masks ----------------------------------------------------------------------


def purge_scores(out: PoolWriter, name: str, purged: Mapping[int, Mask], commits: Commits) -> int:
    """NULL for the purged rows in the columns of a score set, complete or not; how many rows of
    these shards have all columns afterwards.
    """
    scored: dict[int, int] = {}

    def change(shard: int, table: pa.Table, metadata: Plain) -> tuple[pa.Table, Plain]:
        record = commits.record(shard)
        table = without_content(table, purged[shard], ())
        is_scored = np.ones(table.num_rows, np.bool_)
        for column in table.columns:
            is_scored &= np.asarray(column.is_valid().to_numpy(), np.bool_)
        scored[shard] = int(is_scored.sum())
        changed = {"sidecar": record.sidecar_sha256, "stored": record.successes}
        return table, {**metadata, **changed, "scored": scored[shard]}

    _rewrite_bundles(out, AlignedFiles.of_scores(out.layout, name), purged, change)

    def rewrite(shard: int) -> None:  # of a set that is being made: not in its bundle yet
        path = out.layout.score_part(name, shard)
        if disk.exists(path):
            table, metadata = disk.read_with_metadata(path)
            changed = change(shard, table.replace_schema_metadata(None), metadata)
            disk.write_bytes(path, parquet_bytes(*changed))

    out.check()
    deque(in_threads(rewrite, purged), 0)
    return sum(scored.values())


def purge_masks(out: PoolWriter, view: str, purged: Mapping[int, Mask]) -> dict[int, int]:
    """`not_stored` for the purged rows in the masks of a view; rows kept of each shard then."""
    now_kept: dict[int, int] = {}

    def change(shard: int, table: pa.Table, metadata: Plain) -> tuple[pa.Table, Plain]:
        mask = pa.array(purged[shard])
        kept = pc.and_(table["kept"], pc.invert(mask))
        rule = pc.if_else(mask, pa.scalar(NOT_STORED), table["rule"])
        now_kept[shard] = pc.sum(kept).as_py() or 0
        changed = pa.Table.from_arrays([kept, rule], schema=table.schema)
        return changed, {**metadata, "kept": now_kept[shard]}

    _rewrite_bundles(out, AlignedFiles.of_view(out.layout, view), purged, change)
    return now_kept


def _rewrite_bundles(
    out: PoolWriter, files: AlignedFiles, shards: Mapping[int, Mask], change: Change
) -> None:
    """Write the bundles again that have some of these shards."""

    def rewrite(path: str) -> None:
        with staged_file(path, alone=True) as staged:
            write_changed(Bundle(path), staged, shards, change)
            out.publish(staged, path)

    paths = filter(disk.exists, sorted({files.path(shard) for shard in shards}))
    deque(in_threads(rewrite, paths), 0)


# --- pairs and plan -------------------------------------------------------------------------------


def purge_parquet(
    out: PoolWriter, path: str, uids: pa.Array, drop: bool, reasons: Sequence[str]
) -> int:
    """Remove the content of rows of a part of the pairs or of a file of the plan; how many. Of its
    footer the examples of `reasons` are removed.

    Row groups stay, and their sizes unless the rows go whole: with `drop`, when the footer counts
    them as lost. One row group is in memory at a time.
    """
    keys = disk.read_parquet(path, ["uid", "url"])
    chosen = rows_with(keys, uids)
    purged_rows = int(chosen.sum() if drop else has_content(keys, chosen).sum())
    metadata = disk.read_metadata(path)
    examples = metadata.get("examples", {})
    if not purged_rows and examples.keys().isdisjoint(reasons):
        return 0
    if examples:
        metadata["examples"] = {k: v for k, v in examples.items() if k not in reasons}
    if drop and purged_rows:
        lost = dict(metadata["reasons"])
        lost[PURGED] = lost.get(PURGED, 0) + purged_rows
        metadata |= {"pairs": metadata["pairs"] - purged_rows, "reasons": lost}
    with staged_file(path, alone=True) as staged:
        _write_without(path, staged, chosen, drop, metadata)
        out.publish(staged, path)
    return purged_rows


def _write_without(path: str, staged: Path, chosen: Mask, drop: bool, metadata: Plain) -> None:
    """A copy of a Parquet file without these rows, or without their content."""
    with disk.open_file(path) as source:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        schema = disk.with_metadata(file.schema_arrow, metadata)
        start = 0
        with disk.parquet_writer(staged, schema) as target:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group).cast(schema)
                mask = chosen[start : start + len(table)]
                start += len(table)
                if drop:
                    table = table.filter(pa.array(~mask))
                else:
                    table = without_content(table, mask, KEPT_IN_PLAN)
                target.write_table(table, row_group_size=max(1, len(table)))


def minus(document: Any, decided: Mapping[str, int], fingerprint: str) -> Any:
    """The document of a view without the purged rows: its funnel, rows kept and fingerprint.

    decided: by rule, the purged rows that it decided; "" for those that the view kept.
    """
    stored = {rule: count for rule, count in decided.items() if rule != NOT_STORED}
    left = sum(stored.values())
    funnel = [document.funnel[0]]
    for number, (step, rows) in enumerate(document.funnel[1:]):
        if number:  # behind `stored`: the rows that this step rejected are not in it
            left -= stored.get(step, 0) + stored.get(f"{step}:missing", 0)
        funnel.append((step, rows - left))
    kept = document.kept - stored.get("", 0)
    changes = {"funnel": tuple(funnel), "kept": kept, "fingerprint": fingerprint}
    if document.rows_sha256 is not None and kept < document.kept:
        changes["rows_sha256"] = None  # the view has other rows now
    return replace(document, **changes)


# --------------------------------------------------------------------------------------------------
# Which rows of a pool have a URL, a domain, a sha256 or a uid, and in which files they are.
#
# Only the columns that are needed are read, a few files at a time. Rows that are named by their
# uid are looked up in the table of row_index.py where it is up to date: then only the files that
# have such a row are opened.


LOOKED_UP = 1_000  # uids that are looked up one by one; of more, the columns are read
# Of a URL as browsers read it: http takes any number of slashes
HOST = re.compile(r"(?i)(?:https?:/*|[a-z][\w+.-]*://|//)(?:[^/?#]*@)?(\[[^\]]*\]|[^/?#:]*)")
# The same for the usual spellings, and what a URL with another one has, in RE2's syntax
PLAIN_HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?P<host>[a-zA-Z0-9_.-]+)(?::[0-9]*)?(?:[/?#]|$)"
IN_TEXT = re.compile(r"(?i)(?:https?:|//)[^\s'\"<>]+")  # URLs in the example of a reason
Criteria = Mapping[str, Set[str]]  # url, domain, sha256 or uid -> values


class RowsByShard(Mapping[int, Mask]):
    """Some rows of each of some shards. A mask is made on demand: four bytes a row are held."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, npt.NDArray[np.uint32]]] = {}

    def add(self, shard: int, mask: Mask) -> None:
        """The rows of a shard."""
        self._rows[shard] = len(mask), np.flatnonzero(mask).astype(np.uint32)

    def __getitem__(self, shard: int) -> Mask:
        count, positions = self._rows[shard]
        mask = np.zeros(count, np.bool_)
        mask[positions] = True
        return mask

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundRows:
    """Where some rows are."""

    uids: pa.Array  # those that have content somewhere, ascending
    shards: RowsByShard
    files: tuple[str, ...]  # parts of the pairs and files of the plan


def find_rows(commits: Commits, criteria: Criteria) -> FoundRows:
    """The rows with content that fit one of the criteria, and all others of their uids."""
    uids = pa.array(sorted(criteria.get("uid", ())), pa.string())
    if criteria.keys() - {"uid"}:
        pool, shards = Pool(commits), commits.shards.tolist()
        files = _pair_files(commits.layout)
        of_shards = in_threads(
            lambda shard: _matching(partial(pool.read, shard), pool.schema.names, criteria), shards
        )
        of_files = in_threads(
            lambda path: _matching(
                partial(disk.read_parquet, path), disk.read_schema(path).names, criteria
            ),
            files,
        )
        uids = _distinct([uids, *of_shards, *of_files])
        return locate_rows(commits, uids, shards, files)
    return locate_rows(commits, uids, *_candidates(commits, uids))


def locate_rows(
    commits: Commits,
    uids: pa.Array,
    shards: Sequence[int] | None = None,
    files: Sequence[str] | None = None,
    *,
    tombstones: bool = False,
) -> FoundRows:
    """Where the rows of some uids are, among some shards and files of pairs (default: all).

    Shards and files in which they have no content any more are left out unless `tombstones` is set:
    a purge that was killed may have emptied the shard and not yet its scores.
    """
    if shards is None or files is None:
        shards, files = commits.shards.tolist(), _pair_files(commits.layout)
    pool, rows = Pool(commits), RowsByShard()
    there: list[pa.Array] = []

    def look(table: pa.Table) -> tuple[Mask, Mask, pa.Array]:
        chosen = rows_with(table, uids)
        has = has_content(table, chosen)
        return chosen, has, table["uid"].filter(pa.array(has)).combine_chunks()

    sidecars = in_threads(lambda shard: look(pool.read(shard, ["uid", "reason"])), shards)
    for shard, (chosen, has, present) in zip(shards, sidecars, strict=True):
        if has.any() or (tombstones and chosen.any()):
            rows.add(shard, chosen)
            there.append(present)
    touched = []
    others = in_threads(lambda path: look(disk.read_parquet(path, ["uid", "url"])), files)
    for path, (chosen, has, present) in zip(files, others, strict=True):
        if has.any() or (tombstones and chosen.any()):
            touched.append(path)
            there.append(present)
    return FoundRows(uids=_distinct(there), shards=rows, files=tuple(touched))


def _candidates(commits: Commits, uids: pa.Array) -> tuple[list[int], list[str]]:
    """(the shards, the files of pairs and plan) that may have some of these uids: those that the
    row index names, if it is up to date; else all.
    """
    layout = commits.layout
    files = _pair_files(layout)
    everything = commits.shards.tolist(), files
    if len(uids) > LOOKED_UP:
        return everything
    shards: set[int] = set()
    for uid in uids.to_pylist():
        located = locate(commits, uid)
        if len(located.others):  # shards that the table lacks
            return everything
        shards.update(located.shards)
    if not is_planned(layout):
        return sorted(shards), files
    plan = read_plan(layout)
    if len(plan) != len(commits):  # rows that wait to be fetched are in no shard yet
        return everything
    of_plan = set()
    parts: set[int] = set()
    for shard in shards:
        location = plan.location(shard)
        of_plan.add(location.file)
        parts |= _parts_of(location, uids)
    return sorted(shards), [*map(layout.pairs_part, sorted(parts)), *sorted(of_plan)]


def _parts_of(location: RowsOfShard, uids: pa.Array) -> set[int]:
    """The parts of the pairs from which some rows of one planned shard come."""
    table = read_row_group(location.file, location.row_group, ["uid", "part"])
    return set(table["part"].filter(pa.array(rows_with(table, uids))).to_pylist())


def _pair_files(layout: PoolLayout) -> list[str]:
    """The parts of the pairs and the files of the plan that hold pairs."""
    files = [disk.join(layout.pairs, name) for name in disk.list_names(layout.pairs, ".parquet")]
    if is_planned(layout):
        files += read_plan(layout).files
    return files


def _matching(
    read: Callable[[list[str]], pa.Table], names: Sequence[str], criteria: Criteria
) -> pa.Array:
    """The uids of the rows of a table that fit; `read` gives columns of it, of these names."""
    columns = ["uid"]
    if criteria.keys() & {"url", "domain"}:
        columns += [name for name in ("url", "final_url") if name in names]
    if "sha256" in criteria and "sha256" in names:
        columns.append("sha256")
    if len(columns) == 1:
        return pa.array([], pa.string())
    table = read(columns)
    mask = np.zeros(table.num_rows, np.bool_)
    for name in columns[1:]:
        if name == "sha256":
            mask |= _is_in(table[name], criteria["sha256"])
            continue
        if "url" in criteria:
            mask |= _is_in(table[name], criteria["url"])
        if "domain" in criteria:
            mask |= _of_domains(table[name], criteria["domain"])
    return table["uid"].filter(pa.array(mask)).combine_chunks()


def _is_in(column: pa.ChunkedArray, values: Iterable[str]) -> Mask:
    """(rows,) True where the value is one of some."""
    is_in = pc.is_in(column, pa.array(sorted(values), pa.string()))
    return np.asarray(is_in.to_numpy(), np.bool_)


def _of_domains(urls: pa.ChunkedArray, domains: Set[str]) -> Mask:
    """(rows,) True where the host of a URL is one of the domains or lies in one, in any spelling.

    Hosts are compared as the fetcher does: 2 µs each different one.
    """
    hosts = pc.struct_field(pc.extract_regex(urls, PLAIN_HOST), "host")
    mask = np.zeros(len(urls), np.bool_)
    for column, start in ((hosts, "//"), (pc.if_else(pc.is_null(hosts), urls, None), "")):
        texts = pc.unique(column).drop_null().to_pylist()
        fitting = [
            text for text in texts if not domains.isdisjoint(_suffixes(compared_host(start + text)))
        ]
        mask |= _is_in(column, fitting)
    return mask


def compared_host(url: str) -> str:
    """The host of a URL in the spelling that hosts are compared by, whatever the URL has: escapes,
    capitals, IDNA, a trailing dot; "" where there is none. Text that is no name stays as it is.
    """
    match = HOST.match(trimmed(url).replace("\\", "/"))
    host = unquote(match[1] if match else "").strip(".")
    try:
        return ascii_host(host).strip(".")
    except ValueError:
        return host.lower()


def _suffixes(host: str) -> list[str]:
    labels = host.split(".")
    return [".".join(labels[first:]) for first in range(len(labels))]


def _distinct(columns: Sequence[pa.Array]) -> pa.Array:
    """The values of some columns of text, each once, ascending."""
    values = pc.unique(pa.chunked_array(columns, pa.string()))
    return values.take(pc.sort_indices(values))


# --------------------------------------------------------------------------------------------------
# The runs, ablations and reports that used views of a pool, found by their documents on disk.


DEPTH = 5  # levels of folders below a folder in which runs are looked for
SHARDS = PoolLayout("pool").shards.rpartition("/")[2]  # a folder that has it is a pool
RUN_FILES = ("blend.json", "run.json")  # either one says what a run draws from


def find_users(pool: str, views: Collection[str], folders: Sequence[str]) -> Iterator[str]:
    """Folders of runs that drew from one of these views of the pool, and the folders and reports of
    their ablations.

    Looked for in `folders`; without any, beside the pool.
    """
    if not views:
        return
    beside = [] if disk.is_url(pool) else [str(disk.local_path(pool).absolute().parent)]
    named: set[str] = set()
    for folder in folders or beside:
        for path in _run_files(disk.local_path(folder), DEPTH):
            if not _draws(path, pool, views):
                continue
            for user in (str(path.parent), *_ablation_of(path)):
                if user not in named:
                    named.add(user)
                    yield user


def _run_files(folder: Path, depth: int) -> Iterator[Path]:
    """What RUN_FILES there are in a folder and below it, but not in pools and hidden folders."""
    for place, folders, files in os.walk(folder):  # which passes over those of somebody else
        yield from (Path(place, name) for name in RUN_FILES if name in files)
        is_deep = len(Path(place).relative_to(folder).parts) == depth
        inside = [] if is_deep or SHARDS in folders else sorted(folders)
        folders[:] = [name for name in inside if not name.startswith(".")]


def _ablation_of(path: Path) -> Iterator[str]:
    """The folder of the ablation that a run belongs to, and its report."""
    for parent in path.parents:
        if (parent / "ablation.json").is_file():
            yield str(parent)
            report = AblationLayout(str(parent)).report
            if disk.exists(report):
                yield report
            return


def _draws(path: Path, pool: str, views: Collection[str]) -> bool:
    """Whether a run, by its resolved blend or its record, draws from a view of the pool."""
    try:
        document: Any = disk.read_json(path)
    except (ValueError, OSError):
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


# --------------------------------------------------------------------------------------------------
# Removes rows from a pool by URL, domain, sha256 or uid, and names what used them.
#
# The uids of the rows are written into POOL/purge.json before anything changes, and the file is
# removed last: after a kill, the next purge of any rows first ends this one.


SHOWN_URLS = 10  # of a dry run
KINDS = ("url", "domain", "sha256", "uid")
HASHED = ("url", "domain")  # kinds of selectors that no tombstone has
PURGES = "purges"
HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "uid": re.compile(r"[0-9a-f]{32}")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRecord:
    """POOL/purges/*.json: what was purged when, and by which kinds of selectors, without the
    content. Of a URL or a domain only the sha256 is kept, so that a person who asks for that URL
    learns that it was purged.
    """

    at: str  # when it began, UTC
    selectors: dict[str, int]  # kind -> how many were given
    hashes: tuple[str, ...]  # sha256 of `KIND=VALUE`: of the kinds HASHED, and the rows' URLs
    uids: tuple[str, ...]  # of the rows that were purged


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """POOL/purge.json: a purge that has begun. It has no content of the rows."""

    record: PurgeRecord  # of what it removes
    fingerprint: str  # of the pool before
    frozen: dict[str, str]  # view that is of some shards only -> their fingerprint before
    views: dict[str, dict[str, int]]  # view -> rule -> rows that it decided; "" for rows kept
    scored: dict[str, int]  # score set -> scored rows of the shards that have some of these uids
    adopted: tuple[str, ...]  # tars outside of the pool that keep the images
    # part of the pairs -> reasons whose example names a purged URL or host
    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """What a purge did."""

    rows: int  # distinct uids
    shards: int  # that were replaced
    views: dict[str, int]  # that had kept rows -> how many
    old: tuple[str, ...]  # score sets and views that depend on other rows, and are old now
    runs: tuple[str, ...]  # folders of runs and ablations that used such a view, and reports
    adopted: tuple[str, ...]  # tars outside of the pool, which were left as they are
    dry_run: bool = False  # nothing was changed: this is what a purge would do
    examples: int = 0  # of reasons for which links were dropped; they named a URL or host
    urls: tuple[str, ...] = ()  # of a dry run: different URLs of the rows, at most SHOWN_URLS


def read_criteria(words: Iterable[str]) -> dict[str, set[str]]:
    """{kind: values} of KIND=VALUE words, and of files of such lines. ValueError for others."""
    criteria: dict[str, set[str]] = {}
    for word in words:
        kind, equals, _ = word.partition("=")
        is_file = not (equals and kind in KINDS) and Path(word).is_file()
        for number, line in enumerate(text_lines(word) if is_file else [word], 1):
            if is_file and (not line.strip() or line.lstrip()[0] == "#"):
                continue
            try:
                kind, value = _criterion(line.strip() if is_file else line)
            except ValueError as error:
                where = f"{word}, line {number}: " if is_file else ""
                raise ValueError(f"{where}{error}") from None
            criteria.setdefault(kind, set()).add(value)
    return criteria


def _criterion(word: str) -> tuple[str, str]:
    """(kind, value) of a KIND=VALUE word."""
    if valid_text(word) != word:
        raise ValueError("it is no text in UTF-8; write a line for each row that shall go")
    kind, _, value = word.partition("=")
    if kind == "domain" and re.search(r"[/\\*]", value):
        raise ValueError(
            f"{word}: a domain is the name of a host, such as example.com, and means all names "
            "below it too"
        )
    value = compared_host(f"//{value}") if kind == "domain" else value
    if kind not in KINDS or not value:
        raise ValueError(
            f"{word}: write url=URL, domain=HOST, sha256=HEX or uid=HEX, or name a file of such "
            "lines"
        )
    if kind in HEX:
        value = value.lower()
    if kind in HEX and not HEX[kind].fullmatch(value):
        digits = 64 if kind == "sha256" else 32
        raise ValueError(f"{word}: a {kind} has {digits} hex digits")
    return kind, value


def purge_rows(
    out: PoolWriter,
    criteria: Mapping[str, set[str]],
    *,
    used_by: Sequence[str] = (),
    dry_run: bool = False,
) -> Purge:
    """Remove the images, captions and URLs of rows from tars, sidecars, pairs, plan and scores.

    A row stays as a tombstone: its uid, its key and the reason `purged`. Masks stay aligned; score
    sets and views stay what they were without these rows, and get the new fingerprint. Score sets
    whose values depend on other rows, and views whose rules read one, keep the old fingerprint:
    they are old and must be made again. All attempts and pairs of a uid go together. A dry run
    writes nothing. ValueError where there is no pool, and where nothing matches, now or in an
    earlier purge.
    """
    pool, commits = out.pool, _commits(out.layout, used_by)
    path = out.layout.purge_json
    if not dry_run and disk.exists(path):
        remove_uncommitted(out.layout)  # what the killed purge had replaced and not removed
        _finish(out, commits, read_document(path, Journal), None)
        commits = read_commits(pool)
    rows = find_rows(commits, criteria)
    journal = _begin(commits, rows, criteria)
    if not len(rows.uids) and not journal.examples:
        _refuse_unknown(out.layout, criteria)
        return Purge(rows=0, shards=0, views={}, old=(), runs=(), adopted=(), dry_run=dry_run)
    shards, urls = len(rows.shards), tuple[str, ...]()
    if dry_run:
        urls = tuple(sorted(_urls(commits, rows))[:SHOWN_URLS])
    else:
        out.write_json(path, journal, sealed=True)
        shards = _finish(out, commits, journal, rows)
    views = {view: rules[""] for view, rules in journal.views.items() if "" in rules}
    return Purge(
        rows=len(journal.record.uids),
        shards=shards,
        views=views,
        old=_old(out.layout),
        runs=tuple(find_users(pool, views, used_by)),
        adopted=journal.adopted,
        dry_run=dry_run,
        examples=sum(map(len, journal.examples.values())),
        urls=urls,
    )


def _commits(layout: PoolLayout, used_by: Sequence[str]) -> Commits:
    """What is committed in a pool. ValueError where there is no pool or no folder of runs."""
    for folder in used_by:
        if not disk.local_path(folder).is_dir():
            raise ValueError(f"--used-by {folder} is not a folder")
    commits = read_commits(layout.root)
    if not len(commits) and not disk.list_names(layout.pairs):
        raise ValueError(f"{layout} has neither pairs nor shards; is it the folder of a pool?")
    return commits


def _refuse_unknown(layout: PoolLayout, criteria: Mapping[str, set[str]]) -> None:
    """ValueError for selectors of which no earlier purge had one either."""
    if not any(criteria.values()):
        raise ValueError("there are no selectors: their files are empty")
    hashes, uids = set(_hashes(criteria)), criteria.get("uid", set())
    if any(hashes & set(each.hashes) or uids & set(each.uids) for each in _records(layout)):
        return
    words = [f"{kind}={value}" for kind, values in criteria.items() for value in sorted(values)]
    more = f" (and {len(words) - 3} more)" if len(words) > 3 else ""
    raise ValueError(
        f"{' '.join(words[:3])}{more}: no row of {layout} matches, and no earlier purge "
        "named it; compare the spelling with `clipmill audit explain POOL URL`, or with the column "
        "url of the sidecars"
    )


def _finish(out: PoolWriter, commits: Commits, journal: Journal, rows: FoundRows | None) -> int:
    """Do what a journal names; how many shards were replaced.

    rows: where its rows are; None where a purge was killed, which has done a part of it.
    """
    pool, layout, uids = out.pool, out.layout, pa.array(journal.record.uids, pa.string())
    if rows is None:
        rows = locate_rows(commits, uids, tombstones=True)
    replaced = 0
    remove_transient(out)  # it has columns of the rows
    if rows.shards:
        commits, replaced = _purge_shards(out, rows)
        _purge_scores(out, commits, rows, journal)
        _purge_views(out, commits, rows, journal)
    drop = not is_planned(layout)
    out.check()
    examples = {layout.pairs_part(int(part)): each for part, each in journal.examples.items()}
    has_changes = examples or (drop and rows.files)
    if has_changes:
        out.remove(layout.parts)  # the footers of the parts have the same counts

    def purge_file(path: str) -> None:
        is_dropped = drop and path.startswith(layout.pairs)
        purge_parquet(out, path, uids, is_dropped, examples.get(path, ()))

    deque(in_threads(purge_file, sorted({*rows.files, *examples})), 0)
    if has_changes:
        write_parts(layout)
    recipe = recipe_of_pool(layout)
    if recipe is not None:
        write_pool_json(commits, recipe, {})
    out.remove(layout.progress_json)  # what the last build showed has names of hosts
    record = journal.record  # ended again after a kill, it has the same name
    name = f"{record.at.replace(':', '')}-{disk.content_hash(record.uids)}.json"
    out.write_json(disk.join(pool, PURGES, name), record, sealed=True)
    out.remove(layout.purge_json)
    return replaced


def purge_lines(result: Purge) -> list[str]:
    """What a purge did, for a terminal."""
    lines = [f"{result.rows} rows purged, {result.shards} shards replaced"]
    if result.dry_run:
        counts = f"{result.rows} rows would be purged, {result.shards} shards replaced"
        lines = [f"{counts}; nothing was changed"]
        lines += [f"url     {url}" for url in result.urls]
        if len(result.urls) == SHOWN_URLS:
            lines.append("url     … (no more are shown)")
    elif not result.rows:
        lines = ["0 rows purged: an earlier purge removed what these selectors match"]
    if result.examples:
        lines.append(f"{result.examples} examples of dropped links named what is purged")
    for view, rows in sorted(result.views.items()):
        lines.append(f"view    {view} had kept {rows} of them")
    if result.old:
        lines.append(
            f"old     {', '.join(result.old)}: their values depended on these rows; run "
            "clipmill score, then clipmill filter with the recipe"
        )
    lines += [f"used by {folder}" for folder in result.runs]
    for tar in result.adopted:
        lines.append(f"note    {tar} is not the pool's own file and still has the images")
    return lines


def purges_of_uid(layout: PoolLayout, uid: str) -> list[dict[str, Any]]:
    """The purges that removed a row: {"at", "by": kinds of selectors, "rows"}."""
    return [_shown(record) for record in _records(layout) if uid in record.uids]


def purges_of_name(layout: PoolLayout, name: str) -> list[dict[str, Any]]:
    """The purges whose selectors named a URL, or a domain that it lies in."""
    criteria = {"url": {name}}
    if host := compared_host(name):
        criteria["domain"] = set(_suffixes(host))
    wanted = set(_hashes(criteria))
    return [_shown(record) for record in _records(layout) if wanted & set(record.hashes)]


def purge_line(purge: Mapping[str, Any]) -> str:
    """A purge for a terminal."""
    return f"purged  {purge['at']} by {' and '.join(purge['by'])}, with {purge['rows']:,} rows"


def _shown(record: PurgeRecord) -> dict[str, Any]:
    return {"at": record.at, "by": sorted(record.selectors), "rows": len(record.uids)}


def _records(layout: PoolLayout) -> Iterator[PurgeRecord]:
    folder = disk.join(layout.root, PURGES)
    for name in disk.list_names(folder, ".json"):
        yield read_document(disk.join(folder, name), PurgeRecord)


def _hashes(criteria: Criteria) -> Iterator[str]:
    """The hashes of the selectors that no tombstone names."""
    for kind in HASHED:
        for value in criteria.get(kind, ()):
            text = f"{kind}={value}".encode("utf-8", "surrogatepass")
            yield hashlib.sha256(text).hexdigest()


def _old(layout: PoolLayout) -> tuple[str, ...]:
    """The score sets that depend on other rows of the pool, and the views that read one."""
    pool, views = Pool.of_tickets(layout.root), []
    dependent = {name for name, one in pool.all_score_sets.items() if one.whole_pool}
    for view, document in pool.views.items() if dependent else ():
        if not document.frozen and dependent & set(document.scores.values()):
            views.append(view)
    return (*sorted(dependent), *views)


def _begin(commits: Commits, rows: FoundRows, criteria: Mapping[str, set[str]]) -> Journal:
    """What is to be purged, and what is to be subtracted from the documents of scores and views."""
    layout = commits.layout
    sets = [name for name in disk.list_names(layout.scores) if "@" in name]
    positions = np.searchsorted(commits.shards, np.array(list(rows.shards), np.int64))
    records = commits.table.select(["tar", "adopted"]).take(pa.array(positions))
    adopted = records["tar"].filter(pc.fill_null(records["adopted"], False)).to_pylist()
    hashes, urls = set(_hashes(criteria)), set(criteria.get("url", ()))
    if criteria.keys() & {"uid", "sha256"}:  # a person who asks for the URL learns it too
        urls |= (of_rows := _urls(commits, rows))
        hashes.update(_hashes({"url": of_rows}))
    record = PurgeRecord(
        at=datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        selectors={kind: len(values) for kind, values in sorted(criteria.items())},
        hashes=tuple(sorted(hashes)),
        uids=tuple(rows.uids.to_pylist()),
    )
    views = Pool(commits).views
    frozen = {view: one for view, one in views.items() if one.frozen and is_current(one, commits)}
    return Journal(
        record=record,
        fingerprint=commits.fingerprint,
        frozen={view: document.fingerprint for view, document in frozen.items()},
        views={view: _decided(layout, view, rows.shards) for view in views},
        scored={name: _scored(layout, name, rows.shards) for name in sets},
        adopted=tuple(sorted(adopted)),
        examples=dict(_examples(layout, urls, criteria.get("domain", set()))),
    )


def _examples(layout: PoolLayout, urls: Set[str], domains: Set[str]) -> Iterator[tuple[str, Any]]:
    """(part, reasons) whose example of a dropped link names one of these URLs or domains."""
    parts, ordered = read_parts(layout), sorted(urls)
    for row in parts.select(["part", "examples"]).to_pylist():
        examples = row["examples"]
        if reasons := tuple(name for name, text in examples if _names(text, ordered, domains)):
            yield str(row["part"]), reasons


def _names(example: str, urls: Sequence[str], domains: Set[str]) -> bool:
    """Whether the text `PAGE: 'LINK'`, or another one, names a URL or host. urls: ascending.

    What is cut off at the end is compared as far as it goes.
    """
    page, _, link = example.partition(": ")
    named = {text.rstrip(":") for text in IN_TEXT.findall(example)}
    with suppress(ValueError, SyntaxError):
        named |= {str(ast.literal_eval(link)), resolve(page, str(ast.literal_eval(link)))}
    for url in named:
        start = url.removesuffix("…")
        next_url = "".join(urls[(at := bisect_left(urls, start)) : at + 1])
        is_in_host = domains and "/" not in start.partition("//")[2]
        if next_url == url or not domains.isdisjoint(_suffixes(compared_host(url))):
            return True
        if start != url and (is_in_host or next_url.startswith(start)):
            return True
    return False


def _urls(commits: Commits, rows: FoundRows) -> set[str]:
    """The URLs of rows that are to be purged."""

    pool = Pool(commits)

    def look(table: pa.Table) -> list[str | None]:
        urls: list[str | None] = table.filter(pc.is_in(table["uid"], rows.uids))["url"].to_pylist()
        return urls

    columns = ["uid", "url"]
    of_shards = in_threads(lambda shard: look(pool.read(shard, columns)), rows.shards)
    of_files = in_threads(lambda path: look(disk.read_parquet(path, columns)), rows.files)
    return {url for urls in itertools.chain(of_shards, of_files) for url in urls if url}


def _decided(layout: PoolLayout, view: str, purged: Mapping[int, Mask]) -> dict[str, int]:
    """{rule: purged rows that it decided}, "" for those that the view keeps."""
    files = AlignedFiles.of_view(layout, view)
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
    files = AlignedFiles.of_scores(layout, name)

    def look(shard: int) -> int:
        return int(files.metadata(shard)["scored"]) if files.has(shard) else 0

    return sum(in_threads(look, purged))


# --- shards, scores, views ------------------------------------------------------------------------


def _purge_shards(out: PoolWriter, rows: FoundRows) -> tuple[Commits, int]:
    """Replace every shard that has content of these rows: (what is committed then, how many).

    A shard is forgotten by the index before its record is replaced, and added again with the new
    record: a reader of the open index reads the record itself in between.
    """
    replaced = 0
    with (
        IndexWriter(out.pool, check=out.check) as index,
        ThreadPoolExecutor(THREADS) as threads,
    ):
        before = index.commits
        index.forget(rows.shards)

        def purge(shard: int) -> CommitRecord | None:
            return purge_shard(out, before.record(shard), rows.shards[shard])

        for shard, record in zip(rows.shards, threads.map(purge, rows.shards), strict=True):
            index.add(record or before.record(shard))
            replaced += record is not None
    return index.commits, replaced


def _purge_scores(out: PoolWriter, commits: Commits, rows: FoundRows, journal: Journal) -> None:
    """Remove the rows from the score sets, and bring their documents up to date."""
    for name, scored_before in journal.scored.items():
        scored = purge_scores(out, name, rows.shards, commits)
        path = out.layout.score_set_json(name)
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
            out.write_json(path, document, sealed=True)


def _purge_views(out: PoolWriter, commits: Commits, rows: FoundRows, journal: Journal) -> None:
    """Remove the rows from the masks, and bring the documents of the views up to date."""
    layout = out.layout
    old = _old(commits.layout)
    for view, decided in journal.views.items():
        kept = purge_masks(out, view, rows.shards)
        path = layout.view_json(view)
        if not disk.exists(path):
            continue
        document = read_document(path, ViewDocument)
        is_frozen = document.fingerprint == journal.frozen.get(view)
        if is_frozen or (document.fingerprint == journal.fingerprint and view not in old):
            own = own_shards(document, commits) if is_frozen else commits
            changed = minus(document, decided, own.fingerprint)
            out.remove(layout.view_rules(view))
            shards, counts = view_shards(commits.layout, document)
            counts = counts.copy()
            counts[np.searchsorted(shards, list(kept))] = list(kept.values())
            table = write_view_shards(commits.layout, view, shards, counts)
            changed = replace(changed, shards=table)
            out.write_json(path, changed, sealed=True)
            document = changed
        remove_view_shards(commits.layout, view, document.shards.file)
