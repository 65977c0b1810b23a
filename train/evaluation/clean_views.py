"""Views without the rows whose images are near copies of evaluation images.

An ablation with a task of `near_overlap: drop` trains on them. They lie beside the views that they
are made from, as VIEW.clean-HASH: HASH is of the tasks, and the document holds a hash of the view
and of the dropped rows. So the same view is found again, and a changed one makes its runs stale.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests import disk
from manifests.aligned.bundles import BundleWriter, parquet_bytes
from manifests.aligned.shard_tables import has_table, write_view_shards
from manifests.columns import VIEW
from manifests.commits import read_commits
from manifests.documents import ViewDocument, read_document
from manifests.pool_layout import NOT_STORED, PoolLayout, bundle_name, random_view_name
from manifests.schema import Blend, TaskSpec
from train.data import read_columns
from train.evaluation.overlap import DroppedRows, SharedImages

SELECTED = "selected"  # the rule of views whose rows a program selects
MARK = ".clean-"
Json = dict[str, Any]
logger = logging.getLogger(__name__)


def dropping(tasks: Sequence[TaskSpec]) -> list[TaskSpec]:
    """The tasks whose near copies are dropped."""
    return [task for task in tasks if task.near_overlap == "drop"]


def clean_name(view: str, tasks: Sequence[TaskSpec]) -> str:
    """The name of the view without the near copies of images of these tasks."""
    images = sorted([task.name, task.data, task.split] for task in dropping(tasks))
    return f"{view}{MARK}{disk.content_hash(images, 8)}"


def clean_blend(blend: Blend, tasks: Sequence[TaskSpec]) -> Blend:
    """The blend with the clean view in place of each view; the blend itself where no task drops.

    ValueError for a blend that does not draw from views alone.
    """
    if not dropping(tasks):
        return blend
    if blend.live or blend.streams or blend.segments is not None:
        raise ValueError(
            f"arm {blend.name!r} trains on streams or on a pool that is being built; near_overlap: "
            "drop needs views (use near_overlap: list in the task)"
        )
    names = {}
    for name in blend.views:
        pool, _, view = name.partition("/")
        names[name] = f"{pool}/{clean_name(view, tasks)}"

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {names.get(key, key): renamed(each) for key, each in value.items()}
        if isinstance(value, list):
            return [renamed(each) for each in value]
        return value

    clean: Blend = disk.from_plain(Blend, renamed(disk.to_plain(blend)))
    return clean


def near_uids(
    pool: str, tasks: Sequence[TaskSpec], shared: SharedImages
) -> dict[str, set[tuple[str, str]]]:
    """uid -> the (task, file) that its image is a copy of, of the tasks that drop copies.

    ValueError where the pool has no perceptual hashes.
    """
    wanted = {task.name for task in dropping(tasks)}
    if pool in shared.without_phash:
        raise ValueError(
            f"task {min(wanted)!r} has near_overlap: drop, but {pool} has no column phash; "
            f"run python pipeline/score.py {pool} --filters picture"
        )
    copies: dict[str, set[tuple[str, str]]] = {}
    for image in shared.images:
        if image.pool == pool and image.task in wanted:
            copies.setdefault(image.uid, set()).add((image.task, image.file))
    return copies


def count_dropped(
    arm: str, pool: str, view: str, tasks: Sequence[TaskSpec], shared: SharedImages
) -> DroppedRows:
    """What the clean view of a view leaves out."""
    copies = near_uids(pool, tasks, shared)
    asked = pa.array(sorted(copies), pa.string())
    rows, dropped = 0, 0
    images: set[tuple[str, str]] = set()
    for shard in read_columns(pool, view, ["uid"]):
        kept = shard.kept_columns()["uid"]
        uids = kept.filter(pc.is_in(kept, value_set=asked)).to_pylist()
        rows, dropped = rows + len(kept), dropped + len(uids)
        for uid in uids:
            images |= copies[uid]
    return DroppedRows(
        arm=arm, pool=pool, view=view, rows=rows, dropped=dropped, images=len(images)
    )


def write_clean_view(
    pool: str, view: str, tasks: Sequence[TaskSpec], shared: SharedImages
) -> ViewDocument:
    """Write the clean view of a view, unless it is there; its document. ValueError for no rows."""
    copies = near_uids(pool, tasks, shared)
    base = read_document(PoolLayout(pool).view_json(view), ViewDocument)
    where = f"in {view} without near copies of evaluation images"
    return _write(pool, clean_name(view, tasks), where, base, copies)


def write_clean_random(
    pool: str, view: str, seed: int, tasks: Sequence[TaskSpec], shared: SharedImages
) -> ViewDocument:
    """Write a random subset of the stored rows that are no near copies, as large as the clean view
    of `view`: the rows with the smallest xxh3(uid, seed), as random views are drawn.
    """
    copies = near_uids(pool, tasks, shared)
    base = read_document(PoolLayout(pool).view_json(clean_name(view, tasks)), ViewDocument)
    name = clean_name(random_view_name(view, seed), tasks)
    where = f"in the stored rows without near copies, drawn with seed {seed} like {base.name}"
    clean = _clean_hashes(pool, copies, seed)
    if base.kept < len(clean):
        limit = int(np.partition(clean, base.kept)[base.kept])
    else:
        limit = 1 << 64
    return _write(pool, name, where, base, copies, (seed, limit))


def _hashes(uids: pa.ChunkedArray, seed: int) -> NDArray[np.uint64]:
    """(rows,) xxh3_64 of each uid with `seed`."""
    import xxhash

    values = (xxhash.xxh3_64_intdigest(uid.encode(), seed) for uid in uids.to_pylist())
    return np.fromiter(values, np.uint64, len(uids))


def _clean_hashes(pool: str, copies: Mapping[str, Any], seed: int) -> NDArray[np.uint64]:
    """The hashes of all stored rows that are no copies."""
    asked = pa.array(sorted(copies), pa.string())
    parts = [np.zeros(0, np.uint64)]
    for shard in read_columns(pool, None, ["uid"]):
        uids = shard.kept_columns()["uid"]
        parts.append(_hashes(uids.filter(pc.invert(pc.is_in(uids, value_set=asked))), seed))
    return np.concatenate(parts)


# --- files ----------------------------------------------------------------------------------------


def _write(
    pool: str,
    name: str,
    where: str,
    base: ViewDocument,
    copies: Mapping[str, Any],
    draw: tuple[int, int] | None = None,
) -> ViewDocument:
    """Write masks, then the document. draw: (seed, limit) of a random subset of the stored rows."""
    layout = PoolLayout(pool)
    uids = disk.content_hash(sorted(copies))
    text = f"{where} (view {disk.content_hash(base, 16)}, rows {uids[:16]})"
    rules = ({"name": SELECTED, "where": text},)
    path = layout.view_json(name)
    if disk.exists(path):
        before = read_document(path, ViewDocument)
        if before.rules == rules and before.fingerprint == base.fingerprint:
            return before
    commits = read_commits(pool)
    disk.remove(path)  # an old document must never describe new masks
    rows, kept = _write_masks(pool, name, _masks(pool, base.name, copies, draw))
    if not sum(kept):
        raise ValueError(f"view {base.name} of {pool} has only near copies of evaluation images")
    table, shards = None, None
    if has_table(len(commits)):
        counts = np.array(rows, np.int64), np.array(kept, np.int64)
        table = write_view_shards(pool, name, commits.shards, *counts)
    else:
        shards = dict(zip(commits.names(), kept, strict=True))
    document = ViewDocument(
        name=name,
        rules=rules,
        thresholds={},
        funnel=(*base.funnel[:2], (SELECTED, sum(kept))),
        kept=sum(kept),
        fingerprint=base.fingerprint,
        scores=base.scores,
        shards=shards,
        table=table,
    )
    disk.write_json(path, document.document(), sealed=True)
    logger.info("view %s keeps %d rows", name, document.kept)
    return document


def _write_masks(
    pool: str, name: str, masks: Iterator[tuple[str, pa.Table]]
) -> tuple[list[int], list[int]]:
    """Write the masks of a view; the rows of each shard, and those that it keeps."""
    layout = PoolLayout(pool)
    rows, kept = [], []
    with disk.scratch_folder("clipmill-view-") as folder:
        writer: BundleWriter | None = None
        bundle = ""
        for shard, mask in masks:
            rows.append(len(mask))
            kept.append(pc.sum(mask["kept"]).as_py() or 0)
            metadata = {"kept": kept[-1], "shard": shard, "view": name}
            if bundle_name(int(shard)) != bundle:
                _close(writer, Path(folder, bundle))
                bundle = bundle_name(int(shard))
                writer = BundleWriter(Path(folder, bundle), VIEW)
            if writer is None:
                disk.write_bytes(
                    disk.join(layout.views, name, f"{shard}.parquet"), parquet_bytes(mask, metadata)
                )
            else:
                writer.add(shard, mask, metadata)
        _close(writer, Path(folder, bundle))
        for file in Path(folder).iterdir():
            disk.publish(file, disk.join(layout.views, name, file.name))
    return rows, kept


def _close(writer: BundleWriter | None, file: Path) -> None:
    if writer is not None:
        writer.__exit__(None, None, None)
        assert file.exists()


def _masks(
    pool: str, view: str, copies: Mapping[str, Any], draw: tuple[int, int] | None
) -> Iterator[tuple[str, pa.Table]]:
    """(shard, its mask of schema VIEW) of the rows that stay."""
    asked = pa.array(sorted(copies), pa.string())
    for shard in read_columns(pool, view if draw is None else None, ["uid"]):
        uids = shard.columns["uid"]
        copied = pc.is_in(uids, value_set=asked).to_numpy()
        kept = shard.kept & ~copied
        if draw is not None:
            seed, limit = draw
            drawn = np.array([int(each) < limit for each in _hashes(uids, seed)], np.bool_)
            kept &= drawn
        stored = pc.fill_null(pc.not_equal(shard.rule, NOT_STORED), True).to_numpy()
        outcomes = np.where(kept, 0, np.where(stored, 1, 2))
        names = pa.array([None, SELECTED, NOT_STORED], pa.string())
        columns = [pa.array(kept), names.take(pa.array(outcomes))]
        yield shard.shard, pa.Table.from_arrays(columns, schema=VIEW)
