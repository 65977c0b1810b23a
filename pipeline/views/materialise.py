"""A view's kept samples as tars of their own: members are copied byte for byte.

Each shard gives one tar under its own name, so rows, shards and with them the order of training
stay what they are. Beside it lies a sidecar of the kept rows with their new offsets. It is written
after the tar and says which rows of which tar they are: after a kill, and where a view keeps other
rows of some shards, the same command writes what is missing. Both together are shards that any
reader of img2dataset's form can use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned import AlignedFiles, view_shards
from manifests.commits import Commits, read_commits
from manifests.layout import FOLDER_NAME, PoolLayout, shard_name, uids_checksum
from manifests.records import ViewCopyDocument, ViewDocument
from pipeline.pool.lease import check_fence, read_sidecar
from pipeline.pool.shard_writer import staged_file
from pipeline.pool.tar_copy import copy_tar_with, copy_with_json
from pipeline.views.files import current_view_of
from pipeline.views.row_tests import map_units


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCopy:
    """One tar that was written, or was there."""

    rows: int
    bytes: int
    sha256: str


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

    def copy(unit: int) -> ShardCopy:
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
) -> ShardCopy:
    """The tar and the sidecar of one shard of a view."""
    layout = PoolLayout(commits.pool)
    return copy_kept_samples(
        commits,
        shard,
        np.asarray(masks.read(shard, ["kept"])[0]["kept"].to_numpy(), np.bool_),
        layout.view_copy_tar(document.name, shard),
        layout.view_copy_sidecar(document.name, shard),
        check=lambda: check_fence(commits.pool, fence),
    )


def copy_kept_samples(
    commits: Commits,
    shard: int,
    kept: NDArray[np.bool_],
    tar: str,
    sidecar: str,
    *,
    made_of: Mapping[str, str] | None = None,
    columns: Callable[[pa.Table], pa.Table] | None = None,
    json_keys: Callable[[pa.Table], list[dict[str, Any]]] | None = None,
    check: Callable[[], None] = lambda: None,
) -> ShardCopy:
    """Write the kept samples of a shard as a tar, then their rows as its sidecar. A copy that is
    there, of the same rows, stays.

    kept: (rows,). made_of: what else the sidecar depends on. columns: adds columns to the kept
    rows. json_keys: what the JSON member of each of these rows gets. check: called before a file is
    published. ValueError for a damaged tar, and for a mask of
    other rows.
    """
    record = commits.record(shard)
    rows = read_sidecar(commits.pool, shard)
    if len(kept) != len(rows):
        raise ValueError(
            f"the mask of shard {shard_name(shard)} has {len(kept)} rows and its sidecar "
            f"{len(rows)}; choose the view again with clipmill filter"
        )
    kept_uids = uids_checksum(rows["uid"].filter(pa.array(kept)))
    facts = {"uids": kept_uids, "source_sha256": record.tar_sha256, **(made_of or {})}
    there = _metadata(sidecar)
    if facts.items() <= there.items() and disk.exists(tar):
        count, size, sha256 = there["rows"], there["tar_bytes"], there["tar_sha256"]
        return ShardCopy(rows=int(count), bytes=int(size), sha256=str(sha256))
    with staged_file(tar) as staged:
        copy, moved = copy_tar_with(commits.tar(shard), staged, rows, kept, record.tar_sha256)
        if columns is not None:
            moved = columns(moved)
        if json_keys is not None:
            plain = staged.with_name(f"{staged.name}.plain")
            staged.rename(plain)
            try:
                moved, copy = copy_with_json(plain, staged, moved, json_keys(moved))
            finally:
                plain.unlink()
        check()
        disk.publish(staged, tar)
    metadata = {**facts, "rows": len(moved), "tar_bytes": copy.bytes, "tar_sha256": copy.sha256}
    check()
    disk.write_parquet(sidecar, moved, metadata)
    return ShardCopy(rows=len(moved), bytes=copy.bytes, sha256=copy.sha256)


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
