"""Random numbers as functions of integers: the same everywhere, and golden."""

import numpy as np
import pytest

from clipmill.train.rng import derive_key, permutation, uniforms


def test_a_permutation_holds_each_number_once_and_depends_on_its_key():
    first, second = permutation(1, 1000), permutation(2, 1000)
    assert sorted(first.tolist()) == list(range(1000))
    assert first.tolist() != second.tolist()
    assert np.array_equal(first, permutation(1, 1000))
    assert permutation(5, 0).tolist() == []


def test_uniform_numbers_belong_to_their_row_whatever_rows_are_asked_for():
    together = uniforms(derive_key(1, 2), np.arange(1000), 3)
    assert np.array_equal(together[[7, 500]], uniforms(derive_key(1, 2), np.array([7, 500]), 3))
    assert together.min() >= 0
    assert together.max() < 1
    assert abs(together.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(together[:, 0], together[:, 1])[0, 1]) < 0.1


def test_mixed_numbers_depend_on_every_part_and_its_place():
    parts = [(1, 2), (2, 1), (1, 2, 0), (-1, 2), (1,)]
    assert len({derive_key(*each) for each in parts}) == 5


def test_a_key_has_64_bits_and_parts_may_be_large_or_negative():
    for parts in ((0,), (-5, 2**80), (2**64 - 1,)):
        assert 0 <= derive_key(*parts) < 2**64
    assert derive_key(2**64 + 3) == derive_key(3)  # parts count modulo 2^64
    with pytest.raises(TypeError):
        derive_key(1.5)


def test_golden_numbers():
    assert derive_key(1, 2, 3) == GOLDEN_KEY
    assert permutation(42, 8).tolist() == GOLDEN_PERMUTATION
    assert uniforms(7, np.array([3]), 2).tolist() == GOLDEN_UNIFORMS


GOLDEN_KEY = 15020427595393229491
GOLDEN_PERMUTATION = [4, 1, 6, 2, 3, 0, 7, 5]
GOLDEN_UNIFORMS = [[0.46795300422287345, 0.3280767391525029]]
