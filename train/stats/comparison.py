"""One difference with its intervals, p values and verdict, and families of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from train.stats.dunnett import dunnett_critical, dunnett_p, equal_loadings
from train.stats.multiplicity import holm
from train.stats.power import ALPHA

Verdict = Literal["better", "worse", "practically equal", "not distinguishable"]
Adjustment = Literal["Dunnett", "Holm", "sequential", "none"]
Headline = Literal["seeds", "seeds and samples"]

STUDENT = equal_loadings(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The variance of a mean difference, and its degrees of freedom."""

    variance: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An estimated difference and what is known of its noise, before any interval.

    sd: standard deviation of a single-seed difference. Several spreads are lower bounds of the
    noise (what the runs showed; what the samples leave at least): the widest interval counts.
    over_seeds: on this test set. over_samples: over seeds and samples; empty without per-sample
    values. over_tasks: over seeds and tasks; empty for a single task and for fewer than 3.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    difference: float
    sd: float
    over_seeds: tuple[Spread, ...]
    over_samples: tuple[Spread, ...] = ()
    over_tasks: tuple[Spread, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A difference arm − baseline with intervals of (1 − alpha), two-sided p values, a verdict.

    n: seeds in common. sd: standard deviation of a single-seed difference, from all arms.
    low_seeds, high_seeds: over seeds on this test set. low_samples, high_samples: over seeds and
    samples; None without per-sample values. low_tasks, high_tasks: over tasks as well (averages of
    at least 3 tasks). low, high: the headline, the wider of the first two; `headline` says which,
    and df is that of the widest (None where the samples alone give it). low90, high90: the widest
    interval of 1 − 2 alpha. p, p_adjusted and p_equal (TOST) are the largest that a part
    of the headline gives, so that they agree with the intervals at every level. Intervals and p
    values are simultaneous over the family where `adjustment` is Dunnett's; p is not adjusted.
    Every interval is None where nothing varies.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    n: int
    difference: float
    sd: float
    df: float | None
    headline: Headline | None
    low: float | None
    high: float | None
    low90: float | None
    high90: float | None
    low_seeds: float | None
    high_seeds: float | None
    low_samples: float | None
    high_samples: float | None
    low_tasks: float | None
    high_tasks: float | None
    p: float
    p_adjusted: float
    adjustment: Adjustment
    p_equal: float | None
    band: float
    verdict: Verdict


def decide(
    difference: float,
    p_adjusted: float,
    low90: float | None,
    high90: float | None,
    band: float,
    alpha: float = ALPHA,
) -> Verdict:
    """The first rule that holds: p below alpha: better or worse by the sign of the difference; the
    interval of 1 − 2 alpha inside ±band: practically equal; otherwise not distinguishable. Without
    an interval the noise is not known, and the verdict is always the last one.
    """
    if low90 is None or high90 is None:
        return "not distinguishable"
    if p_adjusted < alpha:
        return "better" if difference > 0 else "worse"
    if -band < low90 and high90 < band:
        return "practically equal"
    return "not distinguishable"


def dunnett_family(
    differences: Sequence[Difference], correlation: float, band: float, alpha: float = ALPHA
) -> tuple[Comparison, ...]:
    """Comparisons with one baseline: intervals and p values hold for all of them together.

    correlation: the smallest of any two comparisons, which is conservative for the others.
    ValueError for a band that is not above 0.
    """
    if not differences:
        return ()
    loadings = equal_loadings(len(differences), min(0.99, max(0.0, round(correlation, 9))))
    return tuple(_compare(one, loadings, (1.0, 1.0), "Dunnett", band, alpha) for one in differences)


def single(one: Difference, band: float, alpha: float = ALPHA) -> Comparison:
    """A comparison that is in no family. ValueError for a band that is not above 0."""
    return _compare(one, STUDENT, (1.0, 1.0), "none", band, alpha)


def holm_family(
    differences: Sequence[Difference], band: float, alpha: float = ALPHA
) -> tuple[Comparison, ...]:
    """Comparisons that the user chose: p values after Holm, for differences and for equality.

    The interval of a comparison has the level alpha / (adjusted p / p), so that it excludes 0 if
    and only if the adjusted p is below alpha; the interval of 1 − 2 alpha agrees in the same way
    with p_equal. The intervals of the smallest p values are therefore the widest. ValueError for a
    band that is not above 0.
    """
    plain = [_compare(one, STUDENT, (1.0, 1.0), "Holm", band, alpha) for one in differences]
    factors = _holm_factors([one.p for one in plain])
    factors_equal = _holm_factors([1.0 if c.p_equal is None else c.p_equal for c in plain])
    return tuple(
        _compare(one, STUDENT, pair, "Holm", band, alpha)
        for one, pair in zip(differences, zip(factors, factors_equal, strict=True), strict=True)
    )


def _holm_factors(p_values: Sequence[float]) -> list[float]:
    """Adjusted p over p, from 1 to the size of the family."""
    factors = []
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        factor = adjusted / p if p > 0 else float(len(p_values))
        factors.append(min(float(len(p_values)), max(1.0, factor)))
    return factors


def _compare(
    one: Difference,
    loadings: tuple[float, ...],
    factors: tuple[float, float],
    adjustment: Adjustment,
    band: float,
    alpha: float,
) -> Comparison:
    """`factors` multiply p and p_equal, and divide alpha in the intervals."""
    if not band > 0:
        raise ValueError(f"the equivalence band is {band}; it must be above 0")

    base = _without_interval(one, adjustment, band)
    bounds = [spread for spread in one.over_seeds + one.over_samples if spread.variance > 0]
    if not bounds or not any(spread.variance > 0 for spread in one.over_seeds):
        return base
    level = alpha / factors[0]
    low_seeds, high_seeds = _interval(one.difference, one.over_seeds, loadings, level)
    low_samples, high_samples = _interval(one.difference, one.over_samples, loadings, level)
    low_tasks, high_tasks = _interval(one.difference, one.over_tasks, loadings, level)
    low, high = _interval(one.difference, bounds, loadings, level)
    low90, high90 = _interval(one.difference, bounds, loadings, 2 * alpha / factors[1])
    p_adjusted = min(1.0, factors[0] * _p_different(one.difference, bounds, loadings))
    widest = max(bounds, key=lambda spread: _half_width(spread, loadings, level))
    return replace(
        base,
        df=widest.df if math.isfinite(widest.df) else None,
        headline="seeds" if low == low_seeds else "seeds and samples",
        low=low,
        high=high,
        low90=low90,
        high90=high90,
        low_seeds=low_seeds,
        high_seeds=high_seeds,
        low_samples=low_samples,
        high_samples=high_samples,
        low_tasks=low_tasks,
        high_tasks=high_tasks,
        p=_p_different(one.difference, bounds, STUDENT),
        p_adjusted=p_adjusted,
        p_equal=min(1.0, factors[1] * _p_equal(one.difference, bounds, loadings, band)),
        verdict=decide(one.difference, p_adjusted, low90, high90, band, alpha),
    )


def _half_width(spread: Spread, loadings: tuple[float, ...], alpha: float) -> float:
    return dunnett_critical(alpha, spread.df, loadings) * math.sqrt(spread.variance)


def _interval(
    difference: float, spreads: Sequence[Spread], loadings: tuple[float, ...], alpha: float
) -> tuple[float, float] | tuple[None, None]:
    """The widest interval of the spreads."""
    if not spreads:
        return None, None
    half = max(_half_width(spread, loadings, alpha) for spread in spreads)
    return difference - half, difference + half


def _p_different(
    difference: float, spreads: Sequence[Spread], loadings: tuple[float, ...]
) -> float:
    """The largest two-sided p of the spreads, none of which has variance 0."""
    p_values = []
    for spread in spreads:
        t = difference / math.sqrt(spread.variance)
        p_values.append(dunnett_p(t, spread.df, loadings))
    return max(p_values)


def _p_equal(
    difference: float, spreads: Sequence[Spread], loadings: tuple[float, ...], band: float
) -> float:
    """The largest p of two one-sided tests, from the distance to the nearer bound of the band.

    Half the two-sided p, so that it is below alpha where the interval of 1 − 2 alpha is inside.
    """
    inside = band - abs(difference)
    half = _p_different(inside, spreads, loadings) / 2
    if inside > 0:
        return half
    return 1 - half  # at least a half: outside the band nothing speaks for equality


def _without_interval(one: Difference, adjustment: Adjustment, band: float) -> Comparison:
    return Comparison(
        arm=one.arm,
        baseline=one.baseline,
        seeds=one.seeds,
        n=len(one.seeds),
        difference=one.difference,
        sd=one.sd,
        df=one.over_seeds[0].df,
        headline=None,
        low=None,
        high=None,
        low90=None,
        high90=None,
        low_seeds=None,
        high_seeds=None,
        low_samples=None,
        high_samples=None,
        low_tasks=None,
        high_tasks=None,
        p=1.0,
        p_adjusted=1.0,
        adjustment=adjustment,
        p_equal=None,
        band=band,
        verdict="not distinguishable",
    )
