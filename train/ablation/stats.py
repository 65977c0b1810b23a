"""Intervals and tests for runs that differ in their data: numbers in, verdicts out. Pure.

The seeds are the sample: two arms are compared by the differences of their runs with the same seed,
under Student's t. The sampling noise of the test set is another question (McNemar). All values are
shares, not points. scipy is imported where it is used, so that a trainer starts without it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Verdict = Literal["better", "worse", "practically equal", "not distinguishable"]

ALPHA = 0.05
POWER = 0.80
ZERO_SD = 1e-12  # differences with a smaller SD are equal but for rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSd:
    """One arm over its seeds: n values, their mean and sample SD (n − 1); no SD for one value."""

    n: int
    mean: float
    sd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference over n seeds: mean, SD, 95 % and 90 % t intervals, two-sided p.

    The intervals are None where the SD is 0.
    """

    n: int
    mean: float
    sd: float
    df: float
    low: float | None
    high: float | None
    low90: float | None
    high90: float | None
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Discordance:
    """Samples that only one of two runs got right, and McNemar's exact two-sided p."""

    only_first: int
    only_second: int
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against the baseline in one metric.

    p_holm: p adjusted over all arms. p_equal: p of TOST for "inside ±band". mde: the smallest true
    difference that 80 % of such experiments would call better or worse, if only this arm differed.
    Intervals, p_equal and mde are None where the differences of all seeds are identical: a zero SD
    is no estimate of the noise.
    """

    arm: str
    baseline: str
    seeds: tuple[tuple[int, int], ...]  # (arm's, baseline's) of each pair
    n: int
    difference: float
    sd: float
    df: float
    low: float | None
    high: float | None
    low90: float | None
    high90: float | None
    p: float
    p_holm: float
    p_equal: float | None
    mde: float | None
    band: float
    verdict: Verdict


def mean_sd(values: Sequence[float]) -> MeanSd:
    """Mean and sample SD over seeds. ValueError without a value."""
    if not values:
        raise ValueError("a mean needs at least 1 seed; there are 0")
    x = np.asarray(values, dtype=np.float64)
    sd = float(x.std(ddof=1)) if len(x) > 1 else None
    return MeanSd(n=len(x), mean=float(x.mean()), sd=sd)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """first − second, paired by position (seed): Student's t, n − 1 degrees of freedom.

    Where all differences are equal, there is no interval, and p is the sign test's, 2^(1−n) (1
    where they are 0): coarse metrics must not turn a coincidence of three seeds into p = 0.
    ValueError for lists of different lengths or fewer than two pairs.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values cannot be paired with {len(second)}")
    if len(first) < 2:
        raise ValueError(f"an SD needs at least 2 seeds; there are {len(first)}")
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    n, sd = len(d), float(d.std(ddof=1))
    return _t_interval(n, float(d.mean()), sd, sd / math.sqrt(n), n - 1)


def _t_interval(n: int, mean: float, sd: float, error: float, df: float) -> Difference:
    """Intervals and p of a mean with a standard error."""
    from scipy.stats import t

    if sd < ZERO_SD:
        p = 1.0 if abs(mean) < ZERO_SD else min(1.0, 2.0 ** (1 - n))
        return Difference(
            n=n,
            mean=mean,
            sd=0.0,
            df=df,
            low=None,
            high=None,
            low90=None,
            high90=None,
            p=p,
        )
    half = float(t.ppf(1 - ALPHA / 2, df)) * error
    half90 = float(t.ppf(1 - ALPHA, df)) * error
    return Difference(
        n=n,
        mean=mean,
        sd=sd,
        df=df,
        low=mean - half,
        high=mean + half,
        low90=mean - half90,
        high90=mean + half90,
        p=float(2 * t.sf(abs(mean) / error, df)),
    )


def equivalence(measured: Difference, band: float) -> float | None:
    """p of two one-sided t tests (TOST) that the difference is inside ±band.

    It is below 0.05 if and only if the 90 % interval is inside. None for a zero SD.
    """
    from scipy.stats import t

    if measured.sd == 0:
        return None
    error = measured.sd / math.sqrt(measured.n)
    return float(t.sf((band - abs(measured.mean)) / error, measured.df))


@functools.lru_cache(maxsize=256)
def _noncentrality(df: float, alpha: float, power: float) -> float:
    """Mean of t (in standard errors) that a two-sided t test finds with `power`.

    The noncentral t is integrated over the sample SD (a chi, by Gauss-Legendre): scipy 1.17's nct
    gives NaN in the tails that two or three seeds need.
    """
    from scipy.optimize import brentq
    from scipy.stats import chi, norm, t

    critical = float(t.ppf(1 - alpha / 2, df))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    end = float(chi.isf(1e-15, df)) / math.sqrt(df)
    s = (nodes + 1) * end / 2  # sample SD over true SD
    density = weights * end / 2 * chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)

    def missing_power(mean: float) -> float:
        tails = norm.cdf(mean - critical * s) + norm.cdf(-mean - critical * s)
        return float(density @ tails) - power

    upper = 1.0
    while missing_power(upper) < 0:
        upper *= 2
    return float(brentq(missing_power, 0.0, upper, xtol=1e-12))


def detectable(
    sd: float, n: int, *, df: float | None = None, alpha: float = ALPHA, power: float = POWER
) -> float | None:
    """Smallest true difference that a two-sided t test over n seeds finds with `power`.

    `sd` is that of the differences, and `df` is n − 1 unless given. None where `sd` is 0: then
    the noise is not known. ValueError for fewer than two seeds.
    """
    if n < 2:
        raise ValueError(f"a test needs at least 2 seeds; there are {n}")
    if sd < ZERO_SD:
        return None
    return _noncentrality(n - 1 if df is None else df, alpha, power) * sd / math.sqrt(n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def verdict(measured: Difference, p_holm: float, band: float) -> Verdict:
    """The verdict of a comparison: the first of these rules that holds.

    better, worse: Holm's p is below 0.05, and the sign of the mean. practically equal: the 90 %
    interval is inside ±band. not distinguishable: neither; identical scores have no interval and
    are always this. A difference can be both better and inside the band: p_equal shows it.
    """
    if p_holm < ALPHA:
        return "better" if measured.mean > 0 else "worse"
    if measured.low90 is None or measured.high90 is None:
        return "not distinguishable"
    if -band < measured.low90 and measured.high90 < band:
        return "practically equal"
    return "not distinguishable"


def pairs(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[tuple[int, int], ...]:
    """The seeds that two arms have in common, as pairs. ValueError for fewer than two."""
    common = sorted(set(first) & set(second))
    if len(common) < 2:
        raise ValueError(
            f"seeds {sorted(first)} and {sorted(second)} make {len(common)} pairs; 2 are needed"
        )
    return tuple((seed, seed) for seed in common)


def compare(
    values: Mapping[str, Mapping[int, float]], baseline: str, band: float
) -> list[Comparison]:
    """Every arm of {arm: {seed: value}} against the baseline, paired by seed, Holm over the arms.

    ValueError for an unknown baseline, a band that is not above 0, or an arm with fewer than two
    pairs.
    """
    if baseline not in values:
        raise ValueError(f"baseline {baseline!r} is not one of the arms {sorted(values)}")
    _check_band(band)
    comparisons = []
    for arm in values:
        if arm == baseline:
            continue
        try:
            seeds = pairs(values[arm], values[baseline])
        except ValueError as error:
            raise ValueError(f"{arm} against {baseline}: {error}") from None
        of_arm = [values[arm][seed] for seed, _ in seeds]
        of_baseline = [values[baseline][seed] for _, seed in seeds]
        measured = difference(of_arm, of_baseline)
        comparisons.append(_comparison(arm, baseline, seeds, measured, band))
    adjusted = holm([c.p for c in comparisons])
    return [
        adjust(c, p_holm, len(comparisons)) for c, p_holm in zip(comparisons, adjusted, strict=True)
    ]


def _check_band(band: float) -> None:
    if not band > 0:
        raise ValueError(f"the equivalence band is {band}; it must be above 0")


def _comparison(
    arm: str, baseline: str, seeds: tuple[tuple[int, int], ...], measured: Difference, band: float
) -> Comparison:
    """A comparison that is the only one of its family."""
    return Comparison(
        arm=arm,
        baseline=baseline,
        seeds=seeds,
        n=measured.n,
        difference=measured.mean,
        sd=measured.sd,
        df=measured.df,
        low=measured.low,
        high=measured.high,
        low90=measured.low90,
        high90=measured.high90,
        p=measured.p,
        p_holm=measured.p,
        p_equal=equivalence(measured, band),
        mde=detectable(measured.sd, measured.n, df=measured.df),
        band=band,
        verdict=verdict(measured, measured.p, band),
    )


def adjust(comparison: Comparison, p_holm: float, family: int) -> Comparison:
    """The comparison as one of `family` that Holm was run over: its p_holm, verdict and mde."""
    measured = Difference(
        n=comparison.n,
        mean=comparison.difference,
        sd=comparison.sd,
        df=comparison.df,
        low=comparison.low,
        high=comparison.high,
        low90=comparison.low90,
        high90=comparison.high90,
        p=comparison.p,
    )
    alpha = ALPHA / family
    return replace(
        comparison,
        p_holm=p_holm,
        mde=detectable(comparison.sd, comparison.n, df=comparison.df, alpha=alpha),
        verdict=verdict(measured, p_holm, comparison.band),
    )


def mcnemar(first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray) -> Discordance:
    """Two runs on the same samples, correct or not: the discordant ones under an exact binomial.

    It is about these two models, not about their data: the noise of another seed is not in it.
    ValueError for lists of different lengths.
    """
    from scipy.stats import binomtest

    if len(first) != len(second):
        raise ValueError(f"{len(first)} samples cannot be paired with {len(second)}")
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    discordant = only_first + only_second
    p = float(binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0
    return Discordance(only_first=only_first, only_second=only_second, p=p)
