from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from train.stats.comparison import dunnett_critical, equal_loadings, noncentrality
from train.stats.model import (
    LedgerEntry,
    Spread,
    combine_with_prior,
    fit_prior,
    moderated_spreads,
    moderated_variances,
    satterthwaite,
    trigamma_inverse,
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


def test_a_prior_counts_as_its_degrees_of_freedom() -> None:
    prior = LedgerEntry(variance=4.0, df=6.0)
    assert combine_with_prior(1.0, 2, prior) == ((6 * 4 + 2 * 1) / 8, 8.0)
    assert combine_with_prior(1.0, 2, None) == (1.0, 2)
    assert combine_with_prior(None, 0, prior) == (4.0, 6.0)
    assert combine_with_prior(None, 0, None) == (None, 0)


@pytest.mark.parametrize("x", [1e-5, 0.01, 0.5, 1.0, 4.0, 50.0, 1e4])
def test_trigamma_is_inverted(x: float) -> None:
    assert trigamma_inverse(float(special.polygamma(1, x))) == pytest.approx(x, rel=1e-6)


def test_an_empty_ledger_is_no_prior_and_zero_variances_do_not_count() -> None:
    assert fit_prior([]) is None
    assert fit_prior([LedgerEntry(variance=0.0, df=4)]) is None


def test_one_entry_is_a_prior_of_a_guessed_weight() -> None:
    prior = fit_prior([LedgerEntry(variance=3.0, df=20.0)])
    assert prior is not None
    assert prior.df == pytest.approx(8.0, rel=1e-9)
    # between the entry itself and its correction for the skewness of log variance
    assert 2.7 < prior.variance < 3.0
    few = fit_prior([LedgerEntry(variance=3.0, df=4.0)])
    assert few is not None
    assert few.df == 4.0
    assert few.variance == pytest.approx(3.0, rel=1e-9)


@pytest.mark.slow
def test_many_entries_give_back_the_scatter_that_they_were_drawn_with() -> None:
    rng = np.random.default_rng(11)
    d0, variance = 6.0, 2.0
    true = variance * d0 / rng.chisquare(d0, 4000)
    entries = [LedgerEntry(variance=v * rng.chisquare(8) / 8, df=8.0) for v in true]
    prior = fit_prior(entries)
    assert prior is not None
    assert prior.df == pytest.approx(d0, rel=0.12)
    assert prior.variance == pytest.approx(variance, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("entries", [1, 2, 4, 10])
@pytest.mark.parametrize("scatter_df", [6.0, 1e5])
def test_intervals_with_a_ledger_hold_what_they_promise(entries: int, scatter_df: float) -> None:
    """Ablations whose true variances scatter; 3 arms and 3 seeds, one comparison looked at."""
    rng = np.random.default_rng(entries)
    df, studies, hits = 6.0, 3000, 0
    for _ in range(studies):
        true = scatter_df / rng.chisquare(scatter_df, entries + 1)
        measured = true * rng.chisquare(df, entries + 1) / df
        prior = fit_prior([LedgerEntry(variance=float(v), df=df) for v in measured[1:]])
        variance, total = combine_with_prior(float(measured[0]), df, prior)
        assert variance is not None
        t = rng.normal() * math.sqrt(true[0] / variance)
        hits += abs(t) <= dunnett_critical(0.05, round(total, 1), equal_loadings(1))
    assert 0.935 <= hits / studies <= 0.97


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (LedgerEntry(variance=-1.0, df=3), "-1"),
        (LedgerEntry(variance=1.0, df=0), "df=0"),
        (LedgerEntry(variance=math.inf, df=3), "inf"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(entry: LedgerEntry, value: str) -> None:
    with pytest.raises(ValueError, match=f"a ledger entry has a variance of at least 0.*{value}"):
        fit_prior([entry])
    with pytest.raises(ValueError, match="positive values only"):
        trigamma_inverse(0.0)
