"""Borders of epochs: every row once, and none twice within so many draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from train.mixture.order import exchanged_draws, shuffled_apart


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
