"""Draws by chance, captions by their shares, and draws that are kept apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.mixture.order import (
    CANDIDATES,
    UNDECIDED,
    CaptionColumns,
    candidates_for,
    choose_candidates,
    exchanged_draws,
    expected_unique,
    shuffled_apart,
)


def test_rows_are_chosen_in_proportion_to_their_chances() -> None:
    kinds = np.array([1.0, 0.5, 0.1])  # a third of the rows each
    random = np.random.default_rng(0)
    count = candidates_for(float(kinds.mean()))
    kind = random.integers(0, 3, (60_000, count))
    chosen = choose_candidates(kinds[kind], 7, np.arange(60_000))
    shares = np.bincount(kind[np.arange(60_000), chosen], minlength=3) / 60_000
    assert np.abs(shares - kinds / kinds.sum()).max() < 0.015
    again = choose_candidates(kinds[kind[500:600]], 7, np.arange(500, 600))
    assert np.array_equal(again, chosen[500:600])  # a function of the draw alone
    assert not np.array_equal(choose_candidates(kinds[kind[:100]], 8, np.arange(100)), chosen[:100])


@pytest.mark.parametrize("mean", [1.0, 0.97, 0.9, 0.5, 0.25, 0.05, 0.001])
def test_there_are_enough_candidates(mean: float) -> None:
    count = candidates_for(mean)
    assert 1 <= count <= CANDIDATES
    assert (1 - mean) ** count <= UNDECIDED or count == CANDIDATES
    assert (1 - mean) ** max(0, count - 2) > UNDECIDED or count <= 2


def test_where_none_is_accepted_one_is_taken_by_weight() -> None:
    chances = np.tile([1e-9, 3e-9], (20_000, 1))
    chosen = choose_candidates(chances, 1, np.arange(20_000))
    assert abs(chosen.mean() - 0.75) < 0.01


def test_the_number_of_different_rows_is_estimated() -> None:
    assert expected_unique(np.ones(50), 1000, 10) == pytest.approx(10, rel=0.01)
    assert expected_unique(np.ones(50), 1000, 10**6) == pytest.approx(1000)
    chances = np.array([1.0, 0.01])
    rows = np.tile(chances, 500)
    drawn = np.random.default_rng(1).choice(1000, 2000, p=rows / rows.sum())
    assert expected_unique(chances, 1000, 2000) == pytest.approx(len(set(drawn.tolist())), rel=0.05)


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


def is_apart(order: list[int], apart: int) -> bool:
    return all(
        len(set(order[k : k + apart])) == apart for k in range(max(1, len(order) - apart + 1))
    )


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 2**32))
def test_draws_are_exchanged_so_that_no_row_follows_itself(
    apart: int, more: int, seed: int
) -> None:
    rows = 4 * apart + more
    random = np.random.default_rng(seed)
    before, after = random.permutation(rows), random.permutation(rows)
    draws = exchanged_draws(before[-apart:], after[: 3 * apart], apart)
    assert sorted(draws.tolist()) == list(range(3 * apart))
    begins = after[draws]
    assert is_apart([*before[-apart:].tolist(), *begins.tolist()], apart)
    moved = np.flatnonzero(draws != np.arange(3 * apart))
    assert len(moved) == 2 * np.isin(after[:apart], before[-apart:]).sum()


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**63))
def test_a_shuffled_epoch_keeps_its_rows_apart(apart: int, slack: int, key: int) -> None:
    before = np.random.default_rng(apart).permutation(apart + slack)
    after = shuffled_apart(before, apart, key)
    assert sorted(after.tolist()) == sorted(before.tolist())
    assert is_apart([*before.tolist(), *after.tolist()], apart)
    if slack == 0:
        assert np.array_equal(before, after)  # nothing is left to chance


def test_every_order_that_keeps_rows_apart_is_drawn() -> None:
    before = np.arange(4)
    drawn = {tuple(shuffled_apart(before, 2, key).tolist()) for key in range(400)}
    assert (2, 3, 0, 1) in drawn
    assert (0, 1, 2, 3) in drawn
    # Row 3, drawn last, may come third at the earliest... of four places it has all but the first.
    assert all(order.index(3) >= 1 for order in drawn)
    assert len(drawn) == 18
