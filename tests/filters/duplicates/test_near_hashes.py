"""Groups of near hashes: components, crowds, and partitions in which near ones meet."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.filters import near_hashes
from clipmill.filters.duplicates import route_near
from clipmill.filters.near_hashes import LINKS, Components, collapse, joined, links_of, near_labels
from clipmill.manifests import hashes as hamming
from clipmill.manifests.arrays import Hashes
from tests.manifests.test_hamming import drawn_hashes, near_pairs


def slow_labels(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    labels = list(range(count))
    for _ in range(count):
        for i, j in pairs:
            labels[i] = labels[j] = min(labels[i], labels[j])
    return labels


@settings(max_examples=60)
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


def crowds(
    rows: int, words: int, centres: int, most: int, seed: int, apart: int | None = None
) -> Hashes:
    """Hashes around some centres, each with up to `most` flipped bits. The centres are drawn, or
    differ from one another in up to twice `apart` bits.
    """
    random = np.random.default_rng(seed)

    def flip(hashes: Hashes, times: int) -> None:
        for _ in range(times):
            bit = random.integers(0, 64 * words, len(hashes))
            flipped = np.uint64(1) << (bit % 64).astype(np.uint64)
            hashes[np.arange(len(hashes)), bit // 64] ^= flipped

    middle = random.integers(0, 2**64, (centres, words), dtype=np.uint64)
    if apart is not None:
        middle[:] = middle[0]
        flip(middle, apart)
    hashes = middle[random.integers(0, centres, rows)]
    flip(hashes, most)
    return hashes


def brute_force(hashes: Hashes, radius: int) -> list[int]:
    """Labels by all pairs."""
    count = np.bitwise_count(hashes[:, None] ^ hashes[None]).sum(-1, dtype=int)
    i, j = np.nonzero(count <= radius)
    labels: list[int] = joined(len(hashes), [(i, j)]).tolist()
    return labels


@settings(max_examples=40)
@given(
    words=st.sampled_from([1, 4]),
    centres=st.integers(1, 6),
    most=st.integers(0, 40),
    apart=st.none() | st.integers(0, 40),
    radius=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_groups_are_those_of_all_pairs_also_in_crowds(
    words: int, centres: int, most: int, apart: int | None, radius: int, seed: int
) -> None:
    hashes = crowds(250, words, centres, most, seed, apart)
    hashes[-1] = ~hashes[0]  # all bits differ
    expected = brute_force(hashes, radius)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming, "CROWD", 5)
        patch.setattr(hamming, "CHUNK", 70)
        patch.setattr(near_hashes, "PROBES", 7)
        patch.setattr(near_hashes, "SMALLEST_STAR", 3)
        assert near_labels(hashes, radius).tolist() == expected


@settings(max_examples=40)
@given(
    most=st.integers(10, 40),
    apart=st.integers(0, 60),
    size=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_rows_of_a_ball_are_joined_through_its_fringe_too(
    most: int, apart: int, size: int, seed: int
) -> None:
    hashes = crowds(200, 4, 3, most, seed, apart)
    count = np.bitwise_count(hashes[:, None] ^ hashes[None]).sum(-1, dtype=int)
    i, j = np.nonzero(count <= 31)
    of_ball = (i < size) | (j < size)
    expected = joined(200, [(i[of_ball], j[of_ball])])
    components = Components(200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_hashes, "SMALLEST_STAR", 2)
        rows = np.arange(200)
        near_hashes._join_ball(hashes, rows[:size], rows[size:], 31, components)
    assert components.labels().tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("most", "groups"), [(26, 300), (40, 2990)])
def test_a_crowd_just_beyond_the_radius_is_grouped_exactly(most: int, groups: int) -> None:
    """As hashes of cards of one template are: about 45, or 65, bits from one another."""
    hashes = crowds(3000, 4, 1, most, 0)
    labels = near_labels(hashes, 31)
    assert len(set(labels.tolist())) > groups
    assert labels.tolist() == brute_force(hashes, 31)


def test_a_crowd_of_different_near_hashes_is_not_quadratic() -> None:
    hashes = crowds(50_000, 4, 1, 12, 0)
    started = time.process_time()
    assert set(near_labels(hashes, 31).tolist()) == {0}
    assert time.process_time() - started < 10  # all pairs take half an hour


def test_a_negative_radius_is_refused() -> None:
    with pytest.raises(ValueError, match="radius is -1"):
        near_labels(np.arange(4, dtype=np.uint64)[:, None], -1)


@settings(max_examples=30)
@given(
    words=st.sampled_from([1, 4]),
    radius=st.integers(0, 40),
    partitions=st.sampled_from([1, 2, 3, 7, 36, 700, 5000]),
    seed=st.integers(0, 9),
)
def test_near_hashes_meet_in_a_partition(
    words: int, radius: int, partitions: int, seed: int
) -> None:
    hashes = drawn_hashes(80, words, radius, seed)
    uids = pa.array([f"{number:032x}" for number in range(80)])
    rows, parts = route_near(uids, hashes, radius, partitions)
    assert parts.min() >= 0
    assert parts.max() < partitions
    assert len(set(zip(rows.tolist(), parts.tolist(), strict=True))) == len(rows)
    of_row = [set(parts[rows == row].tolist()) for row in range(80)]
    assert all(of_row)
    for i, j, _ in near_pairs(hashes, radius):
        assert of_row[i] & of_row[j]


@pytest.mark.parametrize(("partitions", "most"), [(1, 1), (3, 2), (100, 13), (10_000, 32)])
def test_a_row_goes_to_few_partitions(partitions: int, most: int) -> None:
    uids = pa.array([f"{number:032x}" for number in range(50)])
    rows, _ = route_near(uids, drawn_hashes(50, 4, 31), 31, partitions)
    assert np.bincount(rows).max() <= most


def test_partitions_are_balanced() -> None:
    uids = pa.array([f"{number:032x}" for number in range(4000)])
    _, parts = route_near(uids, drawn_hashes(4000, 4, 31), 31, 10_000)
    assert np.bincount(parts, minlength=10_000).max() < 250
