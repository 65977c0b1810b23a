"""The rows of a pool in memory: the columns that the page shows, of all shards or of a sample.

It takes about 400 bytes a row. A pool of more rows than MOST_ROWS is shown by a sample of whole
shards, those with the smallest hashes of their numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned import AlignedFiles, view_names
from manifests.columns import SIDECAR
from manifests.commits import Commits
from manifests.documents import ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import PoolLayout, shard_name
from manifests.schema import Rule, View
from pipeline.scoring import complete_score_sets
from pipeline.views import columns_of, list_columns, with_derived

MOST_ROWS = 5_000_000
READERS = 8  # threads that read shards; a store answers each after about 30 ms
# Columns of the sidecar that the page needs or shows, whatever the rules read.
SHOWN = (
    "uid", "url", "caption", "status", "reason", "width", "height", "original_width",
    "original_height", "http_status", "content_type", "image_offset", "image_length",
    "page_url", "page_lang", "elapsed_ms", "attempts",
)  # fmt: skip
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A view of the pool. `kept`: (rows,) of the rows that were read; None for a stale view."""

    name: str
    document: ViewDocument
    kept: Mask | None = None
    first_rule: pa.ChunkedArray | None = None  # (rows,) that rejects a row first, dictionary


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRows:
    """Some rows of a pool with their columns, in the order of the pool."""

    commits: Commits
    table: pa.Table
    shards: NDArray[np.int64]  # (shards,) that were read
    first_rows: NDArray[np.int64]  # (shards + 1,) where each begins in the table
    stored: Mask
    views: tuple[PoolView, ...]
    meanings: Mapping[str, tuple[str, str]]  # column -> (source, meaning)
    problems: tuple[str, ...] = ()
    whole: bool = True  # all rows of the pool
    sets: Mapping[str, str] = field(default_factory=dict)  # column -> score set that it is from

    def location(self, row: int) -> tuple[int, int]:
        """(shard, row of the shard) of a row of the table."""
        position = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        return int(self.shards[position]), row - int(self.first_rows[position])

    def row_at(self, shard: int, row: int) -> int | None:
        """The row of the table; None where it was not read."""
        position = int(np.searchsorted(self.shards, shard))
        if position == len(self.shards) or self.shards[position] != shard:
            return None
        number = int(self.first_rows[position]) + row
        return number if row >= 0 and number < self.first_rows[position + 1] else None


def read_rows(commits: Commits, view: str | None = None, most_rows: int = MOST_ROWS) -> PoolRows:
    """The rows of a pool and what its views say of them.

    view: only this view. ValueError for an unknown view; FileNotFoundError where a shard was
    replaced while it was read.
    """
    pool = commits.pool
    problems: list[str] = []
    documents = _view_documents(pool, view, problems)
    shards = _sample(commits, most_rows)
    current = {n: d for n, d in documents.items() if d.fingerprint == commits.fingerprint}
    sets = _chosen_sets(commits, current.values(), problems)
    names = _sidecar_columns(commits, current.values(), sets)
    tables = []
    if len(shards):
        with ThreadPoolExecutor(READERS) as threads:
            tables = list(threads.map(lambda s: _read_shard(commits, s, names, sets), shards))
    first_rows = np.cumsum([0, *(table.num_rows for table in tables)])
    empty = pa.table({name: pa.array([], SIDECAR.field(name).type) for name in SHOWN})
    table = with_derived(pa.concat_tables(tables) if tables else empty)
    del tables
    stored = np.asarray(pc.equal(table["status"], "success").to_numpy(), np.bool_)
    views = []
    for name, document in documents.items():
        views.append(_view(commits, name, document, shards, name in current, problems))
    meanings = {}
    if commits.totals.stored:
        meanings = {one.name: (one.source, one.meaning) for one in list_columns(pool)}
    of_columns = {column: name for name, columns in sets.items() for column in columns}
    return PoolRows(
        commits=commits,
        table=table,
        shards=shards,
        first_rows=np.asarray(first_rows, np.int64),
        stored=stored,
        views=tuple(views),
        meanings=meanings,
        problems=tuple(problems),
        whole=len(shards) == len(commits),
        sets=of_columns,
    )


def _view_documents(pool: str, view: str | None, problems: list[str]) -> dict[str, ViewDocument]:
    names = view_names(pool)
    if view is not None:
        if view not in names:
            listed = ", ".join(names) or "none"
            suggestion = disk.did_you_mean(view, names)
            raise ValueError(f"{pool} has no view {view!r}{suggestion}; it has {listed}")
        names = [view]
    documents = {}
    for name in sorted(names):
        try:
            path = PoolLayout(pool).view_json(name)
            documents[name] = read_document(path, ViewDocument)
        except ValueError as error:
            problems.append(str(error))
    return documents


def _sample(commits: Commits, most_rows: int) -> NDArray[np.int64]:
    """All shards, or some with at most `most_rows` rows, and at least one."""
    if commits.totals.rows <= most_rows:
        return commits.shards
    names = [shard_name(shard) for shard in commits.shards.tolist()]
    hashes = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], np.uint64)
    order = np.argsort(hashes, kind="stable")
    ends = np.cumsum(commits.column("count").to_numpy()[order])
    return np.sort(commits.shards[order[: max(1, int((ends <= most_rows).sum()))]])


def _chosen_sets(
    commits: Commits, documents: Collection[ViewDocument], problems: list[str]
) -> dict[str, list[str]]:
    """Current score sets with the columns to read from each: those that views use come first."""
    current: dict[str, ScoreSetDocument] = {}
    for name, document in complete_score_sets(commits.pool).items():
        if document.fingerprint == commits.fingerprint:
            current[name] = document
        else:
            problems.append(f"scores {name} are of an older state of the pool: they are not shown")
    used: list[str] = []
    for view in documents:
        used += [name for name in view.scores.values() if name in current]
    taken: set[str] = set()
    chosen = {}
    for name in dict.fromkeys([*used, *current]):
        columns = [column for column in current[name].columns if column not in taken]
        if len(columns) < len(current[name].columns):
            problems.append(f"columns of scores {name} are in another score set too: one is shown")
        taken |= set(columns)
        if columns:
            chosen[name] = columns
    return chosen


def _sidecar_columns(
    commits: Commits, documents: Collection[ViewDocument], sets: Mapping[str, list[str]]
) -> list[str]:
    """SHOWN, the recipe's own columns, and what the rules of the views read."""
    if not len(commits):
        return []
    available = disk.read_schema(commits.sidecar(int(commits.shards[0]))).names
    scored = {column for columns in sets.values() for column in columns}
    wanted = {*SHOWN, *(set(available) - set(SIDECAR.names))}
    for document in documents:
        wanted |= _columns_of_rules(document, [*available, *scored])
    return [name for name in available if name in wanted and name not in scored]


def _columns_of_rules(document: ViewDocument, known: Collection[str]) -> set[str]:
    """The columns that the rules read; of rules that cannot be read any more, none."""
    rules = []
    for number, rule in enumerate(document.rules):
        if rule.get("where") is not None:
            rules.append(Rule(name=f"rule{number}", where=rule["where"]))
    try:
        return columns_of([View(name="v", rules=tuple(rules))], "v", known)
    except ValueError:
        pass  # prose of a selected view, or a column that is not there any more
    columns: set[str] = set()
    for one in rules:
        try:
            columns |= columns_of([View(name="v", rules=(one,))], "v", known)
        except ValueError:
            continue
    return columns


def _read_shard(
    commits: Commits, shard: int, names: list[str], sets: Mapping[str, list[str]]
) -> pa.Table:
    """The columns of one shard. ValueError where its files do not belong together."""
    path = commits.sidecar(shard)

    def read(source: Any) -> pa.Table:
        return pq.ParquetFile(source, page_checksum_verification=True).read(names)

    table = disk.read_with(path, read).replace_schema_metadata(None)
    record = commits.record(shard)
    if table.num_rows != record.count:
        raise ValueError(f"{path} does not have the rows of its commit record; verify it")
    for name, columns in sets.items():
        scores, metadata = AlignedFiles.of_scores(commits.pool, name).read(shard, columns)
        if scores.num_rows != record.count or metadata.get("sidecar") != record.sidecar_sha256:
            raise ValueError(
                f"scores {name} of shard {shard_name(shard)} are of other rows than those of the "
                "shard; run pipeline/score.py again"
            )
        for field_ in scores.schema:
            column = scores[field_.name]
            if field_.type == pa.float16():  # DuckDB does not read it
                column = column.cast(pa.float32())
            if not pa.types.is_nested(field_.type):  # tokens and embeddings are read where needed
                table = table.append_column(field_.name, column)
    return table


def _view(
    commits: Commits,
    name: str,
    document: ViewDocument,
    shards: NDArray[np.int64],
    is_current: bool,
    problems: list[str],
) -> PoolView:
    """A view with its masks, where they are those of the pool's shards."""
    unread = PoolView(name=name, document=document)
    if not is_current:
        problems.append(f"view {name} is older than the pool's shards: choose it again")
        return unread
    files = AlignedFiles.of_view(commits.pool, name)
    try:
        masks = list(_masks(files, shards))
    except (OSError, ValueError) as error:
        problems.append(f"the masks of view {name} cannot be read: {error}")
        return unread
    if not masks:
        return unread
    whole = pa.concat_tables(masks)
    kept = np.asarray(whole["kept"].to_numpy(), np.bool_)
    first_rule = whole["rule"].unify_dictionaries()
    return PoolView(name=name, document=document, kept=kept, first_rule=first_rule)


def _masks(files: AlignedFiles, shards: NDArray[np.int64]) -> Iterator[pa.Table]:
    for shard in shards.tolist():
        mask, _ = files.read(shard, ["kept", "rule"])
        yield pa.table({"kept": mask["kept"], "rule": mask["rule"].dictionary_encode()})
