"""A view's kept samples as tars of their own: members are copied byte for byte.

Each shard gives one tar under its own name, so rows, shards and with them the order of training
stay what they are. Beside it lies a sidecar of the kept rows with their new offsets. It is written
after the tar and says which rows of which tar they are: after a kill, and where a view keeps other
rows of some shards, the same command writes what is missing. Both together are shards that any
reader of img2dataset's form can use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from manifests import disk
from manifests.aligned import AlignedFiles, view_shards
from manifests.commits import Commits, read_commits
from manifests.documents import ViewCopyDocument, ViewDocument
from manifests.pool_layout import FOLDER_NAME, PoolLayout, shard_name, uids_checksum
from pipeline.pool import check_fence, copy_tar_without, moved_offsets, read_sidecar, staged_file
from pipeline.views.unit_threads import map_units
from pipeline.views.view_files import current_view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardCopy:
    """One tar that was written, or was there."""

    rows: int
    bytes: int


def materialise_view(pool: str, view: str, fence: int | None = None) -> ViewCopyDocument:
    """Write the tars of a view, those that are missing, and return the document of all.

    fence: that of the lease; LeaseLost where another command has taken it over. ValueError for an
    unknown view, one that is older than the pool's shards, and a damaged tar.
    """
    commits = read_commits(pool)
    document = current_view_of(commits, view)
    shards, kept = view_shards(pool, document)
    shards = shards[kept > 0]
    masks = AlignedFiles.of_view(pool, view)

    def copy(unit: int) -> _ShardCopy:
        shard = int(shards[unit])
        return _copy_shard(commits, masks, document, shard, fence)

    copies = list(map_units(len(shards), copy, "materialise"))
    check_fence(pool, fence)
    _remove_others(pool, view, shards.tolist())
    result = ViewCopyDocument(
        view_hash=disk.content_hash(document),
        shards=len(copies),
        rows=sum(each.rows for each in copies),
        bytes=sum(each.bytes for each in copies),
    )
    disk.write_json(PoolLayout(pool).view_copy_json(view), result, sealed=True)
    return result


def _copy_shard(
    commits: Commits,
    masks: AlignedFiles,
    document: ViewDocument,
    shard: int,
    fence: int | None,
) -> _ShardCopy:
    """The tar and the sidecar of one shard of a view."""
    layout = PoolLayout(commits.pool)
    target = layout.view_copy_tar(document.name, shard)
    sidecar_path = layout.view_copy_sidecar(document.name, shard)
    record = commits.record(shard)
    rows = read_sidecar(commits.pool, shard)
    kept = np.asarray(masks.read(shard, ["kept"])[0]["kept"].to_numpy(), np.bool_)
    if len(kept) != len(rows):
        raise ValueError(
            f"the mask of shard {shard_name(shard)} in view {document.name!r} has {len(kept)} rows "
            f"and its sidecar {len(rows)}; choose the view again with pipeline/filter.py"
        )
    kept_uids = uids_checksum(rows["uid"].filter(pa.array(kept)))
    made_of = {"uids": kept_uids, "source_sha256": record.tar_sha256}
    there = _metadata(sidecar_path)
    if made_of.items() <= there.items() and disk.exists(target):
        return _ShardCopy(rows=int(there["rows"]), bytes=int(there["tar_bytes"]))
    stored = np.asarray(rows["image_offset"].is_valid().to_numpy(), np.bool_)
    with staged_file(target) as staged:
        copy = copy_tar_without(commits.tar(shard), staged, rows, stored & ~kept, record.tar_sha256)
        check_fence(commits.pool, fence)
        disk.publish(staged, target)
    moved = moved_offsets(rows, copy.removed).filter(pa.array(kept))
    metadata = {
        **made_of,
        "rows": len(moved),
        "tar_bytes": copy.bytes,
        "tar_sha256": copy.sha256,
    }
    check_fence(commits.pool, fence)
    disk.write_parquet(sidecar_path, moved, metadata)
    return _ShardCopy(rows=len(moved), bytes=copy.bytes)


def _remove_others(pool: str, view: str, shards: Iterable[int]) -> None:
    """Remove the copies of shards of which an earlier view of that name kept rows."""
    wanted = {shard_name(shard) for shard in shards}
    root = disk.join(PoolLayout(pool).view_copies, view)
    folders = [root]
    for name in disk.list_names(root):
        if FOLDER_NAME.fullmatch(name):
            folders.append(disk.join(root, name))
    for folder in folders:
        for name in disk.list_names(folder):
            stem, dot, _ = name.partition(".")
            if dot and stem not in wanted:
                disk.remove(disk.join(folder, name))


def _metadata(path: str) -> dict[str, Any]:
    """What the footer of a sidecar says; {} where there is none or it is damaged."""
    try:
        return disk.read_metadata(path)
    except (OSError, ValueError, pa.ArrowException):
        return {}


def remove_copies(pool: str, shards: Iterable[int]) -> int:
    """Remove the copies of some shards from all views; how many there were.

    The documents of the views go first, so that no reader looks for them.
    """
    layout = PoolLayout(pool)
    names = [name for name in disk.list_names(layout.view_copies) if not name.endswith(".json")]
    removed = 0
    for view in names:
        disk.remove(layout.view_copy_json(view))
    for view in names:
        for shard in shards:
            tar = layout.view_copy_tar(view, shard)
            removed += disk.exists(tar)
            disk.remove(tar)
            disk.remove(layout.view_copy_sidecar(view, shard))
    return removed
