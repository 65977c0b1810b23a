"""Connected components of near pairs that do not fit in memory, and the arithmetic of a round.

An edge is two uids of 16 bytes. In a star every row has one edge, to the smallest of its component.
`large_star` and `small_star` are those of Kiveris et al. 2014, "Connected Components in MapReduce
and Beyond": rounds of them, each looking at the edges of one row at a time, end in stars.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from filters.partitions import mixed
from pipeline.pool import hex_bytes

UID_BYTES = 16
Uids = NDArray[np.bytes_]  # (n,) S16; they sort as their hex digits do
NO_UIDS: Uids = np.zeros(0, "S16")


def uids_of(column: pa.Array | pa.ChunkedArray) -> Uids:
    """(rows,) a column of 32 hex digits as bytes. ValueError for other values."""
    return np.ascontiguousarray(hex_bytes(column, UID_BYTES, "uid")).view("S16").ravel()


def texts_of(uids: Uids) -> pa.Array:
    """(rows,) uids as 32 hex digits."""
    data = np.frombuffer(uids.tobytes(), np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.empty(2 * len(data), np.uint8)
    text[0::2], text[1::2] = digits[data >> 4], digits[data & 15]
    offsets = np.arange(0, len(text) + 1, 2 * UID_BYTES, dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(uids), buffers).cast(pa.string())


def partition_of_uids(uids: Uids, partitions: int) -> NDArray[np.int64]:
    """(rows,) the partition of each uid."""
    words = np.frombuffer(uids.tobytes(), "<u8").reshape(-1, 2)
    hashes = mixed(words[:, 0] ^ mixed(words[:, 1]))
    return (hashes % np.uint64(partitions)).astype(np.int64)


def local_stars(first: Uids, second: Uids) -> tuple[Uids, Uids]:
    """(row, smallest row of its component) for each row of these edges but the smallest ones."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    nodes, index = np.unique(np.concatenate([first, second]), return_inverse=True)
    if not len(nodes):
        return NO_UIDS, NO_UIDS
    ends = index.reshape(2, -1)
    ones = np.ones(ends.shape[1], np.int8)
    graph = coo_matrix((ones, (ends[0], ends[1])), shape=(len(nodes), len(nodes)))
    _, label = connected_components(graph, directed=False)
    # Nodes are sorted: the first of a component is its smallest.
    smallest = np.unique(label, return_index=True)[1][label]
    is_other = smallest != np.arange(len(nodes))
    return nodes[is_other], nodes[smallest[is_other]]


def _grouped(first: Uids, second: Uids) -> tuple[Uids, Uids, NDArray[np.int64], NDArray[np.int64]]:
    """Edges sorted by both ends, each once: (first, second, where groups of one `first` begin, the
    group of each edge)."""
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    is_new = np.ones(len(first), np.bool_)
    is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    first, second = first[is_new], second[is_new]
    begins = np.ones(len(first), np.bool_)
    begins[1:] = first[1:] != first[:-1]
    return first, second, np.flatnonzero(begins), np.cumsum(begins) - 1


def large_star(first: Uids, second: Uids) -> tuple[Uids, Uids]:
    """Edges in both directions, all of a `first` together: every larger neighbour of a row points
    to the smallest of the row and its neighbours."""
    first, second, starts, group = _grouped(first, second)
    least = second[starts]
    own = first[starts]
    least = np.where(least < own, least, own)
    is_larger = second > first
    return second[is_larger], least[group[is_larger]]


def small_star(first: Uids, second: Uids) -> tuple[Uids, Uids]:
    """Edges from a row to smaller ones, all of a `first` together: the row and its neighbours point
    to the smallest."""
    first, second, starts, group = _grouped(first, second)
    least = second[starts]
    is_other = second != least[group]
    rows = np.concatenate([first[starts], second[is_other]])
    return rows, np.concatenate([least, least[group[is_other]]])


def count_unfinished(first: Uids, second: Uids) -> int:
    """Edges in both directions, all of a `first` together: rows that have a smaller neighbour and
    another one. None of them is left where all components are stars."""
    first, second, starts, _ = _grouped(first, second)
    degrees = np.diff([*starts, len(first)])
    return int(((second[starts] < first[starts]) & (degrees > 1)).sum()) if len(first) else 0
