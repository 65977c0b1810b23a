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

from clipmill.manifests.arrays import Array
from clipmill.verdict.stats.model import Values

NORMAL_LIMIT = 1.959964  # of an interval of 95 %
LIMITS = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # of an interval of 95 %, as shares
MOST_SPLITS = 500  # splits of the seeds into two groups that are looked at; more are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with the limits of its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSignal:
    """Signal and noise of one metric.

    spread: largest difference between the means of two arms. noise: residual SD of one run over
    the seeds. ratio: spread / noise, with its interval of 95 %; None where the noise is 0:
    identical scores do not estimate it. single_agreement: the share of pairs of arms that two
    single seeds order alike. half_agreement: the same for the means of two disjoint halves.
    Chance is 0.5, a tie counts 0.5. best: the arm with the best mean.
    """

    metric: str
    arms: int
    seeds: int
    higher_is_better: bool
    best: str
    spread: float
    noise: float
    ratio: Interval | None
    single_agreement: float
    half_agreement: float

    @property
    def by_chance(self) -> float:
        """The ratio to expect of equal arms: the mean range of normal variables."""
        from scipy.special import ndtr

        z = np.linspace(-8, 8, 1601)
        outside = 1 - ndtr(z) ** self.arms - ndtr(-z) ** self.arms
        return float(outside.sum()) * 0.01 / math.sqrt(self.seeds)


def metric_signals(
    values: Mapping[str, Values], lower_is_better: Collection[str] = (), *, paired: bool = True
) -> list[MetricSignal]:
    """Signal and noise of every metric of {metric: {arm: {seed: value}}}, most signal first.

    Of the arms with two seeds at least, and of the seeds that all of these have; a metric with
    fewer than two such arms or seeds is left out. Those without noise come last. Values are finite.
    paired: runs of one seed belong together. Else the runs of an arm have no order: their noise is
    that around the mean of their arm, and they are drawn in an order that the file does not decide.
    """
    signals = []
    for metric, table in values.items():
        runs = {arm: of_arm for arm, of_arm in table.items() if len(of_arm) > 1}
        if not paired:
            least = min(map(len, runs.values()), default=0)
            runs = {arm: dict(enumerate(_drawn(of_arm, least))) for arm, of_arm in runs.items()}
        seeds = sorted(set.intersection(*map(set, runs.values()))) if len(runs) > 1 else []
        if len(seeds) > 1:
            array = np.array([[runs[arm][seed] for seed in seeds] for arm in runs], dtype=float)
            higher = metric not in lower_is_better
            signals.append(_one_metric(metric, list(runs), array, higher, paired))
    return sorted(signals, key=lambda signal: -signal.ratio.value if signal.ratio else math.inf)


def _drawn(runs: Mapping[int, float], number: int) -> list[float]:
    """So many values of an arm in an order that depends on the values alone."""
    values = sorted(runs.values())
    order = np.random.default_rng(len(values)).permutation(len(values))[:number]
    return [values[place] for place in order.tolist()]


def _one_metric(
    metric: str, names: list[str], array: Array, higher_is_better: bool, paired: bool
) -> MetricSignal:
    """Of an array [arms, seeds]."""
    from scipy.special import chdtri

    arms, seeds = array.shape
    means, df = array.mean(axis=1), (arms - paired) * (seeds - 1)
    residuals = array - means[:, None]
    if paired:
        residuals += means.mean() - array.mean(axis=0)
    spread, noise = float(np.ptp(means)), math.sqrt(float((residuals**2).sum()) / df)
    ratio = None
    if noise > 1e-12 * max(1e-300, float(np.abs(array).max())):
        # The parts of the interval, of the noise (a chi) and of the spread (normal), are added in
        # squares (Zou and Donner 2008, the method of variance estimates recovery).
        value, of_spread = spread / noise, NORMAL_LIMIT * math.sqrt(2 / seeds)
        low, high = value * np.sqrt(chdtri(df, LIMITS[::-1]) / df)
        ratio = Interval(
            value=value,
            low=max(0.0, value - math.hypot(value - low, of_spread)),
            high=value + math.hypot(high - value, of_spread),
        )
    return MetricSignal(
        metric=metric,
        arms=arms,
        seeds=seeds,
        higher_is_better=higher_is_better,
        best=names[int((means if higher_is_better else -means).argmax())],
        spread=spread,
        noise=noise,
        ratio=ratio,
        single_agreement=_agreement(array, 1),
        half_agreement=_agreement(array, seeds // 2),
    )


def _agreement(array: Array, size: int) -> float:
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
        generator = np.random.default_rng(0)
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
