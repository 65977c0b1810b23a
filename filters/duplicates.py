"""Rows that show the same image, in this pool or in another: groups and the row that survives.

Rows that show the same image: equal bytes, near perceptual hashes, near embeddings. `duplicate`
groups the rows of a pool and names the survivor of each group. Figures: docs/measured.md.

Reads the columns that the engine hands over, and with `against` the columns of another pool.
Writes nothing. The search of near hashes is `manifests/hashes.py`.

Invariants:

* No pair within the radius is missed, in memory and over partitions:
  `tests/manifests/test_hamming.py`, `tests/filters/duplicates/test_near_hashes.py`.
* The survivors do not depend on partitions, shards or the order of rows:
  `tests/filters/duplicates/test_duplicate.py`.
* The highest score survives, NULL and NaN last, ties by uid:
  `tests/filters/duplicates/test_duplicate.py`.

Another kind of comparison is a value of `on` with its default column in `COLUMNS`, its partitions
in `route` and its near pairs in `links`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters import clusters
from clipmill.filters.base import GROUP, PLACE, SHARE, Columns, PoolFilter, described, options_of
from clipmill.filters.columns import mixed, partition_of, unit_vectors
from clipmill.filters.near_hashes import LINKS, Numbers, collapse, joined, links_of, near_labels
from clipmill.manifests import disk
from clipmill.manifests.arrays import Hashes, Integers, Mask
from clipmill.manifests.hashes import PDQ_QUALITY, PDQ_RADIUS, as_words, near_pieces
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import Pool

# --------------------------------------------------------------------------------------------------
# Columns of another pool, for rows that duplicate one of its rows.


PIECE = 1 << 18  # rows that are compared with at a time


class OtherPool:
    """A pool that is complete as far as its columns are needed. ValueError where it is not."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        if not disk.exists(PoolLayout(folder).shards):
            raise ValueError(f"against names {folder}, which is no pool: it has no folder shards")
        self.pool = Pool.open(folder)

    def identity(self, columns: Sequence[str]) -> str:
        """A hash of the rows of the pool, and of the filters behind its columns."""
        sets = [self._set_of(column) for column in columns]
        return disk.content_hash([self.pool.commits.fingerprint, sets])

    def columns(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of the stored rows, about PIECE rows at a time."""
        waiting: list[pa.Table] = []
        sets = {name: each for name in names if (each := self._set_of(name))}
        for shard in self.pool.commits.names():
            waiting.append(self.pool.stored(shard, names, sets))
            if sum(map(len, waiting)) >= PIECE:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _set_of(self, column: str) -> str:
        """The score set of a column; "" for a column of the sidecar."""
        if column in self.pool.schema.names:
            return ""
        for name, document in self.pool.score_sets.items():
            if column in document.columns:
                return name
        raise ValueError(
            f"against: the pool {self.folder} has no complete column {column!r}; run "
            f"clipmill score {self.folder} with a recipe that has its filter"
        )


# --------------------------------------------------------------------------------------------------
# Partitions such that two rows with near hashes are in one of them together, whatever they are.


Route = tuple[Integers, Integers]


def route_near(uids: pa.Array, words: Hashes, radius: int, partitions: int) -> Route:
    """(row, partition) of hashes that are searched for near ones.

    Of two ways the one that sends a row to fewer partitions. By pairs of sets: the rows are dealt
    to g sets by their uids, and each two sets meet in a partition. By bands: hashes within `radius`
    agree in one of radius + 1 bands of their bits, and equal bands meet.
    """
    sets = (math.isqrt(8 * partitions + 1) - 1) // 2  # the largest g with g (g + 1) / 2 partitions
    if sets <= radius + 1 or radius + 1 > 64 * words.shape[1]:
        return _by_sets(uids, sets)
    return _by_bands(words, radius, partitions)


def _by_sets(uids: pa.Array, sets: int) -> Route:
    own = partition_of(uids, sets)
    rows, parts = [], []
    for other in range(sets):
        low, high = np.minimum(own, other), np.maximum(own, other)
        rows.append(np.arange(len(own)))
        parts.append(high * (high + 1) // 2 + low)
    return np.concatenate(rows), np.concatenate(parts)


def _by_bands(words: Hashes, radius: int, partitions: int) -> Route:
    rows, width = words.shape
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8).reshape(rows, -1), axis=1)
    pairs = np.zeros(0, np.int64)
    for band in range(radius + 1):
        key = np.full(rows, band, np.uint64)
        # Neighbouring bits resemble each other: a band has every (radius + 1)-th bit.
        for bit in range(band, width * 64, radius + 1):
            key = mixed(key * np.uint64(2) + bits[:, bit])
        partition = (key % np.uint64(partitions)).astype(np.int64)
        pairs = np.union1d(pairs, np.arange(rows) * partitions + partition)
    row, partition = np.divmod(pairs, partitions)
    return row, partition


# --------------------------------------------------------------------------------------------------
# Which row of a group survives: the best by a score; of equally good ones the smallest uid.


def as_score(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """Numbers to compare rows by; NULL for NaN. ValueError for a column of anything else."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8())
    if pa.types.is_float16(kind):
        array = array.cast(pa.float32())
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return array
    raise ValueError(
        f"best names the column {name!r} of type {kind}; a column of numbers is needed"
    )


def survivors(uids: pa.Array, groups: pa.Array, scores: pa.Array | None) -> Mask:
    """(rows,) True for one row of each group: the highest score, NULL last; then the smallest uid.

    Of two rows with one uid the first one survives.
    """
    columns: dict[str, Any] = {"group": groups, "uid": uids}
    columns["row"] = pa.array(np.arange(len(uids)))
    keys = [("group", "ascending"), ("uid", "ascending"), ("row", "ascending")]
    if scores is not None:
        columns["score"] = scores
        keys.insert(1, ("score", "descending"))
    order = pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy()
    number = group_numbers(groups)[order]
    survives = np.zeros(len(uids), np.bool_)
    survives[order[np.diff(number, prepend=-1) != 0]] = True
    return survives


def sizes(groups: pa.Array) -> Integers:
    """(rows,) how many rows the group of each row has."""
    number = group_numbers(groups)
    count: Integers = np.bincount(number)[number]
    return count


def group_numbers(groups: pa.Array | pa.ChunkedArray) -> Integers:
    """(rows,) a number for each different group."""
    array = groups.combine_chunks() if isinstance(groups, pa.ChunkedArray) else groups
    indices: Integers = array.dictionary_encode().indices.to_numpy().astype(np.int64)
    return indices


# --------------------------------------------------------------------------------------------------
# Groups of rows that show the same image, and the row of each group that survives.


COLUMNS = {"sha256": "sha256", "perceptual": "pdq", "embedding": "embed_image"}
# Hashes of 64 bits: copies that were resized or compressed again are within 6 (filter picture).
RADII = {64: 6, 256: PDQ_RADIUS}
# Options of one comparison only.
PERCEPTUAL, EMBEDDING = {"on": "perceptual"}, {"on": "embedding"}
FARTHEST = "hard"  # best: the row farthest from the centroid of its cluster


def survivor_text(options: Mapping[str, object]) -> str:
    """By what the survivor of a group is chosen, from the options of the filter."""
    best = options.get("best")
    if best is not None and best != FARTHEST:
        return f"of each group the row with the highest {best} survives"
    if options.get("on") == "embedding":
        return "of each group the row farthest from the centroid of its cluster survives"
    return (
        "of each group the row with the smallest uid survives, which says nothing of its worth; "
        "best: COLUMN names what does"
    )


@dataclass(kw_only=True)
class Duplicate(PoolFilter):
    """duplicate_group: the smallest uid of the group; duplicate_size: its rows; duplicate_survivor:
    True for one row of the group.

    on: sha256 (equal bytes as they were received), perceptual (hashes within `radius` bits) or
    embedding (cosine at least `threshold`, within a cluster). column: what is compared; by default
    sha256, pdq or embed_image. A group is connected by its near pairs; two of its rows may be far
    from each other.

    best: the column by which a row survives, the highest value; NULL and NaN are last, equal values
    go by the smallest uid. Without it: for embeddings the row farthest from the centroid, else the
    smallest uid. quality, quality_column: rows of a lower quality are groups of their own, because
    their hashes are noise; by default COLUMN_quality, and none for phash. against: another pool; a
    group with a row near one of its rows has no survivor.

    clusters, sample, seed: k-means over the share `sample` of the rows. A row without the compared
    value has NULL.
    """

    name = "duplicate"
    adds, meanings = described(
        duplicate_group=(pa.string(), "smallest uid of the rows that show the same image"),
        duplicate_size=(pa.int32(), "rows of the group"),
        duplicate_survivor=(pa.bool_(), "true for one row of each group: by `best`, else by uid"),
    )

    on: Literal["sha256", "perceptual", "embedding"]
    column: str | None = None
    best: str | None = None
    radius: int | None = field(default=None, metadata={**PERCEPTUAL, "least": 0})
    threshold: float = field(default=0.99, metadata={**EMBEDDING, **SHARE})
    quality: float = field(default=PDQ_QUALITY, metadata=PERCEPTUAL)
    quality_column: str | None = field(default=None, metadata=PERCEPTUAL)
    against: str | None = field(default=None, metadata=PLACE)  # identity() covers what is there
    clusters: int | None = field(default=None, metadata={**EMBEDDING, "least": 1})
    sample: float = field(default=0.1, metadata={**EMBEDDING, **SHARE})
    seed: int = field(default=0, metadata=EMBEDDING)
    device: Literal["cpu", "cuda"] = field(default="cpu", metadata=EMBEDDING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quality_read is None and self.quality != PDQ_QUALITY and self.on == "perceptual":
            raise ValueError(
                f"filter duplicate: quality is {self.quality}, but {self.compared} has no column "
                "of qualities; name one in quality_column"
            )
        if self.best == FARTHEST and self.on != "embedding":
            raise ValueError("filter duplicate: best: hard needs the clusters of on: embedding")

    # --- what is read -----------------------------------------------------------------------------

    @property
    def compared(self) -> str:
        """The column that is compared."""
        return self.column or COLUMNS[self.on]

    @property
    def quality_read(self) -> str | None:
        """The column of the quality of a hash; None where there is none."""
        if self.on != "perceptual":
            return None
        if self.quality_column is None and self.compared.endswith("phash"):
            return None
        return self.quality_column or f"{self.compared}_quality"

    @property
    def linked(self) -> bool:  # type: ignore[override]
        """Equal values meet in one partition; near ones need the engine's components."""
        return self.on != "sha256"

    @property
    def copies(self) -> float:  # type: ignore[override]
        """A hash goes to at most radius + 1 partitions."""
        return 1.0 if self.on != "perceptual" else float(max(self.radius or 0, PDQ_RADIUS) + 1)

    @property
    def reads(self) -> tuple[str, ...]:
        names = [self.compared]
        if self.quality_read is not None:
            names.append(self.quality_read)
        if self.best is not None and self.best != FARTHEST:
            names.append(self.best)
        return tuple(dict.fromkeys(names))

    def identity(self) -> str:
        if self.against is None:
            return ""
        return OtherPool(self.against).identity(self._columns_of_other())

    def _columns_of_other(self) -> list[str]:
        return [self.compared] + ([self.quality_read] if self.quality_read else [])

    def check(self) -> None:
        if self.on == "embedding":
            clusters.check_faiss("duplicate", self.device)
        if self.against is not None:
            OtherPool(self.against)

    def note(self) -> str:
        return survivor_text(options_of(self))

    # --- partitions -------------------------------------------------------------------------------

    @property
    def summarised(self) -> bool:
        """Only embeddings need a state, their clusters."""
        return self.on == "embedding"

    def summarise(self, rows: pa.Table) -> pa.Table:
        return clusters.drawn(rows, self.compared, self.sample)

    def combine(self, summaries: pa.Table) -> pa.Table:
        sample, count = clusters.sample_of(summaries)
        centroids = clusters.train(sample, count, self.clusters, self.seed, self.device)
        return pa.table({"centroid": clusters.as_column(centroids)})

    def route(self, rows: pa.Table, state: object, partitions: int) -> Route:
        if self.best is not None and self.best != FARTHEST:
            as_score(rows[self.best], self.best)  # its type is refused before anything is searched
        there = np.flatnonzero(np.asarray(rows[self.compared].is_valid()))
        if self.on == "embedding":
            vectors, usable = unit_vectors(rows[self.compared])
            there = np.flatnonzero(usable)
            cluster = clusters.assign(vectors[there], clusters.centroids_of(state))
            partition = mixed(cluster.astype(np.uint64)) % np.uint64(partitions)
            return there, partition.astype(np.int64)
        present = rows.take(pa.array(there))
        if self.on == "sha256":
            return there, partition_of(present[self.compared], partitions)
        is_clear = self._is_clear(present)
        words = as_words(present[self.compared].filter(pa.array(is_clear)))
        uids = present["uid"].combine_chunks()
        near_rows, near_parts = route_near(
            uids.filter(pa.array(is_clear)), words, self._radius_of(words), partitions
        )
        plain = np.flatnonzero(~is_clear)
        plain_parts = partition_of(uids.take(pa.array(plain)), partitions)
        row = np.concatenate([np.flatnonzero(is_clear)[near_rows], plain])
        return there[row], np.concatenate([near_parts, plain_parts])

    def _radius_of(self, words: Any) -> int:
        bits = 64 * words.shape[1]
        if self.radius is None and bits not in RADII:
            raise ValueError(
                f"filter duplicate: hashes of {self.compared} have {bits} bits; set radius"
            )
        return self.radius if self.radius is not None else RADII[bits]

    def _is_clear(self, rows: pa.Table) -> Mask:
        """(rows,) True where the hash can be compared: its quality is high enough, or unknown."""
        if self.quality_read is None:
            return np.ones(len(rows), np.bool_)
        quality = rows[self.quality_read]
        return np.asarray(pc.fill_null(pc.greater_equal(quality, self.quality), True), np.bool_)

    # --- judgement --------------------------------------------------------------------------------

    def judge(self, rows: pa.Table, state: object) -> Columns:
        first = collapse(rows[self.compared], lambda values: np.arange(len(values)))
        groups = rows["uid"].take(pa.array(first))
        return self._columns_of_groups(rows, groups, None)

    def links(self, rows: pa.Table, state: object) -> pa.Table:
        if self.on == "embedding":
            return links_of(rows["uid"], self._embedding_labels(rows, state))
        clear = np.flatnonzero(self._is_clear(rows))
        if not len(clear):
            return LINKS.empty_table()
        kept = rows.take(pa.array(clear))

        def labels_of(values: pa.Array) -> Integers:
            words = as_words(values)
            return near_labels(words, self._radius_of(words))

        return links_of(kept["uid"], collapse(kept[self.compared], labels_of))

    def _embedding_labels(self, rows: pa.Table, state: object) -> Integers:
        vectors, _ = unit_vectors(rows[self.compared])
        cluster = clusters.assign(vectors, clusters.centroids_of(state))
        labels = np.arange(len(rows))
        order = np.argsort(cluster, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1):
            # Equal embeddings are one: many copies of a row cost no more than one row.
            own = pa.array([vector.tobytes() for vector in vectors[members]], pa.binary())
            labels[members] = members[collapse(own, self._near_vectors)]
        return labels

    def _near_vectors(self, values: pa.Array) -> Integers:
        """(values,) the first one of the group of each vector, given as its bytes."""
        vectors = np.frombuffer(b"".join(values.to_pylist()), np.float32).reshape(len(values), -1)
        return joined(len(vectors), clusters.near_in_cluster(vectors, self.threshold))

    def judge_groups(self, rows: pa.Table, state: object) -> Columns:
        return self._columns_of_groups(rows, rows[GROUP], state)

    def _columns_of_groups(self, rows: pa.Table, groups: pa.ChunkedArray, state: object) -> Columns:
        group = groups.combine_chunks()
        survives = survivors(rows["uid"].combine_chunks(), group, self._scores(rows, state))
        if self.against is not None:
            known = group.filter(pa.array(self._is_in_other(rows, state)))
            survives &= ~np.asarray(pc.is_in(group, value_set=pc.unique(known)))
        return {
            "duplicate_group": group,
            "duplicate_size": sizes(group).astype(np.int32),
            "duplicate_survivor": survives,
        }

    def _scores(self, rows: pa.Table, state: object) -> pa.Array | None:
        if self.best is not None and self.best != FARTHEST:
            return as_score(rows[self.best], self.best)
        if self.on != "embedding":
            return None
        vectors, _ = unit_vectors(rows[self.compared])
        centroids = clusters.centroids_of(state)
        own = centroids[clusters.assign(vectors, centroids)]
        return pa.array(-np.einsum("re,re->r", vectors, own))

    def _is_in_other(self, rows: pa.Table, state: object) -> Mask:
        """(rows,) True where a row of the other pool is a duplicate."""
        assert self.against is not None
        near = np.zeros(len(rows), np.bool_)
        clear = np.flatnonzero(self._is_clear(rows))
        for other in OtherPool(self.against).columns(self._columns_of_other()):
            other = other.filter(pc.is_valid(other[self.compared]))
            if self.on == "sha256":
                near |= np.asarray(pc.is_in(rows[self.compared], value_set=other[self.compared]))
            elif self.on == "perceptual":
                other = other.filter(pa.array(self._is_clear(other)))
                near[clear] |= self._near_hashes(rows.take(pa.array(clear)), other)
            else:
                near |= self._near_embeddings(rows, other, state)
        return near

    def _near_hashes(self, rows: pa.Table, other: pa.Table) -> Mask:
        own = rows[self.compared].combine_chunks().dictionary_encode()
        words, others = as_words(own.dictionary), as_words(pc.unique(other[self.compared]))
        if words.shape[1] != others.shape[1]:
            raise ValueError(f"against: {self.compared} of {self.against} has another width")
        sides = np.arange(len(words) + len(others)) < len(words)
        near = np.zeros(len(sides), np.bool_)
        both = np.concatenate([words, others])

        def wanted(i: Numbers, j: Numbers) -> Mask:
            new: Mask = (sides[i] != sides[j]) & ~near[np.where(sides[i], i, j)]
            return new

        for i, j in near_pieces(both, self._radius_of(words), wanted):
            near[i] = near[j] = True
        of_row: Mask = near[own.indices.to_numpy()]
        return of_row

    def _near_embeddings(self, rows: pa.Table, other: pa.Table, state: object) -> Mask:
        vectors, _ = unit_vectors(rows[self.compared])
        others, usable = unit_vectors(other[self.compared])
        others = others[usable]
        if others.shape[1] != vectors.shape[1]:
            raise ValueError(f"against: {self.compared} of {self.against} has another width")
        centroids = clusters.centroids_of(state)
        cluster, of_other = (clusters.assign(each, centroids) for each in (vectors, others))
        near = np.zeros(len(rows), np.bool_)
        for number in np.intersect1d(cluster, of_other).tolist():
            own = np.flatnonzero(cluster == number)
            own_others = others[of_other == number]
            near[own] = clusters.cosines_between(vectors[own], own_others, self.threshold)
        return near
