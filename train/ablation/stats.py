"""Intervals and paired tests for runs that differ in their data: numbers in, verdicts out.

Seeds are the sample: two arms are compared by the differences of their runs with the same seed, under Student's t. The
test set's own sampling noise is a smaller and another question (Wilson, McNemar). All values are shares, not points.
scipy is imported where it is used, so that a trainer starts without it.
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
BOOTSTRAP_SEEDS = 5
NO_SPREAD = 1e-12  # differences whose SD is below this are equal but for rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One arm over its seeds: n values, their mean and sample SD (n − 1)."""

    n: int
    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Paired differences over n seeds: mean, SD, 95 % and 90 % t intervals, two-sided p."""

    n: int
    mean: float
    sd: float
    low: float
    high: float
    low90: float
    high90: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Discordance:
    """Samples that only the first or only the second of two runs got right, and McNemar's exact two-sided p."""

    only_first: int
    only_second: int
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against the baseline in one metric.

    p_holm: p over all arms compared; p_equal: TOST's p for «inside ±band»; mde: the smallest true difference that
    would have been called better or worse with 80 % power, had this arm been the only one that differs.
    """

    arm: str
    baseline: str
    seeds: tuple[tuple[int, int], ...]  # (arm's, baseline's) of each pair
    n: int
    difference: float
    sd: float
    low: float
    high: float
    low90: float
    high90: float
    p: float
    p_holm: float
    p_equal: float
    mde: float
    band: float
    verdict: Verdict


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample SD over seeds. ValueError under two values."""
    if len(values) < 2:
        raise ValueError(f"an SD needs at least 2 seeds; there are {len(values)}")
    x = np.asarray(values, dtype=np.float64)
    return Spread(n=len(x), mean=float(x.mean()), sd=float(x.std(ddof=1)))


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """first − second, paired by position (seed): Student's t on the differences, n − 1 degrees of freedom.

    Where all differences are equal, t has nothing to divide by: the intervals are that point and p is the sign
    test's, 2^(1−n) (1 where they are 0). So coarse metrics cannot turn a coincidence of three seeds into p = 0.
    ValueError for lists of different lengths or under two pairs.
    """
    from scipy.stats import t

    if len(first) != len(second):
        raise ValueError(f"{len(first)} values cannot be paired with {len(second)}")
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    s = spread(d.tolist())
    if s.sd < NO_SPREAD:
        p = 1.0 if abs(s.mean) < NO_SPREAD else 2.0 ** (1 - s.n)
        return Difference(
            n=s.n,
            mean=s.mean,
            sd=0.0,
            low=s.mean,
            high=s.mean,
            low90=s.mean,
            high90=s.mean,
            p=min(p, 1.0),
        )
    error = s.sd / math.sqrt(s.n)
    half, half90 = (float(t.ppf(1 - a / 2, s.n - 1)) * error for a in (ALPHA, 2 * ALPHA))
    return Difference(
        n=s.n,
        mean=s.mean,
        sd=s.sd,
        low=s.mean - half,
        high=s.mean + half,
        low90=s.mean - half90,
        high90=s.mean + half90,
        p=float(2 * t.sf(abs(s.mean) / error, s.n - 1)),
    )


def equivalence(measured: Difference, band: float) -> float:
    """p of two one-sided t tests (TOST) that the difference lies inside ±band; < 0.05 ⇔ the 90 % interval does."""
    from scipy.stats import t

    if measured.sd == 0:
        return 0.0 if abs(measured.mean) < band else 1.0
    error = measured.sd / math.sqrt(measured.n)
    return float(t.sf((band - abs(measured.mean)) / error, measured.n - 1))


@functools.cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights: 1.7 s to find, the same for every test."""
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    return nodes, weights


@functools.lru_cache(maxsize=256)
def _noncentrality(n: int, alpha: float, power: float) -> float:
    """Mean of t (in standard errors) that a two-sided t test over n values finds with `power`.

    The noncentral t is integrated over the sample SD (a chi, by Gauss-Legendre): scipy 1.17's nct gives NaN in the
    tails that two or three seeds need.
    """
    from scipy.optimize import brentq
    from scipy.stats import chi, norm, t

    df = n - 1
    critical = float(t.ppf(1 - alpha / 2, df))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    end = float(chi.isf(1e-15, df)) / math.sqrt(df)
    s = (nodes + 1) * end / 2  # sample SD over true SD
    density = weights * end / 2 * chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)

    def short(mean: float) -> float:
        return (
            float(density @ (norm.cdf(mean - critical * s) + norm.cdf(-mean - critical * s)))
            - power
        )

    upper = 1.0
    while short(upper) < 0:
        upper *= 2
    return float(brentq(short, 0.0, upper, xtol=1e-12))


def detectable(sd: float, n: int, *, alpha: float = ALPHA, power: float = POWER) -> float:
    """Smallest true difference that a two-sided paired t test over n seeds finds with `power`.

    `sd` is that of the paired differences; 0 where it is 0. ValueError under two seeds.
    """
    if n < 2:
        raise ValueError(f"a paired test needs at least 2 seeds; there are {n}")
    return _noncentrality(n, alpha, power) * sd / math.sqrt(n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def verdict(measured: Difference, p_holm: float, band: float) -> Verdict:
    """What a comparison says, by the first of these rules that holds.

    better, worse: Holm's p is below 0.05, and the sign of the mean; practically equal: the 90 % interval lies inside
    ±band; not distinguishable: neither. A difference can be both better and inside the band: p_equal tells.
    """
    if p_holm < ALPHA:
        return "better" if measured.mean > 0 else "worse"
    if -band < measured.low90 and measured.high90 < band:
        return "practically equal"
    return "not distinguishable"


def pairs(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[tuple[int, int], ...]:
    """Seeds of two arms to compare with each other: the common ones, or by index where none is common (A/A arms).

    ValueError where that leaves fewer than two pairs.
    """
    common = sorted(set(first) & set(second))
    found = [(s, s) for s in common]
    if not common and len(first) == len(second):
        found = list(zip(sorted(first), sorted(second), strict=True))
    if len(found) < 2:
        raise ValueError(
            f"seeds {sorted(first)} and {sorted(second)} make {len(found)} pairs; 2 are needed"
        )
    return tuple(found)


def compare(
    values: Mapping[str, Mapping[int, float]], baseline: str, band: float
) -> list[Comparison]:
    """Every arm of {arm: {seed: value}} against the baseline, paired by seed, Holm over the arms.

    ValueError for an unknown baseline, a band that is not above 0, or an arm with fewer than two pairs.
    """
    if baseline not in values:
        raise ValueError(f"baseline {baseline!r} is not one of the arms {sorted(values)}")
    if not band > 0:
        raise ValueError(f"the equivalence band is {band}; it must be above 0")
    arms = [arm for arm in values if arm != baseline]
    seeds = {}
    for arm in arms:
        try:
            seeds[arm] = pairs(values[arm], values[baseline])
        except ValueError as error:
            raise ValueError(f"{arm} against {baseline}: {error}") from None
    measured = [
        difference(
            [values[arm][a] for a, _ in seeds[arm]], [values[baseline][b] for _, b in seeds[arm]]
        )
        for arm in arms
    ]
    adjusted = holm([d.p for d in measured])
    return [
        adjust(_alone(arm, baseline, seeds[arm], d, band), p_holm, len(arms))
        for arm, d, p_holm in zip(arms, measured, adjusted, strict=True)
    ]


def _alone(
    arm: str, baseline: str, seeds: tuple[tuple[int, int], ...], d: Difference, band: float
) -> Comparison:
    """A comparison that is the only one."""
    return Comparison(
        arm=arm,
        baseline=baseline,
        seeds=seeds,
        n=d.n,
        difference=d.mean,
        sd=d.sd,
        low=d.low,
        high=d.high,
        low90=d.low90,
        high90=d.high90,
        p=d.p,
        p_holm=d.p,
        p_equal=equivalence(d, band),
        mde=detectable(d.sd, d.n),
        band=band,
        verdict=verdict(d, d.p, band),
    )


WORDS: dict[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "practically equal": "is practically equal to",
    "not distinguishable": "is not distinguishable from",
}


def tell(found: Comparison, task: str) -> str:
    """A comparison in words: difference and 95 % interval in points, seeds, p, and what it could have seen."""
    p = "Holm p < 0.001" if found.p_holm < 0.001 else f"Holm p = {found.p_holm:.3f}"
    band = ""
    if found.verdict in ("better", "worse") and found.p_equal < ALPHA:
        band = f" It lies inside the band of ±{100 * found.band:g} points that was declared to be of no account."
    return (
        f"{found.arm} {WORDS[found.verdict]} {found.baseline} on {task}: {100 * found.difference:+.1f} points "
        f"[{100 * found.low:.1f}, {100 * found.high:.1f}] ({found.n} seeds, {p}); the smallest difference that this "
        f"comparison could have seen is {100 * found.mde:.1f} points.{band}"
    )


def adjust(found: Comparison, p_holm: float, family: int) -> Comparison:
    """The comparison as one of `family` that Holm was run over: its p_holm, verdict and smallest effect."""
    measured = Difference(
        n=found.n,
        mean=found.difference,
        sd=found.sd,
        low=found.low,
        high=found.high,
        low90=found.low90,
        high90=found.high90,
        p=found.p,
    )
    return replace(
        found,
        p_holm=p_holm,
        mde=detectable(found.sd, found.n, alpha=ALPHA / family),
        verdict=verdict(measured, p_holm, found.band),
    )


def wilson(right: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: one run's accuracy as the test set's size limits it. ValueError for n < 1."""
    from scipy.stats import norm

    if not 0 <= right <= n or n < 1:
        raise ValueError(f"{right} of {n} is no share")
    z = float(norm.ppf(1 - ALPHA / 2))
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar(first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray) -> Discordance:
    """Two runs on the same samples (correct or not, same order): the discordant ones under an exact binomial.

    It speaks of these two models, not of their data: the noise of another seed is not in it. ValueError where the
    lists differ in length.
    """
    from scipy.stats import binomtest

    if len(first) != len(second):
        raise ValueError(f"{len(first)} samples cannot be paired with {len(second)}")
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    discordant = only_first + only_second
    p = float(binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0
    return Discordance(only_first=only_first, only_second=only_second, p=p)


def bootstrap(
    differences: Sequence[float], *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of the mean of paired differences. ValueError under five seeds."""
    if len(differences) < BOOTSTRAP_SEEDS:
        raise ValueError(
            f"a bootstrap over {len(differences)} seeds is refused: over three, its 95 % interval covers 67 %; "
            f"use difference() (Student's t), or {BOOTSTRAP_SEEDS} seeds"
        )
    d = np.asarray(differences, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(d), size=(resamples, len(d)))
    low, high = np.quantile(d[drawn].mean(axis=1), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)
