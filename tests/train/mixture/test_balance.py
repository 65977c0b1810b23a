"""Rows drawn by chance: their frequencies, and how many candidates that takes."""

from __future__ import annotations

import numpy as np
import pytest

from train.mixture.order import (
    CANDIDATES,
    UNDECIDED,
    candidates_for,
    choose_candidates,
    expected_unique,
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
