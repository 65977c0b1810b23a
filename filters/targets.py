"""DataComp's image-based filter: rows in the clusters of embeddings nearest to target images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from clipmill.filters.base import FILE, FREE, SHARE, Columns, PoolFilter, described
from clipmill.filters.clusters import (
    as_column,
    assign,
    centroids_of,
    check_faiss,
    drawn,
    sample_of,
    train,
)
from clipmill.filters.columns import route_by_uid, unit_vectors
from clipmill.manifests.arrays import NUMPY_ERRORS, Array, Float32Array, Integers


@dataclass(kw_only=True)
class Targets(PoolFilter):
    """targets_cluster: number of the centroid with the largest cosine. targets_in_target: whether
    that cluster is the nearest one of at least one target.

    targets: embeddings of the images that the pool should resemble, made with the same model: .npy
    or .npz (key: the array's name, where it has several), or .parquet (key: the column). on: the
    column of the pool's embeddings. clusters: at most the rows of the sample; DataComp has 100,000.
    sample: share of the rows on which the k-means is trained, drawn by a hash of their uid.
    """

    name = "targets"
    adds, meanings = described(
        targets_cluster=(pa.int32(), "number of the nearest cluster of the pool's embeddings"),
        targets_in_target=(pa.bool_(), "whether that cluster is the nearest one of a target image"),
    )
    targets: str = field(metadata=FILE)
    key: str | None = None
    on: str = field(default="embed_image", metadata=FREE)  # the id of its set is part of ours
    clusters: int = field(default=100_000, metadata={"least": 1})
    sample: float = field(default=1.0, metadata=SHARE)
    seed: int = 0
    device: Literal["cpu", "cuda"] = field(default="cpu", metadata=FREE)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.on,)

    def check(self) -> None:
        check_faiss("targets", self.device)
        read_embeddings(self.targets, self.key)

    def summarise(self, rows: pa.Table) -> pa.Table:
        return drawn(rows, self.on, self.sample)

    def combine(self, summaries: pa.Table) -> pa.Table:
        """The centroids, of length 1, and which of them are nearest to a target."""
        sample, _ = sample_of(summaries)
        wanted = read_embeddings(self.targets, self.key)
        if len(sample) and sample.shape[1] != wanted.shape[1]:
            raise ValueError(
                f"filter targets: {self.targets} has embeddings of {wanted.shape[1]} numbers, "
                f"those of {self.on} have {sample.shape[1]}; make both with the same model"
            )
        # Of 0 rows: clusters are not divided further, as they are for duplicates.
        centroids = train(sample, 0, self.clusters, self.seed, self.device)
        is_target = np.zeros(len(centroids), np.bool_)
        if len(sample):
            is_target[assign(wanted, centroids)] = True
        return pa.table({"centroid": as_column(centroids), "is_target": is_target})

    def route(self, rows: pa.Table, state: object, partitions: int) -> tuple[Integers, Integers]:
        """Rows that have an embedding, by their uid."""
        _, is_usable = unit_vectors(rows[self.on])
        return route_by_uid(rows, is_usable, partitions)

    def judge(self, rows: pa.Table, state: pa.Table) -> Columns:
        own, _ = unit_vectors(rows[self.on])
        cluster = assign(own, centroids_of(state))
        return {
            "targets_cluster": cluster.astype(np.int32),
            "targets_in_target": state["is_target"].to_numpy()[cluster],
        }


def read_embeddings(path: str, key: str | None) -> Float32Array:
    """(targets, width) of length 1. ValueError for a file without a table of finite embeddings."""
    try:
        embeddings = _array_of(path, key)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"filter targets: {path} cannot be read: {error}") from None
    if embeddings.ndim != 2 or not embeddings.size or embeddings.dtype.kind != "f":
        raise ValueError(
            f"filter targets: {path} holds {embeddings.dtype} of shape {embeddings.shape}; "
            "(targets, width) floats are needed"
        )
    rows = embeddings.astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise ValueError(f"filter targets: {path} has an embedding that is zero or not finite")
    unit: Float32Array = rows / lengths
    return unit


def _array_of(path: str, key: str | None) -> Array:
    if path.endswith(".parquet"):
        import pyarrow.parquet as pq

        if key is None:
            raise ValueError(f"filter targets: name the column of {path} with key")
        columns = pq.read_schema(path).names
        if key not in columns:
            raise ValueError(f"filter targets: {path} has no column {key!r}; {_names(columns)}")
        lists = pq.read_table(path, columns=[key])[key].to_pylist()
        widths = {len(each) if each is not None else 0 for each in lists}
        if len(widths) != 1:
            raise ValueError(f"filter targets: {path}: lists of {key} have lengths {widths}")
        return np.array(lists, np.float32)
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            names = list(content)
            key = names[0] if key is None and len(names) == 1 else key
            array: Array | None = content[key] if key in names else None
    except NUMPY_ERRORS as error:
        raise ValueError(f"filter targets: {path} is no array of NumPy: {error}") from None
    if array is None:
        raise ValueError(f"filter targets: name an array of {path} with key; {_names(names)}")
    return array


def _names(names: list[str]) -> str:
    return f"it has {', '.join(names)}"
