"""The data of the arms: funnels, score histograms, overlaps, and example images.

Examples are drawn at random with a fixed seed, never picked. All is read from the pools.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.documents import PoolDocument, ScoreSetDocument, ViewDocument, read_document
from manifests.pool_layout import NOT_STORED, CommitRecord, PoolLayout
from manifests.schema import Blend
from train.data import read_columns
from train.evaluation import BoolArray
from train.reporting.schema import Example, Examples, Funnel, Histogram, Overlap

EXAMPLES = 12  # images of each kind
BINS = 40
SIDE = 96  # pixels of the longer side of a shown image
SCORE = "clip_score"
SEED = 20240229


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmView:
    """A view of an arm, all shards joined: `kept` and `rule` have one entry per row of the pool."""

    arm: str
    pool: str  # name in the ablation
    path: str  # of the pool
    view: str
    document: ViewDocument
    shards: tuple[str, ...]
    sizes: tuple[int, ...]  # rows of each shard
    kept: BoolArray
    rule: pa.ChunkedArray  # the first rule that failed

    @property
    def stored(self) -> BoolArray:
        """Rows of the pool that have an image."""
        stored = pc.not_equal(pc.fill_null(self.rule, ""), NOT_STORED)
        return np.asarray(stored.to_numpy(), dtype=bool)


def open_views(blends: Mapping[str, Blend]) -> list[ArmView]:
    """The views of every arm; each is read once, whatever number of arms use it."""
    opened: dict[tuple[str, str], ArmView] = {}
    views = []
    for arm, blend in blends.items():
        for name in blend.views:
            pool, _, view = name.partition("/")
            key = blend.pools[pool], view
            if key not in opened:
                opened[key] = _open(arm, pool, *key)
            views.append(replace(opened[key], arm=arm, pool=pool))
    return views


def _open(arm: str, pool: str, path: str, view: str) -> ArmView:
    shards = list(read_columns(path, view))
    return ArmView(
        arm=arm,
        pool=pool,
        path=path,
        view=view,
        document=read_document(PoolLayout(path).view_json(view), ViewDocument),
        shards=tuple(shard.shard for shard in shards),
        sizes=tuple(len(shard.kept) for shard in shards),
        kept=np.concatenate([shard.kept for shard in shards]),
        rule=pa.concat_tables([pa.table({"rule": shard.rule}) for shard in shards])["rule"],
    )


def read_scores(view: ArmView, name: str) -> np.ndarray | None:
    """A score column over all rows of a view's pool, NaN for NULL.

    None where no score set that the view was chosen from has it. ValueError for a file of other
    rows than its shard. Reads the scores alone.
    """
    layout = PoolLayout(view.path)
    for score_set in view.document.scores.values():
        if name in read_document(layout.score_set_json(score_set), ScoreSetDocument).columns:
            break
    else:
        return None
    parts = []
    for shard, size in zip(view.shards, view.sizes, strict=True):
        path = layout.score_columns(score_set, shard)
        values = disk.read_parquet(path, [name])[name].to_numpy()
        if len(values) != size:
            raise ValueError(f"{path} has {len(values)} rows, its shard {size}; score it again")
        parts.append(np.asarray(values, dtype=np.float64))
    return np.concatenate(parts)


def thresholds_of(view: ArmView, column: str) -> list[float]:
    """The resolved thresholds of a view on one column."""
    resolved = []
    for call, threshold in view.document.thresholds.items():
        if column in call:
            resolved.append(float(threshold.value))
    return resolved


# --- funnels, histograms, overlap ----------------------------------------------------------------


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


def histograms(views: Sequence[ArmView], name: str = SCORE) -> tuple[Histogram, ...]:
    """Counts per bin of a score column, for every pool that has it."""
    shown = []
    for pool in dict.fromkeys(view.pool for view in views):
        of_pool = {view.view: view for view in views if view.pool == pool}
        columns = (read_scores(view, name) for view in of_pool.values())  # read until one is found
        scores = next((column for column in columns if column is not None), None)
        if scores is None or not np.isfinite(scores).any():
            continue
        shown.append(_histogram(pool, name, scores, of_pool))
    return tuple(shown)


def _histogram(pool: str, name: str, scores: np.ndarray, views: Mapping[str, ArmView]) -> Histogram:
    finite = np.isfinite(scores)
    low, high = np.quantile(scores[finite], [0.001, 0.999])
    edges = np.linspace(float(low), float(high), BINS + 1)
    counts = {"stored": _bin(scores[finite], edges)}
    marks: dict[str, float] = {}
    for name_of_view, view in views.items():
        counts[name_of_view] = _bin(scores[view.kept & finite], edges)
        for value in thresholds_of(view, name):
            marks[name_of_view] = value
    return Histogram(
        pool=pool, column=name, edges=tuple(edges.tolist()), counts=counts, marks=marks
    )


def _bin(values: np.ndarray, edges: np.ndarray) -> tuple[int, ...]:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return tuple(int(count) for count in counts)


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
    """Images of each filtered view: kept, rejected, and those nearest to the threshold."""
    shown = []
    done = set()
    for view in views:
        key = view.pool, view.view
        if view.arm == baseline or key in done or not view.document.rules:
            continue
        done.add(key)
        scores = read_scores(view, SCORE)
        stored = np.random.default_rng(SEED).permutation(np.flatnonzero(view.stored))
        kept = stored[view.kept[stored]][:EXAMPLES].tolist()
        rejected = stored[~view.kept[stored]][:EXAMPLES].tolist()
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


def nearest_to_threshold(view: ArmView, scores: np.ndarray | None) -> list[int]:
    """The stored rows whose score is nearest to the view's first threshold, the nearest first."""
    thresholds = thresholds_of(view, SCORE)
    if scores is None or not thresholds:
        return []
    distance = np.abs(scores - thresholds[0])
    distance[~(view.stored & np.isfinite(scores))] = np.inf
    nearest = np.argsort(distance, kind="stable")[:EXAMPLES]
    return [int(row) for row in nearest if np.isfinite(distance[row])]


def _read_examples(view: ArmView, rows: set[int], scores: np.ndarray | None) -> dict[int, Example]:
    """Some rows with their images, by row number over all shards. Other shards are not opened."""
    layout = PoolLayout(view.path)
    shown = {}
    first = 0
    for shard, size in zip(view.shards, view.sizes, strict=True):
        of_shard = sorted(row for row in rows if first <= row < first + size)
        if of_shard:
            columns = ["caption", "image_offset", "image_length"]
            table = disk.read_parquet(layout.sidecar(shard), columns)
            tar = layout.tar(CommitRecord.read(layout.commit_record(shard)))
            for row, values in zip(
                of_shard, table.take([row - first for row in of_shard]).to_pylist(), strict=True
            ):
                data = disk.read_bytes(tar, values["image_offset"], values["image_length"])
                score = None if scores is None or not np.isfinite(scores[row]) else scores[row]
                shown[row] = Example(
                    image=data_uri(data),
                    caption=values["caption"],
                    score=None if score is None else float(score),
                    rule=view.rule[row].as_py(),
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
