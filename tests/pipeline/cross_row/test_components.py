"""Stars of rounds over partitions are the components that a whole graph has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cross_row import (
    NO_UIDS,
    Uids,
    count_unfinished,
    large_star,
    local_stars,
    partition_of_uids,
    small_star,
    texts_of,
    uids_of,
)

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60)


def uid(number: int) -> str:
    """Ids whose bytes end in zeros, or begin with them."""
    return f"{number * 0x1000000 % 0x700000001:032x}"


def uids(numbers: list[int]) -> Uids:
    return uids_of(pa.array([uid(number) for number in numbers], pa.string()))


def partitioned(edges: tuple[Uids, Uids], partitions: int) -> list[tuple[Uids, Uids]]:
    first, second = edges
    partition = partition_of_uids(first, partitions)
    return [(first[partition == n], second[partition == n]) for n in range(partitions)]


def joined(parts: list[tuple[Uids, Uids]]) -> tuple[Uids, Uids]:
    first = np.concatenate([NO_UIDS, *(part[0] for part in parts)])
    return first, np.concatenate([NO_UIDS, *(part[1] for part in parts)])


def both(edges: tuple[Uids, Uids]) -> tuple[Uids, Uids]:
    first, second = edges
    return np.concatenate([first, second]), np.concatenate([second, first])


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.sampled_from([1, 2, 5]))
def test_rounds_end_in_the_components(pairs: list[tuple[int, int]], partitions: int) -> None:
    first, second = uids([a for a, _ in pairs]), uids([b for _, b in pairs])
    whole = dict(zip(*map(np.ndarray.tolist, local_stars(first, second)), strict=True))
    different = first != second
    edges = both((first[different], second[different]))
    for _ in range(20):
        parts = partitioned(edges, partitions)
        if not sum(count_unfinished(*part) for part in parts):
            break
        halves = partitioned(joined([large_star(*part) for part in parts]), partitions)
        edges = both(joined([small_star(*part) for part in halves]))
    else:
        pytest.fail("the rounds did not end")
    to_smaller = edges[1] < edges[0]
    stars = {*zip(edges[0][to_smaller].tolist(), edges[1][to_smaller].tolist(), strict=True)}
    assert stars == set(whole.items())


@given(PAIRS)
def test_local_stars_are_those_of_union_and_find(pairs: list[tuple[int, int]]) -> None:
    numbers = sorted({uid(n) for pair in pairs for n in pair})
    parent = {each: each for each in numbers}

    def find(each: str) -> str:
        while parent[each] != each:
            each = parent[each]
        return each

    for a, b in pairs:
        low, high = sorted((find(uid(a)), find(uid(b))))
        parent[high] = low
    rows, smallest = local_stars(uids([a for a, _ in pairs]), uids([b for _, b in pairs]))
    texts = zip(texts_of(rows).to_pylist(), texts_of(smallest).to_pylist(), strict=True)
    assert dict(texts) == {each: find(each) for each in numbers if find(each) != each}


def test_uids_and_their_texts() -> None:
    texts = [uid(n) for n in (0, 1, 40)] + ["f" * 32, "0" * 31 + "1"]
    assert texts_of(uids_of(pa.array(texts))).to_pylist() == texts
    assert texts_of(NO_UIDS).to_pylist() == []
    assert partition_of_uids(uids_of(pa.array(texts)), 7).max() < 7
    with pytest.raises(ValueError, match="a uid does not have 32 hex digits"):
        uids_of(pa.array(["abc"]))
    assert count_unfinished(NO_UIDS, NO_UIDS) == 0
