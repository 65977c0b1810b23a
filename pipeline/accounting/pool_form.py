"""Brings a pool of the first form into the second, and its index up to date.

The first form has all shards in one folder, and a file a shard in every score set and view. Files
are renamed one after another, a shard's commit record last; after a kill the same command goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from manifests import disk
from manifests.aligned.bundles import BundleWriter
from manifests.aligned.shard_tables import view_shards_dict
from manifests.commits import Commits, rebuild_index
from manifests.documents import ViewDocument, read_document
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    FLAT_SHARDS,
    PoolLayout,
    shard_folder,
    shard_name,
)
from pipeline.accounting.row_index import write_row_index
from pipeline.pool import staged_file
from pipeline.scoring import write_bundle

SHARD_FILE = re.compile(r"(\d{5,})(?:\.r\d+)?(\.tar|\.parquet|_stats\.json)")
ALIGNED_FILE = re.compile(r"(\d{5,})\.parquet")
MOVERS = 8  # files that are moved at a time: a remote store copies each


def reindex(pool: str, check: Callable[[], None] | None = None) -> Commits:
    """Make the index of a pool anew from its commit records. Under the pool's lease; `check` raises
    where another command has taken it over.

    ValueError where there is no pool, and for a shard of the first form.
    """
    if not disk.exists(PoolLayout(pool).shards):
        raise ValueError(f"{pool} has no shards/; is it the folder of a pool?")
    commits = rebuild_index(pool, check)
    if check is not None:
        check()
    write_row_index(commits)
    return commits


def migrate(pool: str, check: Callable[[], None] = lambda: None) -> int:
    """Move shards from FLAT_SHARDS on into folders, and bundle the files that are aligned with
    their rows. Under the pool's lease; make the index after it. Returns how many files were moved.

    ValueError where there is no pool. `check` raises where another command has taken the lease
    over; it is called before the files of a shard, a score set or a view are moved.
    """
    layout = PoolLayout(pool)
    if not disk.exists(layout.shards):
        raise ValueError(f"{pool} has no shards/; is it the folder of a pool?")
    names = disk.list_names(layout.shards)
    by_shard: dict[str, list[str]] = {}
    for name in names:
        match = SHARD_FILE.fullmatch(name)
        if match is not None and int(match[1]) >= FLAT_SHARDS:
            by_shard.setdefault(match[1], []).append(name)

    def move(shard: str) -> int:
        check()
        return _move_shard(layout, shard, by_shard[shard])

    with ThreadPoolExecutor(MOVERS) as threads:
        moved = sum(threads.map(move, by_shard))
    for score_set in disk.list_names(layout.scores):
        check()
        moved += _migrate_scores(layout, score_set)
    for file in disk.list_names(layout.views, ".json"):
        check()
        moved += _migrate_view(layout, file.removesuffix(".json"))
    return moved


def _move_shard(layout: PoolLayout, shard: str, names: list[str]) -> int:
    """Move the files of a shard into its folder: the commit record last."""
    folder = layout.shard_folder(shard)
    for name in sorted(names, key=lambda name: name.endswith(COMMIT_SUFFIX)):
        _move(disk.join(layout.shards, name), disk.join(folder, name))
    return len(names)


def _move(source: str, target: str) -> None:
    if disk.is_url(source):
        filesystem, path = disk.filesystem(source)
        filesystem.mv(path, disk.filesystem(target)[1])
        return
    local_target = disk.local_path(target)
    local_target.parent.mkdir(parents=True, exist_ok=True)
    disk.local_path(source).replace(local_target)


def _later_shards(folder: str) -> Iterator[str]:
    """Shards from FLAT_SHARDS on that have a file of their own in a folder of the first form."""
    for name in disk.list_names(folder, ".parquet"):
        match = ALIGNED_FILE.fullmatch(name)
        if match is not None and int(match[1]) >= FLAT_SHARDS:
            yield match[1]


def _migrate_scores(layout: PoolLayout, score_set: str) -> int:
    folder = layout.score_set(score_set)
    shards = list(_later_shards(folder))
    for shard in shards:
        _move(disk.join(folder, f"{shard}.parquet"), layout.score_columns(score_set, shard))
    by_folder: dict[str, list[int]] = {}
    for name in disk.list_names(folder):
        if re.fullmatch(r"\d{5,}", name):
            singles = disk.list_names(disk.join(folder, name), ".parquet")
            by_folder[name] = [int(single.removesuffix(".parquet")) for single in singles]
    if not disk.exists(layout.score_set_json(score_set)):
        return len(shards)  # scoring is not complete; the scorer makes the bundles
    for of_bundle in by_folder.values():
        write_bundle(layout.root, score_set, sorted(of_bundle))
    return len(shards)


def _migrate_view(layout: PoolLayout, view: str) -> int:
    """Put the masks of a view into bundles."""
    folder = disk.join(layout.views, view)
    shards = list(_later_shards(folder))
    if not shards:
        return 0
    document = read_document(layout.view_json(view), ViewDocument)
    by_folder: dict[str, list[int]] = {}
    for name in view_shards_dict(layout.root, document):
        if shard_folder(name):
            by_folder.setdefault(shard_folder(name), []).append(int(name))
    for of_bundle in by_folder.values():
        path = layout.view_bundle(view, of_bundle[0])
        if disk.exists(path):
            continue
        with staged_file(path, alone=True) as staged:
            first = disk.read_schema(_flat_mask(layout, view, of_bundle[0])).remove_metadata()
            with BundleWriter(staged, first) as writer:
                for shard in sorted(of_bundle):
                    single = _flat_mask(layout, view, shard)
                    mask = disk.read_parquet(single).replace_schema_metadata(None)
                    writer.add(shard, mask, disk.read_metadata(single))
            disk.publish(staged, path)
    for name in shards:
        disk.remove(_flat_mask(layout, view, name))
    return len(shards)


def _flat_mask(layout: PoolLayout, view: str, shard: int | str) -> str:
    """Where the first form has the mask of a shard."""
    return disk.join(layout.views, view, f"{shard_name(shard)}.parquet")
