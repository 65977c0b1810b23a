"""A pool built again from a lock: its source, and how its rows differ from those of the lock."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clipmill.manifests import disk, identity, reader
from clipmill.manifests.arrays import Bytes, Integers, Mask
from clipmill.manifests.columns import STORED, WITHHELD
from clipmill.manifests.commits import Commits, in_threads, read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import DriftDocument, ViewDocument
from clipmill.manifests.schema import (
    SOURCES,
    STORED_IMAGE_SETTINGS,
    Fetch,
    Recipe,
    Source,
    refuse_unused,
)
from clipmill.pipeline.database import (
    BATCH_ROWS,
    KEY,
    create_keyed,
    database,
    hash_flagged,
    insert,
    is_sha256,
    key_columns,
    of_flags,
    row_keys,
)
from clipmill.pipeline.lock.lock_file import SHOWN_ID, VIEW_PREFIX, LockFile
from clipmill.pipeline.planning.plan_files import is_planned, lock_of_plan
from clipmill.pipeline.planning.planner import write_given_plan
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.views.files import selected_view, write_selected_view

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# --------------------------------------------------------------------------------------------------
# How the rows of a pool that was built from a lock differ from those of the lock, by reason.


MISSING = "missing"  # outcome of a row whose shard is not committed
KEYS_PER_SHARD = 10_000  # a key is the number shard * KEYS_PER_SHARD + position


def write_drift(out: PoolWriter, commits: Commits, lock: LockFile) -> DriftDocument:
    """Compare a pool with its lock and write drift.json."""
    document = count_drift(commits, lock)
    out.write_json(out.layout.drift_json, document)
    return document


def count_drift(commits: Commits, lock: LockFile) -> DriftDocument:
    """The outcomes of all rows of a lock in a pool. Of a row that was retried here the newest one
    counts.
    """
    pairs = Counter[tuple[str, str]]()  # (outcome in the lock, outcome here)
    same_tars = shards = 0
    newest = _retried_here(commits, lock)
    for counts, same_tar in _shard_counts(commits, lock, newest):
        pairs += counts
        same_tars += same_tar
        shards += 1
    drift = Counter[str]()
    not_asked = Counter[str]()
    for (locked, here), count in pairs.items():
        if locked != STORED:
            not_asked[locked] += count
        elif here not in (STORED, MISSING):
            drift[here] += count
    return DriftDocument(
        lock=lock.head.id,
        name=lock.head.name,
        rows=lock.head.rows,
        stored=lock.head.outcomes.get(STORED, 0),
        same=pairs[STORED, STORED],
        drift=dict(sorted(drift.items())),
        missing=pairs[STORED, MISSING],
        not_asked=dict(sorted(not_asked.items())),
        shards=shards,
        same_tars=same_tars,
    )


def drift_lines(document: DriftDocument) -> list[str]:
    """The drift of a pool, for a terminal."""
    stored = max(1, document.stored)
    lines = [
        f"drift from lock {document.lock[:SHOWN_ID]}: of {document.stored:,} rows that it has",
        f"  {'the same bytes':<16} {document.same:>12,} {document.same / stored:>8.2%}",
    ]
    by_count = sorted(document.drift.items(), key=lambda item: (-item[1], item[0]))
    if document.missing:
        by_count.append(("not committed", document.missing))
    for reason, count in by_count:
        lines.append(f"  {reason:<16} {count:>12,} {count / stored:>8.2%}")
    if document.not_asked:
        reasons = [f"{name} {count:,}" for name, count in document.not_asked.items()]
        total = sum(document.not_asked.values())
        lines.append(f"  not asked for: {total:,} rows that the lock does not have stored")
        lines.append(f"    {', '.join(reasons)}")
    lines.append(f"  {document.same_tars:,} of {document.shards:,} tars are the same")
    return lines


def _shard_counts(
    commits: Commits, lock: LockFile, newest: dict[int, str]
) -> Iterator[tuple[Counter[tuple[str, str]], bool]]:
    """For each shard of a lock: its outcomes, and whether its tar here has the same bytes."""
    columns = ["lock_tar_sha256", "lock_outcome"]
    shards = enumerate(table for _, table in lock.shards(columns))
    retried = {key // KEYS_PER_SHARD for key in newest}

    def work(shard: tuple[int, pa.Table]) -> tuple[Counter[tuple[str, str]], bool]:
        number, table = shard
        position = commits.position(number)
        if position is None:
            here = pa.array([MISSING] * table.num_rows, pa.string())
            return _pairs(table["lock_outcome"], here), False
        sidecar = Pool(commits).read(number, ["reason"])
        here = pc.fill_null(sidecar["reason"], STORED)
        low = number * KEYS_PER_SHARD
        if number in retried:
            outcomes = here.to_pylist()
            for row in range(len(outcomes)):
                outcomes[row] = newest.get(low + row, outcomes[row])
            here = pa.array(outcomes, pa.string())
        tar = commits.column("tar_sha256")[position].as_py().hex()
        return _pairs(table["lock_outcome"], here), tar == table["lock_tar_sha256"][0].as_py()

    yield from in_threads(work, shards)


def _pairs(locked: object, here: object) -> Counter[tuple[str, str]]:
    """How often each pair of outcomes is there."""
    table = pa.table({"locked": locked, "here": here})
    counts = table.group_by(["locked", "here"]).aggregate([([], "count_all")])
    rows = counts.to_pylist()
    return Counter({(row["locked"], row["here"]): row["count_all"] for row in rows})


def _retried_here(commits: Commits, lock: LockFile) -> dict[int, str]:
    """{key: newest outcome} of the rows of the lock that a round of retries here asked for again.

    A retry of a retry counts for the row that was asked for first.
    """
    retries = commits.column("retries").to_numpy() > 0
    if not retries.any():
        return {}
    first_retry = sum(1 for _ in lock.shards([]))
    newest: dict[int, str] = {}
    for shard in commits.shards[retries][::-1].tolist():
        if shard < first_retry:
            break  # a retry of the pool that was locked
        table = Pool(commits).read(shard, ["key", "retry_of", "reason"])
        for row in table.to_pylist():
            outcome = newest.pop(int(row["key"]), row["reason"] or STORED)
            newest[int(row["retry_of"])] = outcome
    return newest


# --------------------------------------------------------------------------------------------------
# A lock as the source of a pool: the recipe that builds it, and its plan.
#
# What decides the bytes of a stored image comes from the lock. Who asks, how, and which addresses
# may be asked is decided here: a lock is another lab's file.


KIND = "lock"
# Of the settings of the pool that was locked, those that a pool built from the lock has too.
LOCKED_SETTINGS = (*STORED_IMAGE_SETTINGS, "max_bytes", "max_redirects")
UNVERIFIABLE = "unverifiable"  # locked outcome of a stored row without a URL or a hash


def is_locked(recipe: Recipe) -> bool:
    """Whether the source of a recipe is a lock."""
    return recipe.source.kind == KIND


def lock_of(recipe: Recipe) -> LockFile:
    """The lock of such a recipe. ValueError where it is not one lock that a pool can be built
    from.
    """
    if len(recipe.source.paths) != 1:
        raise ValueError(f"source.paths {list(recipe.source.paths)}: a source of kind lock has one")
    lock = LockFile(recipe.source.paths[0])
    if lock.head.images in ("files", "rows"):
        raise ValueError(
            f"{lock.path} is of a pool of local files, whose paths mean nothing elsewhere: copy "
            "the files and build their recipe, then compare with clipmill audit same-rows"
        )
    for name, kind in recipe.source.extra_columns.items():
        known = lock.head.extra_columns
        if known.get(name) != kind:
            is_there = f"it is of type {known[name]}" if name in known else "it is not there"
            raise ValueError(f"extra_columns {name}: {kind!r} is not in {lock.path}: {is_there}")
    return lock


def recipe_of_lock(path: str, settings: Sequence[str] = ()) -> Recipe:
    """The recipe that builds the pool of a lock again, without filters and views.

    settings: KEY=VALUE of `fetch`, values as in YAML: what is the builder's own, such as
    user_agent. ValueError for a lock that cannot be used and for settings that cannot work.
    """
    path = path if disk.is_url(path) else os.path.abspath(path)
    source = Source(kind="lock", paths=(path,))
    head = lock_of(Recipe(name=KIND, source=source)).head
    own = reader.yaml_values(settings)
    refuse_unused(KIND, [], own)
    for key in own:
        if key in LOCKED_SETTINGS:
            raise ValueError(
                f"--set {key}: the lock decides it; for other images write a recipe with "
                f"source: {{kind: lock, paths: [{path}]}}"
            )
    if "user_agent" not in own:
        raise ValueError(
            "images are asked for from other people's servers: say who asks, with "
            "--set user_agent='NAME (ADDRESS TO WRITE TO)'"
        )
    locked = head.recipe["fetch"]
    fetch = {name: locked[name] for name in LOCKED_SETTINGS if name in locked} | own
    values = {
        "name": head.name,
        "source": {"kind": KIND, "paths": [path], "extra_columns": head.extra_columns},
        "fetch": fetch,
        "filters": [],
        "views": [],
    }
    reader.check_values(own, Fetch, "--set")
    return reader.check_values(values, Recipe, path)


def write_lock_plan(out: PoolWriter, recipe: Recipe) -> None:
    """Plan the rows of a lock, shard by shard as they were, or check the plan that is there.

    ValueError where the pool was begun from something else, or with other settings; LeaseLost where
    another command has taken the lease over.
    """
    lock, pool = lock_of(recipe), out.pool
    planned = lock_of_plan(out.layout)
    if planned is None:
        has_pairs = bool(disk.list_names(out.layout.pairs, ".parquet"))
        if is_planned(out.layout) or has_pairs or len(read_commits(pool, [])):
            raise ValueError(f"{pool} was built from another source: build into another folder")
        shards = _planned_shards(lock, recipe)
        write_given_plan(out, recipe, shards, lock.head.id, lock.head.groups)
        return
    remedy = f"build into another folder than {pool}"
    if planned[0] != lock.head.id:
        raise ValueError(
            f"{pool} was begun from lock {planned[0][:SHOWN_ID]}, and {lock.path} is lock "
            f"{lock.id}: {remedy}"
        )
    if changes := identity.recipe_changes(planned[1], identity.recipe_identity(recipe)):
        raise ValueError(
            f"the settings have changed since this pool was planned ({'; '.join(changes)}): give "
            f"the old value back, or {remedy}"
        )


def check_not_locked(layout: PoolLayout, recipe: Recipe) -> None:
    """ValueError where a pool was begun from a lock and the recipe has another source."""
    if not is_locked(recipe) and (planned := lock_of_plan(layout)) is not None:
        raise ValueError(
            f"{layout} was begun from lock {planned[0][:SHOWN_ID]}, and recipe {recipe.name!r} has "
            f"a source of kind {recipe.source.kind}: build into another folder"
        )


def check_locked(recipe: Recipe) -> None:
    """ValueError for a recipe whose lock cannot be used, before anything is written."""
    if is_locked(recipe):
        lock_of(recipe)
        assert SOURCES[KIND].images == "web"


def _planned_shards(lock: LockFile, recipe: Recipe) -> Iterator[tuple[int, pa.Table]]:
    """(host group, rows) of each shard of the plan. ValueError where nothing can be asked for."""
    extra = list(recipe.source.extra_columns)
    columns = [name for name in lock.names if not name.startswith("view:")]
    asked = rows_before = 0
    for number, (_, table) in enumerate(lock.shards(columns)):
        group = number if lock.head.groups is None else table["lock_group"][0].as_py()
        rows = _planned_rows(table, lock.head.id, rows_before)
        asked += pc.sum(pc.equal(rows["locked_outcome"], STORED)).as_py() or 0
        rows_before += table.num_rows
        dropped = ["lock_shard", "lock_group", "lock_tar_sha256", "lock_outcome", "sha256"]
        dropped += [name for name in lock.head.extra_columns if name not in extra]
        yield group, rows.drop_columns(dropped)
    if not asked:
        raise ValueError(f"{lock.path} has no row with a URL and a hash: nothing can be asked for")


def _planned_rows(table: pa.Table, lock: str, before: int) -> pa.Table:
    """The rows of a shard with the columns of a plan. Each has a uid: of a row that is withheld it
    is made from the lock and its number.
    """
    stored = pc.equal(table["lock_outcome"], STORED)
    known = pc.and_(table["url"].is_valid(), table["sha256"].is_valid())
    outcome = pc.if_else(pc.and_(stored, pc.invert(known)), UNVERIFIABLE, table["lock_outcome"])
    missing = np.flatnonzero(table["uid"].is_null().to_numpy())
    if len(missing):
        uids = table["uid"].to_pylist()
        for row in missing.tolist():
            uids[row] = xxhash.xxh3_128_hexdigest(f"{WITHHELD} {lock} {before + row}".encode())
        position = table.column_names.index("uid")
        table = table.set_column(position, "uid", pa.array(uids, pa.string()))
    table = table.append_column("locked_outcome", outcome)
    return table.append_column("locked_sha256", table["sha256"])


# --------------------------------------------------------------------------------------------------
# The rows that several locks and a pool have in common, byte for byte, as a view of the pool.
#
# Two rows are the same where uid and sha256 of the received bytes are. Two labs that make the
# view from the same locks have the same hash of its rows, whatever their shards are.


ALL_ROWS = "locked"  # the view of all rows of a lock that a pool built from it has
# Rows of each lock with a flag a selection; rows of the pool by number, counted over all shards.
COMMON = """
CREATE TABLE common AS SELECT {key}, {in_all} FROM (
    SELECT {key}, lock, {in_one} FROM locked GROUP BY {key}, lock
) GROUP BY {key};
CREATE TABLE matched AS SELECT {key}, {flags}, ordinal FROM pool JOIN common USING ({key})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRows:
    """A view of the rows that a pool and locks have in common."""

    view: str
    kept: int
    rows_sha256: str
    in_locks: int  # rows that all the locks have, and keep


@dataclass(slots=True)
class _Match:
    """The rows of one selection: `None` for all rows of the locks, else of a view."""

    bits: Bytes  # one bit a row of the pool, lowest first
    different: int  # rows
    rows_sha256: str
    in_locks: int

    def rows(self, start: int, stop: int) -> Mask:
        """(stop - start,) which rows of the pool are in it."""
        part = self.bits[start >> 3 : (stop + 7) >> 3]
        flags = np.unpackbits(part, bitorder="little")[start & 7 :][: stop - start]
        return flags.astype(np.bool_)


def write_same_rows(
    out: PoolWriter, paths: Sequence[str], *, view: str | None = None, name: str | None = None
) -> SameRows:
    """Write the view of the rows that all these locks and the pool have.

    view: only the rows that this view keeps in every lock. name: of the new view. ValueError for
    locks that cannot be used or do not have that view, and where no row is left.
    """
    commits = read_commits(out.pool)
    if not len(commits):
        raise ValueError(f"{out.pool} has no committed shards; is it the folder of a pool?")
    locks = [LockFile(path) for path in paths]
    usual_name = "same_rows" if view is None else f"same_rows_{view}"
    return _write(out, commits, locks, {view: name or usual_name})[0]


def write_locked_views(
    out: PoolWriter, commits: Commits, lock: LockFile, others: Sequence[str]
) -> list[SameRows]:
    """Write the views of a lock into a pool that was built from it, and ALL_ROWS.

    others: names of views that the recipe of the pool makes itself; those are left out.
    """
    names: dict[str | None, str] = {None: ALL_ROWS}
    for view in lock.head.views:
        if view not in (*others, ALL_ROWS):
            names[view] = view
    return _write(out, commits, [lock], names, skip_empty=True)


def same_rows_lines(results: Sequence[SameRows]) -> list[str]:
    """The views, for a terminal."""
    lines = []
    for result in results:
        lines.append(f"view {result.view}: {result.kept:,} rows, {result.rows_sha256}")
        if missing := result.in_locks - result.kept:
            lines.append(f"  {missing:,} more rows are in the lock, and not in this pool")
    return lines


def _where(locks: Sequence[LockFile], view: str | None) -> str:
    """What the rows of a selection are, in words; it decides whether a view is made again."""
    ids = " and ".join(sorted({lock.id for lock in locks}))
    text = f"in lock {ids}" if len(locks) == 1 else f"in locks {ids}"
    return text if view is None else f"{text}, kept by view {view}"


def _write(
    out: PoolWriter,
    commits: Commits,
    locks: Sequence[LockFile],
    names: dict[str | None, str],
    *,
    skip_empty: bool = False,
) -> list[SameRows]:
    """Write a view for each selection of `names` that is not there yet. skip_empty: none for a view
    of the lock of which no row is left.
    """
    for lock in locks:
        for view in names:
            if view is not None and view not in lock.head.views:
                raise ValueError(
                    f"{lock.path} has no view {view!r}{disk.did_you_mean(view, lock.head.views)} "
                    f"(it has {', '.join(lock.head.views) or 'none'})"
                )
    todo = []
    results: dict[str | None, SameRows] = {}
    for view, name in names.items():
        document = selected_view(commits, name, _where(locks, view))
        if document is None:
            todo.append(view)
        else:
            results[view] = _same_rows(document, document.kept)
    matches = _match(commits, locks, todo) if todo else {}
    for view, match in matches.items():
        if not match.different and view is not None and skip_empty:
            continue
        where, rows_sha256 = _where(locks, view), match.rows_sha256
        document = write_selected_view(out, commits, names[view], where, match.rows, rows_sha256)
        results[view] = _same_rows(document, match.in_locks - match.different + document.kept)
    return [results[view] for view in names if view in results]


def _same_rows(document: ViewDocument, in_locks: int) -> SameRows:
    return SameRows(
        view=document.name,
        kept=document.kept,
        rows_sha256=str(document.rows_sha256),
        in_locks=in_locks,
    )


# --- matching -------------------------------------------------------------------------------------


def _match(
    commits: Commits, locks: Sequence[LockFile], selections: Sequence[str | None]
) -> dict[str | None, _Match]:
    """The rows of the pool that are in every lock, for each selection. One bit a row is in memory,
    and what a database holds.
    """
    flags = len(selections)
    with database() as connection:
        create_keyed(connection, "pool", "ordinal BIGINT")
        create_keyed(connection, "locked", of_flags("{} BOOLEAN", flags) + ", lock INTEGER")
        _add_pool(connection, commits)
        for number, lock in enumerate(locks):
            _add_lock(connection, number, lock, selections)
        in_all = of_flags(f"count_if({{0}}) = {len(locks)} AS {{0}}", flags)
        in_one = of_flags("bool_or({0}) AS {0}", flags)
        names = of_flags("{}", flags)
        connection.execute(COMMON.format(key=KEY, in_all=in_all, in_one=in_one, flags=names))
        counted = f"SELECT {of_flags('count_if({})', flags)} FROM common"
        ((*in_locks,),) = connection.execute(counted).fetchall()
        hashes = hash_flagged(connection, "matched", flags)
        bits = np.zeros((flags, (commits.totals.rows + 7) // 8), np.uint8)
        numbered = connection.sql(f"SELECT ordinal, {names} FROM matched")
        for batch in numbered.to_arrow_reader(BATCH_ROWS):
            for number, of_selection in enumerate(bits):
                rows = batch["ordinal"].filter(batch[1 + number]).to_numpy()
                np.bitwise_or.at(of_selection, rows >> 3, (1 << (rows & 7)).astype(np.uint8))
    return {
        view: _Match(bits[number], *hashes[number], in_locks[number])
        for number, view in enumerate(selections)
    }


def _add_pool(connection: DuckDBPyConnection, commits: Commits) -> None:
    """Add the stored rows of a pool with their numbers."""
    counts = commits.column("count").to_numpy()
    firsts = np.cumsum(counts) - counts

    def read(position: int) -> tuple[Bytes, Integers]:
        shard = int(commits.shards[position])
        table = Pool(commits).read(shard, ["uid", "sha256", "status"])
        stored = pc.and_(pc.equal(table["status"], "success"), is_sha256(table["sha256"]))
        table = table.filter(stored)
        ordinals = firsts[position] + np.flatnonzero(stored.to_numpy())
        return row_keys(table["uid"], table["sha256"]), ordinals

    for keys, ordinals in in_threads(read, range(len(commits))):
        insert(connection, "pool", *key_columns(keys), ordinals)


def _add_lock(
    connection: DuckDBPyConnection,
    number: int,
    lock: LockFile,
    selections: Sequence[str | None],
) -> None:
    """Add the stored rows of a lock, each with the selections that keep it."""
    columns = ["uid", "sha256", "lock_outcome"]
    of_views = [VIEW_PREFIX + view for view in selections if view is not None]
    for table in lock.tables([*columns, *of_views]):
        known = pc.and_(pc.equal(table["lock_outcome"], STORED), table["sha256"].is_valid())
        stored: pa.Table = table.filter(known)
        rows = stored.num_rows
        flags: list[object] = []
        for view in selections:
            is_kept = np.ones(rows, np.bool_) if view is None else stored[VIEW_PREFIX + view]
            flags.append(is_kept)
        keys = row_keys(stored["uid"], stored["sha256"])
        insert(connection, "locked", *key_columns(keys), *flags, np.full(rows, number, np.int32))
