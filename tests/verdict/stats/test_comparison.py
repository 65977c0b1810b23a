from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from clipmill.verdict.stats.comparison import (
    Comparison,
    Difference,
    Family,
    Penalty,
    StudyNoise,
    Verdict,
    chi_nodes,
    decide,
    dunnett_critical,
    dunnett_family,
    dunnett_p,
    holm,
    holm_family,
    noncentrality,
    root_of,
    single,
)
from clipmill.verdict.stats.model import Spread, typical_raise
from tests.support.late import special, stats


def smallest_visible(run_sd: float, **known: object) -> float:
    return StudyNoise(run_sd=run_sd, **known).smallest_visible()


def seeds_needed(effect: float, run_sd: float, arms: int, **known: object) -> int | None:
    return StudyNoise(run_sd=run_sd, seeds=2, arms=arms, df=arms, **known).seeds_for(effect)


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
    assert (row.verdict, row.is_clear, row.headline, row.n) == ("better", True, "seeds", 3)


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


def assert_consistent(row: Comparison) -> None:
    """Interval, p value, TOST and verdict say the same."""
    assert row.low is not None
    assert row.high is not None
    assert row.low90 is not None
    assert row.high90 is not None
    assert row.p_equal is not None
    excluded = row.low > 0 or row.high < 0
    assert excluded == (row.p_adjusted < 0.05)
    assert excluded == (row.verdict in ("better", "worse"))
    inside = -row.band < row.low90 and row.high90 < row.band
    assert inside == (row.p_equal < 0.05)
    assert (inside and not excluded) == (row.verdict == "practically equal")
    assert row.p_adjusted >= row.p - 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Dunnett", "Holm"])
def test_intervals_and_p_values_always_agree(family: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        rows = []
        for arm in range(int(rng.integers(1, 6))):
            row = difference(
                float(rng.normal(0, 2)), float(rng.uniform(0.2, 1.5)), float(rng.choice([2, 7.5]))
            )
            wider = Spread(variance=float(rng.uniform(0.1, 2)), df=30.0)
            rows.append(replace(row, arm=f"arm{arm}", over_samples=(wider,)))
        if family == "Dunnett":
            compared = dunnett_family(rows, 0.5, 1.5)
        else:
            compared = holm_family(rows, 1.5)
        for row in compared:
            assert_consistent(row)
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
        of_samples = replace(rows[0], over_samples=(Spread(variance=1e-4, df=50.0),))
        for row in (
            single(rows[0], 0.5),
            single(of_samples, 0.5),
            dunnett_family(rows, 0.5, 0.5)[0],
            holm_family(rows, 0.5)[0],
        ):
            assert (row.verdict, row.is_clear) == ("not distinguishable", False)
            assert (row.p, row.p_adjusted, row.p_equal) == (1.0, 1.0, None)
            assert (row.low, row.high90, row.low_seeds, row.low_samples) == (None,) * 4


def test_holm_multiplies_by_the_tests_left_and_never_decreases() -> None:
    # 0.01 × 4, 0.02 × 3, 0.03 × 2, and 0.04 × 1 is raised to the one before it
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]


INF = math.inf


def panels(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of `count` panels with 40 Gauss-Legendre nodes each."""
    x, weights = np.polynomial.legendre.leggauss(40)
    edges = np.linspace(low, high, count + 1)
    half = (high - low) / count / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), np.tile(half * weights, count)


def reference_p(t: float, df: float, family: Family) -> float:
    """Gauss-Legendre of high order over the common factor and over s itself, not over log s."""
    z, z_weights = panels(-9, 9, 40)
    z_weights = z_weights * stats.norm.pdf(z)
    s, s_weights = np.ones(1), np.ones(1)
    if not math.isinf(df):
        end = stats.chi.isf(1e-15, df) / math.sqrt(df)
        s, s_weights = panels(0, end, 20)
        s_weights = s_weights * stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)
    loading, own = math.sqrt(family.correlation), math.sqrt(1 - family.correlation)
    above = special.ndtr((t * s[:, None] - loading * z) / own)
    below = special.ndtr((-t * s[:, None] - loading * z) / own)
    return float(1 - s_weights @ (above - below) ** family.arms @ z_weights)


# published two-sided 5 % points for 1, 2, 3, 4, 5 arms beside the control
# (Dunnett 1964, table II)
TWO_SIDED = {
    5: (2.57, 3.03, 3.29, 3.48, 3.62),
    10: (2.23, 2.57, 2.76, 2.89, 2.99),
    20: (2.09, 2.38, 2.54, 2.65, 2.73),
    INF: (1.96, 2.21, 2.35, 2.44, 2.51),
}


@pytest.mark.parametrize("df", [5, 10, 20, INF])
def test_critical_values_are_those_of_the_published_tables(df: float) -> None:
    values = [dunnett_critical(0.05, df, Family(k)) for k in range(1, 6)]
    assert np.abs(np.array(values) - TWO_SIDED[df]).max() <= 0.0051


@pytest.mark.parametrize(
    ("t", "df", "family"),
    [
        (2.5, 4.0, Family(3)),
        (1.0, 2.5, Family(5, 0.3)),
        (3.1, 11.7, Family(3, 0.81)),
        (2.0, INF, Family(100)),
        (2.9, INF, Family(2, 0.9)),
        (2.3, INF, Family(4, 0.99)),
    ],
)
def test_p_is_that_of_adaptive_quadrature_to_1e_9(t: float, df: float, family: Family) -> None:
    expected = reference_p(t, df, family)
    tolerance = 1e-9 if family.correlation < 0.99 else 5e-9
    assert dunnett_p(t, df, family) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("df", [1.0, 1.5, 2.0, 3.7, 10.0, 1000.0, 1e6])
@pytest.mark.parametrize("t", [0.0, 0.4, 2.0, 12.0, 300.0])
def test_one_arm_has_students_t(t: float, df: float) -> None:
    assert dunnett_p(t, df, Family(1)) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-10)


def test_independent_arms_have_the_studentized_maximum_modulus() -> None:
    # without the shared s: (1 - p) to the power of the arms
    expected = 1 - (1 - 2 * stats.norm.sf(2.2)) ** 6
    assert dunnett_p(2.2, INF, Family(6, 0.0)) == pytest.approx(expected, abs=1e-11)
    # table of Stoline and Ury (1979): 3 arms, 10 degrees of freedom
    assert dunnett_critical(0.05, 10, Family(3, 0.0)) == pytest.approx(2.829, abs=6e-4)


def test_infinitely_many_degrees_of_freedom_are_the_limit_of_many() -> None:
    family = Family(4)
    limit = dunnett_p(2.3, INF, family)
    assert dunnett_p(2.3, 1e6, family) == pytest.approx(limit, abs=2e-6)
    assert dunnett_p(2.3, 2e7, family) == limit


@pytest.mark.parametrize(
    ("alpha", "df", "arms", "correlation"),
    [
        (0.05, 1.0, 100, 0.5),
        (0.001, 4.5, 8, 0.5),
        (0.1, INF, 20, 0.0),
        (0.05, 30.0, 2, 0.98),
    ],
)
def test_the_critical_value_is_the_inverse_of_p(
    alpha: float, df: float, arms: int, correlation: float
) -> None:
    family = Family(arms, correlation)
    critical = dunnett_critical(alpha, df, family)
    assert dunnett_p(critical, df, family) == pytest.approx(alpha, rel=1e-8)


@pytest.mark.parametrize("df", [1.0, 1.3, 2.0, 6.0, 80.0, 1e5])
def test_the_nodes_of_s_give_its_moments(df: float) -> None:
    s, weights, mass = chi_nodes(df, 3.0)
    assert weights.sum() + mass == pytest.approx(1.0, abs=1e-13)
    assert weights @ s**2 == pytest.approx(1.0, abs=1e-11)
    assert weights @ s == pytest.approx(stats.chi.mean(df) / math.sqrt(df), abs=1e-9)


@pytest.mark.parametrize("root", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bend", [0.0, 0.1, 4.0])
def test_a_root_is_found_also_at_either_end_and_in_few_steps(
    root: float, sign: int, bend: float
) -> None:
    asked = []

    def function(x: float) -> float:
        asked.append(x)
        return sign * (math.expm1(bend * (x - root)) / bend if bend else x - root)

    assert root_of(function, 0.0, 1.0, 1e-11) == pytest.approx(root, abs=1e-10)
    assert len(asked) <= (9 if bend <= 0.1 else 16)  # halving takes 37
    assert all(0.0 <= x <= 1.0 for x in asked)


def test_a_function_of_one_sign_has_no_root_there() -> None:
    with pytest.raises(ValueError, match="one sign at 0 and 1"):
        root_of(lambda x: x + 1, 0.0, 1.0, 1e-9)


def test_tasks_rounds_and_looks_multiply_p_up_to_1() -> None:
    penalty = Penalty(tasks=2, rounds=3, looks=3)
    assert penalty.factor == 24.0
    alone, together = (single(difference(4.0), 0.5, each) for each in (Penalty(), penalty))
    assert together.p_adjusted == pytest.approx(24 * alone.p_adjusted)
    for level, low, high in (
        (0.025 / 24, together.low, together.high),
        (0.05 / 24, together.low90, together.high90),
    ):
        half = float(stats.t.isf(level, 6))
        assert (low, high) == pytest.approx((4.0 - half, 4.0 + half), rel=1e-9)
    assert single(difference(0.1), 0.5, penalty).p_adjusted == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dunnett_p(2.0, 0.5, Family(2)), "degrees of freedom are at least 1"),
        (lambda: dunnett_p(math.nan, 5, Family(2)), "not a number"),
        (lambda: Family(0), "1 to 1000 comparisons; got 0"),
        (lambda: Family(1001), "1 to 1000 comparisons; got 1001"),
        (lambda: Family(2, 1.0), r"a correlation is in 0..1 \(1 excluded\); got 1.0"),
        (lambda: dunnett_critical(1.0, 5, Family(1)), "alpha is between 0 and 1; got 1.0"),
        (lambda: smallest_visible(0.01, seeds=1, arms=1, df=1.0), "at least 2 seeds; got 1"),
        (lambda: smallest_visible(-0.01, seeds=2, arms=1, df=1.0), "at least 0; got -0.01"),
        (lambda: seeds_needed(0.0, 0.01, arms=1), "above 0; got 0.0"),
        (lambda: noncentrality(2.0, 5.0, 1.0), "a power is between 0 and 1"),
        (lambda: holm([0.5, math.nan]), r"in 0\.\.1; got nan"),
        (lambda: single(difference(1.0), -0.1), "it is at least 0"),
        (lambda: dunnett_family([difference(1.0)], 0.5, -1.0), "it is at least 0"),
        (lambda: holm_family([difference(1.0)], math.nan), "it is at least 0"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    assert dunnett_p(-INF, 4, Family(2)) == 0.0


@pytest.mark.parametrize("df", [1.0, 2.0, 2.6, 8.0, 60.0])
def test_the_noncentrality_has_the_wanted_power(df: float) -> None:
    critical = float(stats.t.isf(0.025, df))
    mean = noncentrality(critical, df, 0.8)
    # an independent route: over s itself, not over log s
    s, weights = panels(0, stats.chi.isf(1e-15, df) / math.sqrt(df), 40)
    weights = weights * stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)
    power = stats.norm.sf(critical * s - mean) + stats.norm.cdf(-critical * s - mean)
    assert weights @ power == pytest.approx(0.8, abs=1e-9)


def test_without_estimated_variance_it_is_the_sum_of_two_quantiles() -> None:
    critical = float(stats.norm.isf(0.025))
    expected = critical + float(stats.norm.isf(0.2))
    assert noncentrality(critical, math.inf, 0.8) == pytest.approx(expected, abs=1e-4)
    assert noncentrality(critical, math.inf, 0.01) == 0.0  # less than alpha: no effect needed


def test_the_smallest_visible_difference_is_the_critical_value_and_the_power_together() -> None:
    critical = dunnett_critical(0.05, 2.0, Family(1))
    expected = noncentrality(critical, 2.0, 0.8) * math.sqrt(2 / 3) * 0.01
    assert smallest_visible(0.01, seeds=3, arms=1, df=2.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("paired", "own_df"), [(True, 6.0), (False, 9.0)])
def test_degrees_of_freedom_beyond_those_of_the_arms_are_of_other_runs(
    paired: bool, own_df: float
) -> None:
    for df, others in ((own_df, False), (own_df + 3, True)):
        raised = typical_raise(2, 4, others=others, paired=paired)
        critical = dunnett_critical(0.05, df, Family(2))
        expected = noncentrality(critical, df) * math.sqrt(2 / 4) * raised
        found = smallest_visible(1.0, seeds=4, arms=2, df=df, paired=paired)
        assert found == pytest.approx(expected, rel=1e-9), others


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


def test_the_seeds_needed_do_not_depend_on_the_seeds_that_were_run() -> None:
    """The degrees of freedom of one more seed are those of each seed that there is."""
    noises = [StudyNoise(run_sd=0.01, seeds=s, arms=1, df=s - 1.0) for s in (2, 3, 6)]
    [seeds] = {noise.seeds_for(0.012) for noise in noises}
    assert seeds is not None
    figures = [smallest_visible(0.01, seeds=s, arms=1, df=s - 1.0) for s in (seeds - 1, seeds)]
    assert figures[1] <= 0.012 < figures[0]


def test_no_number_of_seeds_suffices_where_the_samples_hide_the_effect() -> None:
    # 1.96 + 0.84 standard errors of 0.01
    assert seeds_needed(0.027, 0.001, arms=1, drawing=(1e-4, math.inf)) is None
    assert seeds_needed(0.03, 0.001, arms=1, drawing=(1e-4, math.inf)) is not None
    assert seeds_needed(0.1, 0.0, arms=3) == 2


def test_the_floor_has_no_degrees_of_freedom_to_lose() -> None:
    from_runs = smallest_visible(0.01, seeds=3, arms=2, df=4)
    from_samples = smallest_visible(0.0, seeds=3, arms=2, df=4, floor_sd=0.01)
    assert 0 < from_samples < from_runs
    assert smallest_visible(0.01, seeds=3, arms=2, df=4, floor_sd=0.001) == from_runs
    assert smallest_visible(0.001, seeds=3, arms=2, df=4, floor_sd=0.01) == from_samples


def test_the_seeds_for_half_have_the_noise_of_the_smallest_difference() -> None:
    """Runs that ended without a result leave fewer degrees of freedom than arms × (seeds − 1)."""
    for df, drawing in ((1.0, (1e-6, 1.0)), (2.0, (0.0, math.inf)), (14.0, (1e-5, 50.0))):
        power = StudyNoise(run_sd=0.003, seeds=3, arms=1, df=df, drawing=drawing).power()
        assert power.half == power.smallest / 2
        assert power.seeds_for_half is None or power.seeds_for_half > 3


def test_half_of_what_is_impossible_is_half_of_what_is_possible() -> None:
    power = StudyNoise(run_sd=0.3, seeds=2, arms=1, df=1.0).power(possible=0.8)
    assert power.smallest > 0.8
    assert power.half == 0.4
    assert power.seeds_for_half is not None
