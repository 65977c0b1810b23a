"""A lock as the source of a pool: the recipe that builds it, and its plan.

What decides the bytes of a stored image comes from the lock. Who asks, how, and which addresses may
be asked is decided here: a lock is another lab's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from manifests import disk, identity, reader
from manifests.columns import STORED, WITHHELD
from manifests.commits import read_commits
from manifests.pool_layout import PoolLayout
from manifests.schema import SOURCES, STORED_IMAGE_SETTINGS, Fetch, Recipe, Source, refuse_unused
from pipeline import planning
from pipeline.dataset_lock.lock_file import SHOWN_ID, LockFile

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
    if lock.head.images == "files":
        raise ValueError(
            f"{lock.path} is of a pool of local files, whose paths mean nothing elsewhere: copy "
            "the files and build their recipe, then compare with audit.py --same-rows"
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
    own = dict(_setting(each) for each in settings)
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


def _setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE as a key and a plain value."""
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"--set {text}: write KEY=VALUE, as in --set per_host=1")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"--set {text}: the value is no YAML") from None


def write_lock_plan(pool: str, recipe: Recipe, fence: int | None = None) -> None:
    """Plan the rows of a lock, shard by shard as they were, or check the plan that is there.

    ValueError where the pool was begun from something else, or with other settings; LeaseLost where
    another command has taken the lease over.
    """
    lock = lock_of(recipe)
    planned = planning.lock_of_plan(pool)
    if planned is None:
        layout = PoolLayout(pool)
        has_pairs = bool(disk.list_names(layout.pairs, ".parquet"))
        if planning.is_planned(pool) or has_pairs or len(read_commits(pool, [])):
            raise ValueError(f"{pool} was built from another source: build into another folder")
        shards = _planned_shards(lock, recipe)
        planning.write_given_plan(pool, recipe, shards, lock.head.id, lock.head.groups, fence)
        return
    remedy = f"build into another folder than {pool}"
    if planned[0] != lock.head.id:
        raise ValueError(
            f"{pool} was begun from lock {planned[0][:SHOWN_ID]}, and {lock.path} is lock "
            f"{lock.id}: {remedy}"
        )
    if changes := identity.recipe_changes(planned[1], recipe):
        raise ValueError(
            f"the settings have changed since this pool was planned ({'; '.join(changes)}): give "
            f"the old value back, or {remedy}"
        )


def check_not_locked(pool: str, recipe: Recipe) -> None:
    """ValueError where a pool was begun from a lock and the recipe has another source."""
    if not is_locked(recipe) and (planned := planning.lock_of_plan(pool)) is not None:
        raise ValueError(
            f"{pool} was begun from lock {planned[0][:SHOWN_ID]}, and recipe {recipe.name!r} has a "
            f"source of kind {recipe.source.kind}: build into another folder"
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
