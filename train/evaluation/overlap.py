"""Evaluation images that a training pool stores too."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from clipmill.manifests.arrays import Hashes
from clipmill.manifests.hashes import near_pairs_between, phash
from clipmill.manifests.pool import Pool
from clipmill.manifests.schema import TaskSpec
from clipmill.train.data.view_rows import open_pool
from clipmill.train.eval_data.images import ImageSource, image_hashes, map_images
from clipmill.train.evaluation.tasks import read_samples
from clipmill.train.transforms import decode_image

# --------------------------------------------------------------------------------------------------
# Evaluation images that a training pool stores too: byte-identical ones and near duplicates.
#
# Byte-identical: the sha256 of the file equals the sidecar's `sha256`, which is of the bytes as
# they were received. Such an image is refused unless its task has `allow_overlap: true`.
#
# Near duplicates: the perceptual hash differs from the column `phash` in at most NEAR_BITS of 64
# bits. It needs a score set of the filter `picture`; a pool without one is named as not checked.
# Near duplicates are listed and counted. They are refused only if their task has `near_overlap:
# refuse` and a view that is trained on keeps the row: of 3.1 million pairs of different photographs
# (clothing, CIFAR-10) three are as near. Measured with 500 images of each set: all 1,000 copies at
# JPEG quality 90 and all 1,000 at 75 are found; of half-size copies at quality 75, 100 %
# (clothing) and 96 % (CIFAR-10). Crops, rotations and EXIF orientation are not.


NEAR_BITS = 4  # of 64
SHOWN = 3  # images of a task that a message names
PoolViews = Sequence[tuple[str, str]]  # (pool, view)


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
class SharedImages:
    """All shared images, and the pools whose near duplicates are not known (no column phash).

    `arms`: of an ablation, {task: {arm: images that its training data show too}}.
    """

    images: tuple[SharedImage, ...]
    without_phash: tuple[str, ...]
    arms: dict[str, dict[str, int]] = field(default_factory=dict)

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
    for pool in map(open_pool, pools):
        images += _identical(pool, identical)
        if (hashes := _phash_set(pool)) is None:
            without_phash.append(pool.path)
        else:
            of_pool = [image for image in images if image.pool == pool.path]
            known = {(image.task, image.file, image.key) for image in of_pool}
            for image in _near(pool, *hashes, tasks):
                if (image.task, image.file, image.key) not in known:
                    images.append(image)
    return SharedImages(images=tuple(images), without_phash=tuple(without_phash))


def _identical(pool: Pool, wanted: Mapping[str, Sequence[tuple[str, str]]]) -> list[SharedImage]:
    images = []
    hashes = pa.array(list(wanted), pa.string())
    for shard in pool.scan(["key", "uid", "sha256"]):
        stored = shard.kept_rows()
        shared = stored.filter(pc.is_in(stored["sha256"], value_set=hashes))
        for row in shared.to_pylist():
            stored_row = {"pool": pool.path, "key": row["key"], "uid": row["uid"]}
            for task, file in wanted[row["sha256"]]:
                images.append(SharedImage(task=task, file=file, **stored_row))
    return images


# --- near duplicates -----------------------------------------------------------------------------


def _phash_set(pool: Pool) -> tuple[str, str] | None:
    """(score set, column) of a pool with the perceptual hashes of every shard: those of the filter
    `picture`, under whatever name of an instance; None where there are none."""
    for name, document in pool.score_sets.items():
        column = f"{document.name}_phash" if document.kind == "picture" else "phash"
        if column in document.columns:
            return name, column
    return None


@functools.lru_cache(maxsize=32)
def perceptual_hashes(images: ImageSource) -> Hashes:
    """(N,) perceptual hash of each image. ValueError names a file that is no image."""
    hashes = map_images(images, lambda data: phash(Image.fromarray(decode_image(data))))
    return np.array(hashes, np.int64).view(np.uint64)


def _near(pool: Pool, score_set: str, column: str, tasks: Sequence[TaskSpec]) -> list[SharedImage]:
    images = []
    for shard in pool.commits.names():
        rows = pool.stored(shard, ["key", "uid", column], {column: score_set})
        rows = rows.filter(pc.is_valid(rows[column]))
        stored = rows[column].to_numpy().view(np.uint64).reshape(-1, 1)
        for task in tasks:
            images_of_task = read_samples(task).images
            of_task = perceptual_hashes(images_of_task).reshape(-1, 1)
            pairs = near_pairs_between(stored, of_task, NEAR_BITS)
            for row, file, distance in zip(*pairs, strict=True):
                image = SharedImage(
                    task=task.name,
                    file=images_of_task.names[int(file)],
                    pool=pool.path,
                    key=rows["key"][int(row)].as_py(),
                    uid=rows["uid"][int(row)].as_py(),
                    distance=int(distance),
                )
                images.append(image)
    return images


# --- what to do about it -------------------------------------------------------------------------


def refuse_identical(shared: SharedImages, tasks: Sequence[TaskSpec], listed_in: str) -> None:
    """ValueError for a task that allows no overlap and has byte-identical images in a pool."""
    for task in tasks:
        images = shared.of_task(task.name, near=False)
        if images and not task.allow_overlap:
            first, files = images[0], len({image.file for image in images})
            others = f" and {files - 1} more images (all in {listed_in})" if files > 1 else ""
            raise ValueError(
                f"task {task.name!r}: its image {first.file}{others} is also in the pool "
                f"{first.pool} (key {first.key}, uid {first.uid}); remove it from one of them, "
                "or set allow_overlap: true in the task"
            )


def refuse_near(shared: SharedImages, tasks: Sequence[TaskSpec], views: PoolViews) -> None:
    """ValueError for a task with `near_overlap: refuse` of which a view has near duplicates.

    views: (pool, view) of what is trained on. Rows that no view keeps are not refused. A pool whose
    near duplicates are not known is refused too.
    """
    strict = [task for task in tasks if task.near_overlap == "refuse"]
    for task in strict:
        unknown = [pool for pool, _ in views if pool in shared.without_phash]
        if unknown:
            raise ValueError(
                f"task {task.name!r} has near_overlap: refuse, but {unknown[0]} has "
                f"no column phash; run clipmill score {unknown[0]} --filters picture"
            )
    near = {task.name: shared.of_task(task.name, near=True) for task in strict}
    if not any(near.values()):
        return
    for pool, view in sorted(set(views)):
        asked = {image.uid for images in near.values() for image in images if image.pool == pool}
        kept = _kept_uids(pool, view, asked)
        for name, images in near.items():
            inside = [image for image in images if image.pool == pool and image.uid in kept]
            if inside:
                first = inside[0]
                remedy = (
                    "drop them with the filter decontaminate {column: phash, radius: "
                    f"{NEAR_BITS}}} and a rule decontaminate_distance > {NEAR_BITS}"
                )
                if view.startswith("random_like_"):
                    remedy = (
                        "a random subset is drawn from all stored rows: export a view without them "
                        "by clipmill export and build a pool from its shards"
                    )
                raise ValueError(
                    f"task {name!r}: {len(inside)} near duplicates of its images are in the view "
                    f"{view} of {pool}, such as {first.file} (uid {first.uid}, {first.distance} of "
                    f"64 bits); {remedy}, or set near_overlap: list in the task"
                )


def _kept_uids(pool: str, view: str, asked: set[str]) -> set[str]:
    """Those of some uids that a view keeps."""
    uids: set[str] = set()
    values = pa.array(sorted(asked), pa.string())
    for shard in open_pool(pool).scan(["uid"], view=view) if asked else ():
        kept = shard.kept_rows()["uid"]
        uids.update(kept.filter(pc.is_in(kept, value_set=values)).to_pylist())
    return uids


def count_in_arms(
    shared: SharedImages, tasks: Sequence[TaskSpec], runs: Sequence[tuple[str, PoolViews]]
) -> dict[str, dict[str, int]]:
    """{task: {arm: how many of its images are in the rows that a run of the arm trains on}}, by
    bytes or nearly; the most over the runs, as a random control has other rows for each seed.

    runs: (arm, (pool, view) of what it is trained on).
    """
    kept: dict[tuple[str, str], set[str]] = {}
    for pool, view in sorted({pool_view for _, views in runs for pool_view in views}):
        asked = {image.uid for image in shared.images if image.pool == pool}
        kept[pool, view] = _kept_uids(pool, view, asked)
    counts: dict[str, dict[str, int]] = {task.name: {} for task in tasks}
    for arm, views in runs:
        files: dict[str, set[str]] = {task.name: set() for task in tasks}
        for image in shared.images:
            if any(pool == image.pool and image.uid in kept[pool, view] for pool, view in views):
                files[image.task].add(image.file)
        for task, of_run in files.items():
            counts[task][arm] = max(len(of_run), counts[task].get(arm, 0))
    return counts


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
        of_arms = shared.arms.get(task.name, {})
        if any(of_arms.values()):
            counts = ", ".join(f"{arm} {count}" for arm, count in of_arms.items())
            lines.append(f"task {task.name}: images that an arm's training data show too: {counts}")
    for pool in shared.without_phash:
        lines.append(
            f"{pool} has no column phash: near duplicates are not checked "
            f"(clipmill score {pool} --filters picture adds it)"
        )
    return lines
