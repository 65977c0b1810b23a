"""Which text column a draw takes: exact shares that can be counted without going through them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.mixture.order import CaptionColumns


@given(st.integers(0, 90), st.integers(0, 2**63))
def test_any_prefix_is_counted_and_the_shares_are_exact(draws: int, key: int) -> None:
    columns = CaptionColumns({"caption": 0.3, "synthetic": 0.7}, key)
    chosen = [columns.names[k] for k in columns.of_draws(np.arange(90)).tolist()]
    assert columns.count(draws) == {
        name: chosen[:draws].count(name) for name in ("caption", "synthetic")
    }
    for first in range(0, 90, 10):
        assert Counter(chosen[first : first + 10]) == {"caption": 3, "synthetic": 7}
    # A draw answers alone as it does among others.
    if draws < 90:
        assert columns.names[int(columns.of_draws(np.array([draws]))[0])] == chosen[draws]


def test_columns_are_not_bound_to_the_lane_of_a_draw() -> None:
    columns = CaptionColumns({"a": 1, "b": 1}, 5)
    of_lane = columns.of_draws(np.arange(0, 6400, 64))
    assert 25 < np.count_nonzero(of_lane) < 75
    other = CaptionColumns({"a": 1, "b": 1}, 6).of_draws(np.arange(0, 6400, 64))
    assert not np.array_equal(of_lane, other)


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="weight of 'b' is 0"):
        CaptionColumns({"a": 1, "b": 0}, 0)
