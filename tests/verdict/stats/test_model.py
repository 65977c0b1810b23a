from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clipmill.verdict.stats.comparison import Family, dunnett_critical, noncentrality
from clipmill.verdict.stats.model import (
    Spread,
    fit_additive,
    moderated_spreads,
    own_spread,
    pair_layout,
    paired_variance,
    sample_noise,
    satterthwaite,
    typical_raise,
)

COMPLETE = {
    "base": {0: 0.30, 1: 0.34, 2: 0.31},
    "a": {0: 0.36, 1: 0.37, 2: 0.35},
    "b": {0: 0.29, 1: 0.36, 2: 0.30},
}


def test_a_complete_table_has_differences_of_means_and_the_textbook_variance() -> None:
    table = np.array([list(row.values()) for row in COMPLETE.values()])
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    fit = fit_additive(COMPLETE)
    assert fit.df == 4
    assert fit.variance == pytest.approx((residuals**2).sum() / 4, rel=1e-9)
    assert fit.estimate("a", "base") == pytest.approx(table[1].mean() - table[0].mean(), abs=1e-12)
    assert fit.factor("a", "base") == pytest.approx(2 / 3, abs=1e-12)


def test_with_two_arms_the_variance_is_half_that_of_the_differences() -> None:
    table = {arm: COMPLETE[arm] for arm in ("base", "a")}
    assert fit_additive(table).variance == pytest.approx(
        paired_variance(table, "a", "base") / 2, rel=1e-9
    )


def test_a_table_with_holes_agrees_with_another_route() -> None:
    # Frisch-Waugh: sweep the seeds out of the values and of the arms' columns, then regress
    rng = np.random.default_rng(7)
    cells = [(a, s) for a in range(5) for s in range(4) if (a, s) not in {(1, 0), (3, 2), (4, 3)}]
    y = rng.normal(size=len(cells))
    values: dict[str, dict[int, float]] = {}
    for (arm, seed), value in zip(cells, y, strict=True):
        values.setdefault(f"arm{arm}", {})[seed] = value
    arms = np.array([[float(a == arm) for arm in range(1, 5)] for a, _ in cells])
    swept = np.column_stack([arms, y])
    for seed in range(4):
        rows = [i for i, (_, s) in enumerate(cells) if s == seed]
        swept[rows] -= swept[rows].mean(axis=0)
    x, target = swept[:, :4], swept[:, 4]
    effects, squares, rank, _ = np.linalg.lstsq(x, target, rcond=None)
    covariance = np.linalg.inv(x.T @ x)
    fit = fit_additive(values)
    assert rank == 4
    assert fit.df == len(cells) - 4 - 4
    assert fit.variance == pytest.approx(squares[0] / fit.df, rel=1e-9)
    for arm in range(1, 5):
        name = f"arm{arm}"
        assert fit.estimate(name, "arm0") == pytest.approx(effects[arm - 1], abs=1e-10)
        assert fit.factor(name, "arm0") == pytest.approx(covariance[arm - 1, arm - 1], rel=1e-9)
    sizes = np.sqrt(np.diag(covariance))
    least = (covariance / sizes / sizes[:, None]).min()
    pairs = [(f"arm{arm}", "arm0") for arm in range(1, 5)]
    assert fit.least_correlation(pairs) == pytest.approx(least, rel=1e-9)


def test_the_least_correlation_is_that_of_the_pair_that_shares_the_fewest_runs() -> None:
    values = {
        "base": {0: 0.3, 1: 0.4, 2: 0.5, 3: 0.1},
        "a": {0: 0.1, 1: 0.2, 2: 0.4, 3: 0.3},
        "b": {0: 0.5, 1: 0.2},
        "c": {2: 0.1, 3: 0.6},
    }
    fit = fit_additive(values)
    pairs = [(arm, "base") for arm in ("a", "b", "c")]
    of_pairs = [fit.least_correlation([one, other]) for one, other in combinations(pairs, 2)]
    assert max(of_pairs) > min(of_pairs)
    assert fit.least_correlation(pairs) == pytest.approx(min(of_pairs), rel=1e-9)
    assert fit_additive(COMPLETE).least_correlation([("a", "base"), ("b", "base")]) == (
        pytest.approx(0.5, abs=1e-12)
    )
    assert fit.least_correlation(pairs[:1]) == fit.least_correlation([]) == 0.5


def test_a_baseline_of_few_runs_has_no_correlation_above_a_half() -> None:
    values = {"base": {0: 0.3, 1: 0.4}, **{arm: dict.fromkeys(range(9), 0.1) for arm in "abc"}}
    pairs = [(arm, "base") for arm in "abc"]
    assert fit_additive(values, dict.fromkeys(range(9), 0)).least_correlation(pairs) == 0.5


def test_arms_without_common_seeds_do_not_cost_degrees_of_freedom_twice() -> None:
    values = {"a": {0: 0.1, 1: 0.2}, "b": {0: 0.3, 1: 0.5}, "c": {7: 0.1, 8: 0.4}}
    # a, b: one; c has its seeds for itself, so that it leaves no residual
    assert fit_additive(values).df == 1


def test_many_seeds_cost_no_more_than_their_runs() -> None:
    random = np.random.default_rng(3)
    seeds = random.normal(size=20_000)  # the full equations would need a matrix of 3.2 GB
    values = {
        arm: {seed: effect + float(seeds[seed]) for seed in range(offset, 20_000, 2)}
        for arm, effect, offset in (("base", 0.0, 0), ("a", 0.25, 0), ("b", 0.5, 1), ("c", 0.1, 1))
    }
    fit = fit_additive(values)
    assert fit.df == 40_000 - 20_000 - 2  # two pairs of arms that share no seed
    assert fit.estimate("a", "base") == pytest.approx(0.25, abs=1e-9)
    assert fit.factor("c", "b") == pytest.approx(2 / 10_000, rel=1e-9)


def test_rounding_errors_are_no_residuals() -> None:
    values = {"a": {0: 0.1, 1: 0.2, 2: 0.3}, "b": {0: 0.1 + 0.2, 1: 0.4, 2: 0.5}}
    assert fit_additive(values).variance == 0.0
    assert paired_variance(values, "b", "a") == 0.0


def test_values_that_cannot_be_fitted_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no run"):
        fit_additive({"a": {}})
    with pytest.raises(ValueError, match="a seed 4 is nan; it must be finite"):
        fit_additive({"a": {4: float("nan")}})
    with pytest.raises(ValueError, match="1 seeds in common; 2 are needed"):
        paired_variance({"a": {0: 0.1}, "b": {0: 0.2, 1: 0.3}}, "a", "b")


def test_a_variance_below_the_prior_is_raised_to_it_and_one_above_goes_half_way() -> None:
    # the mean of the own variances is 2: below the pooled 2.5, which therefore stays
    rows = moderated_spreads(2.5, 20.0, [0.5, 2.0, 3.5], [2] * 3)
    assert [row.variance for row in rows] == pytest.approx([2.5, 2.5, 3.0])


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


def test_few_runs_tell_all_but_half_of_the_shared_variance() -> None:
    many, few = moderated_spreads(2.5, 20.0, [0.5, 0.5], [9, 1], [10, 2], 10)
    assert many == Spread(2.5, 20.0)
    assert few.variance == 2.5
    assert few.df == pytest.approx(4 / (1 / 20 + 1 / 1))
    # the baseline's few seeds are in the mean and in the pair's own variance: one part
    raised = moderated_spreads(2.0, 20.0, [6.0, 6.0], [2, 2], [3, 3], 10)[0]
    assert raised.variance == 5.0
    assert raised.df == pytest.approx(5.0**2 / (0.5**2 / 20 + 4.5**2 / 2))


def test_a_wide_arm_of_few_runs_changes_others_through_the_shared_variance_alone() -> None:
    def others(variance: float) -> list[Spread]:
        own, runs = [variance, 3.0, 2.4], [2, 10, 10]
        return moderated_spreads(2.0, 30.0, own, [1, 9, 9], runs, 10)[1:]

    assert others(900.0) == others(0.1)


def table_of(runs: dict[str, int], rng: np.random.Generator) -> dict[str, dict[int, float]]:
    return {arm: dict(enumerate(rng.normal(size=count).tolist())) for arm, count in runs.items()}


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize("counts", [(3, 6, 6, 4), (5, 5, 5), (2, 9), (4, 2, 7, 7, 7)])
def test_the_variance_of_an_arm_is_that_of_its_residuals_without_bias(
    counts: tuple[int, ...], is_paired: bool
) -> None:
    """Against the matrix of the residuals R: an arm's squares have the mean Σ |R_ab|² variance_b,
    of which the other arms' part is taken at the shared variance.
    """
    runs = {f"a{number}": count for number, count in enumerate(counts)}
    values = table_of(runs, np.random.default_rng(4))
    fit = fit_additive(values, None if is_paired else dict.fromkeys(range(9), 0))
    of_arm = np.repeat(np.arange(len(counts)), counts)
    of_group = np.concatenate([np.arange(n) if is_paired else np.zeros(n, int) for n in counts])
    x = np.hstack([np.eye(len(counts))[of_arm], np.eye(9)[of_group]])
    rest = np.eye(len(x)) - x @ np.linalg.pinv(x)
    residuals = rest @ np.concatenate([list(row.values()) for row in values.values()])
    assert fit.variance is not None
    for arm, found in enumerate(fit.run_variances()):
        kept = float((rest[np.ix_(of_arm == arm, of_arm == arm)] ** 2).sum())
        leaked = float((rest[np.ix_(of_arm == arm, of_arm != arm)] ** 2).sum())
        square = float((residuals[of_arm == arm] ** 2).sum())
        assert found == pytest.approx(max(0.0, (square - leaked * fit.variance) / kept), abs=1e-9)
        if not is_paired:
            sample = np.var(list(values[f"a{arm}"].values()), ddof=1)
            assert found == pytest.approx(sample, rel=1e-9)


@given(
    baseline=st.integers(1, 4),
    arms=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_own_variance_is_that_of_the_estimate(
    baseline: int, arms: list[int], seed: int
) -> None:
    """The estimate is linear in the runs: its coefficients are its changes by one run each."""
    rng = np.random.default_rng(seed)
    runs = {"base": baseline, **{f"a{n}": count for n, count in enumerate(arms)}}
    values = table_of(runs, rng)
    fit = fit_additive(values)
    before = fit.estimate("a0", "base")
    of_runs, of_estimate = rng.chisquare(2, len(runs)), 0.0
    for (arm, of_arm), variance in zip(values.items(), of_runs, strict=True):
        for one in of_arm:
            changed = {name: dict(row) for name, row in values.items()}
            changed[arm][one] += 1.0
            weight = fit_additive(changed).estimate("a0", "base") - before
            of_estimate += weight**2 * float(variance)
    factor = fit.factor("a0", "base")
    assert fit.own_variance("a0", "base", of_runs) * factor / 2 == pytest.approx(of_estimate)
    equal = np.full(len(runs), 0.7)
    assert fit.own_variance("a0", "base", equal) == pytest.approx(2 * 0.7)


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
    table = np.log([dunnett_critical(0.05, one, Family(arms)) for one in grid])
    for number, pooled in enumerate(2 * (residuals**2).sum((1, 2)) / df):
        spreads = moderated_spreads(pooled, df, own[number].tolist(), [seeds - 1] * arms)
        for spread, difference in zip(spreads, differences[number].mean(1), strict=True):
            critical = math.exp(np.interp(math.log(spread.df), np.log(grid), table))
            needed.append(critical * math.sqrt(spread.variance / seeds) - difference)
    pooled_alone = noncentrality(math.exp(table[-1]), df) * math.sqrt(2 / seeds)
    ratio = float(np.quantile(needed, 0.8)) / pooled_alone
    assert ratio == pytest.approx(typical_raise(arms, seeds, others=False), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "runs_each"), [(1, 3), (4, 3), (4, 5), (8, 2)])
def test_the_typical_raise_of_unpaired_runs_is_that_of_a_simulation(
    arms: int, runs_each: int
) -> None:
    rng = np.random.default_rng(5)
    groups = dict.fromkeys(range(runs_each), 0)
    names = [f"a{number}" for number in range(arms + 1)]
    df = float((arms + 1) * (runs_each - 1))
    grid = np.geomspace(1.0, df, 40)
    table = np.log([dunnett_critical(0.05, one, Family(arms)) for one in grid])
    needed = []  # effects that each arm of each table would have been seen at
    for errors in rng.standard_normal((1000, arms + 1, runs_each)):
        values = {name: dict(enumerate(errors[i].tolist())) for i, name in enumerate(names)}
        pooled = 2 * float(errors.var(1, ddof=1).mean())
        own = [own_spread(values, name, "a0", groups) for name in names[1:]]
        spreads = moderated_spreads(
            pooled, df, [one.variance for one in own], [one.df for one in own]
        )
        differences = errors[1:].mean(1) - errors[0].mean()
        for spread, difference in zip(spreads, differences, strict=True):
            critical = math.exp(np.interp(math.log(spread.df), np.log(grid), table))
            needed.append(critical * math.sqrt(spread.variance / runs_each) - difference)
    pooled_alone = noncentrality(math.exp(table[-1]), df) * math.sqrt(2 / runs_each)
    ratio = float(np.quantile(needed, 0.8)) / pooled_alone
    expected = typical_raise(arms, runs_each, others=False, paired=False)
    assert ratio == pytest.approx(expected, rel=0.07)


def test_the_typical_raise_is_none_for_one_arm_and_falls_with_the_seeds() -> None:
    assert typical_raise(1, 3, others=False) == 1.0
    raises = [typical_raise(5, seeds, others=True) for seeds in (2, 3, 6, 12, 100)]
    assert raises == sorted(raises, reverse=True)
    assert raises[-1] > 1


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_the_typical_raise_grows_with_the_arms_and_falls_with_the_seeds(
    others: bool, paired: bool
) -> None:
    arms, seeds = (1, 2, 3, 4, 6, 8, 16, 32, 50, 64, 100), (2, 3, 4, 5, 8, 12, 100)
    table = np.array(
        [[typical_raise(a, s, others=others, paired=paired) for s in seeds] for a in arms]
    )
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()
    assert (np.diff(table[:-1], axis=0) < 0.5).all()
    assert (table[-2:] == table[-1]).all()  # beyond the simulated ones nothing is guessed
    assert (table[:, -2:] == table[:, -1:]).all()


def test_the_typical_raise_is_the_simulated_one_where_one_was_simulated() -> None:
    of_arms = [typical_raise(arms, 3, others=False) for arms in (1, 2, 4, 8, 16, 32, 64)]
    assert of_arms == pytest.approx([1.0, 1.07, 1.20, 1.32, 1.41, 1.48, 1.55], abs=1e-9)
    of_seeds = [typical_raise(4, seeds, others=False, paired=False) for seeds in (2, 3, 4, 5, 8)]
    assert of_seeds == pytest.approx([1.24, 1.09, 1.06, 1.05, 1.03], abs=1e-9)
    between = typical_raise(4, 6, others=True)  # by the logarithm of seeds − 1
    share = math.log(5 / 4) / math.log(7 / 4)
    assert between == pytest.approx(1.14 + share * (1.09 - 1.14), abs=1e-9)


def crossed_table(differences: np.ndarray) -> tuple[float, float]:
    """Mean squares of samples and residual of a seeds × samples table, by the textbook."""
    seeds, n = differences.shape
    of_samples = differences.mean(0) - differences.mean()
    residual = differences - differences.mean(0) - differences.mean(1, keepdims=True)
    residual = residual + differences.mean()
    between = seeds * (of_samples**2).sum() / (n - 1)
    return between, (residual**2).sum() / ((seeds - 1) * (n - 1))


def runs(table: np.ndarray) -> dict[int, list[np.ndarray]]:
    return {seed: [row] for seed, row in enumerate(table)}


def test_mean_squares_are_those_of_the_crossed_table() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(size=300)
    arm = rng.normal(size=(4, 300)) + hard + rng.normal(size=(4, 1)) < 0.9
    baseline = rng.normal(size=(4, 300)) + 0.6 * hard < 0.4
    between, residual = crossed_table(arm.astype(float) - baseline.astype(float))
    noise = sample_noise(runs(arm), runs(baseline))
    assert noise.floor == pytest.approx(residual / 300, rel=1e-9)
    assert noise.drawing == pytest.approx((between - residual) / (4 * 300), rel=1e-9)
    df = (between - residual) ** 2 / (between**2 / 299 + residual**2 / (3 * 299))
    assert noise.drawing**2 / noise.drawing_error == pytest.approx(df, rel=1e-9)


def test_equal_differences_in_every_seed_leave_no_floor() -> None:
    right = np.array([True, False, True, True])
    wrong = np.array([False, False, True, True])
    noise = sample_noise(runs(np.array([right] * 3)), runs(np.array([wrong] * 3)))
    assert noise.floor == 0.0
    # the difference is that of 4 samples: variance of (1, 0, 0, 0) over 4
    assert noise.drawing == pytest.approx(0.25 / 4, rel=1e-9)


def test_several_groups_have_the_mean_of_their_standard_errors() -> None:
    rng = np.random.default_rng(9)
    images = rng.normal(size=(2, 3, 40)) + rng.normal(size=(2, 1, 40))
    texts = rng.normal(size=(2, 3, 200)) + rng.normal(size=(2, 1, 200))
    both = sample_noise(
        {seed: [images[0, seed], texts[0, seed]] for seed in range(3)},
        {seed: [images[1, seed], texts[1, seed]] for seed in range(3)},
    )
    one = sample_noise(runs(images[0]), runs(images[1]))
    other = sample_noise(runs(texts[0]), runs(texts[1]))
    assert both.floor**0.5 == pytest.approx((one.floor**0.5 + other.floor**0.5) / 2, rel=1e-9)
    assert both.drawing**0.5 == pytest.approx((one.drawing**0.5 + other.drawing**0.5) / 2, rel=1e-9)
    df = both.drawing**2 / both.drawing_error
    assert df == pytest.approx(min(n.drawing**2 / n.drawing_error for n in (one, other)))


def test_a_group_in_which_hardly_anything_is_drawn_takes_no_degrees_of_freedom() -> None:
    """One direction of retrieval may be equally hard for both arms: its share is near 0."""
    rng = np.random.default_rng(9)
    wide = rng.normal(size=(2, 3, 2000)) + rng.normal(size=(2, 1, 2000))
    first = rng.normal(size=(3, 2000))
    second = first + 1e-3 * rng.normal(size=(3, 2000)) + 2e-4 * rng.normal(size=2000)
    both = sample_noise(
        {seed: [wide[0, seed], first[seed]] for seed in range(3)},
        {seed: [wide[1, seed], second[seed]] for seed in range(3)},
    )
    still = sample_noise(runs(first), runs(second))
    assert 0 < still.drawing**2 / still.drawing_error < 100
    assert both.drawing**2 / both.drawing_error > 150


def test_tables_that_do_not_match_are_refused() -> None:
    five, four, one = [np.ones(5)], [np.ones(4)], [np.ones(1)]
    with pytest.raises(ValueError, match="at least 2 common seeds; got 1"):
        sample_noise({0: five}, {0: five, 1: five})
    with pytest.raises(ValueError, match="same samples"):
        sample_noise({0: five, 1: four}, {0: five, 1: five})
    with pytest.raises(ValueError, match="at least 2 values"):
        sample_noise({0: one, 1: one}, {0: one, 1: one})
    square = [np.ones((2, 2))]
    with pytest.raises(ValueError, match=r"at least 2 values; its shape is \(2, 2\)"):
        sample_noise({0: square, 1: square}, {0: square, 1: square})
    two, other = [np.array([1.0, 0.0])], [np.zeros(2)]
    assert sample_noise({0: two, 1: two}, {0: other, 1: other}).drawing == 0.25


# Runs that are not paired: a single group, and blocks.

UNEQUAL = {
    "base": {0: 0.30, 1: 0.34, 2: 0.31, 3: 0.39, 4: 0.28},
    "a": {0: 0.36, 1: 0.37},
    "b": {0: 0.29, 1: 0.36, 2: 0.30},
}
ALL = dict.fromkeys(range(20), 0)  # every run in group 0


def test_a_single_group_is_the_one_way_layout() -> None:
    arms = {arm: np.array(list(row.values())) for arm, row in UNEQUAL.items()}
    within = sum(float(((x - x.mean()) ** 2).sum()) for x in arms.values())
    fit = fit_additive(UNEQUAL, ALL)
    assert fit.df == 10 - 3
    assert fit.variance == pytest.approx(within / 7, rel=1e-9)
    assert fit.estimate("a", "base") == pytest.approx(arms["a"].mean() - arms["base"].mean())
    assert fit.factor("a", "base") == pytest.approx(1 / 2 + 1 / 5)
    # what two differences share is the mean of the five runs of the baseline
    expected = (1 / 5) / math.sqrt((1 / 2 + 1 / 5) * (1 / 3 + 1 / 5))
    assert fit.least_correlation([("a", "base"), ("b", "base")]) == pytest.approx(expected)


def test_a_group_for_each_seed_is_the_paired_layout() -> None:
    fit, paired = fit_additive(COMPLETE, {0: 0, 1: 1, 2: 2}), fit_additive(COMPLETE)
    assert (fit.variance, fit.df) == (paired.variance, paired.df)
    # other numbers for the runs of one arm, in the groups of the seeds
    renamed = {**COMPLETE, "a": {run + 10: value for run, value in COMPLETE["a"].items()}}
    groups = {run: run % 10 for run in (0, 1, 2, 10, 11, 12)}
    assert fit_additive(renamed, groups).variance == paired.variance
    assert own_spread(renamed, "a", "base", groups) == own_spread(COMPLETE, "a", "base")
    assert own_spread(COMPLETE, "a", "base") == Spread(
        variance=paired_variance(COMPLETE, "a", "base"), df=2
    )
    assert pair_layout((0, 1), (0, 1)).seeds == (0, 1)
    assert pair_layout((10, 11), (0, 1), groups).seeds == ()


def test_the_own_spread_of_a_single_group_is_welchs() -> None:
    first, second = (list(UNEQUAL[arm].values()) for arm in ("b", "base"))
    welch = stats.ttest_ind(first, second, equal_var=False)
    own = own_spread(UNEQUAL, "b", "base", ALL)
    half = math.sqrt(own.variance / 2 * (1 / 3 + 1 / 5))
    assert own.df == pytest.approx(float(welch.df), rel=1e-9)
    difference = np.mean(first) - np.mean(second)
    assert difference / half == pytest.approx(float(welch.statistic), rel=1e-9)


def test_equal_blocks_with_replicates_have_the_residual_of_the_two_arms() -> None:
    rng = np.random.default_rng(4)
    groups = {run: run // 3 for run in range(9)}
    values = {arm: dict(enumerate(rng.normal(size=9).tolist())) for arm in ("a", "base")}
    fit = fit_additive(values, groups)
    assert fit.df == 18 - 3 - 1
    assert fit.variance is not None
    own = own_spread(values, "a", "base", groups)
    assert own.variance == pytest.approx(2 * fit.variance, rel=1e-9)
    assert 6 < own.df <= 14
    # an effect of the blocks changes nothing, one of an arm in one block does
    moved = {
        arm: {run: v + 5 * groups[run] for run, v in row.items()} for arm, row in values.items()
    }
    assert own_spread(moved, "a", "base", groups).variance == pytest.approx(own.variance)
    moved["a"] = {run: v + 5 * (groups[run] == 0) for run, v in moved["a"].items()}
    assert own_spread(moved, "a", "base", groups).variance > 2 * own.variance


def test_the_weights_of_unequal_blocks_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(4)
    groups = {run: min(run // 2, 2) for run in range(9)}  # blocks of 2, 2 and 5 runs
    values = {"a": dict(enumerate(rng.normal(size=9).tolist()))}
    values["base"] = {run: float(rng.normal()) for run in (1, 2, 3, 4, 5, 6)}
    fit = fit_additive(values, groups)
    layout = pair_layout(values["a"], values["base"], groups)
    assert fit.factor("a", "base") == pytest.approx(2 / layout.weights.sum(), rel=1e-9)
    differences = []
    for group in layout.groups:
        first, second = (
            np.mean([values[arm][run] for run in of[group]])
            for arm, of in zip(("a", "base"), layout.runs, strict=True)
        )
        differences.append(first - second)
    assert fit.estimate("a", "base") == pytest.approx(
        np.average(differences, weights=layout.weights), rel=1e-9
    )
    assert layout.df == fit.df
    assert layout.seeds == ()


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**40])
@pytest.mark.parametrize("groups", [None, ALL, {run: run // 2 for run in range(20)}])
def test_the_unit_of_a_metric_changes_no_verdict(
    unit: float, groups: dict[int, int] | None
) -> None:
    table = np.random.default_rng(6).normal(size=(2, 4, 30))
    values = {a: dict(enumerate(x.mean(1).tolist())) for a, x in zip("ab", table, strict=True)}
    scaled = {arm: {run: v * unit for run, v in row.items()} for arm, row in values.items()}
    own, of_scaled = (own_spread(each, "a", "b", groups) for each in (values, scaled))
    assert of_scaled.df == pytest.approx(own.df)
    assert of_scaled.variance / unit**2 == pytest.approx(own.variance)
    fit, fit_of_scaled = fit_additive(values, groups), fit_additive(scaled, groups)
    assert (fit_of_scaled.variance or 0.0) / unit**2 == pytest.approx(fit.variance)
    noise = sample_noise(runs(table[0]), runs(table[1]), groups)
    noise_of_scaled = sample_noise(runs(table[0] * unit), runs(table[1] * unit), groups)
    assert noise_of_scaled.floor / unit**2 == pytest.approx(noise.floor)
    assert noise_of_scaled.drawing / unit**2 == pytest.approx(noise.drawing)
    assert noise_of_scaled.drawing_error / unit**4 == pytest.approx(noise.drawing_error)


def test_an_arm_with_one_run_varies_as_the_other_one() -> None:
    values = {"a": {0: 0.5}, "base": {0: 0.3, 1: 0.4, 2: 0.5}}
    assert own_spread(values, "a", "base", ALL) == Spread(variance=pytest.approx(0.02), df=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a and base in common groups leave no residual"):
        own_spread(values, "a", "base")


def test_a_run_without_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="run 2 is in no group"):
        fit_additive(COMPLETE, {0: 0, 1: 0})


def test_the_samples_of_a_single_group_have_mean_squares_inside_of_the_arms() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(size=300)
    arm, baseline = rng.normal(size=(2, 300)) + hard < 0.9, rng.normal(size=(5, 300)) < 0.4 + hard
    squares = []
    for table in (arm.astype(float), baseline.astype(float)):
        squares.append(crossed_table(table)[1])
    # Welch's weights: the error of a mean of 2 and of 5 runs, over that of a single-run difference
    residual = (squares[0] / 2 + squares[1] / 5) / ((1 / 2 + 1 / 5) / 2)
    noise = sample_noise(runs(arm), runs(baseline), ALL)
    assert noise.floor == pytest.approx(residual / 300, rel=1e-9)
    between = (arm.mean(0) - baseline.mean(0)).var(ddof=1)
    expected = between - squares[0] / 2 - squares[1] / 5
    assert noise.drawing == pytest.approx(expected / 300, rel=1e-9)
    turned = sample_noise(runs(arm[::-1]), runs(baseline[[3, 1, 0, 4, 2]]), ALL)
    assert turned.drawing == pytest.approx(noise.drawing, rel=1e-12)
    assert turned.floor == pytest.approx(noise.floor, rel=1e-12)


@pytest.mark.parametrize("groups", [None, ALL])
def test_rounding_errors_of_samples_are_no_noise(groups: dict[int, int] | None) -> None:
    table = np.random.default_rng(3).normal(size=(2, 1, 200))
    levels = np.array([0.1, 0.7, 1 / 3])[:, None]  # of whole runs: they are no noise of samples
    noise = sample_noise(runs(table[0] + levels), runs(table[1] - levels**2), groups)
    assert noise.floor == 0.0
    assert noise.drawing == pytest.approx((table[0] - table[1]).var(ddof=1) / 200, rel=1e-9)


def test_samples_of_blocks_lose_what_a_block_does_to_them() -> None:
    rng = np.random.default_rng(2)
    table = rng.normal(size=(2, 6, 200))
    groups = {run: run // 3 for run in range(6)}
    taste = rng.normal(size=(2, 1, 200)).repeat(3, axis=1).reshape(6, 200)
    before = sample_noise(runs(table[0]), runs(table[1]), groups)
    after = sample_noise(runs(table[0] + taste), runs(table[1] + taste), groups)
    assert after.floor == pytest.approx(before.floor, rel=1e-9)
    assert after.drawing == pytest.approx(before.drawing, rel=1e-9)
    # errors of variance 1 in both arms
    assert before.floor * 200 == pytest.approx(2, rel=0.15)
    seeds = sample_noise(runs(table[0]), runs(table[1]), {run: run for run in range(6)})
    assert seeds == sample_noise(runs(table[0]), runs(table[1]))
    with pytest.raises(ValueError, match="at least 2 common groups; got 1"):
        sample_noise(runs(table[0][:1]), runs(table[1][:1]), groups)
