from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from train.stats.sequential import Spending, critical_values, largest_t, spent


def test_all_of_the_error_is_spent_at_the_end_and_little_of_it_early() -> None:
    for spending in ("pocock", "obrien-fleming", "hwang-shih-decani"):
        assert spent(1.0, 0.05, spending) == pytest.approx(0.05, abs=1e-12)
    assert spent(0.5, 0.05, "pocock") == pytest.approx(0.05 * math.log((1 + math.e) / 2), abs=1e-12)
    z = stats.norm.isf(0.025)
    assert spent(0.4, 0.05, "obrien-fleming") == pytest.approx(
        2 * stats.norm.sf(z / math.sqrt(0.4)), abs=1e-12
    )


def test_unknown_spending_and_impossible_fractions_are_refused() -> None:
    with pytest.raises(
        ValueError, match="spending is 'linear'; it is 'pocock', 'obrien-fleming' or"
    ):
        spent(0.5, 0.05, "linear")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the fraction is 0"):
        spent(0.0, 0.05, "pocock")
    with pytest.raises(ValueError, match="0 arms are compared"):
        critical_values(0, 2, 5, 0.05, "pocock")
    with pytest.raises(ValueError, match="from 1 to 5 seeds"):
        critical_values(4, 1, 5, 0.05, "pocock")


def dunnett_error(critical: float, arms: int, df: int) -> float:
    """P(largest |t| > critical) of `arms` arms against a baseline, by integration."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    baseline = 8 * nodes[:, None]
    sd = 2 + 2 * nodes[None, :]  # estimated SD over true SD, from 0 to 4
    half = math.sqrt(2) * critical * sd
    inside = (stats.norm.cdf(baseline + half) - stats.norm.cdf(baseline - half)) ** arms
    density = stats.norm.pdf(baseline) * stats.chi.pdf(sd * math.sqrt(df), df) * math.sqrt(df)
    return 1 - float(8 * weights @ (inside * density) @ (2 * weights))


@pytest.mark.slow
def test_one_look_is_dunnetts_test() -> None:
    (critical,) = critical_values(4, 5, 5, 0.05, "pocock")
    assert dunnett_error(critical, 4, 16) == pytest.approx(0.05, abs=0.001)
    (one_arm,) = critical_values(1, 3, 3, 0.05, "obrien-fleming")
    assert one_arm == pytest.approx(stats.t.isf(0.025, 2), rel=0.01)


def by_recursion(budgets: list[float], informations: list[float]) -> list[float]:
    """Two-sided critical values of one arm with a known variance, from the budgets spent up to each
    look: the density of the paths that have not crossed, from look to look (Armitage, McPherson
    and Rowe 1969)."""
    grid, step = np.linspace(-10, 10, 1001, retstep=True)
    density = stats.norm.pdf(grid, scale=math.sqrt(informations[0]))
    criticals, before = [], 0.0
    for look, information in enumerate(informations):
        if look:
            spread = math.sqrt(information - informations[look - 1])
            density = stats.norm.pdf(grid[:, None] - grid[None, :], scale=spread) @ density * step
        outside = np.cumsum(density[::-1])[::-1] * step - density * step / 2
        upper = grid > 0
        edge = np.interp((budgets[look] - before) / 2, outside[upper][::-1], grid[upper][::-1])
        criticals.append(edge / math.sqrt(information))
        density = np.where(np.abs(grid) > edge, 0.0, density)
        before = budgets[look]
    return criticals


@pytest.mark.slow
@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming", "hwang-shih-decani"])
def test_with_a_known_variance_the_values_are_those_of_the_recursion(spending: Spending) -> None:
    fractions = [2 / 5, 3 / 5, 4 / 5, 1]
    # The published values for alpha/2 on each side, to check the recursion.
    published = by_recursion(
        [2 * spent(f, 0.025, "obrien-fleming") for f in fractions], [2, 3, 4, 5]
    )
    assert published == pytest.approx([3.357, 2.680, 2.290, 2.031], abs=0.01)
    expected = by_recursion([spent(f, 0.05, spending) for f in fractions], [2, 3, 4, 5])
    criticals = critical_values(1, 2, 5, 0.05, spending, prior_df=1e7)
    assert criticals == pytest.approx(expected, abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming", "hwang-shih-decani"])
def test_other_draws_cross_with_the_probability_that_was_spent(spending: Spending) -> None:
    criticals = critical_values(4, 2, 5, 0.05, spending)
    largest = largest_t(4, 5, 100_000, np.random.default_rng(5))
    crossed = (largest > np.array(criticals)).cumsum(axis=1) > 0
    for look, seeds in enumerate(range(2, 6)):
        budget = spent(seeds / 5, 0.05, spending)
        noise = math.sqrt(budget / 100_000)
        assert crossed[:, look].mean() == pytest.approx(budget, abs=4 * noise)


def test_the_simulated_t_are_those_of_additive_tables() -> None:
    # The update by rows against the residuals of whole tables, from the same random numbers.
    drawn = largest_t(3, 4, 5, np.random.default_rng(8))
    generator = np.random.default_rng(8)
    table = np.stack([generator.standard_normal((5, 4)) for _ in range(4)], axis=2)
    for seeds in range(2, 5):
        part = table[:, :, :seeds]
        means = part.mean(axis=2, keepdims=True)
        residuals = part - means - part.mean(axis=1, keepdims=True)
        residuals += part.mean(axis=(1, 2), keepdims=True)
        variance = (residuals**2).sum(axis=(1, 2)) / (3 * (seeds - 1))
        t = np.abs(means[:, 1:, 0] - means[:, :1, 0]).max(axis=1) / np.sqrt(variance * 2 / seeds)
        np.testing.assert_allclose(drawn[:, seeds - 2], t, rtol=1e-9)
