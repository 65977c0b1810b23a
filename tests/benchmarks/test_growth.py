"""benchmarks/growth.py: exponents beside a fixed cost, verdicts, the steps, and its table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scaling import growth_fit

COUNTS = np.array([10.0, 20.0, 40.0, 80.0])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 3.0])
def test_the_exponent_is_found_beside_a_fixed_cost(exponent: float, fixed: float) -> None:
    seconds = fixed + 0.5 * (COUNTS / 10) ** exponent
    found, cost = growth_fit.exponent_of(COUNTS, seconds)
    assert found == pytest.approx(exponent, abs=0.011)
    if exponent > 0:
        assert cost == pytest.approx(fixed, abs=0.05)


def result(seconds: np.ndarray, spread: float, *, sort: bool = False) -> dict:
    repeats = {
        int(count): [value * (1 - spread), value, value * (1 + spread)]
        for count, value in zip(COUNTS, seconds, strict=True)
    }
    return {**growth_fit.fitted(repeats), "sort": sort}


def test_a_verdict_needs_repeats_that_agree() -> None:
    steep = COUNTS**1.3
    assert growth_fit.verdict(result(steep, 0.001)) == "ABOVE"
    assert growth_fit.verdict(result(steep, 0.001, sort=True)) == "a sort"
    assert growth_fit.verdict(result(COUNTS**1.0, 0.001)) == "within"
    noisy = result(COUNTS**1.1, 0.4)
    assert noisy["exponent_range"][0] < 1.05 < noisy["exponent_range"][1]
    assert growth_fit.verdict(noisy) == "not decided"
    flat = {**noisy, "plain": 0.1}
    assert growth_fit.verdict(flat) == "a fixed cost hides it"
    # plain is below 1: a fixed cost that is fitted too large could explain the exponent
    assert growth_fit.verdict({**result(steep, 0.001), "plain": 0.9}) == "not decided"
