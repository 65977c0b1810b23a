"""Near pairs of embeddings within clusters (SemDeDup, Abbas et al. 2023).

Rows are clustered by spherical k-means of faiss over a sample of them, and only rows of the same
cluster are compared. Near rows on both sides of a border between clusters are not found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.filters.base import require
from clipmill.filters.columns import arrow_array, unit_vectors
from clipmill.manifests.arrays import Float32Array, Integers, Mask
from clipmill.manifests.hashes import text_hashes

BLOCK = 256  # rows of both sides of a product; all blocks have this size, the last is filled up
MOST_CLUSTERS = 50_000  # as SemDeDup has for LAION-440M
LARGEST = 65_536  # rows of a cluster, by estimate; larger ones are clustered again
DEEPEST = 3  # times that a cluster is divided: of equal embeddings it cannot be
TRAINING_ROWS = 256  # of the sample per cluster
ITERATIONS = 20


def drawn(rows: pa.Table, column: str, share: float) -> pa.Table:
    """(count, hash, vector) of the rows that a hash of their uid draws for the sample.

    The first row is no vector; it has the count of all rows with an embedding.
    """
    vectors = rows[column].combine_chunks()
    _, usable = unit_vectors(vectors)
    hashes = text_hashes(rows["uid"].to_pylist())
    chosen = np.flatnonzero(usable & (hashes <= np.uint64(share * (2**64 - 2**11))))
    return pa.table(
        {
            "count": pa.array([int(usable.sum()), *([0] * len(chosen))], pa.int64()),
            "hash": pa.array(np.concatenate([[0], hashes[chosen]]).astype(np.uint64)),
            "vector": pa.concat_arrays([pa.nulls(1, vectors.type), vectors.take(chosen)]),
        }
    )


def sample_of(summaries: pa.Table) -> tuple[Float32Array, int]:
    """(the sample in the order of its hashes, rows with an embedding) of all that was `drawn`."""
    chosen = summaries.filter(pc.is_valid(summaries["vector"]))
    # Not sort_by: Arrow cannot sort a table that has lists.
    in_order = chosen["vector"].take(pc.sort_indices(chosen["hash"]))
    return unit_vectors(in_order)[0], pc.sum(summaries["count"]).as_py() or 0


def train(
    sample: Float32Array, rows: int, clusters: int | None, seed: int, device: str
) -> Float32Array:
    """(clusters, width) centroids of length 1 of `rows` rows, by a sample of them, which is in the
    order of its hashes.

    clusters: their number; None: the square root of the rows, at most MOST_CLUSTERS. It is never
    more than the sample has rows. A cluster that is estimated to be larger than LARGEST is divided.
    """
    wanted = clusters or min(MOST_CLUSTERS, math.isqrt(max(1, rows)))
    wanted = max(1, min(wanted, len(sample)))
    if wanted == 1 and rows <= LARGEST:
        return _mean(sample)
    sample = sample[: max(wanted * TRAINING_ROWS, wanted)]
    centroids = _kmeans(sample, wanted, seed, device)
    share = rows / len(sample)
    for _ in range(DEEPEST):
        cluster = assign(sample, centroids)
        members = np.bincount(cluster, minlength=len(centroids))
        large = np.flatnonzero(members * share > LARGEST)
        if not len(large):
            break
        parts = [np.delete(centroids, large, axis=0)]
        for number in large.tolist():
            own = sample[cluster == number]
            pieces = min(math.ceil(len(own) * share / LARGEST) + 1, len(own))
            parts.append(_kmeans(own, pieces, seed, device))
        centroids = np.concatenate(parts)
    return centroids


def _mean(sample: Float32Array) -> Float32Array:
    total = sample.sum(axis=0, keepdims=True)
    length = float(np.linalg.norm(total))
    if not length > 0:  # no rows, or rows that cancel each other: any direction serves
        total, length = np.eye(1, max(1, sample.shape[1]), dtype=np.float32), 1.0
    centroid: Float32Array = (total / length).astype(np.float32)
    return centroid


def _kmeans(sample: Float32Array, clusters: int, seed: int, device: str) -> Float32Array:
    if clusters >= len(sample):
        return np.unique(sample, axis=0)
    faiss = _faiss()
    settings: dict[str, Any] = {"niter": ITERATIONS, "spherical": True, "seed": seed}
    settings |= {"min_points_per_centroid": 1, "max_points_per_centroid": TRAINING_ROWS}
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # sums of several threads depend on their number
    try:
        kmeans = faiss.Kmeans(sample.shape[1], clusters, gpu=device == "cuda", **settings)
        kmeans.train(np.ascontiguousarray(sample))
    finally:
        faiss.omp_set_num_threads(threads)
    centroids: Float32Array = np.asarray(kmeans.centroids, np.float32)
    return centroids


def check_faiss(name: str, device: str) -> None:
    """ValueError where faiss, or its GPU half, is not there."""
    require(name, "faiss", "cpu")
    if device == "cuda" and not hasattr(_faiss(), "StandardGpuResources"):
        raise ValueError(
            f"filter {name}: device is cuda, but the installed faiss has no GPU half: "
            "pip install -e '.[gpu]', or leave device out"
        )


def _faiss() -> Any:
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells which library it has loaded
    import faiss

    return faiss


def as_column(centroids: Float32Array) -> pa.Array:
    """(clusters, width) as a column of a filter's state."""
    return arrow_array(centroids, pa.list_(pa.float32(), centroids.shape[1]))


def centroids_of(state: pa.Table) -> Float32Array:
    """(clusters, width) of the column `centroid`, as `as_column` made it."""
    column = state["centroid"].combine_chunks()
    rows: Float32Array = column.flatten().to_numpy().reshape(len(column), -1)
    return rows


def assign(rows: Float32Array, centroids: Float32Array) -> Integers:
    """(rows,) the cluster of each row: the centroid of the largest cosine, the first of equal
    ones."""
    best = np.full(len(rows), -np.inf, np.float32)
    cluster = np.zeros(len(rows), np.int64)
    for start, first in _blocks(rows):
        part = slice(start, min(start + BLOCK, len(rows)))
        count = part.stop - part.start
        for offset, second in _blocks(centroids):
            known = min(BLOCK, len(centroids) - offset)
            cosines = (first @ second.T)[:count, :known]
            nearest = cosines.argmax(axis=1)
            value = cosines[np.arange(count), nearest]
            better = value > best[part]
            cluster[part][better] = nearest[better] + offset
            best[part][better] = value[better]
    return cluster


def near_in_cluster(rows: Float32Array, threshold: float) -> Iterator[tuple[Integers, Integers]]:
    """(i, j) with i < j of all rows whose cosine is at least the threshold, some at a time."""
    for start, first in _blocks(rows):
        for offset, second in _blocks(rows):
            if offset < start:
                continue
            i, j = np.nonzero(first @ second.T >= threshold)
            i, j = i + start, j + offset
            is_pair = (i < j) & (j < len(rows))
            yield i[is_pair], j[is_pair]


def cosines_between(rows: Float32Array, others: Float32Array, threshold: float) -> Mask:
    """(rows,) True where the cosine with one of the others is at least the threshold."""
    near = np.zeros(len(rows), np.bool_)
    for start, first in _blocks(rows):
        for offset, second in _blocks(others):
            known = min(BLOCK, len(others) - offset)
            hits = np.any((first @ second.T)[:, :known] >= threshold, axis=1)
            near[start : start + BLOCK] |= hits[: len(rows) - start]
    return near


def _blocks(rows: Float32Array) -> Iterator[tuple[int, Float32Array]]:
    """Blocks of one size, the last filled with zeros: a product of another shape may be rounded in
    another way."""
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        if len(block) < BLOCK:
            filled = np.zeros((BLOCK, rows.shape[1]), np.float32)
            filled[: len(block)] = block
            block = filled
        yield start, block
