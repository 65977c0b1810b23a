"""Draws that collide change places, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.mixture.order import put_apart
from train.rng import Ints


def batches_of(numbers: Ints, batch: int) -> list[list[int]]:
    return [numbers[k : k + batch].tolist() for k in range(0, len(numbers), batch)]


def is_apart(numbers: Ints, batch: int) -> bool:
    for each in batches_of(numbers, batch):
        checked = [number for number in each if number >= 0]
        if len(set(checked)) < len(checked):
            return False
    return True


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(2, 5), st.integers(0, 2**32))
def test_a_block_without_collisions_has_the_same_draws_of_each_source(
    batch: int, steps: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    source = np.tile(random.integers(0, 3, batch), steps)
    numbers = random.integers(0, 3 * batch, batch * steps)
    numbers[source == 2] = -1  # a source that cannot collide
    draw, left = put_apart(source, numbers, batch)
    assert sorted(draw.tolist()) == list(range(len(source)))
    assert np.array_equal(source[draw], source)
    assert (draw[source == 2] == np.flatnonzero(source == 2)).all()
    if left is None:
        assert is_apart(numbers[draw], batch)
    if is_apart(numbers, batch):
        assert left is None
        assert np.array_equal(draw, np.arange(len(source)))
    again, _ = put_apart(source, numbers, batch)
    assert np.array_equal(draw, again)


def test_a_draw_that_collides_comes_in_the_next_batch_in_which_it_fits() -> None:
    source = np.array([0, 1] * 4)
    numbers = np.array([5, 5, 1, 2, 5, 3, 7, 8])
    draw, left = put_apart(source, numbers, 2)
    assert left is None
    # Of the two 5s of batch 0 the later one moves: to batch 1, since batch 2 has a 5 of its own.
    assert numbers[draw].tolist() == [5, 2, 1, 5, 5, 3, 7, 8]


def test_the_last_batch_takes_from_an_earlier_one() -> None:
    source = np.array([0, 1, 0, 1])
    draw, left = put_apart(source, np.array([1, 2, 6, 6]), 2)
    assert left is None
    assert draw.tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize("numbers", [[4, 4, 4, 4], [1, 1, 2, 2]])
def test_what_cannot_be_put_apart_is_named(numbers: list[int]) -> None:
    draw, left = put_apart(np.array([0, 0, 0, 0]), np.array(numbers), 2)
    if numbers[0] == 4:
        assert left == 1
    else:
        assert left is None
        assert is_apart(np.array(numbers)[draw], 2)
