from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from train.stats.comparison import dunnett_critical, equal_loadings, noncentrality
from train.stats.model import (
    Spread,
    moderated_spreads,
    moderated_variances,
    satterthwaite,
    typical_raise,
)


def test_a_variance_below_the_prior_is_raised_to_it_and_one_above_goes_half_way() -> None:
    # the mean of the own variances is 2: below the pooled 2.5, which therefore stays
    assert moderated_variances(2.5, [0.5, 2.0, 3.5]) == pytest.approx([2.5, 2.5, 3.0])
    # a mean of 6 moves the prior from 2 to 4
    assert moderated_variances(2.0, [4.0, 8.0]) == pytest.approx([4.0, 6.0])
    assert moderated_variances(2.0, []) == []


def test_one_arm_with_its_own_pooled_variance_is_left_alone() -> None:
    assert moderated_variances(1.7, [1.7]) == [1.7]


def test_a_raised_variance_has_the_degrees_of_freedom_of_its_parts() -> None:
    kept, raised = moderated_spreads(2.5, 20.0, [0.5, 3.5], [2, 2])
    assert kept == Spread(variance=2.5, df=20.0)
    # half of 2.5 with 20, half of 3.5 with 2: Welch's sum
    assert raised.variance == 3.0
    assert raised.df == pytest.approx(3.0**2 / (1.25**2 / 20 + 1.75**2 / 2))
    # a mean of 6 is the baseline's: half of the prior has the seeds' degrees of freedom
    low, high = moderated_spreads(2.0, 20.0, [4.0, 8.0], [2, 2])
    assert (low.variance, high.variance) == (4.0, 6.0)
    assert low.df == pytest.approx(4.0**2 / (1.0**2 / 20 + 3.0**2 / 2))
    assert high.df == pytest.approx(6.0**2 / (0.5**2 / 20 + 1.5**2 / 2 + 4.0**2 / 2))
    assert moderated_spreads(2.0, 1.5, [9.0], [2])[0].df == 1.5  # never more than the shared one
    assert moderated_spreads(2.0, 20.0, [], []) == []


def test_satterthwaite_is_that_of_welch() -> None:
    x, y = np.array([1.0, 4.0, 2.0, 7.0]), np.array([0.5, 0.7, 0.2])
    parts = [(float(v.var(ddof=1)) / len(v), float(len(v) - 1)) for v in (x, y)]
    variance, df = satterthwaite(parts)
    expected = stats.ttest_ind(x, y, equal_var=False)
    assert df == pytest.approx(float(expected.df), rel=1e-12)
    assert (x.mean() - y.mean()) / math.sqrt(variance) == pytest.approx(float(expected.statistic))
    assert satterthwaite([(0.0, 3.0)]) == (0.0, math.inf)
    assert satterthwaite([(2.0, 5.0), (0.0, math.inf)]) == (2.0, pytest.approx(5.0))


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "seeds"), [(2, 3), (4, 3), (4, 5), (8, 2)])
def test_the_typical_raise_is_that_of_a_simulation(arms: int, seeds: int) -> None:
    rng = np.random.default_rng(5)
    errors = rng.standard_normal((2000, arms + 1, seeds))
    residuals = errors - errors.mean(2, keepdims=True)
    residuals -= residuals.mean(1, keepdims=True)
    df = float(arms * (seeds - 1))
    differences = errors[:, 1:] - errors[:, :1]
    own = differences.var(2, ddof=1)
    needed = []  # effects that each arm of each table would have been seen at
    grid = np.geomspace(1.0, df, 40) if df > 1 else np.ones(1)
    table = np.log([dunnett_critical(0.05, one, equal_loadings(arms)) for one in grid])
    for number, pooled in enumerate(2 * (residuals**2).sum((1, 2)) / df):
        spreads = moderated_spreads(pooled, df, own[number].tolist(), [seeds - 1] * arms)
        for spread, difference in zip(spreads, differences[number].mean(1), strict=True):
            critical = math.exp(np.interp(math.log(spread.df), np.log(grid), table))
            needed.append(critical * math.sqrt(spread.variance / seeds) - difference)
    pooled_alone = noncentrality(math.exp(table[-1]), df) * math.sqrt(2 / seeds)
    ratio = float(np.quantile(needed, 0.8)) / pooled_alone
    assert ratio == pytest.approx(typical_raise(arms, seeds, others=False), rel=0.05)


def test_the_typical_raise_is_none_for_one_arm_and_falls_with_the_seeds() -> None:
    assert typical_raise(1, 3, others=False) == 1.0
    raises = [typical_raise(5, seeds, others=True) for seeds in (2, 3, 6, 12, 100)]
    assert raises == sorted(raises, reverse=True)
    assert raises[-1] > 1
