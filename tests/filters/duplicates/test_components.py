from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from filters import near_hashes
from filters.near_hashes import LINKS, collapse, joined, links_of


def slow_labels(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    labels = list(range(count))
    for _ in range(count):
        for i, j in pairs:
            labels[i] = labels[j] = min(labels[i], labels[j])
    return labels


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=14),
    flush=st.integers(1, 9),
    piece=st.integers(1, 5),
)
def test_labels_are_the_smallest_node_of_each_component(
    pairs: list[tuple[int, int]], flush: int, piece: int
) -> None:
    pieces = []
    for start in range(0, len(pairs), piece):
        part = np.array(pairs[start : start + piece])
        pieces.append((part[:, 0], part[:, 1]))
    found = near_hashes.Components(12)
    found._flush = flush
    for first, second in pieces:
        found.add(first, second)
    assert found.labels().tolist() == joined(12, pieces).tolist() == slow_labels(12, pairs)


def test_links_lead_to_the_first_row_of_a_component() -> None:
    uids = pa.array(["a", "b", "c", "d"])
    links = links_of(uids, np.array([0, 1, 0, 1]))
    assert links.schema == LINKS
    assert links.to_pylist() == [{"uid_a": "a", "uid_b": "c"}, {"uid_a": "b", "uid_b": "d"}]
    assert links_of(uids, np.arange(4)).num_rows == 0


def test_equal_values_are_compared_once() -> None:
    seen = []

    def labels_of(values: pa.Array) -> np.ndarray:
        seen.extend(values.to_pylist())
        return np.array([0, 1, 0])

    values = pa.chunked_array([["x", "y"], ["x", "z", "y"]])
    assert collapse(values, labels_of).tolist() == [0, 1, 0, 0, 1]
    assert seen == ["x", "y", "z"]
