"""Which rows of a pool have a URL, a domain, a sha256 or a uid, and in which files they are.

Only the columns that are needed are read, a few files at a time. Rows that are named by their uid
are looked up in the table of row_index.py where it is up to date: then only the files that have
such a row are opened.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.commits import Commits
from manifests.pool_layout import PoolLayout
from pipeline import planning
from pipeline.accounting.row_index import locate
from pipeline.accounting.tombstones import Mask, has_content, rows_with

READERS = 8  # files that are read at a time
FEW_DOMAINS = 32  # each is first looked for as a text, in 0.2 µs a URL
LOOKED_UP = 1_000  # uids that are looked up one by one; of more, the columns are read
HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)"
Criteria = Mapping[str, Set[str]]  # url, domain, sha256 or uid -> values
T = TypeVar("T")
R = TypeVar("R")


class ShardRows(Mapping[int, Mask]):
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
    shards: ShardRows
    files: tuple[str, ...]  # parts of the pairs and files of the plan


def find_rows(commits: Commits, criteria: Criteria) -> FoundRows:
    """The rows with content that fit one of the criteria, and all others of their uids."""
    uids = pa.array(sorted(criteria.get("uid", ())), pa.string())
    if criteria.keys() - {"uid"}:
        sidecars = [commits.sidecar(name) for name in commits.names()]
        files = [*sidecars, *_pair_files(PoolLayout(commits.pool))]
        matching = _in_threads(lambda path: _matching(path, criteria), files)
        uids = _distinct([uids, *matching])
        return locate_rows(commits, uids, commits.shards.tolist(), files[len(sidecars) :])
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
        shards, files = commits.shards.tolist(), _pair_files(PoolLayout(commits.pool))
    rows = ShardRows()
    there: list[pa.Array] = []

    def look(path: str, column: str) -> tuple[Mask, Mask, pa.Array]:
        table = disk.read_parquet(path, ["uid", column])
        chosen = rows_with(table, uids)
        has = has_content(table, chosen)
        return chosen, has, table["uid"].filter(pa.array(has)).combine_chunks()

    sidecars = _in_threads(lambda shard: look(commits.sidecar(shard), "reason"), shards)
    for shard, (chosen, has, present) in zip(shards, sidecars, strict=True):
        if has.any() or (tombstones and chosen.any()):
            rows.add(shard, chosen)
            there.append(present)
    touched = []
    for path, (chosen, has, present) in zip(
        files, _in_threads(lambda path: look(path, "url"), files), strict=True
    ):
        if has.any() or (tombstones and chosen.any()):
            touched.append(path)
            there.append(present)
    return FoundRows(uids=_distinct(there), shards=rows, files=tuple(touched))


def _candidates(commits: Commits, uids: pa.Array) -> tuple[list[int], list[str]]:
    """(the shards, the files of pairs and plan) that may have some of these uids: those that the
    row index names, if it is up to date; else all.
    """
    pool = commits.pool
    files = _pair_files(PoolLayout(pool))
    everything = commits.shards.tolist(), files
    if len(uids) > LOOKED_UP:
        return everything
    shards: set[int] = set()
    for uid in uids.to_pylist():
        located = locate(commits, uid)
        if len(located.others):  # shards that the table lacks
            return everything
        shards.update(located.shards)
    if not planning.is_planned(pool):
        return sorted(shards), files
    plan = planning.read_plan(pool)
    if len(plan) != len(commits):  # rows that wait to be fetched are in no shard yet
        return everything
    of_plan = set()
    parts: set[int] = set()
    for shard in shards:
        location = plan.location(shard)
        of_plan.add(location["file"])
        parts |= _parts_of(location, uids)
    layout = PoolLayout(pool)
    return sorted(shards), [*map(layout.pairs_part, sorted(parts)), *sorted(of_plan)]


def _parts_of(location: Mapping[str, Any], uids: pa.Array) -> set[int]:
    """The parts of the pairs from which some rows of one planned shard come."""

    def read(file: Any) -> pa.Table:
        group = int(location["row_group"])
        return pq.ParquetFile(file).read_row_group(group, columns=["uid", "part"])

    table = disk.read_with(location["file"], read)
    return set(table["part"].filter(pa.array(rows_with(table, uids))).to_pylist())


def _pair_files(layout: PoolLayout) -> list[str]:
    """The parts of the pairs and the files of the plan that hold pairs."""
    files = [disk.join(layout.pairs, name) for name in disk.list_names(layout.pairs, ".parquet")]
    if planning.is_planned(layout.root):
        files += planning.read_plan(layout.root).files
    return files


def _matching(path: str, criteria: Criteria) -> pa.Array:
    """The uids of the rows of a file that fit."""
    names = disk.read_schema(path).names
    columns = ["uid"]
    if criteria.keys() & {"url", "domain"}:
        columns += [name for name in ("url", "final_url") if name in names]
    if "sha256" in criteria and "sha256" in names:
        columns.append("sha256")
    if len(columns) == 1:
        return pa.array([], pa.string())
    table = disk.read_parquet(path, columns)
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
    """(rows,) True where the host of a URL is one of the domains or lies in one."""
    if len(domains) <= FEW_DOMAINS:
        may_fit = np.zeros(len(urls), np.bool_)
        for domain in domains:
            has_text = pc.match_substring(urls, domain, ignore_case=True)
            may_fit |= np.asarray(pc.fill_null(has_text, False).to_numpy(), np.bool_)
        mask = np.zeros(len(urls), np.bool_)
        mask[may_fit] = _hosts_in(urls.filter(pa.array(may_fit)), domains)
        return mask
    return _hosts_in(urls, domains)


def _hosts_in(urls: pa.ChunkedArray, domains: Set[str]) -> Mask:
    """The same, host by host: 2 µs each."""
    hosts = pc.utf8_lower(pc.struct_field(pc.extract_regex(urls, HOST), "host"))
    fitting = []
    for host in pc.unique(hosts).drop_null().to_pylist():
        labels = host.strip(".").split(".")
        if any(".".join(labels[i:]) in domains for i in range(len(labels))):
            fitting.append(host)
    return _is_in(hosts, fitting)


def _distinct(columns: Sequence[pa.Array]) -> pa.Array:
    """The values of some columns of text, each once, ascending."""
    values = pc.unique(pa.chunked_array(columns, pa.string()))
    return values.take(pc.sort_indices(values))


def _in_threads(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results of some calls in order; few of them are in memory at a time."""
    waiting = iter(items)
    with ThreadPoolExecutor(READERS) as threads:
        while batch := list(itertools.islice(waiting, 4 * READERS)):
            yield from threads.map(work, batch)
