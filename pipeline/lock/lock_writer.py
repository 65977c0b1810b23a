"""A pool to a lock: rows in the order of the shards, then the head. Nothing is read into memory as
a whole; the file is complete before it has its name.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.optout import RESPECT, refusing_signals
from clipmill.manifests import disk, identity
from clipmill.manifests.arrays import Mask
from clipmill.manifests.columns import STORED, WITHHELD, frequencies
from clipmill.manifests.commits import Commits, in_threads, read_commits
from clipmill.manifests.layout import shard_name
from clipmill.manifests.pool import OpenView, Pool
from clipmill.manifests.schema import SOURCES, Recipe
from clipmill.pipeline.audit.counts import count_pool, recipe_of_pool
from clipmill.pipeline.database import (
    create_keyed,
    database,
    hash_flagged,
    insert,
    is_sha256,
    key_columns,
    of_flags,
    row_keys,
)
from clipmill.pipeline.lock import lock_file
from clipmill.pipeline.lock.lock_file import (
    FORM,
    ROWS,
    VIEW_PREFIX,
    ColumnHashes,
    LockedView,
    LockFile,
    LockHead,
    lock_schema,
)
from clipmill.pipeline.planning.plan_files import group_count, is_planned, read_plan, read_row_group
from clipmill.pipeline.pool.shard_writer import staged_file

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SUFFIX = ".parquet"
GROUP_ROWS = 100_000  # of a row group, and at least one shard
REPEATED = ["lock_shard", "lock_group", "lock_tar_sha256", "lock_outcome", "page_url", "page_lang"]
REPEATED += ["robots", "license", "wat", "retry_of"]  # columns whose values repeat
FROM_PLAN = ["uid", "title", "anchor", "robots", "license"]
# What decides the bytes of a stored image.
LIBRARIES = ("numpy", "pillow", "simplejpeg")


def write_lock(pool: str, path: str, views: Sequence[str] | None = None) -> LockFile:
    """Write the lock of a complete pool, with some of its views (default: all).

    ValueError where the pool is not complete, a file of it is damaged, a view is stale, or `path`
    names a file that is no lock.
    """
    _check_target(path)
    commits = read_commits(pool)
    writer = _LockWriter(commits, views)
    with staged_file(path, alone=True) as staged:
        writer.write(staged)
        if read_commits(pool).fingerprint != commits.fingerprint:
            raise ValueError(f"{pool} changed while it was read; lock it again")
        disk.publish(staged, path)
    return LockFile(path)


def lock_lines(lock: LockFile) -> list[str]:
    """What a lock has, for a terminal."""
    head = lock.head
    stored, hidden = head.outcomes.get(STORED, 0), head.outcomes.get(WITHHELD, 0)
    lines = [
        f"lock {lock.id} is {lock.path}",
        f"  {head.rows:,} rows, {stored:,} stored, {hidden:,} withheld; rows {head.rows_sha256}",
    ]
    for name, view in head.views.items():
        lines.append(f"  view {name}: {view.kept:,} rows, {view.rows_sha256}")
    if head.images in ("files", "rows"):
        lines.append("  its images are local files: another lab compares with it, but cannot build")
    return lines


def _check_target(path: str) -> None:
    """ValueError where a lock cannot have this name."""
    if not path.endswith(SUFFIX):
        raise ValueError(f"{path}: the name of a lock ends in {SUFFIX}")
    if disk.exists(path):
        try:
            LockFile(path)
        except ValueError:
            raise ValueError(f"{path}: a file that is no lock has that name") from None


class _LockWriter:
    """What is read of a pool for its lock."""

    def __init__(self, commits: Commits, views: Sequence[str] | None) -> None:
        self.commits, self.pool, self._pool = commits, commits.pool, Pool(commits)
        self.recipe = _complete_recipe(commits)
        self.extra_columns = _extra_columns(self.recipe)
        self.views = _current_views(self._pool, views)
        self.plan = read_plan(commits.layout) if is_planned(commits.layout) else None
        agent = self.recipe.fetch.user_agent or "clipmill"
        # Another policy has refused such rows when they were fetched.
        refused = refusing_signals(self.recipe.fetch.optout)
        self._user_agent = None if refused >= RESPECT else agent
        self._refused = self._refused_later()
        self.schema = lock_schema(self.extra_columns, list(self.views))
        self._hashes = ColumnHashes(self.schema.names)
        self.outcomes: Counter[str] = Counter()
        self._kept_rows: Counter[str] = Counter()

    def write(self, staged: Path) -> None:
        """Write the rows, then the head."""
        with (
            database() as rows,
            disk.parquet_writer(
                staged, self.schema, use_dictionary=REPEATED, write_statistics=["lock_shard"]
            ) as writer,
        ):
            create_keyed(rows, "stored", of_flags("{} BOOLEAN", 1 + len(self.views)))
            for table in self._row_groups():
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                self._hashes.add(table)
                self.outcomes.update(frequencies(table["lock_outcome"]))
                self._add(table, rows)
            hashes = hash_flagged(rows, "stored", 1 + len(self.views))
            text = disk.with_metadata(self.schema, self._head(hashes).with_id()).metadata
            writer.add_key_value_metadata({b"clipmill": text[b"clipmill"]})
        with open(staged, "rb") as f:
            os.fsync(f.fileno())

    # --- rows -------------------------------------------------------------------------------------

    def _row_groups(self) -> Iterator[pa.Table]:
        """Whole shards of at least GROUP_ROWS rows together."""
        tables: list[pa.Table] = []
        for table in in_threads(self._shard, range(len(self.commits))):
            tables.append(table)
            if sum(each.num_rows for each in tables) >= GROUP_ROWS:
                yield pa.concat_tables(tables).combine_chunks()
                tables = []
        if tables:
            yield pa.concat_tables(tables).combine_chunks()

    def _shard(self, position: int) -> pa.Table:
        """The rows of one shard, of the schema of the lock."""
        shard = int(self.commits.shards[position])
        sidecar = self._sidecar(position)
        rows = sidecar.num_rows
        values: dict[str, Any] = {name: sidecar[name] for name in sidecar.column_names}
        values |= self._from_plan(shard, values["uid"])
        group = int(self.commits.column("group")[position].as_py())
        tar = self.commits.column("tar_sha256")[position].as_py().hex()
        hashes = values["sha256"]
        values["sha256"] = pc.if_else(is_sha256(hashes), hashes, pa.scalar(None, pa.string()))
        values["lock_outcome"] = pc.fill_null(values["reason"], STORED)
        for view in self.views:
            values[VIEW_PREFIX + view] = self.views[view].mask(shard, ["kept"], rows)["kept"]
        hidden = lock_file.withheld_rows(
            sidecar.select(lock_file.COLUMNS), self._refused, self._user_agent
        )
        columns = []
        for field in self.schema:
            if field.name == "lock_shard":
                column = pa.array(np.full(rows, shard), field.type)
            elif field.name == "lock_group":
                column = pa.array(np.full(rows, group), field.type)
            elif field.name == "lock_tar_sha256":
                column = pa.array([tar] * rows, field.type)
            else:
                column = _hidden(values[field.name], hidden, field)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _sidecar(self, position: int) -> pa.Table:
        """The sidecar of a shard. ValueError where it is missing or damaged."""
        table = self._pool.read_exact(int(self.commits.shards[position]))
        names = {*ROWS.names, *self.extra_columns, *lock_file.COLUMNS}
        return table.select([name for name in table.column_names if name in names])

    def _from_plan(self, shard: int, uids: pa.ChunkedArray) -> dict[str, object]:
        """The columns that only the plan has; NULL where the pool was not planned."""
        names = FROM_PLAN[1:]
        if self.plan is None:
            return {name: pa.nulls(len(uids), pa.string()) for name in names}
        location = self.plan.location(shard)
        table = read_row_group(location.file, location.row_group, FROM_PLAN)
        if not table["uid"].combine_chunks().equals(uids.combine_chunks()):
            line = f"shard {shard_name(shard)} has other rows than the plan"
            raise ValueError(f"{line}: run clipmill audit repair {self.pool}, then lock the pool")
        return {name: table[name] for name in names}

    def _refused_later(self) -> pa.Array:
        """The uids of retried rows that ended as refused: the first attempt is withheld too."""
        retries = self.commits.column("retries").to_numpy() > 0
        parts = [pa.array([], pa.string())]
        for position in np.flatnonzero(retries).tolist():
            table = self._sidecar(position)
            table = table.filter(table["retry_of"].is_valid())
            none = pa.array([], pa.string())
            mask = lock_file.withheld_rows(table, none, self._user_agent)
            parts.append(table["uid"].filter(pa.array(mask)).combine_chunks())
        return pa.concat_arrays(parts).unique()

    # --- sums -------------------------------------------------------------------------------------

    def _add(self, table: pa.Table, rows: DuckDBPyConnection) -> None:
        """Add the stored rows whose bytes are known, each with the views that keep it."""
        known = pc.and_(pc.equal(table["lock_outcome"], STORED), table["sha256"].is_valid())
        stored = table.filter(known)
        kept = {view: stored[VIEW_PREFIX + view].combine_chunks() for view in self.views}
        for view, flags in kept.items():
            self._kept_rows[view] += flags.true_count
        keys = row_keys(stored["uid"], stored["sha256"])
        insert(rows, "stored", *key_columns(keys), np.ones(len(keys), np.bool_), *kept.values())

    def _head(self, hashes: Sequence[tuple[int, str]]) -> LockHead:
        """The head. hashes: of all stored rows, then of those of each view."""
        (_, whole), *of_views = hashes
        views = {}
        for (view, masks), (_, digest) in zip(self.views.items(), of_views, strict=True):
            views[view] = LockedView(
                kept=self._kept_rows[view],
                rows_sha256=digest,
                rules=masks.document.rules,
                thresholds=masks.document.thresholds,
            )
        return LockHead(
            form=FORM,
            name=self.recipe.name,
            images=SOURCES[self.recipe.source.kind].images,
            recipe=_plain_recipe(self.recipe),
            extra_columns=self.extra_columns,
            fingerprint=self.commits.fingerprint,
            shards=len(self.commits),
            groups=None if self.plan is None else group_count(self.commits.layout),
            rows=sum(self.outcomes.values()),
            outcomes=dict(sorted(self.outcomes.items())),
            rows_sha256=whole,
            views=views,
            versions={name: importlib.metadata.version(name) for name in LIBRARIES},
            columns=self._hashes.hexdigests(),
        )


def _hidden(column: Any, hidden: Mask, field: pa.Field) -> pa.Array:
    """A column of a lock: NULL, withheld or not kept in the rows of a mask."""
    value: bool | str | None = None
    if field.name == "lock_outcome":
        value = WITHHELD
    elif field.name.startswith(VIEW_PREFIX):
        value = False
    changed = pc.if_else(pa.array(hidden), pa.scalar(value, field.type), column.cast(field.type))
    return changed.combine_chunks() if isinstance(changed, pa.ChunkedArray) else changed


# --- before the rows ----------------------------------------------------------------------------


def _complete_recipe(commits: Commits) -> Recipe:
    """The recipe of a pool. ValueError where the pool is not complete, or its counts are wrong."""
    pool = commits.pool
    counts = count_pool(commits)
    if not counts.complete:
        fetched = counts.fetch
        raise ValueError(
            f"{pool} is not complete: {fetched.shards} of {fetched.planned} planned shards are "
            "committed; run clipmill build to its end, then lock the pool"
        )
    if counts.problems:
        raise ValueError(f"{pool} cannot be locked: {counts.problems[0]}")
    recipe = recipe_of_pool(commits.layout)
    if recipe is None:
        raise ValueError(
            f"{pool} has no recipe.json; run clipmill build to its end, then lock the pool"
        )
    return recipe


def _extra_columns(recipe: Recipe) -> dict[str, str]:
    """The pool's own columns and their types. ValueError where one has the name of the lock's."""
    types = {}
    for name, kind in recipe.source.extra_columns.items():
        if name.lower() in ROWS.names or name.lower().startswith(VIEW_PREFIX):
            raise ValueError(
                f"the pool has an extra column {name!r}, and a lock has a column of that name; "
                "the pool cannot be locked"
            )
        types[name] = kind.rpartition(":")[2]
    return types


def _current_views(pool: Pool, names: Sequence[str] | None) -> dict[str, OpenView]:
    """The views to lock, in the order of their names."""
    remedy = f"make it again with clipmill filter {pool.path}, or name the others with --view"
    chosen = pool.view_names() if names is None else names
    return {name: pool.view(name, remedy) for name in sorted(set(chosen))}


def _plain_recipe(recipe: Recipe) -> dict[str, object]:
    """What decides rows, bytes and views. Who asks and how, and paths, are a lab's own."""
    plain = disk.to_plain(recipe)
    return {
        **identity.recipe_identity(recipe),
        "filters": plain["filters"],
        "views": plain["views"],
    }
