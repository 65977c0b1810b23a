"""Groups of rows that pairs of near rows connect, in memory, and the links that the engine gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Pairs that are collected before they are joined: joining costs a step a node.
LEAST_FLUSH, FLUSH = 1 << 10, 1 << 20
LINKS = pa.schema([("uid_a", pa.string()), ("uid_b", pa.string())])
Numbers = NDArray[np.integer[Any]]


class Components:
    """Connected components of `count` nodes. Memory: some bytes a node, however many pairs."""

    def __init__(self, count: int) -> None:
        self._labels = np.arange(count)
        self._first: list[Numbers] = []
        self._second: list[Numbers] = []
        self._waiting = 0
        self._flush = min(FLUSH, max(LEAST_FLUSH, count // 8))

    @property
    def known(self) -> NDArray[np.int64]:
        """`labels` without the pairs that are not joined yet."""
        return self._labels

    def add(self, first: Numbers, second: Numbers) -> None:
        """Connect first[k] and second[k]."""
        self._first.append(first)
        self._second.append(second)
        self._waiting += len(first)
        if self._waiting >= self._flush:
            self._join()

    def labels(self) -> NDArray[np.int64]:
        """(count,) the smallest node of the component of each node."""
        self._join()
        return self._labels

    def _join(self) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if not self._waiting:
            return
        count = len(self._labels)
        ends = self._labels[np.concatenate(self._first)], self._labels[np.concatenate(self._second)]
        graph = coo_array((np.ones(self._waiting, np.bool_), ends), shape=(count, count))
        _, component = connected_components(graph, directed=False)
        smallest = np.full(component.max() + 1, count)
        np.minimum.at(smallest, component, np.arange(count))
        # A node that is no label any more is a component of its own here: follow its label.
        self._labels = smallest[component][self._labels]
        self._first, self._second, self._waiting = [], [], 0


def joined(count: int, pairs: Iterable[tuple[Numbers, Numbers]]) -> NDArray[np.int64]:
    """(count,) the smallest node of the component of each node."""
    components = Components(count)
    for first, second in pairs:
        components.add(first, second)
    return components.labels()


def links_of(uids: pa.ChunkedArray | pa.Array, labels: NDArray[np.int64]) -> pa.Table:
    """One link for each row that is not the first of its component: to that first row."""
    rows = np.flatnonzero(labels != np.arange(len(labels)))
    table = pa.table(
        {"uid_a": uids.take(pa.array(labels[rows])), "uid_b": uids.take(pa.array(rows))}
    )
    return table.cast(LINKS)


def collapse(
    values: pa.Array | pa.ChunkedArray, labels_of: Callable[[pa.Array], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """(rows,) the first row of the group of each row: equal values are of one group, and values
    that have the same label. `labels_of` gets each different value once; there is no NULL.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    encoded = array.dictionary_encode()
    of_value = encoded.indices.to_numpy()
    # The dictionary is in the order of first appearance: the first value of a group has its
    # first row.
    different, first_row = np.unique(of_value, return_index=True)
    assert (different == np.arange(len(encoded.dictionary))).all()
    label_of_value = labels_of(encoded.dictionary)
    rows: NDArray[np.int64] = first_row[label_of_value[of_value]]
    return rows
