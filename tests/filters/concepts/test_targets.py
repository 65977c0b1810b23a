"""Clusters near target images, on embeddings whose clusters are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from clipmill.filters import check_filters, instances_of
from clipmill.filters.clusters import centroids_of
from clipmill.filters.targets import Targets, read_embeddings
from clipmill.manifests.schema import FilterSpec
from tests.support.pool_filters import run_inline

pytest.importorskip("faiss")
WIDTH = 16


def pool(directions: int, rows: int) -> pa.Table:
    """Rows near the axes 0 to directions - 1 in turn; the last one has no embedding."""
    generator = np.random.default_rng(0)
    vectors = np.eye(WIDTH)[np.arange(rows) % directions]
    vectors = vectors + generator.normal(0, 0.02, (rows, WIDTH))
    lists: list[Any] = vectors.astype(np.float16).tolist()
    lists[-1] = None
    uids = [xxhash.xxh3_128_hexdigest(str(number).encode()) for number in range(rows)]
    return pa.table({"uid": uids, "embed_image": pa.array(lists, pa.list_(pa.float16(), WIDTH))})


@pytest.fixture
def targets(tmp_path: Path) -> str:
    """Two images near the axes 1 and 3, of other lengths than 1."""
    path = tmp_path / "targets.npy"
    np.save(path, (np.eye(WIDTH)[[1, 3]] * 7).astype(np.float32))
    return str(path)


def test_rows_in_the_clusters_of_the_targets(targets: str) -> None:
    rows = pool(5, 200)
    filter_ = Targets(targets=targets, clusters=30)
    values = run_inline(filter_, [rows], 1)
    assert len(values) == 199
    centroids = centroids_of(filter_.combine(filter_.summarise(rows)))
    nearest_of_targets = set((np.eye(WIDTH)[[1, 3]] @ centroids.T).argmax(1).tolist())
    groups = set()
    vectors = rows["embed_image"].to_pylist()
    for number, uid in enumerate(rows["uid"].to_pylist()[:-1]):
        cluster = int((np.array(vectors[number], np.float32) @ centroids.T).argmax())
        is_near = cluster in nearest_of_targets
        assert values[uid] == {"targets_cluster": cluster, "targets_in_target": is_near}
        if is_near:
            groups.add(number % 5)
    assert groups == {1, 3}


def test_shards_and_partitions_change_nothing(targets: str) -> None:
    rows = pool(7, 300)
    filter_ = Targets(targets=targets, clusters=20, sample=0.5, seed=3)
    shards = [rows.slice(0, 10), rows.slice(10, 200), rows.slice(210)]
    assert run_inline(filter_, shards, 4) == run_inline(filter_, [rows], 1)
    assert run_inline(filter_, shards[::-1], 2) == run_inline(filter_, [rows], 1)


def test_a_pool_without_embeddings_and_more_clusters_than_rows(targets: str) -> None:
    rows = pool(2, 4)
    values = run_inline(Targets(targets=targets, clusters=100), [rows], 1)
    assert len({row["targets_cluster"] for row in values.values()}) == 3
    assert run_inline(Targets(targets=targets), [rows.slice(3)], 1) == {}


def test_every_form_of_a_file(tmp_path: Path, targets: str) -> None:
    vectors = np.eye(WIDTH, dtype=np.float32)[[1, 3]]
    np.savez(tmp_path / "one.npz", b32=vectors.astype(np.float16))
    np.savez(tmp_path / "two.npz", b32=vectors, l14=vectors)
    pq.write_table(pa.table({"e": pa.array(vectors.tolist())}), tmp_path / "t.parquet")
    (tmp_path / "bytes.npy").write_bytes(b"nothing of the kind")
    files: list[tuple[str, str | None]] = [
        (targets, None), ("one.npz", None), ("two.npz", "l14"), ("t.parquet", "e"),
    ]  # fmt: skip
    for name, key in files:
        assert np.allclose(read_embeddings(str(tmp_path / name), key), vectors)
    for name, key, message in (
        ("two.npz", None, r"name an array of .*two.npz with key; it has b32, l14"),
        ("t.parquet", None, "name the column of .* with key"),
        ("t.parquet", "x", "has no column 'x'; it has e"),
        ("nowhere.npy", None, "cannot be read"),
        ("bytes.npy", None, "is no array of NumPy"),
    ):
        with pytest.raises(ValueError, match=message):
            read_embeddings(str(tmp_path / name), key)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), np.float32), "zero or not finite"),
        (np.full((2, 3), np.nan), "zero or not finite"),
        (np.ones(3), r"float64 of shape \(3,\); \(targets, width\) floats are needed"),
        (np.ones((2, 3), int), "floats are needed"),
        (np.ones((0, 3)), "floats are needed"),
    ],
)
def test_arrays_that_are_no_embeddings(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    spec = FilterSpec(name="targets", options={"targets": str(tmp_path / "x.npy")})
    with pytest.raises(ValueError, match=message):
        check_filters(instances_of([spec]))


def test_targets_of_another_model_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    filter_ = Targets(targets=str(tmp_path / "x.npy"))
    with pytest.raises(ValueError, match=r"has embeddings of 8 numbers, those of embed_image have"):
        filter_.combine(filter_.summarise(pool(2, 10)))
