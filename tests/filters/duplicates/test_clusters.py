from __future__ import annotations

import importlib.util

import numpy as np
import pyarrow as pa
import pytest

from clipmill.filters import clusters
from clipmill.filters.columns import unit_vectors
from clipmill.manifests.arrays import Float32Array


def directions(rows: int, width: int, seed: int = 0) -> Float32Array:
    drawn = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_rows_without_an_embedding_are_zero_and_unusable() -> None:
    column = pa.array([[3, 4], None, [0, 0], [float("nan"), 1]], pa.list_(pa.float16(), 2))
    rows, usable = unit_vectors(pa.chunked_array([column.slice(0, 1), column.slice(1)]))
    assert usable.tolist() == [True, False, False, False]
    assert rows[0] == pytest.approx([0.6, 0.8])
    assert not rows[1:].any()
    with pytest.raises(ValueError, match="lists of a fixed size are needed"):
        unit_vectors(pa.array([[1.0, 2.0]]))


def test_a_sample_is_of_the_rows_and_not_of_the_shards() -> None:
    vectors = pa.array([None, *directions(999, 4).tolist()], pa.list_(pa.float32(), 4))
    rows = pa.table({"uid": [f"{number:032x}" for number in range(1000)], "v": vectors})
    whole, count = clusters.sample_of(clusters.drawn(rows, "v", 0.3))
    shards = [rows.slice(700), rows.slice(0, 1), rows.slice(1, 699)]
    parts = pa.concat_tables([clusters.drawn(shard, "v", 0.3) for shard in shards])
    sample, count_of_parts = clusters.sample_of(parts)
    assert (count, count_of_parts) == (999, 999)
    assert (sample == whole).all()
    assert 240 < len(whole) < 360


def test_near_pairs_of_a_cluster_are_those_of_all_pairs_across_blocks() -> None:
    rows = directions(600, 8)
    rows[580:] = rows[:20] + directions(20, 8, 1) * 0.03
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = {
        (int(i), int(j))
        for first, second in clusters.near_in_cluster(rows, 0.995)
        for i, j in zip(first, second, strict=True)
    }
    i, j = np.nonzero(np.triu(rows @ rows.T >= 0.995, 1))
    assert found == set(zip(i.tolist(), j.tolist(), strict=True))
    assert {(n, 580 + n) for n in range(20)} <= found
    near = clusters.cosines_between(rows[:300], rows[580:], 0.995)
    assert near[:20].all()
    assert near.sum() < 40


def test_each_row_has_its_nearest_centroid_whatever_rows_are_beside_it() -> None:
    rows, centroids = directions(1000, 8), directions(300, 8, 2)
    cluster = clusters.assign(rows, centroids)
    assert cluster.tolist() == (rows @ centroids.T).argmax(axis=1).tolist()
    for start in (0, 17, 995):
        assert (clusters.assign(rows[start:], centroids) == cluster[start:]).all()


def test_training_finds_planted_clusters_and_repeats_itself() -> None:
    centres = directions(8, 16)
    rows = np.repeat(centres, 60, axis=0) + directions(480, 16, 3) * 0.05
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    rows = rows[np.random.default_rng(0).permutation(480)]
    first, second = (clusters.train(rows, 4800, 16, 0, "cpu") for _ in range(2))
    assert (first == second).all()
    assert ((first @ centres.T).max(axis=0) > 0.98).all()
    assert clusters.train(rows, 100, None, 0, "cpu").shape == (10, 16)


def test_large_clusters_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "LARGEST", 100)
    rows = directions(500, 8)
    trained = clusters.train(rows, 500, 2, 0, "cpu")
    assert len(trained) > 2
    assert np.bincount(clusters.assign(rows, trained)).max() <= 200
    equal = np.repeat(rows[:1], 500, axis=0)  # nothing divides them
    assert len(clusters.train(equal, 500, 2, 0, "cpu")) >= 1


def test_no_rows_and_few_rows_have_clusters_too() -> None:
    assert clusters.train(np.zeros((0, 4), np.float32), 0, None, 0, "cpu").shape == (1, 4)
    assert clusters.train(directions(3, 4), 3, 50, 0, "cpu").shape == (3, 4)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters.check_faiss("targets", "cpu")
    with pytest.raises(ValueError, match=r"'\.\[gpu\]'"):
        clusters.check_faiss("targets", "cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[cpu\]'"):
        clusters.check_faiss("targets", "cpu")
