"""Which metric tells arms apart best: the spread between arms against the noise of one run. Pure.

Signal is the largest difference between the means of two arms and noise the SD of one run, as in
Signal and Noise (Heineman et al. 2025, arXiv 2508.13144); the mean that they divide both by cancels
in the ratio. The noise here is the residual SD of arm + seed + residual, because arms are compared
by seed: what a seed adds to all arms is no noise of a comparison.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from train.stats.scaling import Interval

Table = Mapping[str, Mapping[int, float]]  # {arm: {seed: value}}

MOST_SPLITS = 500  # splits of the seeds into two groups that are looked at; more are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSignal:
    """Signal and noise of one metric.

    spread: largest difference between the means of two arms. noise: residual SD of one run over
    the seeds. ratio: spread / noise, with a bootstrap interval over seeds; it is above 0 without
    any true difference, so it compares metrics of the same arms and seeds only. effect: SD of the
    arms' true means / noise, bias removed, with an exact interval (noncentral F); an interval
    that reaches 0 means that no difference between arms was seen. single_agreement: the share of
    pairs of arms that two single seeds order alike. half_agreement: the same for the means of two
    disjoint halves of the seeds. Chance is 0.5, a tie counts 0.5. best: the arm with the best
    mean. ratio and effect are None where the noise is 0: identical scores do not estimate it.
    """

    metric: str
    arms: int
    seeds: int
    higher_is_better: bool
    best: str
    spread: float
    noise: float
    ratio: Interval | None
    effect: Interval | None
    single_agreement: float
    half_agreement: float


def metric_signals(
    values: Mapping[str, Table],
    generator: np.random.Generator,
    *,
    lower_is_better: Collection[str] = (),
    draws: int = 1000,
    confidence: float = 0.95,
) -> list[MetricSignal]:
    """Signal and noise of every metric of {metric: {arm: {seed: value}}}, most signal first.

    Metrics are ordered by spread / noise; those without noise come last. All arms of a metric need
    the same seeds, at least 2, and there are at least 2 arms: ValueError otherwise, and for a value
    that is not finite or a name in `lower_is_better` that is no metric.
    """
    unknown = sorted(set(lower_is_better) - set(values))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not one of the metrics {sorted(values)}")
    if draws < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"there are {draws} resamples at confidence {confidence}; "
            "at least 1 and a confidence between 0 and 1 are needed"
        )
    signals = []
    for metric, table in values.items():
        higher = metric not in lower_is_better
        signals.append(_one_metric(metric, table, generator, higher, draws, confidence))
    return sorted(signals, key=lambda signal: -signal.ratio.value if signal.ratio else math.inf)


def _one_metric(
    metric: str,
    table: Table,
    generator: np.random.Generator,
    higher_is_better: bool,
    draws: int,
    confidence: float,
) -> MetricSignal:
    arms, array = _complete(metric, table)
    seeds = array.shape[1]
    spread, noise = _spread_and_noise(array[:, None, :])
    means = array.mean(axis=1) if higher_is_better else -array.mean(axis=1)
    ratio, effect = None, None
    if float(noise[0]) > 1e-12 * max(1e-300, float(np.abs(array).max())):
        ratio = _bootstrap_ratio(array, generator, draws, confidence)
        effect = effect_interval(array, confidence)
    return MetricSignal(
        metric=metric,
        arms=len(arms),
        seeds=seeds,
        higher_is_better=higher_is_better,
        best=arms[int(means.argmax())],
        spread=float(spread[0]),
        noise=float(noise[0]),
        ratio=ratio,
        effect=effect,
        single_agreement=_agreement(array, 1, generator),
        half_agreement=_agreement(array, seeds // 2, generator),
    )


def _complete(metric: str, table: Table) -> tuple[list[str], np.ndarray]:
    """The arms, and their values as an array of shape [arms, seeds]."""
    arms = list(table)
    seeds = sorted(table[arms[0]]) if arms else []
    if len(arms) < 2 or len(seeds) < 2:
        raise ValueError(
            f"{metric}: signal and noise need at least 2 arms and 2 seeds; "
            f"there are {len(arms)} and {len(seeds)}"
        )
    for arm in arms:
        if sorted(table[arm]) != seeds:
            raise ValueError(
                f"{metric}: {arm} has seeds {sorted(table[arm])} and {arms[0]} has {seeds}; "
                "all arms need the same seeds"
            )
    array = np.array([[table[arm][seed] for seed in seeds] for arm in arms], dtype=float)
    if not np.isfinite(array).all():
        raise ValueError(f"{metric}: a value is not a finite number")
    return arms, array


def _spread_and_noise(arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest difference of means and residual SD, for arrays of shape [arms, tables, seeds]."""
    arms, _, seeds = arrays.shape
    means = arrays.mean(axis=2)
    residuals = arrays - means[:, :, None] - arrays.mean(axis=0) + means.mean(axis=0)[:, None]
    squares = (residuals**2).sum(axis=(0, 2))
    return np.ptp(means, axis=0), np.sqrt(squares / ((arms - 1) * (seeds - 1)))


def _bootstrap_ratio(
    array: np.ndarray, generator: np.random.Generator, draws: int, confidence: float
) -> Interval:
    """spread / noise with the percentiles of resamples of the seeds.

    Seeds that are drawn twice make the residual variance of a resample too small by
    (seeds − 1)/seeds on average, which is put right. Resamples of one seed alone have no noise and
    are left out.
    """
    seeds = array.shape[1]
    picks = generator.integers(seeds, size=(draws, seeds))
    picks = picks[(picks != picks[:, :1]).any(axis=1)]
    spread, noise = _spread_and_noise(array[:, None, :])
    value = float(spread[0] / noise[0])
    if not len(picks):
        return Interval(value=value, low=value, high=value)
    spreads, noises = _spread_and_noise(array[:, picks])
    noises *= math.sqrt(seeds / (seeds - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(noises > 0, spreads / noises, np.inf)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2], method="nearest")
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def effect_interval(array: np.ndarray, confidence: float = 0.95) -> Interval:
    """SD of the arms' true means (n − 1) in residual SDs, from values of shape [arms, seeds].

    F = seeds · variance of the means / residual variance is noncentral F with noncentrality
    seeds · (arms − 1) · effect², which is inverted for the limits. The estimate removes the bias
    of F and is cut at 0.
    """
    from scipy.optimize import brentq
    from scipy.special import ncfdtr

    arms, seeds = array.shape
    _, noise = _spread_and_noise(array[:, None, :])
    ratio = seeds * float(array.mean(axis=1).var(ddof=1)) / float(noise[0]) ** 2
    numerator_df, df = arms - 1, (arms - 1) * (seeds - 1)
    unbiased = ratio * (df - 2) / df - 1 if df > 2 else ratio - 1

    def limit(probability: float) -> float:
        """The effect at which an F of at most `ratio` has this probability."""

        def gap(noncentrality: float) -> float:
            return float(ncfdtr(numerator_df, df, noncentrality, ratio)) - probability

        if gap(0.0) <= 0:
            return 0.0
        upper = 1.0
        while gap(upper) > 0:
            upper *= 2
        return math.sqrt(float(brentq(gap, 0.0, upper, xtol=1e-12)) / (seeds * numerator_df))

    low, high = limit((1 + confidence) / 2), limit((1 - confidence) / 2)
    value = math.sqrt(max(0.0, unbiased) / seeds)
    return Interval(value=min(max(value, low), high), low=low, high=high)


def _agreement(array: np.ndarray, size: int, generator: np.random.Generator) -> float:
    """The share of pairs of arms that the means of two disjoint groups of `size` seeds order alike;
    over all such groups, or MOST_SPLITS drawn ones where there are more."""
    arms, seeds = array.shape
    count = math.comb(seeds, size) * math.comb(seeds - size, size) // 2
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    if count <= MOST_SPLITS:
        for first in itertools.combinations(range(seeds), size):
            rest = [seed for seed in range(seeds) if seed not in first]
            for second in itertools.combinations(rest, size):
                if first < second:
                    groups.append((first, second))
    else:
        for _ in range(MOST_SPLITS):
            order = generator.permutation(seeds).tolist()
            groups.append((tuple(order[:size]), tuple(order[size : 2 * size])))
    upper = np.triu_indices(arms, 1)
    agreements = []
    for first, second in groups:
        signs = []
        for group in (first, second):
            means = array[:, list(group)].mean(axis=1)
            signs.append(np.sign(means[:, None] - means[None, :])[upper])
        agreements.append(float(np.mean((1 + signs[0] * signs[1]) / 2)))
    return float(np.mean(agreements))
