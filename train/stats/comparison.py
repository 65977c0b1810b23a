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
Adjustment = Literal["Dunnett", "Holm", "none"]
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

    sd: standard deviation of a single-seed difference. over_seeds: on this test set. over_samples:
    over seeds and samples; None without per-sample values. over_tasks: over seeds, samples and
    tasks; None for a single task and for fewer than 3.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    difference: float
    sd: float
    over_seeds: Spread
    over_samples: Spread | None = None
    over_tasks: Spread | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A difference arm − baseline with intervals of (1 − alpha), two-sided p values, a verdict.

    n: seeds in common. sd: standard deviation of a single-seed difference, from all arms.
    low_seeds, high_seeds: over seeds on this test set. low_samples, high_samples: over seeds and
    samples; None without per-sample values. low_tasks, high_tasks: over tasks as well (averages of
    at least 3 tasks). low, high: the headline, the wider of the first two; `headline` says which,
    and df, p, low90, high90 (the interval of 1 − 2 alpha) and p_equal (TOST) are those of the
    headline. Intervals and p values are simultaneous over the family where `adjustment` is
    Dunnett's; p is not adjusted. Every interval is None where nothing varies.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    n: int
    difference: float
    sd: float
    df: float
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
    if one.over_seeds.variance == 0:
        return base
    chosen, headline = _wider(one, loadings, alpha)
    low, high = _interval(one.difference, chosen, loadings, alpha / factors[0])
    low90, high90 = _interval(one.difference, chosen, loadings, 2 * alpha / factors[1])
    low_seeds, high_seeds = _interval(one.difference, one.over_seeds, loadings, alpha / factors[0])
    low_samples, high_samples = _interval(
        one.difference, one.over_samples, loadings, alpha / factors[0]
    )
    low_tasks, high_tasks = _interval(one.difference, one.over_tasks, loadings, alpha / factors[0])
    error = math.sqrt(chosen.variance)
    t = one.difference / error
    t_equal = (band - abs(one.difference)) / error
    p_adjusted = min(1.0, factors[0] * dunnett_p(t, chosen.df, loadings))
    return replace(
        base,
        df=chosen.df,
        headline=headline,
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
        p=dunnett_p(t, chosen.df, STUDENT),
        p_adjusted=p_adjusted,
        p_equal=min(1.0, factors[1] * _p_equal(t_equal, chosen.df, loadings)),
        verdict=decide(one.difference, p_adjusted, low90, high90, band, alpha),
    )


def _wider(one: Difference, loadings: tuple[float, ...], alpha: float) -> tuple[Spread, Headline]:
    """The spread with the wider interval at alpha, and what it is over."""
    if one.over_samples is not None:
        half_seeds = _half_width(one.over_seeds, loadings, alpha)
        if _half_width(one.over_samples, loadings, alpha) > half_seeds:
            return one.over_samples, "seeds and samples"
    return one.over_seeds, "seeds"


def _half_width(spread: Spread, loadings: tuple[float, ...], alpha: float) -> float:
    return dunnett_critical(alpha, spread.df, loadings) * math.sqrt(spread.variance)


def _interval(
    difference: float, spread: Spread | None, loadings: tuple[float, ...], alpha: float
) -> tuple[float, float] | tuple[None, None]:
    if spread is None:
        return None, None
    half = _half_width(spread, loadings, alpha)
    return difference - half, difference + half


def _p_equal(t: float, df: float, loadings: tuple[float, ...]) -> float:
    """The larger p of two one-sided tests, from the distance to the nearer bound.

    Half the two-sided p, so that it is below alpha where the interval of 1 − 2 alpha is inside.
    """
    half = dunnett_p(t, df, loadings) / 2
    return half if t > 0 else 1 - half


def _without_interval(one: Difference, adjustment: Adjustment, band: float) -> Comparison:
    return Comparison(
        arm=one.arm,
        baseline=one.baseline,
        seeds=one.seeds,
        n=len(one.seeds),
        difference=one.difference,
        sd=one.sd,
        df=one.over_seeds.df,
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
