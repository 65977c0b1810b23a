"""The k-th value in bounded memory is the k-th value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.views import row_tests
from pipeline.views.row_tests import Ranked, RankSearch, order_keys


def search(values: Any, share: float) -> Ranked | None:
    """The top(share) of some values that come in seven parts."""
    found = RankSearch(lambda count: count - math.ceil(share * count) + 1)
    while not found.is_done:
        for part in np.array_split(values, 7):
            found.add(part)
        found.end_pass()
    return found.result


RNG = np.random.default_rng(0)
CASES = {
    "floats": RNG.normal(size=3000),
    "float32": RNG.normal(size=3000).astype(np.float32),
    "small numbers": RNG.integers(-5, 5, 3000),
    "large numbers": RNG.integers(0, 2**63 - 1, 3000),
    "numbers that share a key": np.full(400, 2**62) + RNG.integers(0, 5, 400),
    "zeros and infinities": np.array([0.0, -0.0, 0.0, -1, np.inf, -np.inf]),
    "one value": np.full(1000, 0.3),
    "a single one": np.array([1.5]),
    "unsigned": RNG.integers(0, 2**64 - 1, 500, dtype=np.uint64),
}


@pytest.mark.parametrize("collected", [10, 4_000_000])
@pytest.mark.parametrize("name", CASES)
def test_the_value_and_its_counts(
    name: str, collected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tests, "COLLECTED", collected)
    values = CASES[name]
    for share in (0.001, 0.3, 1.0):
        k = math.ceil(share * len(values))
        expected = np.partition(values, len(values) - k)[len(values) - k]
        result = search(values, share)
        assert result is not None
        assert result.value == expected.item()
        assert type(result.value) is type(expected.item())
        assert result.count - result.below == int((values >= expected).sum())
        assert result.equal == int((values == expected).sum())


def test_without_values_there_is_no_result() -> None:
    empty = RankSearch(lambda count: 1)
    empty.add(np.empty(0))
    empty.end_pass()
    assert empty.is_done
    assert empty.result is None


def test_an_impossible_rank_is_our_own_mistake() -> None:
    wrong = RankSearch(lambda count: count + 1)
    wrong.add(np.array([1.0]))
    with pytest.raises(AssertionError):
        wrong.end_pass()


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False), min_size=2))
def test_keys_are_in_the_order_of_the_values(values: list[float]) -> None:
    array = np.array(values)
    keys = order_keys(array)
    for a, b, key_a, key_b in zip(array[:-1], array[1:], keys[:-1], keys[1:], strict=True):
        assert (a < b) == (key_a < key_b)
        assert (a == b) == (key_a == key_b)
