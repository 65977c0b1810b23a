"""The data of the arms: funnels, overlaps, and example images.

Examples are drawn at random with a fixed seed, never picked. All is read from the pools.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import numpy as np

from manifests import disk
from manifests.documents import PoolDocument, ViewRulesDocument, read_document
from manifests.pool_layout import PoolLayout
from train.evaluation import BoolArray
from train.reporting.schema import Example, Examples, Funnel, Overlap, RuleEffects
from train.reporting.views import ArmView, FloatArray, one_view_of_each_pool

EXAMPLES = 12  # images of each kind
SIDE = 96  # pixels of the longer side of a shown image
SCORE = "clip_score"
SEED = 20240229


# --- funnels, overlap ----------------------------------------------------------------------------


def funnels(views: Sequence[ArmView]) -> tuple[Funnel, ...]:
    """Steps and reasons: of each pool from links to stored rows, then of each view of an arm."""
    shown = []
    for pool, path in {view.pool: view.path for view in views}.items():
        shown.append(_pool_funnel(pool, read_document(PoolLayout(path).pool_json, PoolDocument)))
    titles = set()
    for view in views:
        title = f"{view.pool}/{view.view}"
        if title not in titles and len(view.document.funnel) > 2:
            titles.add(title)
            shown.append(Funnel(title=title, steps=view.document.funnel[1:], reasons={}))
    return tuple(shown)


def _pool_funnel(pool: str, document: PoolDocument) -> Funnel:
    steps: list[tuple[str, int]] = []
    reasons: dict[str, int] = {}
    if document.crawl is not None:
        reasons |= document.crawl.reasons
        if document.crawl.links:
            steps += [("links", document.crawl.links), ("pairs", document.crawl.pairs)]
    steps += [("attempted", document.fetch.attempted), ("stored", document.fetch.stored)]
    reasons |= document.fetch.reasons
    return Funnel(title=f"{pool}: from links to images", steps=tuple(steps), reasons=reasons)


def rule_effects(views: Sequence[ArmView]) -> tuple[RuleEffects, ...]:
    """What each rule of a view with several rules rejects; views of older pools do not know it."""
    shown = []
    for pool, of_pool in one_view_of_each_pool(views).items():
        for name, view in of_pool.items():
            path = PoolLayout(view.path).view_rules(name)
            if not disk.exists(path):
                continue
            document = read_document(path, ViewRulesDocument)
            if document.fingerprint == view.document.fingerprint:
                rules = tuple((one.rule, one.rejected, one.alone) for one in document.rules)
                effects = RuleEffects(pool=pool, view=name, stored=document.stored, rules=rules)
                shown.append(effects)
    return tuple(shown)


def overlap(views: Sequence[ArmView]) -> Overlap:
    """Jaccard index of the rows of each two arms: 1 the same rows, 0 none in common."""
    arms = tuple(dict.fromkeys(view.arm for view in views))
    rows: dict[str, dict[str, BoolArray]] = {arm: {} for arm in arms}
    for view in views:
        other = rows[view.arm].get(view.path)
        rows[view.arm][view.path] = view.kept if other is None else other | view.kept
    matrix = []
    for first in arms:
        matrix.append(tuple(_jaccard(rows[first], rows[second]) for second in arms))
    return Overlap(arms=arms, jaccard=tuple(matrix))


def _jaccard(first: Mapping[str, BoolArray], second: Mapping[str, BoolArray]) -> float:
    """Of the rows of two arms, by pool. A pool that only one of them uses counts as not shared."""
    both = sum(int((first[pool] & second[pool]).sum()) for pool in first.keys() & second.keys())
    total = sum(int(kept.sum()) for arm in (first, second) for kept in arm.values())
    return both / (total - both) if total else 0.0


# --- examples ------------------------------------------------------------------------------------


def examples(views: Sequence[ArmView], baseline: str) -> tuple[Examples, ...]:
    """Images of each filtered view: kept, rejected, and those nearest to the threshold.

    Not of random subsets, which tell nothing about rows.
    """
    shown = []
    done = set()
    for view in views:
        key = view.pool, view.view
        random = any(rule.get("random_like") for rule in view.document.rules)
        if view.arm == baseline or key in done or not view.document.rules or random:
            continue
        done.add(key)
        scores = view.scores(SCORE)
        kept = _draw(view.kept & view.stored)
        rejected = _draw(view.stored & ~view.kept)
        near = nearest_to_threshold(view, scores)
        images = _read_examples(view, {*near, *kept, *rejected}, scores)
        shown.append(
            Examples(
                pool=view.pool,
                view=view.view,
                kept=tuple(images[row] for row in kept),
                near=tuple(images[row] for row in near),
                rejected=tuple(images[row] for row in rejected),
            )
        )
    return tuple(shown)


def _draw(rows: BoolArray) -> list[int]:
    """Some of the rows at random, with a fixed seed."""
    numbers = np.flatnonzero(rows)
    generator = np.random.default_rng(SEED)
    chosen = generator.choice(len(numbers), min(EXAMPLES, len(numbers)), replace=False)
    drawn: list[int] = numbers[chosen].tolist()
    return drawn


def nearest_to_threshold(view: ArmView, scores: FloatArray | None) -> list[int]:
    """The stored rows whose score is nearest to the view's first threshold, the nearest first.

    Of equal distances the first row comes first.
    """
    thresholds = view.thresholds(SCORE)
    if scores is None or not thresholds:
        return []
    distance = np.abs(scores - thresholds[0])
    distance[~(view.stored & np.isfinite(scores))] = np.inf
    most = min(EXAMPLES, len(distance))
    last = np.partition(distance, most - 1)[most - 1]
    near = np.flatnonzero(distance <= last)  # in the order of the rows, ties of the last included
    near = near[np.argsort(distance[near], kind="stable")][:most]
    return [int(row) for row in near if np.isfinite(distance[row])]


def _read_examples(view: ArmView, rows: set[int], scores: FloatArray | None) -> dict[int, Example]:
    """Some rows with their images, by row number over all shards. Other shards are not opened."""
    columns = view.columns
    shown = {}
    first = 0
    for shard, size in zip(columns.shards, columns.sizes, strict=True):
        of_shard = sorted(row for row in rows if first <= row < first + size)
        if of_shard:
            table = columns.sidecar(shard, ["caption", "image_offset", "image_length"])
            taken = table.take([row - first for row in of_shard]).to_pylist()
            tar = columns.commits.tar(shard)
            for row, values in zip(of_shard, taken, strict=True):
                data = disk.read_bytes(tar, values["image_offset"], values["image_length"])
                score = None if scores is None or not np.isfinite(scores[row]) else scores[row]
                shown[row] = Example(
                    image=data_uri(data),
                    caption=values["caption"],
                    score=None if score is None else float(score),
                    rule=view.rule_of(row),
                )
        first += size
    return shown


def data_uri(data: bytes) -> str:
    """An encoded image as a data URI, at most SIDE pixels wide or high.

    A smaller image keeps its bytes. OSError for bytes that are no image.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        media_type = (image.format or "jpeg").lower()
        if max(image.size) > SIDE:
            small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            sink = io.BytesIO()
            small.save(sink, "JPEG", quality=85)
            data, media_type = sink.getvalue(), "jpeg"
    return f"data:image/{media_type};base64,{base64.b64encode(data).decode()}"
