"""Near pairs of any partitions end in the components that a whole graph has."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cross_row import PAIR, stars
from pipeline.shuffle import stream

Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60)


def uid(number: int) -> str:
    """Ids whose bytes end in zeros, or begin with them."""
    return f"{number * 0x1000000 % 0x700000001:032x}"


def edges(pairs: Pairs) -> pa.Table:
    ends = [[uid(pair[end]) for pair in pairs] for end in (0, 1)]
    return pa.table([pa.array(texts, pa.string()) for texts in ends], PAIR)


def components(pairs: Pairs) -> dict[str, str]:
    """The smallest of its component for each uid but that one: union and find."""
    uids = sorted({uid(n) for pair in pairs for n in pair})
    parent = {each: each for each in uids}

    def find(each: str) -> str:
        while parent[each] != each:
            each = parent[each]
        return each

    for a, b in pairs:
        low, high = sorted((find(uid(a)), find(uid(b))))
        parent[high] = low
    return {each: find(each) for each in uids if find(each) != each}


@settings(max_examples=15, deadline=None)
@given(PAIRS, st.integers(1, 3))
def test_the_stars_of_partitions_and_of_the_pool_are_the_components(
    pairs: Pairs, partitions: int
) -> None:
    parts = [stars(edges(pairs[number::partitions])) for number in range(partitions)]
    whole = stars(stream(parts, PAIR))
    expected = components(pairs)
    assert whole["first"].to_pylist() == sorted(expected)
    assert whole["second"].to_pylist() == [expected[each] for each in sorted(expected)]
