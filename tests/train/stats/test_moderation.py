from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from train.stats.dunnett import dunnett_critical, equal_loadings
from train.stats.moderation import (
    TYPICAL_RAISE,
    LedgerEntry,
    combine_with_prior,
    fit_prior,
    moderated_variances,
    trigamma_inverse,
)


def test_a_variance_below_the_prior_is_raised_to_it_and_one_above_goes_half_way() -> None:
    # the mean of the own variances is 2: below the pooled 2.5, which therefore stays
    assert moderated_variances(2.5, [0.5, 2.0, 3.5]) == pytest.approx([2.5, 2.5, 3.0])
    # a mean of 6 moves the prior from 2 to 4
    assert moderated_variances(2.0, [4.0, 8.0]) == pytest.approx([4.0, 6.0])
    assert moderated_variances(2.0, []) == []


def test_one_arm_with_its_own_pooled_variance_is_left_alone() -> None:
    assert moderated_variances(1.7, [1.7]) == [1.7]


def coverage(arms: int, seeds: int, spreads: list[float], tables: int) -> tuple[float, float]:
    """Share of tables whose simultaneous 95 % intervals all hold 0, and half-width over pooled."""
    rng = np.random.default_rng(5)
    errors = rng.standard_normal((tables, arms + 1, seeds)) * np.array(spreads)[:, None]
    swept = errors - errors.mean(2, keepdims=True)
    residuals = swept - swept.mean(1, keepdims=True)
    df = arms * (seeds - 1)
    pooled = 2 * (residuals**2).sum((1, 2)) / df
    differences = errors[:, 1:] - errors[:, :1]
    own = differences.var(2, ddof=1)
    variances = np.array(
        [moderated_variances(p, list(row)) for p, row in zip(pooled, own, strict=True)]
    )
    half = dunnett_critical(0.05, float(df), equal_loadings(arms)) * np.sqrt(variances / seeds)
    holds = (np.abs(differences.mean(2)) <= half).all(1).mean()
    raised = np.sqrt(variances).mean() / np.sqrt(pooled).mean()
    return float(holds), float(raised)


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "seeds"), [(2, 2), (2, 3), (4, 3), (4, 5), (8, 2), (8, 3)])
def test_simultaneous_intervals_hold_what_they_promise(arms: int, seeds: int) -> None:
    # 4,000 tables: the standard error of a coverage of 95 % is 0.35 points
    equal, raised = coverage(arms, seeds, [1.0] * (arms + 1), 4000)
    assert 0.94 <= equal <= 0.97
    assert abs(raised - TYPICAL_RAISE) < 0.035
    one_wide, _ = coverage(arms, seeds, [1.0] * arms + [3.0], 4000)
    assert one_wide >= 0.907
    wide_baseline, _ = coverage(arms, seeds, [3.0] + [1.0] * arms, 4000)
    assert wide_baseline >= 0.845


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
