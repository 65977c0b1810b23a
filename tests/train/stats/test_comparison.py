from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from train.stats.comparison import (
    Comparison,
    Difference,
    Verdict,
    decide,
    dunnett_critical,
    dunnett_family,
    equal_loadings,
    holm,
    holm_family,
    single,
)
from train.stats.model import Spread


def difference(mean: float, error: float = 1.0, df: float = 6.0, arm: str = "a") -> Difference:
    return Difference(
        arm=arm,
        baseline="base",
        seeds=(0, 1, 2),
        difference=mean,
        sd=error * math.sqrt(3),
        over_seeds=(Spread(variance=error**2, df=df),),
    )


def test_a_single_comparison_is_students_t() -> None:
    row = single(difference(2.5), band=0.5)
    half = float(stats.t.isf(0.025, 6))
    assert (row.low, row.high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-10)
    half90 = float(stats.t.isf(0.05, 6))
    assert (row.low90, row.high90) == pytest.approx((2.5 - half90, 2.5 + half90), rel=1e-10)
    assert row.p == row.p_adjusted == pytest.approx(2 * stats.t.sf(2.5, 6), abs=1e-12)
    assert row.p_equal == pytest.approx(stats.t.cdf(2.0, 6), abs=1e-12)
    assert (row.verdict, row.headline, row.n) == ("better", "seeds", 3)


def test_the_headline_is_the_wider_of_two_intervals() -> None:
    seeds_only = difference(2.9, df=3.0)
    more_variance = replace(seeds_only, over_samples=(Spread(variance=4.0, df=50.0),))
    row = single(more_variance, band=0.5)
    assert row.headline == "seeds and samples"
    assert (row.low, row.high, row.df) == (row.low_samples, row.high_samples, 50.0)
    assert (row.low_seeds, row.high_seeds) == (
        single(seeds_only, band=0.5).low,
        single(seeds_only, band=0.5).high,
    )
    # a little more variance with many more degrees of freedom: the interval over seeds is wider
    row = single(replace(seeds_only, over_samples=(Spread(variance=1.1, df=50.0),)), band=0.5)
    assert row.headline == "seeds"
    assert (row.low, row.df) == (row.low_seeds, 3.0)
    assert row.low_samples is not None
    assert row.low_samples > row.low


def test_the_samples_floor_counts_where_its_interval_is_the_wider() -> None:
    floor = Spread(variance=4.0, df=math.inf)
    runs = Spread(variance=0.5, df=2.0)  # 4.3 × 0.7 is below 1.96 × 2
    row = single(replace(difference(9.0), over_seeds=(runs, floor)), band=0.5)
    assert row.df is None
    assert row.high == pytest.approx(9 + 2 * float(stats.norm.isf(0.025)), rel=1e-9)
    # far out, the runs' few degrees of freedom give the larger p
    assert row.p == pytest.approx(2 * stats.t.sf(9 / math.sqrt(0.5), 2), rel=1e-9)
    nothing_varied = Spread(variance=0.0, df=2.0)
    row = single(replace(difference(9.0), over_seeds=(nothing_varied, floor)), band=0.5)
    assert row.p == pytest.approx(2 * stats.norm.sf(4.5), rel=1e-9)


def test_tasks_have_an_interval_that_is_not_the_headline() -> None:
    row = single(replace(difference(2.0), over_tasks=(Spread(variance=9.0, df=2.0),)), band=0.5)
    half = 3 * float(stats.t.isf(0.025, 2))
    assert (row.low_tasks, row.high_tasks) == pytest.approx((2 - half, 2 + half), rel=1e-10)
    assert row.headline == "seeds"


@pytest.mark.parametrize(
    ("mean", "p", "low90", "high90", "verdict"),
    [
        (0.3, 0.049, 0.1, 0.5, "better"),
        (-0.3, 0.049, -0.5, -0.1, "worse"),
        (0.3, 0.05, 0.1, 0.49, "practically equal"),
        (0.3, 0.2, -0.1, 0.5, "not distinguishable"),
        (-0.3, 0.2, -0.5, 0.1, "not distinguishable"),
        (0.3, 0.001, None, None, "not distinguishable"),
    ],
)
def test_the_first_rule_that_holds_is_the_verdict(
    mean: float, p: float, low90: float | None, high90: float | None, verdict: Verdict
) -> None:
    assert decide(mean, p, low90, high90, band=0.5) == verdict


def assert_consistent(row: Comparison, alpha: float) -> None:
    """Interval, p value, TOST and verdict say the same."""
    assert row.low is not None
    assert row.high is not None
    assert row.low90 is not None
    assert row.high90 is not None
    assert row.p_equal is not None
    excluded = row.low > 0 or row.high < 0
    assert excluded == (row.p_adjusted < alpha)
    assert excluded == (row.verdict in ("better", "worse"))
    inside = -row.band < row.low90 and row.high90 < row.band
    assert inside == (row.p_equal < alpha)
    assert (inside and not excluded) == (row.verdict == "practically equal")
    assert row.p_adjusted >= row.p - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Dunnett", "Holm"])
def test_intervals_and_p_values_always_agree(family: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        alpha = float(rng.choice([0.05, 0.2]))
        rows = []
        for arm in range(int(rng.integers(1, 6))):
            row = difference(
                float(rng.normal(0, 2)), float(rng.uniform(0.2, 1.5)), float(rng.choice([2, 7.5]))
            )
            wider = Spread(variance=float(rng.uniform(0.1, 2)), df=30.0)
            rows.append(replace(row, arm=f"arm{arm}", over_samples=(wider,)))
        if family == "Dunnett":
            compared = dunnett_family(rows, 0.5, 1.5, alpha)
        else:
            compared = holm_family(rows, 1.5, alpha)
        for row in compared:
            assert_consistent(row, alpha)
            assert row.adjustment == family


def test_a_family_after_dunnett_is_wider_than_one_comparison_and_narrower_than_bonferroni() -> None:
    rows = [difference(1.0, arm=f"arm{i}") for i in range(4)]
    together = dunnett_family(rows, 0.5, 0.5)
    half = together[0].high - 1.0
    assert float(stats.t.isf(0.025, 6)) < half < float(stats.t.isf(0.025 / 4, 6))
    assert together[0].p == single(rows[0], 0.5).p
    # a smaller correlation is more careful; a negative one counts as none
    loose = dunnett_family(rows, 0.1, 0.5)[0]
    assert loose.high > together[0].high
    assert dunnett_family(rows, -0.2, 0.5) == dunnett_family(rows, 0.0, 0.5)
    assert dunnett_family([], 0.5, 0.5) == ()


def test_a_chosen_family_has_holms_p_values_for_differences_and_for_equality() -> None:
    rows = [difference(mean, arm=f"arm{mean}") for mean in (3.2, 0.1, 2.6)]
    compared = holm_family(rows, band=4.0)
    plain = [single(row, band=4.0) for row in rows]
    assert [row.p_adjusted for row in compared] == pytest.approx(holm([row.p for row in plain]))
    assert [row.p_equal for row in compared] == pytest.approx(
        holm([row.p_equal for row in plain if row.p_equal is not None])
    )
    # the smallest p of three has the level 5 % / 3
    assert compared[0].high - 3.2 == pytest.approx(float(stats.t.isf(0.025 / 3, 6)), rel=1e-9)
    assert holm_family([], band=4.0) == ()


def test_without_any_spread_there_is_no_interval_and_no_verdict() -> None:
    for mean in (0.0, 0.125):
        rows = [difference(mean, error=0.0), difference(5.0, arm="b")]
        for row in (
            single(rows[0], 0.5),
            dunnett_family(rows, 0.5, 0.5)[0],
            holm_family(rows, 0.5)[0],
        ):
            assert row.verdict == "not distinguishable"
            assert (row.p, row.p_adjusted, row.p_equal) == (1.0, 1.0, None)
            assert (row.low, row.high90, row.low_seeds, row.low_samples) == (None,) * 4


def test_a_band_below_zero_is_refused() -> None:
    for call in (
        lambda: single(difference(1.0), -0.1),
        lambda: dunnett_family([difference(1.0)], 0.5, -1.0),
        lambda: holm_family([difference(1.0)], math.nan),
    ):
        with pytest.raises(ValueError, match="it is at least 0"):
            call()


def test_equality_is_claimed_wrongly_in_five_percent_at_the_edge_of_the_band() -> None:
    """4 arms whose true differences are the band itself, 3 seeds; then with mixed signs.

    A claim is an interval of 90 % inside the band, which the test above ties to p_equal.
    """
    rng = np.random.default_rng(21)
    studies, band = 40_000, 10.0
    critical = dunnett_critical(0.1, 8.0, equal_loadings(4))
    for signs in (np.ones(4), np.array([1, 1, -1, -1])):
        base, arms = rng.normal(size=(studies, 1)), rng.normal(size=(studies, 4))
        s = np.sqrt(rng.chisquare(8, size=(studies, 1)) / 8)
        claims = np.abs(band * signs + arms - base) + critical * s * math.sqrt(2) < band
        # 5.0 % for equal signs; mixed signs have 5.8 %, as their errors are correlated otherwise
        assert claims.any(axis=1).mean() <= 0.061


def test_holm_multiplies_by_the_tests_left_and_never_decreases() -> None:
    # 0.01 × 4, 0.02 × 3, 0.03 × 2, and 0.04 × 1 is raised to the one before it
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"in 0\.\.1; got nan"):
        holm([0.5, math.nan])
