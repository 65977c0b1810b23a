"""Evaluation images that a training pool stores too, and views without them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from manifests import disk
from manifests.aligned import (
    AlignedFiles,
    BundleWriter,
    has_table,
    parquet_bytes,
    write_view_shards,
)
from manifests.columns import VIEW
from manifests.commits import read_commits
from manifests.hashes import near_pairs_between, phash
from manifests.layout import NOT_STORED, PoolLayout, bundle_name, random_view_name, uids_checksum
from manifests.records import ScoreSetDocument, ViewDocument, read_document
from manifests.schema import Blend, TaskSpec
from train.data.view_rows import covers, read_columns
from train.eval_data.images import ImageSource, image_hashes, map_images
from train.evaluation.tasks import dropping, read_samples
from train.transforms import decode_image

# --------------------------------------------------------------------------------------------------
# Evaluation images that a training pool stores too: byte-identical ones and near duplicates.
#
# Byte-identical: the sha256 of the file equals the sidecar's `sha256`, which is of the bytes as
# they were received. Such an image is refused unless its task has `allow_overlap: true`.
#
# Near duplicates: the perceptual hash differs from the column `phash` in at most NEAR_BITS of 64
# bits. It needs a score set of the filter `picture`; a pool without one is named as not checked.
# Near duplicates are listed and counted. They are refused only if their task has `near_overlap:
# refuse` (or `drop`, with which an ablation trains on views without them) and a view that is
# trained on keeps the row: of 3.1 million pairs of different photographs (clothing, CIFAR-10)
# three are as near. Measured with 500 images of each set: all 1,000 copies at JPEG quality 90 and
# all 1,000 at 75 are found; of half-size copies at quality 75, 100 % (clothing) and 96 %
# (CIFAR-10). Crops, rotations and EXIF orientation are not.


NEAR_BITS = 4  # of 64
SHOWN = 3  # images of a task that a message names
Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedImage:
    """An evaluation image and a stored row of a pool that show the same.

    `distance`: bits between the perceptual hashes; None where the bytes are identical.
    """

    task: str
    file: str
    pool: str
    key: str
    uid: str
    distance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRows:
    """Rows of a view that an arm is not trained on, because they show evaluation images."""

    arm: str
    pool: str
    view: str
    rows: int  # that the view keeps
    dropped: int  # of these
    images: int  # different evaluation images that the dropped rows show


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedImages:
    """All shared images, and the pools whose near duplicates are not known (no column phash).

    dropped: what an ablation left out of its views because of them.
    """

    images: tuple[SharedImage, ...]
    without_phash: tuple[str, ...]
    dropped: tuple[DroppedRows, ...] = ()

    def of_task(self, task: str, *, near: bool) -> list[SharedImage]:
        """The near, or the byte-identical, images of a task."""
        images = [image for image in self.images if image.task == task]
        return [image for image in images if (image.distance is not None) == near]

    def count_files(self, tasks: Sequence[TaskSpec], *, near: bool) -> dict[str, int]:
        """How many different images of each task are shared."""
        counts = {}
        for task in tasks:
            counts[task.name] = len({image.file for image in self.of_task(task.name, near=near)})
        return counts


def find_shared_images(pools: Sequence[str], tasks: Sequence[TaskSpec]) -> SharedImages:
    """The images of the tasks that are stored rows of the pools. Rows of no view count too."""
    identical: dict[str, list[tuple[str, str]]] = {}
    for task in tasks:
        images_of_task = read_samples(task).images
        for file, sha256 in zip(images_of_task.names, image_hashes(images_of_task), strict=True):
            identical.setdefault(sha256, []).append((task.name, file))
    images: list[SharedImage] = []
    without_phash = []
    for pool in pools:
        images += _identical(pool, identical)
        if _phash_set(pool) is None:
            without_phash.append(pool)
        else:
            known = {(image.task, image.file, image.key) for image in images if image.pool == pool}
            for image in _near(pool, tasks):
                if (image.task, image.file, image.key) not in known:
                    images.append(image)
    return SharedImages(images=tuple(images), without_phash=tuple(without_phash))


def _identical(pool: str, wanted: Mapping[str, Sequence[tuple[str, str]]]) -> list[SharedImage]:
    images = []
    hashes = pa.array(list(wanted), pa.string())
    for shard in read_columns(pool, None, ["key", "uid", "sha256"]):
        stored = shard.kept_columns()
        shared = stored.filter(pc.is_in(stored["sha256"], value_set=hashes))
        for row in shared.to_pylist():
            for task, file in wanted[row["sha256"]]:
                image = SharedImage(task=task, file=file, pool=pool, key=row["key"], uid=row["uid"])
                images.append(image)
    return images


# --- near duplicates -----------------------------------------------------------------------------


def _phash_set(pool: str) -> tuple[str, str] | None:
    """(score set, column) of a pool with the perceptual hashes of every shard: those of the filter
    `picture`, under whatever name of an instance; None where there are none."""
    layout = PoolLayout(pool)
    commits = read_commits(pool, ["tar"])
    for name in disk.list_names(layout.scores):
        path = layout.score_set_json(name)
        if disk.exists(path):
            document = read_document(path, ScoreSetDocument)
            column = "phash"
            if document.kind == "picture":
                column = f"{document.name}_phash"
            if column in document.columns and covers(
                pool, document, commits.fingerprint, commits.shards
            ):
                return name, column
    return None


@functools.lru_cache(maxsize=32)
def perceptual_hashes(images: ImageSource) -> Hashes:
    """(N,) perceptual hash of each image. ValueError names a file that is no image."""
    hashes = map_images(images, lambda data: phash(Image.fromarray(decode_image(data))))
    return np.array(hashes, np.int64).view(np.uint64)


def _near(pool: str, tasks: Sequence[TaskSpec]) -> list[SharedImage]:
    hashes = _phash_set(pool)
    assert hashes is not None
    score_set, column = hashes
    files = AlignedFiles.of_scores(pool, score_set)
    images = []
    for shard in read_columns(pool, None, ["key", "uid"]):
        hashes, metadata = files.read(shard.shard, [column])
        if metadata.get("uids") != uids_checksum(shard.columns["uid"]):
            raise ValueError(
                f"{files.path(shard.shard)} was made for other rows than the pool has; "
                f"run clipmill score {pool} --filters picture"
            )
        rows = shard.columns.append_column("phash", hashes[column])
        rows = rows.filter(pa.array(shard.kept)).filter(pc.is_valid(pc.field("phash")))
        stored = rows["phash"].to_numpy().view(np.uint64).reshape(-1, 1)
        for task in tasks:
            images_of_task = read_samples(task).images
            of_task = perceptual_hashes(images_of_task).reshape(-1, 1)
            pairs = near_pairs_between(stored, of_task, NEAR_BITS)
            for row, file, distance in zip(*pairs, strict=True):
                image = SharedImage(
                    task=task.name,
                    file=images_of_task.names[int(file)],
                    pool=pool,
                    key=rows["key"][int(row)].as_py(),
                    uid=rows["uid"][int(row)].as_py(),
                    distance=int(distance),
                )
                images.append(image)
    return images


# --- what to do about it -------------------------------------------------------------------------


def refuse_identical(
    shared: SharedImages,
    tasks: Sequence[TaskSpec],
    listed_in: str,
    dropped_in: Collection[str] = (),
) -> None:
    """ValueError for a task that allows no overlap and has byte-identical images in a pool.

    dropped_in: pools of whose rows only views are used, which `refuse_near` looks at: there a task
    with `near_overlap: drop` may have such images.
    """
    for task in tasks:
        images = shared.of_task(task.name, near=False)
        if task.near_overlap == "drop":
            images = [image for image in images if image.pool not in dropped_in]
        if images and not task.allow_overlap:
            first, files = images[0], len({image.file for image in images})
            others = f" and {files - 1} more images (all in {listed_in})" if files > 1 else ""
            raise ValueError(
                f"task {task.name!r}: its image {first.file}{others} is also in the pool "
                f"{first.pool} (key {first.key}, uid {first.uid}); remove it from one of them, "
                "or set allow_overlap: true in the task"
            )


def refuse_near(
    shared: SharedImages, tasks: Sequence[TaskSpec], views: Sequence[tuple[str, str]]
) -> None:
    """ValueError for a task with `near_overlap: refuse` of which a view has near duplicates; with
    `drop`, of which a view has near or byte-identical ones.

    views: (pool, view) of what is trained on. Rows that no view keeps are not refused. A pool whose
    near duplicates are not known is refused too.
    """
    strict = [task for task in tasks if task.near_overlap != "list"]
    for task in strict:
        unknown = [pool for pool, _ in views if pool in shared.without_phash]
        if unknown:
            raise ValueError(
                f"task {task.name!r} has near_overlap: {task.near_overlap}, but {unknown[0]} has "
                f"no column phash; run clipmill score {unknown[0]} --filters picture"
            )
    near = {}
    for task in strict:
        near[task.name] = shared.of_task(task.name, near=True)
        if task.near_overlap == "drop" and not task.allow_overlap:
            near[task.name] += shared.of_task(task.name, near=False)
    if not any(near.values()):
        return
    for pool, view in sorted(set(views)):
        asked = {image.uid for images in near.values() for image in images if image.pool == pool}
        kept = _kept_uids(pool, view, asked)
        for name, images in near.items():
            inside = [image for image in images if image.pool == pool and image.uid in kept]
            if inside:
                first = inside[0]
                bits = first.distance or 0
                raise ValueError(
                    f"task {name!r}: {len(inside)} near duplicates of its images are in the view "
                    f"{view} of {pool}, such as {first.file} (uid {first.uid}, {bits} of "
                    "64 bits); drop them with the filter decontaminate {column: phash, radius: "
                    f"{NEAR_BITS}}} and a rule decontaminate_distance > {NEAR_BITS}, or set "
                    "near_overlap: list in the task"
                )


def _kept_uids(pool: str, view: str, asked: set[str]) -> set[str]:
    """Those of some uids that a view keeps."""
    uids: set[str] = set()
    values = pa.array(sorted(asked), pa.string())
    for shard in read_columns(pool, view, ["uid"]) if asked else ():
        kept = shard.kept_columns()["uid"]
        uids.update(kept.filter(pc.is_in(kept, value_set=values)).to_pylist())
    return uids


def overlap_lines(shared: SharedImages, tasks: Sequence[TaskSpec], listed_in: str) -> list[str]:
    """What was found, in a few lines: counts, the first images, and where all are listed."""
    lines = []
    for task in tasks:
        for near, what in (
            (False, "byte-identical in a pool"),
            (True, "near duplicates in a pool"),
        ):
            images = shared.of_task(task.name, near=near)
            files = list(dict.fromkeys(image.file for image in images))
            if files:
                more = len(files) - SHOWN
                names = ", ".join(files[:SHOWN])
                rest = f" and {more} more in {listed_in}" if more > 0 else f" (see {listed_in})"
                lines.append(f"task {task.name}: {len(files)} images are {what}: {names}{rest}")
    for pool in shared.without_phash:
        lines.append(
            f"{pool} has no column phash: near duplicates are not checked "
            f"(clipmill score {pool} --filters picture adds it)"
        )
    return lines


# --------------------------------------------------------------------------------------------------
# Views without the rows whose images are near copies of evaluation images.
#
# An ablation with a task of `near_overlap: drop` trains on them. They lie beside the views that
# they are made from, as VIEW.clean-HASH: HASH is of the tasks, and the document holds a hash of
# the view and of the dropped rows. So the same view is found again, and a changed one makes its
# runs stale.


SELECTED = "selected"  # the rule of views whose rows a program selects
MARK = ".clean-"
Json = dict[str, Any]
logger = logging.getLogger(__name__)


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
            f"run clipmill score {pool} --filters picture"
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
