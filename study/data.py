"""The data of a report: columns of the views' pools, images, distributions."""

from __future__ import annotations

import base64
import functools
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray, Integers, Mask
from clipmill.manifests.commits import Commits, read_commits
from clipmill.manifests.layout import NOT_STORED, PoolLayout
from clipmill.manifests.pool import Pool
from clipmill.manifests.records import (
    PoolDocument,
    ScoreSetDocument,
    ViewDocument,
    ViewRulesDocument,
    read_document,
)
from clipmill.manifests.schema import Blend
from clipmill.train.store import read_with_retries
from clipmill.verdict.pages.schema import (
    Categories,
    DuplicateGroups,
    Example,
    Examples,
    Funnel,
    Histogram,
    Overlap,
    RuleEffects,
    SafetyRates,
)

# --------------------------------------------------------------------------------------------------
# The views of the arms, all shards joined, and columns of their pools. Each file is read once.


KEPT = -1  # the code of a row that no rule rejects


@dataclass(kw_only=True)
class PoolColumns:
    """Columns of a pool. Its views share them: a column that two ask for is read once.

    shards and sizes: names of the shards and their numbers of rows.
    """

    path: str
    commits: Commits
    _scores: dict[str, FloatArray] = field(default_factory=dict)

    @functools.cached_property
    def pool(self) -> Pool:
        return Pool(self.commits, read_with_retries)

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(self.commits.names())

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.commits.column("count").to_pylist())

    def score_sets(self) -> dict[str, str]:
        """{column: score set that has it}, of the score sets of all shards; tokens left out."""
        of_column: dict[str, str] = {}
        for name, document in sorted(self.pool.score_sets.items()):
            if not name.startswith("tokens@"):
                of_column |= dict.fromkeys(document.columns, name)
        return of_column

    def scores(self, name: str, score_set: str) -> FloatArray:
        """A score column over all rows, NaN for NULL. ValueError for a file of other rows."""
        key = f"{score_set}/{name}"
        values = self._scores.get(key)
        if values is None:
            parts = [self.score_column(name, score_set, shard) for shard in self.shards]
            values = np.concatenate([part.to_numpy().astype(np.float64) for part in parts])
            self._scores[key] = values
        return values

    def score_column(self, name: str, score_set: str, shard: str) -> pa.ChunkedArray:
        """A score column of one shard. ValueError where it is of other rows than its shard."""
        return self.pool.read(shard, [name], {name: score_set})[name]

    def sidecar(self, shard: str, columns: Sequence[str]) -> pa.Table:
        """Columns of a shard's sidecar; those that it does not have are left out."""
        known = self.pool.schema_of(shard).names
        return self.pool.read(shard, [name for name in columns if name in known])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmView:
    """A view of an arm, all shards joined, with one entry per row of the pool.

    pool: its name in the ablation; path: its folder. failed: the index in `outcomes` of the first
    rule that failed, KEPT where the row is kept.
    """

    arm: str
    pool: str
    path: str
    view: str
    document: ViewDocument
    columns: PoolColumns
    kept: Mask
    stored: Mask  # rows of the pool that have an image
    failed: NDArray[np.int16]
    outcomes: tuple[str, ...]

    def rule_of(self, row: int) -> str | None:
        """The first rule that failed for a row; None where it is kept."""
        code = int(self.failed[row])
        return None if code == KEPT else self.outcomes[code]

    def scores(self, name: str) -> FloatArray | None:
        """A score column over all rows of the pool, NaN for NULL.

        None where no score set that the view was chosen from has it.
        """
        layout = PoolLayout(self.path)
        for score_set in self.document.scores.values():
            if name in read_document(layout.score_set_json(score_set), ScoreSetDocument).columns:
                return self.columns.scores(name, score_set)
        return None

    def thresholds(self, column: str) -> list[float]:
        """The resolved thresholds of the view on one column."""
        given = self.document.thresholds.items()
        return [float(threshold.value) for call, threshold in given if column in call]


def open_views(blends: Mapping[str, Blend]) -> list[ArmView]:
    """The views of every arm; each is read once, whatever number of arms use it.

    ValueError for a pool that is missing, and for a view that is missing, stale or damaged.
    """
    pools: dict[str, PoolColumns] = {}
    opened: dict[tuple[str, str], ArmView] = {}
    views = []
    for arm, blend in blends.items():
        for name, path, view in blend.places():
            if path not in pools:
                pools[path] = PoolColumns(path=path, commits=_commits(path))
            pool = name.partition("/")[0]
            if (path, view) not in opened:
                opened[path, view] = _open(arm, pool, view, pools[path])
            views.append(replace(opened[path, view], arm=arm, pool=pool))
    return views


def _commits(path: str) -> Commits:
    if not disk.exists(PoolLayout(path).pool_json):
        raise ValueError(f"{path} is no pool (it has no pool.json); put it back or build it again")
    return read_commits(path)


def _open(arm: str, pool: str, view: str, columns: PoolColumns) -> ArmView:
    masks = columns.pool.view(view)
    document = masks.document
    kept, failed = [], []
    outcomes: dict[str, int] = {}
    for shard, size in zip(columns.shards, columns.sizes, strict=True):
        mask = masks.mask(shard, rows=size)
        kept.append(np.asarray(mask["kept"].to_numpy(), dtype=bool))
        failed.append(_codes(mask["rule"].dictionary_encode(), outcomes))
    codes = np.concatenate(failed)
    unstored = outcomes.get(NOT_STORED)
    stored = np.ones(len(codes), dtype=bool) if unstored is None else codes != unstored
    return ArmView(
        arm=arm,
        pool=pool,
        path=columns.path,
        view=view,
        document=document,
        columns=columns,
        kept=np.concatenate(kept),
        stored=stored,
        failed=codes,
        outcomes=tuple(outcomes),
    )


def _codes(rule: pa.ChunkedArray, outcomes: dict[str, int]) -> NDArray[np.int16]:
    """A column of texts as numbers; new texts are added to `outcomes`."""
    parts = [np.empty(0, np.int16)]
    for chunk in rule.chunks:
        names = chunk.dictionary.to_pylist()
        numbers = [outcomes.setdefault(name, len(outcomes)) for name in names] + [KEPT]
        indices = pc.fill_null(chunk.indices, len(names)).to_numpy()
        parts.append(np.array(numbers, np.int16)[indices])
    return np.concatenate(parts)


def one_view_of_each_pool(views: Sequence[ArmView]) -> dict[str, dict[str, ArmView]]:
    """{pool: {view: the first arm's view of that name}}, in the order of the arms."""
    pools: dict[str, dict[str, ArmView]] = {}
    for view in views:
        pools.setdefault(view.pool, {}).setdefault(view.view, view)
    return pools


# --------------------------------------------------------------------------------------------------
# Distributions of the columns of each pool: its stored rows, and the rows that each view keeps.
#
# Columns that a score set has are read whole. Columns of the sidecar, and copies of images, are
# read from some shards of a large pool, drawn at random with a fixed seed.


BINS = 40
SCORE = "clip_score"
SAMPLE_ROWS = 200_000  # rows of a sidecar that are read; of a larger pool some shards only
SEED = 20240229
MOST_CATEGORIES = 12  # the most frequent ones; the others are one
OTHER = "all others"
SIZES = ("original_width", "original_height")
TEXTS = ("language", "page_lang")
# Copies of an image, from and to.
GROUPS = {
    "1": (1, 1), "2": (2, 2), "3 to 5": (3, 5), "6 to 10": (6, 10), "11 or more": (11, math.inf),
}  # fmt: skip
# Columns about people and harm, of filters or of other programs' pools.
SAFETY = re.compile(r"nsfw|unsafe|toxic|porn|sexual|violen|hate|face|watermark|optout_", re.I)
UNSAFE_TEXTS = ("NSFW", "LIKELY", "VERY_LIKELY", "TRUE", "YES")
LIMIT = 0.5  # a score of harm above it counts
HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]/?#]*\]|[^/?#:]*)"

Masks = Mapping[str, Mask]  # "stored" and each view -> rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """Some shards of a pool, whole ones. masks: {"stored" or a view: (rows,) of these shards}."""

    pool: str
    columns: PoolColumns
    shards: tuple[str, ...]
    rows: int
    whole: bool  # these are all shards
    masks: dict[str, Mask]

    @property
    def sampled_rows(self) -> int | None:
        """The number of rows; None where these are all."""
        return None if self.whole else self.rows

    def read(self, names: Sequence[str]) -> pa.Table:
        """Columns of the sidecars; those that no sidecar has are left out."""
        tables = [self.columns.sidecar(shard, names) for shard in self.shards]
        return pa.concat_tables(tables, promote_options="default")

    def score(self, name: str) -> pa.ChunkedArray:
        """A column of a score set."""
        score_set = self.columns.score_sets()[name]
        chunks = []
        for shard in self.shards:
            chunks += self.columns.score_column(name, score_set, shard).chunks
        return pa.chunked_array(chunks)


def sample_pools(views: Sequence[ArmView], most: int = SAMPLE_ROWS) -> list[PoolSample]:
    """Shards of each pool with about `most` rows; all of them where the pool has no more."""
    samples = []
    for pool, of_pool in one_view_of_each_pool(views).items():
        first = next(iter(of_pool.values()))
        columns = first.columns
        sizes = np.array(columns.sizes, dtype=np.int64)
        order = np.random.default_rng(SEED).permutation(len(sizes))
        taken = sorted(order[: 1 + int(np.searchsorted(np.cumsum(sizes[order]), most))].tolist())
        starts = np.concatenate([[0], np.cumsum(sizes)])
        masks = {}
        for name, mask in (("stored", first.stored), *((n, v.kept) for n, v in of_pool.items())):
            masks[name] = np.concatenate([mask[starts[i] : starts[i + 1]] for i in taken])
        samples.append(
            PoolSample(
                pool=pool,
                columns=columns,
                shards=tuple(columns.shards[i] for i in taken),
                rows=int(sizes[taken].sum()),
                whole=len(taken) == len(sizes),
                masks=masks,
            )
        )
    return samples


# --- numbers -------------------------------------------------------------------------------------


def histograms(views: Sequence[ArmView], name: str = SCORE) -> tuple[Histogram, ...]:
    """Counts per bin of a score column over all rows, for every pool that has it."""
    shown = []
    for pool, of_pool in one_view_of_each_pool(views).items():
        columns = (view.scores(name) for view in of_pool.values())  # read until one is found
        scores = next((column for column in columns if column is not None), None)
        if scores is None:
            continue
        first = next(iter(of_pool.values()))
        masks = {"stored": first.stored, **{view: one.kept for view, one in of_pool.items()}}
        marks = {}
        for view, one in of_pool.items():
            for value in one.thresholds(name)[:1]:
                marks[view] = value
        histogram = _histogram(pool, name, scores, masks, marks)
        if histogram is not None:
            shown.append(histogram)
    return tuple(shown)


def other_histograms(samples: Sequence[PoolSample]) -> tuple[Histogram, ...]:
    """Histograms of the sizes of the images and of the other score columns."""
    shown = []
    for sample in samples:
        for name, values in _numbers(sample):
            histogram = _histogram(sample.pool, name, values, sample.masks, {}, sample)
            if histogram is not None:
                shown.append(histogram)
    return tuple(shown)


def _numbers(sample: PoolSample) -> Iterator[tuple[str, FloatArray]]:
    """The columns of numbers but SCORE, NaN for NULL; the aspect ratio is of the original sizes."""
    table = sample.read(SIZES)
    if set(SIZES) <= set(table.column_names):
        width, height = (table[name].to_numpy().astype(np.float64) for name in SIZES)
        yield "longer side, pixels", np.fmax(width, height)
        with np.errstate(divide="ignore", invalid="ignore"):
            yield "aspect ratio", np.fmax(width, height) / np.fmin(width, height)
    for name in sample.columns.score_sets():
        if name == SCORE or name == "phash" or SAFETY.search(name):
            continue
        column = sample.score(name)
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            yield name, column.to_numpy().astype(np.float64)


def _histogram(
    pool: str,
    column: str,
    values: FloatArray,
    masks: Masks,
    marks: dict[str, float],
    sample: PoolSample | None = None,
) -> Histogram | None:
    """Counts per bin between the 0.1 % and 99.9 % quantiles; None where all values are equal."""
    usable = np.isfinite(values) & masks["stored"]
    finite = values[usable]
    if not len(finite):
        return None
    if len(finite) > SAMPLE_ROWS:  # quantiles of a part, evenly spread
        low, high = np.quantile(finite[:: len(finite) // SAMPLE_ROWS], [0.001, 0.999])
    else:
        low, high = np.quantile(finite, [0.001, 0.999])
    if not low < high:
        return None
    bins = BINS
    if high - low < BINS and (finite[:1000] == np.round(finite[:1000])).all():
        low, high = np.floor(low) - 0.5, np.ceil(high) + 0.5  # a bin for each whole number
        bins = int(high - low)
    edges = np.linspace(float(low), float(high), bins + 1)
    scaled = (np.clip(values, low, high) - low) * (bins / (high - low))
    number = np.where(usable, np.minimum(np.nan_to_num(scaled), bins - 1), bins).astype(np.int16)
    counts = {}
    for name, mask in masks.items():
        counts[name] = np.bincount(number[mask], minlength=bins + 1)[:bins]
    return Histogram(
        pool=pool,
        column=column,
        edges=tuple(edges.tolist()),
        counts={name: tuple(row.tolist()) for name, row in counts.items()},
        marks=marks,
        divergence=_divergences(counts),
        sampled_rows=None if sample is None else sample.sampled_rows,
    )


def _divergences(counts: Mapping[str, Integers]) -> dict[str, float]:
    """{view: divergence from the stored rows}."""
    return {
        name: divergence(row, counts["stored"]) for name, row in counts.items() if name != "stored"
    }


def divergence(part: Integers, whole: Integers) -> float:
    """Kullback-Leibler divergence of a part of the rows from all rows, in bits; 0 for no row."""
    if not part.sum():
        return 0.0
    p, q = part / part.sum(), whole / whole.sum()
    used = part > 0
    return max(0.0, float((p[used] * np.log2(p[used] / q[used])).sum()))


# --- categories ----------------------------------------------------------------------------------


def categories(samples: Sequence[PoolSample]) -> tuple[Categories, ...]:
    """Languages and hosts: the most frequent ones, and how many rows the views keep of each."""
    shown = []
    for sample in samples:
        table = sample.read([*TEXTS, "url"])
        texts = {name: table[name] for name in TEXTS if name in table.column_names}
        if "language" in sample.columns.score_sets():
            texts["language"] = sample.score("language")
        if "url" in table.column_names:
            hosts = pc.extract_regex(table["url"], HOST)
            texts["host of the image"] = pc.utf8_lower(pc.struct_field(hosts, "host"))
        for name, column in texts.items():
            one = _categories(sample, name, column)
            if one is not None:
                shown.append(one)
    return tuple(shown)


def _categories(sample: PoolSample, name: str, column: pa.ChunkedArray) -> Categories | None:
    """None where the stored rows have fewer than two values."""
    codes, names = _encoded(pc.fill_null(column, "unknown"))
    counts = {}
    for view, mask in sample.masks.items():
        counts[view] = np.bincount(codes[mask], minlength=len(names))
    stored = counts["stored"]
    order = [i for i in np.argsort(-stored, kind="stable").tolist() if stored[i]]
    if len(order) < 2:
        return None
    shown = order[:MOST_CATEGORIES]
    rest = order[MOST_CATEGORIES:]
    rows = {}
    for view, row in counts.items():
        rows[view] = (*row[shown].tolist(), *([int(row[rest].sum())] if rest else []))
    return Categories(
        pool=sample.pool,
        column=name,
        values=len(order),
        labels=(*(str(names[i].as_py()) for i in shown), *([OTHER] if rest else [])),
        counts=rows,
        divergence=_divergences(counts),
        sampled_rows=sample.sampled_rows,
    )


def _encoded(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array]:
    """A column as numbers of its different values, 0 for NULL, and these values."""
    encoded = pa.concat_arrays(column.dictionary_encode().unify_dictionaries().chunks)
    return pc.fill_null(encoded.indices, 0).to_numpy(), encoded.dictionary


# --- copies, safety ------------------------------------------------------------------------------


def duplicate_groups(samples: Sequence[PoolSample]) -> tuple[DuplicateGroups, ...]:
    """Images by their number of copies: byte for byte, and by perceptual hash where it is known."""
    shown = []
    for sample in samples:
        table = sample.read(["sha256"])
        keys = {}
        if "sha256" in table.column_names:
            keys["byte for byte"] = table["sha256"]
        if "phash" in sample.columns.score_sets():
            keys["same perceptual hash"] = sample.score("phash")
        for name, column in keys.items():
            valid = np.asarray(pc.is_valid(column).to_numpy(), dtype=bool)
            codes, _ = _encoded(column)
            groups = {}
            for view, mask in sample.masks.items():
                copies = np.bincount(codes[mask & valid])
                groups[view] = tuple(
                    int(((copies >= low) & (copies <= high)).sum()) for low, high in GROUPS.values()
                )
            if any(groups["stored"]):
                found = DuplicateGroups(
                    pool=sample.pool,
                    key=name,
                    labels=tuple(GROUPS),
                    groups=groups,
                    sampled_rows=sample.sampled_rows,
                )
                shown.append(found)
    return tuple(shown)


def safety_rates(samples: Sequence[PoolSample]) -> tuple[SafetyRates, ...]:
    """The share of rows that a column about people or harm marks, for every such column."""
    shown = []
    for sample in samples:
        columns = {}
        for name in sample.columns.pool.schema.names:
            if SAFETY.search(name):
                columns[name] = sample.read([name])[name]
        for name in sample.columns.score_sets():
            if SAFETY.search(name):
                columns[name] = sample.score(name)
        for name, column in columns.items():
            judged = _marked(name, column)
            if judged is None:
                continue
            marked, valid, meaning = judged
            counts = {}
            for view, mask in sample.masks.items():
                counts[view] = (int((marked & mask).sum()), int((valid & mask).sum()))
            if counts["stored"][1]:
                rates = SafetyRates(
                    pool=sample.pool,
                    column=name,
                    meaning=meaning,
                    counts=counts,
                    sampled_rows=sample.sampled_rows,
                )
                shown.append(rates)
    return tuple(shown)


def _marked(name: str, column: pa.ChunkedArray) -> tuple[Mask, Mask, str] | None:
    """(rows that are marked, rows that were judged, what a mark is). None for other types."""
    valid = np.asarray(pc.is_valid(column).to_numpy(), dtype=bool)
    if name.startswith("optout_"):
        words = pc.fill_null(column, "").to_numpy() != ""
        return np.asarray(words, dtype=bool), valid, "an opt-out was found"
    kind = column.type
    if pa.types.is_boolean(kind):
        return pc.fill_null(column, False).to_numpy().astype(bool), valid, "true"
    if pa.types.is_string(kind):
        upper = pc.fill_null(pc.utf8_upper(column), "")
        marked = pc.is_in(upper, value_set=pa.array(UNSAFE_TEXTS)).to_numpy()
        return marked.astype(bool), valid, "one of " + ", ".join(UNSAFE_TEXTS)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        values = column.to_numpy().astype(np.float64)
        valid &= np.isfinite(values)
        return np.nan_to_num(values) > LIMIT, valid, f"above {LIMIT:g}"
    return None


# --------------------------------------------------------------------------------------------------
# The data of the arms: funnels, overlaps, and example images.
#
# Examples are drawn at random with a fixed seed, never picked. All is read from the pools.


EXAMPLES = 12  # images of each kind
SIDE = 96  # pixels of the longer side of a shown image


# --- funnels, overlap ----------------------------------------------------------------------------


def funnels(views: Sequence[ArmView]) -> tuple[Funnel, ...]:
    """Steps and reasons: of each pool from links to stored rows, then of each view of an arm."""
    shown = []
    for pool, path in {view.pool: view.path for view in views}.items():
        shown.append(_pool_funnel(pool, read_document(PoolLayout(path).pool_json, PoolDocument)))
    steps = {f"{view.pool}/{view.view}": view.document.funnel[1:] for view in views}
    for title, of_view in steps.items():
        if len(of_view) > 1:
            shown.append(Funnel(title=title, steps=of_view, reasons={}))
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
    """What each rule of a view with several rules rejects; of other views it is not known."""
    shown = {}
    for view in views:
        path = PoolLayout(view.path).view_rules(view.view)
        if not disk.exists(path):
            continue
        document = read_document(path, ViewRulesDocument)
        if document.fingerprint == view.document.fingerprint:
            rules = tuple((one.rule, one.rejected, one.alone) for one in document.rules)
            shown[view.pool, view.view] = RuleEffects(
                pool=view.pool, view=view.view, stored=document.stored, rules=rules
            )
    return tuple(shown.values())


def overlap(views: Sequence[ArmView]) -> Overlap:
    """Jaccard index of the rows of each two arms: 1 the same rows, 0 none in common."""
    arms = tuple(dict.fromkeys(view.arm for view in views))
    rows: dict[str, dict[str, Mask]] = {arm: {} for arm in arms}
    for view in views:
        other = rows[view.arm].get(view.path)
        rows[view.arm][view.path] = view.kept if other is None else other | view.kept
    matrix = []
    for first in arms:
        matrix.append(tuple(_jaccard(rows[first], rows[second]) for second in arms))
    return Overlap(arms=arms, jaccard=tuple(matrix))


def _jaccard(first: Mapping[str, Mask], second: Mapping[str, Mask]) -> float:
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
        random = any(rule.random_like for rule in view.document.rules)
        if view.arm == baseline or key in done or not view.document.rules or random:
            continue
        done.add(key)
        scores = view.scores(SCORE)
        kept = _draw_rows(view.kept & view.stored)
        rejected = _draw_rows(view.stored & ~view.kept)
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


def _draw_rows(rows: Mask) -> list[int]:
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
