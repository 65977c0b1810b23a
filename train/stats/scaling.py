"""Error curves over samples seen, their crossings, and signal to noise of metrics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

# --------------------------------------------------------------------------------------------------
# How the error of an arm falls with the samples seen, and what that says about larger runs. Pure.
#
# One arm's error at n samples seen is fitted as a + b · n^(−c) with a, b ≥ 0 and c > 0. Intervals
# come from a bootstrap over seeds: a resample draws the seeds with replacement, the same for all
# sizes and all arms, so that what a seed adds to every run stays together.


LARGEST_EXPONENT = 4.0
SAFE_FACTOR = 4.0  # predictions further beyond the largest size than this carry a warning
NORMAL_LIMIT = 1.959964  # of an interval of 95 %
LIMITS = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # of an interval of 95 %, as shares
GRID = 400  # sizes at which two curves are compared in the search of a crossing

Runs = Mapping[float, Mapping[int, float]]  # {samples seen: {seed: error}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """error(n) = floor + scale · (n / unit)^(−exponent).

    unit is the geometric mean of the sizes, so that `scale` is the reducible error in the middle
    of the data. Errors are shares, like the values that were fitted.
    """

    floor: float
    scale: float
    exponent: float
    unit: float

    def at(self, n: float | np.ndarray) -> np.ndarray:
        """The error at n samples seen, a scalar or an array."""
        return self.floor + self.scale * (np.asarray(n, dtype=float) / self.unit) ** -self.exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with the limits of its bootstrap interval (percentiles)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """The curve of one arm. resamples: the curves of the bootstrap, in the order of the draws.

    sizes: samples seen of the data, ascending.
    """

    arm: str
    law: PowerLaw
    resamples: tuple[PowerLaw, ...]
    sizes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The error that a fit predicts at n samples seen. warning: why not to rely on it, or None."""

    arm: str
    n: float
    error: Interval
    warning: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the curves of two arms cross.

    n is None where they do not cross between `start` and `end`. low and high: percentile interval
    over the resamples that cross, None where fewer than two do. crossing_share: the share of
    resamples that cross in the range. better_before and better_after: the arm with the smaller
    error just before the crossing and at the end of the range; the same one without a crossing.
    """

    first: str
    second: str
    n: float | None
    low: float | None
    high: float | None
    crossing_share: float
    better_before: str
    better_after: str
    start: float
    end: float

    def sentence(self) -> str:
        """The crossing in words: a size with its interval, or none in range."""
        if self.n is None:
            return (
                f"{self.first} and {self.second}: none in range; {self.better_before} has the "
                f"smaller error from {self.start:.3g} to {self.end:.3g} samples seen "
                f"({self.crossing_share:.0%} of the resamples cross)"
            )
        limits = "no interval" if self.low is None else f"{self.low:.3g} to {self.high:.3g}"
        return (
            f"{self.better_after} overtakes {self.better_before} at {self.n:.3g} samples seen "
            f"({limits}; {self.crossing_share:.0%} of the resamples cross)"
        )


def fit_scaling(
    runs: Mapping[str, Runs],
    generator: np.random.Generator,
    *,
    draws: int = 200,
) -> dict[str, ScalingFit]:
    """Fit every arm of {arm: {samples seen: {seed: error}}}, with `draws` bootstrap resamples.

    All arms have the same seeds at all sizes, 3 sizes at least; errors are finite. One seed leaves
    the intervals without width.
    """
    seeds = sorted(next(iter(next(iter(runs.values())).values())))
    picks = generator.integers(len(seeds), size=(draws, len(seeds)))
    fits = {}
    for arm, of_arm in runs.items():
        sizes = np.array(sorted(of_arm), dtype=float)
        errors = np.array([[of_arm[size][seed] for seed in seeds] for size in sorted(of_arm)])
        weights = _weights(errors)
        law = fit_power_law(sizes, errors.mean(axis=1), weights)
        resamples = []
        for pick in picks:
            means = errors[:, pick].mean(axis=1)
            resamples.append(fit_power_law(sizes, means, weights, start=law))
        fits[arm] = ScalingFit(
            arm=arm,
            law=law,
            resamples=tuple(resamples),
            sizes=tuple(float(size) for size in sizes),
        )
    return fits


def _weights(errors: np.ndarray) -> np.ndarray:
    """1 / SD per size of [sizes, seeds], shrunk halfway to the SD of all sizes in variance: 2 or 3
    seeds say little about one size's spread. Equal weights for one seed or no spread at all."""
    if errors.shape[1] < 2:
        return np.ones(len(errors))
    variances = errors.var(axis=1, ddof=1)
    pooled = variances.mean()
    if pooled < 1e-24:
        return np.ones(len(errors))
    weights: np.ndarray = 1 / np.sqrt((variances + pooled) / 2)
    return weights


def fit_power_law(
    sizes: np.ndarray, errors: np.ndarray, weights: np.ndarray, start: PowerLaw | None = None
) -> PowerLaw:
    """Weighted least squares of floor + scale · (n / unit)^(−exponent); arrays of shape [sizes].

    Bounds: 0 ≤ floor ≤ smallest error, scale ≥ 0, 0 < exponent ≤ 4. For a given exponent the rest
    is linear, so the search starts at the best of a grid of exponents, and at `start` too.
    """
    from scipy.optimize import least_squares

    unit = float(np.exp(np.mean(np.log(sizes))))
    logs = np.log(sizes / unit)
    ceiling = max(float(errors.min()), 1e-12)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        floor, scale, exponent = parameters
        distance: np.ndarray = weights * (floor + scale * np.exp(-exponent * logs) - errors)
        return distance

    def slopes(parameters: np.ndarray) -> np.ndarray:
        _, scale, exponent = parameters
        decay = np.exp(-exponent * logs)
        columns = [np.ones_like(logs), decay, -scale * logs * decay]
        jacobian: np.ndarray = np.stack(columns, axis=1) * weights[:, None]
        return jacobian

    candidates = [_linear_start(logs, errors, weights, c, ceiling) for c in (0.05, 0.2, 0.5, 1, 2)]
    if start is not None:
        floor = min(max(start.floor, 0.0), ceiling)
        candidates.append(np.array([floor, start.scale, start.exponent]))
    best = min(candidates, key=lambda parameters: float((residuals(parameters) ** 2).sum()))
    bounds = ([0.0, 0.0, 1e-6], [ceiling, np.inf, LARGEST_EXPONENT])
    solution = least_squares(
        residuals,
        np.clip(best, [0.0, 1e-12, 1e-6], [ceiling, np.inf, LARGEST_EXPONENT]),
        jac=slopes,
        bounds=bounds,
        x_scale="jac",
        xtol=1e-10,
        ftol=1e-10,
        gtol=1e-10,
    )
    floor, scale, exponent = (float(value) for value in solution.x)
    return PowerLaw(floor=floor, scale=scale, exponent=exponent, unit=unit)


def _linear_start(
    logs: np.ndarray, errors: np.ndarray, weights: np.ndarray, exponent: float, ceiling: float
) -> np.ndarray:
    """Floor and scale by linear least squares for one exponent, moved into the bounds."""
    decay = np.exp(-exponent * logs)
    design = np.stack([np.ones_like(logs), decay], axis=1) * weights[:, None]
    floor, scale = np.linalg.lstsq(design, errors * weights, rcond=None)[0]
    if not 0 <= floor <= ceiling:
        floor = min(max(floor, 0.0), ceiling)
        target = (errors - floor) * weights
        scale = float(target @ (decay * weights)) / float((decay * weights) @ (decay * weights))
    return np.array([floor, max(scale, 0.0), exponent])


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, LIMITS)
    return float(low), float(high)


def predict_error(fit: ScalingFit, n: float) -> Prediction:
    """The error at n samples seen, above 0."""
    low, high = _percentiles(np.array([law.at(n) for law in fit.resamples]))
    value, largest, warning = float(fit.law.at(n)), fit.sizes[-1], None
    if n > SAFE_FACTOR * largest:
        warning = (
            f"{n:.3g} samples seen are {n / largest:.1f} times the largest size that was run "
            f"({largest:.3g}); the interval does not hold the error of the curve's form"
        )
    return Prediction(
        arm=fit.arm,
        n=n,
        error=Interval(value=value, low=min(low, value), high=max(high, value)),
        warning=warning,
    )


def find_crossing(first: ScalingFit, second: ScalingFit) -> Crossing:
    """The last size at which the curves of two arms change places, from the smallest common size
    to 4 times the largest size of the data.

    Both fits come from the same call of `fit_scaling`, so that their resamples belong together.
    """
    start = max(first.sizes[0], second.sizes[0])
    end = SAFE_FACTOR * min(first.sizes[-1], second.sizes[-1])
    n = _last_crossing(first.law, second.law, start, end)
    sizes = [
        _last_crossing(one, other, start, end)
        for one, other in zip(first.resamples, second.resamples, strict=True)
    ]
    crossed = np.array([size for size in sizes if size is not None])
    low, high = None, None
    if n is not None and len(crossed) > 1:
        low, high = _percentiles(crossed)
        low, high = min(low, n), max(high, n)
    after = first.arm if first.law.at(end) <= second.law.at(end) else second.arm
    before = after
    if n is not None:
        before = second.arm if after == first.arm else first.arm
    return Crossing(
        first=first.arm,
        second=second.arm,
        n=n,
        low=low,
        high=high,
        crossing_share=len(crossed) / len(sizes),
        better_before=before,
        better_after=after,
        start=start,
        end=end,
    )


def _last_crossing(first: PowerLaw, second: PowerLaw, start: float, end: float) -> float | None:
    """The largest root of first − second between start and end, or None."""
    from scipy.optimize import brentq

    grid = np.geomspace(start, end, GRID)
    gaps = first.at(grid) - second.at(grid)
    changes = np.flatnonzero((gaps[:-1] > 0) != (gaps[1:] > 0))
    if not len(changes):
        return None
    i = int(changes[-1])
    return float(
        brentq(lambda n: float(first.at(n) - second.at(n)), grid[i], grid[i + 1], xtol=1e-9 * start)
    )


# --------------------------------------------------------------------------------------------------
# Which metric tells arms apart best: the spread between arms against the noise of one run. Pure.
#
# Signal is the largest difference between the means of two arms and noise the SD of one run, as
# in Signal and Noise (Heineman et al. 2025, arXiv 2508.13144); the mean that they divide both by
# cancels in the ratio. The noise here is the residual SD of arm + seed + residual, because arms
# are compared by seed: what a seed adds to all arms is no noise of a comparison.


Table = Mapping[str, Mapping[int, float]]  # {arm: {seed: value}}

MOST_SPLITS = 500  # splits of the seeds into two groups that are looked at; more are drawn


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
    values: Mapping[str, Table], lower_is_better: Collection[str] = ()
) -> list[MetricSignal]:
    """Signal and noise of every metric of {metric: {arm: {seed: value}}}, most signal first.

    Of the arms with two seeds at least, and of the seeds that all of these have; a metric with
    fewer than two such arms or seeds is left out. Those without noise come last. Values are finite.
    """
    signals = []
    for metric, table in values.items():
        runs = {arm: of_arm for arm, of_arm in table.items() if len(of_arm) > 1}
        seeds = sorted(set.intersection(*map(set, runs.values()))) if len(runs) > 1 else []
        if len(seeds) > 1:
            array = np.array([[runs[arm][seed] for seed in seeds] for arm in runs], dtype=float)
            higher = metric not in lower_is_better
            signals.append(_one_metric(metric, list(runs), array, higher))
    return sorted(signals, key=lambda signal: -signal.ratio.value if signal.ratio else math.inf)


def _one_metric(
    metric: str, names: list[str], array: np.ndarray, higher_is_better: bool
) -> MetricSignal:
    """Of an array [arms, seeds]."""
    from scipy.special import chdtri

    arms, seeds = array.shape
    means, df = array.mean(axis=1), (arms - 1) * (seeds - 1)
    residuals = array - means[:, None] - array.mean(axis=0) + means.mean()
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


def _agreement(array: np.ndarray, size: int) -> float:
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
