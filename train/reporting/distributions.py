"""Distributions of the columns of each pool: its stored rows, and the rows that each view keeps.

Columns that a score set has are read whole. Columns of the sidecar, and copies of images, are read
from some shards of a large pool, drawn at random with a fixed seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from train.evaluation import BoolArray
from train.reporting.schema import Categories, DuplicateGroups, Histogram, SafetyRates
from train.reporting.views import ArmView, FloatArray, PoolColumns, one_view_of_each_pool

BINS = 40
SCORE = "clip_score"
SAMPLE_ROWS = 200_000  # rows of a sidecar that are read; of a larger pool some shards only
SEED = 20240229
MOST_CATEGORIES = 12  # the most frequent ones; the others are one
OTHER = "all others"
SIZES = ("original_width", "original_height")
TEXTS = ("language", "page_lang")
GROUPS = ((1, 1), (2, 2), (3, 5), (6, 10), (11, None))  # copies of an image, from and to
# Columns about people and harm, of filters or of other programs' pools.
SAFETY = re.compile(r"nsfw|unsafe|toxic|porn|sexual|violen|hate|face|watermark|optout_", re.I)
UNSAFE_TEXTS = ("NSFW", "LIKELY", "VERY_LIKELY", "TRUE", "YES")
LIMIT = 0.5  # a score of harm above it counts
HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]/?#]*\]|[^/?#:]*)"

Masks = Mapping[str, BoolArray]  # "stored" and each view -> rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """Some shards of a pool, whole ones. masks: {"stored" or a view: (rows,) of these shards}."""

    pool: str
    columns: PoolColumns
    shards: tuple[str, ...]
    rows: int
    whole: bool  # these are all shards
    masks: dict[str, BoolArray]

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
        sampled_rows=None if sample is None or sample.whole else sample.rows,
    )


def _divergences(counts: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    """{view: divergence from the stored rows}."""
    return {
        name: divergence(row, counts["stored"]) for name, row in counts.items() if name != "stored"
    }


def divergence(part: NDArray[np.int64], whole: NDArray[np.int64]) -> float:
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
    encoded = pc.fill_null(column, "unknown").dictionary_encode().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    codes, names = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
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
        labels=(*(str(names[i]) for i in shown), *([OTHER] if rest else [])),
        counts=rows,
        divergence=_divergences(counts),
        sampled_rows=None if sample.whole else sample.rows,
    )


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
            encoded = column.dictionary_encode().combine_chunks()
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.chunk(0)
            codes = pc.fill_null(encoded.indices, 0).to_numpy()
            groups = {}
            for view, mask in sample.masks.items():
                copies = np.bincount(codes[mask & valid])
                groups[view] = tuple(_groups_between(copies, *ends) for ends in GROUPS)
            if any(groups["stored"]):
                shown.append(
                    DuplicateGroups(
                        pool=sample.pool,
                        key=name,
                        labels=tuple(_label(*ends) for ends in GROUPS),
                        groups=groups,
                        sampled_rows=None if sample.whole else sample.rows,
                    )
                )
    return tuple(shown)


def _groups_between(copies: NDArray[np.int64], low: int, high: int | None) -> int:
    enough = copies >= low
    return int((enough if high is None else enough & (copies <= high)).sum())


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def safety_rates(samples: Sequence[PoolSample]) -> tuple[SafetyRates, ...]:
    """The share of rows that a column about people or harm marks, for every such column."""
    shown = []
    for sample in samples:
        columns = {}
        for name in sample.columns.sidecar_names():
            if SAFETY.search(name):
                columns[name] = sample.read([name])[name]
        for name in sample.columns.score_sets():
            if SAFETY.search(name):
                columns[name] = sample.score(name)
        for name, column in columns.items():
            judged = _marked(name, column)
            if judged is not None:
                marked, valid, meaning = judged
                counts = {}
                for view, mask in sample.masks.items():
                    counts[view] = (int((marked & mask).sum()), int((valid & mask).sum()))
                if counts["stored"][1]:
                    shown.append(
                        SafetyRates(
                            pool=sample.pool,
                            column=name,
                            meaning=meaning,
                            counts=counts,
                            sampled_rows=None if sample.whole else sample.rows,
                        )
                    )
    return tuple(shown)


def _marked(name: str, column: pa.ChunkedArray) -> tuple[BoolArray, BoolArray, str] | None:
    """(rows that are marked, rows that were judged, what a mark is). None for other types."""
    valid = np.asarray(pc.is_valid(column).to_numpy(), dtype=bool)
    if name.startswith("optout_"):
        return valid, np.ones_like(valid), "an opt-out was found"
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
