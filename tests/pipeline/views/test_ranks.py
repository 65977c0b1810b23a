"""The k-th value in bounded memory is the k-th value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipeline.views import row_tests
from pipeline.views.row_tests import Ranked, Ranks


def search(values: Any, share: float) -> Ranked | None:
    """The top(share) of some values that come in seven parts, beside others."""
    with Ranks() as ranks:
        for part in np.array_split(values, 7):
            ranks.add("others", np.arange(3))
            ranks.add("values", part)
        return ranks.find("values", lambda count: count - math.ceil(share * count) + 1)


RNG = np.random.default_rng(0)
CASES = {
    "floats": RNG.normal(size=3000),
    "float16": RNG.normal(size=3000).astype(np.float16),
    "float32": RNG.normal(size=3000).astype(np.float32),
    "small numbers": RNG.integers(-5, 5, 3000),
    "large numbers": RNG.integers(0, 2**63 - 1, 3000),
    "numbers that share a key": np.full(400, 2**62) + RNG.integers(0, 5, 400),
    "zeros and infinities": np.array([0.0, -0.0, 0.0, -1, np.inf, -np.inf]),
    "one value": np.full(1000, 0.3),
    "a single one": np.array([1.5]),
    "unsigned": RNG.integers(0, 2**64 - 1, 500, dtype=np.uint64),
}


@pytest.mark.parametrize("name", CASES)
def test_the_value_and_its_counts(name: str) -> None:
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
    with Ranks() as ranks:
        ranks.add("x", np.empty(0))
        assert ranks.find("x", lambda count: 1) is None
        assert ranks.find("y", lambda count: 1) is None


def test_an_impossible_rank_is_our_own_mistake() -> None:
    with Ranks() as ranks:
        ranks.add("x", np.array([1.0]))
        with pytest.raises(AssertionError):
            ranks.find("x", lambda count: count + 1)


def test_many_values_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_tests, "RANKED_AT_ONCE", 1000)
    values = RNG.permutation(50_000) // 2
    result = search(values, 0.25)
    assert result is not None
    assert (result.value, result.below, result.equal) == (18_750, 37_500, 2)


def test_values_may_come_after_a_rank_was_found() -> None:
    with Ranks() as ranks:
        ranks.add("x", np.array([5.0, 1.0, 3.0]))
        assert ranks.find("x", lambda count: 2) == Ranked(value=3.0, count=3, below=1, equal=1)
        ranks.add("x", np.array([2.0, 3.0]))
        assert ranks.find("x", lambda count: 3) == Ranked(value=3.0, count=5, below=2, equal=2)
