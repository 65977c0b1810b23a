from __future__ import annotations

import pytest

from train.stats.comparison import holm


def test_holm_multiplies_by_the_tests_left_and_never_decreases() -> None:
    # 0.01 × 4, 0.02 × 3, 0.03 × 2, and 0.04 × 1 is raised to the one before it
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_holm_never_exceeds_one_and_leaves_a_single_p_value() -> None:
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.3]) == [0.3]
    assert holm([]) == []


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_a_value_that_is_no_probability_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"in 0\.\.1; got"):
        holm([0.5, wrong])
