"""Partitions such that two rows with near hashes are in one of them together, whatever they are."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters.partitions import mixed, partition_of
from manifests.hamming import Hashes

Route = tuple[NDArray[np.int64], NDArray[np.int64]]


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
