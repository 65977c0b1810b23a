from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from train.stats.comparison import (
    dunnett_critical,
    equal_loadings,
    noncentrality,
    power_of,
    seeds_needed,
    smallest_visible,
)


@pytest.mark.parametrize("df", [1.0, 2.0, 2.6, 8.0, 60.0])
def test_the_noncentrality_has_the_wanted_power(df: float) -> None:
    critical = float(stats.t.isf(0.025, df))
    mean = noncentrality(critical, df, 0.8)
    # an independent route: the mean of the power given s, over quantiles of s
    s = np.sqrt(stats.chi2.ppf((np.arange(200_000) + 0.5) / 200_000, df) / df)
    power = stats.norm.sf(critical * s - mean) + stats.norm.cdf(-critical * s - mean)
    assert power.mean() == pytest.approx(0.8, abs=2e-5)


def test_without_estimated_variance_it_is_the_sum_of_two_quantiles() -> None:
    critical = float(stats.norm.isf(0.025))
    expected = critical + float(stats.norm.isf(0.2))
    assert noncentrality(critical, math.inf, 0.8) == pytest.approx(expected, abs=1e-4)
    assert noncentrality(critical, math.inf, 0.01) == 0.0  # less than alpha: no effect needed


def test_the_smallest_visible_difference_is_the_critical_value_and_the_power_together() -> None:
    critical = dunnett_critical(0.05, 2.0, equal_loadings(1))
    expected = noncentrality(critical, 2.0, 0.8) * math.sqrt(2 / 3) * 0.01
    assert smallest_visible(0.01, seeds=3, arms=1, df=2.0) == pytest.approx(expected, rel=1e-12)


def test_more_seeds_show_less_and_samples_hide_more() -> None:
    by_seeds = [smallest_visible(0.01, seeds=s, arms=4, df=4.0 * (s - 1)) for s in (2, 3, 5, 10)]
    assert by_seeds == sorted(by_seeds, reverse=True)
    plain = smallest_visible(0.01, seeds=3, arms=4, df=8.0)
    assert smallest_visible(0.01, seeds=3, arms=4, df=8.0, drawing=(1e-4, 1e3)) > plain
    # the wider of two intervals decides: the degrees of freedom of a small part do not help
    for variance in (1e-9, 1e-7, 1e-6, 1e-5):
        figure = smallest_visible(0.01, seeds=3, arms=4, df=8.0, drawing=(variance, 1e3))
        assert figure >= plain


@pytest.mark.slow
@pytest.mark.parametrize("arms", [1, 4, 8])
def test_the_seeds_needed_are_the_fewest_that_suffice(arms: int) -> None:
    seeds = seeds_needed(0.01, 0.008, arms=arms)
    assert seeds is not None
    figures = [
        smallest_visible(0.008, seeds=s, arms=arms, df=float(arms * (s - 1)))
        for s in (seeds - 1, seeds)
    ]
    assert figures[1] <= 0.01 < figures[0]


def test_no_number_of_seeds_suffices_where_the_samples_hide_the_effect() -> None:
    # 1.96 + 0.84 standard errors of 0.01
    assert seeds_needed(0.027, 0.001, arms=1, drawing=(1e-4, math.inf)) is None
    assert seeds_needed(0.03, 0.001, arms=1, drawing=(1e-4, math.inf)) is not None
    assert seeds_needed(0.1, 0.0, arms=3) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smallest_visible(0.01, seeds=1, arms=1, df=1.0), "at least 2 seeds; got 1"),
        (lambda: smallest_visible(-0.01, seeds=2, arms=1, df=1.0), "at least 0; got -0.01"),
        (lambda: seeds_needed(0.0, 0.01, arms=1), "above 0; got 0.0"),
        (lambda: noncentrality(2.0, 5.0, 1.0), "a power is between 0 and 1"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_floor_has_no_degrees_of_freedom_to_lose() -> None:
    from_runs = smallest_visible(0.01, seeds=3, arms=2, df=4)
    from_samples = smallest_visible(0.0, seeds=3, arms=2, df=4, floor_sd=0.01)
    assert 0 < from_samples < from_runs
    assert smallest_visible(0.01, seeds=3, arms=2, df=4, floor_sd=0.001) == from_runs
    assert smallest_visible(0.001, seeds=3, arms=2, df=4, floor_sd=0.01) == from_samples


def test_the_seeds_for_half_have_the_noise_of_the_smallest_difference() -> None:
    """Runs that ended without a result leave fewer degrees of freedom than arms × (seeds − 1)."""
    for df, drawing in ((1.0, (1e-6, 1.0)), (2.0, (0.0, math.inf)), (14.0, (1e-5, 50.0))):
        power = power_of(0.003, seeds=3, arms=1, df=df, drawing=drawing)
        assert power.half == power.smallest / 2
        assert power.seeds_for_half is None or power.seeds_for_half > 3


def test_half_of_what_is_impossible_is_half_of_what_is_possible() -> None:
    power = power_of(0.3, seeds=2, arms=1, df=1.0, possible=0.8)
    assert power.smallest > 0.8
    assert power.half == 0.4
    assert power.seeds_for_half is not None
