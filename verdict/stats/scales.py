"""Which small scale, and which metric of it, orders two arms as a large one does. Pure.

docs/statistics.md, "Which small run decides", defines every number. The share of pairs that two
scales order alike is the decision accuracy of DataDecide (Magnusson et al. 2025).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clipmill.manifests.arrays import Array
from clipmill.verdict.stats.model import AdditiveFit, RunGroups, Values, fit_additive
from clipmill.verdict.stats.signals import LIMITS, Interval

Column = tuple[str, str]  # task, metric

LEAST_ARMS = 3  # whose order is compared
FEWEST_ARMS = 4  # that an interval is of
STATED = 0.95  # the probability from which on a scale decides a pair
BINS = (0.5, 0.7, 0.9, 0.95, 0.99)  # of stated probabilities: where each begins
SURE = 0.9  # the mean probability over all pairs whose price is told
MOST_SEEDS = 1000  # that are asked for it
NEIGHBOUR = 1.2  # a scale that is larger by less is no step
# What a step by a factor of e may move an arm by, over the spread of the arms; √κ in the document
SHIFTS = np.linspace(0, 5, 101)
LEAST_WEIGHT = 1e-6  # of a shift that counts
NO_SHIFT: Array = (SHIFTS == 0).astype(float)
ALL_SHIFT: Array = np.zeros(len(SHIFTS))  # the small scale tells nothing of the large one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleAgreement:
    """Pairs of arms that a small scale orders as a large one.

    pairs: those that count; left_out: those that do not, such as ties. share: the part of the pairs
    ordered alike, with an interval of 95 % by the jackknife over arms, because pairs share arms:
    each arm is left out in turn, and the pseudo-values have t with arms - 1 degrees of freedom.
    Where all pairs or none are alike, the limit is that of as many independent pairs as have no arm
    in common, arms // 2. From 0 to 1 where nothing is known: fewer than FEWEST_ARMS arms, or one
    arm that is in every pair.
    """

    pairs: int
    alike: int
    left_out: int
    share: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """How often a metric at a small scale orders two arms as one at the large scale does.

    task, metric: at the small scale. truth: task and metric at the large one. seeds: runs of an
    arm, the median. cost: samples seen at the small scale over those at the large one, all runs of
    an arm together; None where scales are something else. clear: of the pairs that the large scale
    decides. stated: of the pairs that the small one decides. bins: (where it begins, its pairs) of
    the probability that a pair is ordered right; probability: its mean over all pairs; with_shift:
    whether it allows for what moves between scales, or only for the noise of seeds. seeds_for_sure:
    at which the mean would be SURE, None where MOST_SEEDS are too few. Without seeds or a published
    noise the last four are empty, and without a published noise `clear` and `stated` are None too.
    """

    task: str
    metric: str
    truth: Column
    small: str
    large: str
    seeds: int
    cost: float | None
    agreement: ScaleAgreement
    clear: ScaleAgreement | None = None
    stated: ScaleAgreement | None = None
    bins: tuple[tuple[float, ScaleAgreement], ...] = ()
    probability: float | None = None
    with_shift: bool = False
    seeds_for_sure: int | None = None


# --- pairs ----------------------------------------------------------------------------------------


def scale_agreement(
    small: Mapping[str, float], large: Mapping[str, float]
) -> ScaleAgreement | None:
    """Pairs of arms that two scales order alike: {arm: mean value} at each, in the same direction.

    Of the arms of both. A pair that either scale ties decides nothing and is left out. None where
    there is no other pair.
    """
    arms = sorted(small.keys() & large)
    first, second = (np.sign(gaps_of([scale[arm] for arm in arms])) for scale in (small, large))
    return agreement_of(first * second > 0, first * second != 0)


def gaps_of(means: Sequence[float] | Array) -> Array:
    """[arms, arms] each mean less each other one."""
    values = np.asarray(means, dtype=float)
    gaps: Array = values[:, None] - values[None, :]
    return gaps


def agreement_of(right: Array, counted: Array) -> ScaleAgreement | None:
    """Of symmetric masks [arms, arms]: pairs ordered alike, and pairs that count. None of none."""
    from scipy.special import stdtrit

    counts_all = len(counted) * (len(counted) - 1) // 2
    rows = counted.any(axis=1)
    of_arm, alike_of_arm = counted[rows].sum(axis=1), (right & counted)[rows].sum(axis=1)
    pairs, alike, arms = int(of_arm.sum()) // 2, int(alike_of_arm.sum()) // 2, len(of_arm)
    if not pairs:
        return None
    share, low, high = alike / pairs, 0.0, 1.0
    without = pairs - of_arm
    if arms >= FEWEST_ARMS and without.all():
        pseudo = arms * share - (arms - 1) * ((alike - alike_of_arm) / without)
        half = float(stdtrit(arms - 1, LIMITS[1]) * pseudo.std(ddof=1)) / math.sqrt(arms)
        least = LIMITS[0] ** (1 / (arms // 2))  # so many independent pairs were all alike
        if alike in (0, pairs):
            low, high = (least, 1.0) if alike else (0.0, 1 - least)
        elif half:
            low, high = max(0.0, share - half), min(1.0, share + half)
    return ScaleAgreement(
        pairs=pairs,
        alike=alike,
        left_out=counts_all - pairs,
        share=Interval(value=share, low=low, high=high),
    )


# --- probabilities --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMeans:
    """The means of arms at one scale, larger is better, and what their seeds say of their noise.

    means: [arms]. variance, df: [arms, arms] of each gap. noise: the variance of one mean. spread:
    the variance of the true means.
    """

    means: Array
    variance: Array
    df: Array
    noise: float
    spread: float

    def probabilities(self, weights: Array, log_ratio: float) -> Array:
        """[arms, arms] that the arm with the larger mean is better at another scale too, whose size
        has this ratio. weights: the posterior of SHIFTS. 0.5 where nothing is known.
        """
        from scipy.special import stdtr

        total = np.full(self.variance.shape, 0.5 * (1 - weights.sum()))
        if not self.spread:
            return np.full(self.variance.shape, 0.5)
        shrink = 2 * self.spread / (2 * self.spread + self.variance)
        gaps = shrink * np.abs(gaps_of(self.means))
        for shift, weight in zip(SHIFTS, weights, strict=True):
            if weight > LEAST_WEIGHT:
                scatter = shrink * self.variance + 2 * shift**2 * self.spread * log_ratio
                total += weight * stdtr(self.df, gaps / np.sqrt(scatter))
        return total


def arm_means(
    table: Values,
    higher_is_better: bool,
    noise: float | None = None,
    groups: RunGroups | None = None,
) -> ArmMeans | None:
    """The means of the arms of a table and their noise; None where no seeds tell it.

    noise: the standard deviation of one run, instead. groups: as in `analyse`: runs that no seed
    pairs.
    """
    runs = np.array([len(seeds) for seeds in table.values()])
    sign = 1 if higher_is_better else -1
    means = sign * np.array([np.mean(list(seeds.values())) for seeds in table.values()])
    if noise is not None:
        of_mean = noise**2 / runs
        variance = of_mean[:, None] + of_mean[None, :]
        return _with_spread(means, variance, np.full_like(variance, np.inf), float(of_mean.mean()))
    fit = fit_additive(table, groups) if runs.max() > 1 else None
    if fit is None or not fit.variance:
        return None
    if groups is not None:  # the spread of both arms, as far as each has two runs
        spread = [
            float(np.var(list(own.values()), ddof=1)) if len(own) > 1 else fit.variance
            for own in table.values()
        ]
        own = np.add.outer(spread, spread)
        own_df = np.maximum(np.add.outer(runs - 1, runs - 1), 1)
        return _raised(fit, means, own, own_df)
    numbers = sorted({seed for seeds in table.values() for seed in seeds})
    values = np.array([[seeds.get(seed, np.nan) for seed in numbers] for seeds in table.values()])
    paired = values[:, None] - values[None, :]
    n = (~np.isnan(paired)).sum(axis=2)
    mean = np.nansum(paired, axis=2) / np.maximum(n, 1)
    own_df = np.maximum(n - 1, 1)
    own = np.nansum((paired - mean[..., None]) ** 2, axis=2) / own_df
    return _raised(fit, means, own, own_df)


def _raised(fit: AdditiveFit, means: Array, own: Array, own_df: Array) -> ArmMeans:
    """Gaps with the variance that all arms share, raised half-way to their own where that is
    more.
    """
    assert fit.variance is not None
    pooled = 2 * fit.variance
    raised = np.maximum(own, pooled) / 2 + pooled / 2
    # Satterthwaite, of the two halves of a variance that was raised
    df = raised**2 / ((pooled / 2) ** 2 / fit.df + (own / 2) ** 2 / own_df)
    of_arm = np.diag(fit.covariance)
    factor = of_arm[:, None] + of_arm[None, :] - 2 * fit.covariance
    np.fill_diagonal(factor, 1.0)
    return _with_spread(
        means,
        raised / 2 * factor,
        np.where(own > pooled, np.minimum(df, fit.df), fit.df),
        fit.variance * float(factor[np.triu_indices(len(means), 1)].mean()) / 2,
    )


def _with_spread(means: Array, variance: Array, df: Array, noise: float) -> ArmMeans:
    spread = max(0.0, float(means.var(ddof=1)) - noise)
    return ArmMeans(means=means, variance=variance, df=df, noise=noise, spread=spread)


def shift_weights(steps: Sequence[tuple[ArmMeans, ArmMeans, float]]) -> Array:
    """The posterior of SHIFTS from steps (a scale, a larger one, the log of the ratio of their
    sizes) with the same arms in both; NO_SHIFT without a step, ALL_SHIFT where a scale tells
    nothing of the larger one.
    """
    if not steps:
        return NO_SHIFT
    log_likelihood = np.zeros(len(SHIFTS))
    for small, larger, log_ratio in steps:
        x, y = small.means - small.means.mean(), larger.means - larger.means.mean()
        slope = float(x @ y) / float(x @ x) if small.spread else 0.0
        if slope <= 0:
            return ALL_SHIFT
        shrink = small.spread / (small.spread + small.noise)
        unit = (shrink / slope) ** 2  # of a variance of the large metric in that of the small one
        residual = float(((y - slope * x) ** 2).sum()) * unit
        expected = SHIFTS**2 * small.spread * log_ratio + shrink * small.noise + larger.noise * unit
        log_likelihood -= (len(x) - 2) / 2 * np.log(expected) + residual / (2 * expected)
    weights = np.exp(log_likelihood - log_likelihood.max())
    posterior: Array = weights / weights.sum()
    return posterior


# --- scales ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTables:
    """The values of metrics at scales.

    columns: {(task, metric): {scale: {arm: {seed: value}}}}. lower: columns of which less is
    better. names: of the scales. costs: whether scales are what a run costs. noise: a published
    standard deviation of one run, instead of that of the seeds. groups: as in `analyse`.
    """

    columns: Mapping[Column, Mapping[float, Values]]
    lower: Collection[Column]
    names: Mapping[float, str]
    costs: bool = False
    noise: float | None = None
    groups: RunGroups | None = None
    known: dict[tuple[Column, float, tuple[str, ...]], ArmMeans | None] = field(
        default_factory=dict
    )

    @property
    def large(self) -> float:
        return max(scale for of_scales in self.columns.values() for scale in of_scales)

    def decisions(self, headline: Column) -> tuple[ScaleDecision, ...]:
        """Every column at every smaller scale against the headline at the largest one, and against
        itself there: the headline first, then those that agree best with it.

        A scale with fewer than LEAST_ARMS arms of the largest one is left out, and a column that
        ties all of them.
        """
        groups: dict[Column, list[ScaleDecision]] = {}
        for column, of_scales in self.columns.items():
            rows = groups[column] = []
            for truth in dict.fromkeys((headline, column)):
                for small in sorted(scale for scale in of_scales if scale < self.large):
                    if self.large in self.columns[truth]:
                        rows += self._decision(column, small, truth)

        def place(column: Column) -> tuple[bool, float]:
            shares = [row.agreement.share.value for row in groups[column] if row.truth == headline]
            return column != headline, -max(shares, default=0.0)

        return tuple(row for column in sorted(groups, key=place) for row in groups[column])

    def _decision(self, column: Column, small: float, truth: Column) -> list[ScaleDecision]:
        """One, or none where there is no pair."""
        tables = self.columns[column][small], self.columns[truth][self.large]
        arms = tuple(sorted(arm for arm in tables[0] if tables[0][arm] and tables[1].get(arm)))
        if len(arms) < LEAST_ARMS:
            return []
        gaps = []
        for name, table in zip((column, truth), tables, strict=True):
            sign = -1 if name in self.lower else 1
            gaps.append(sign * gaps_of([float(np.mean(list(table[arm].values()))) for arm in arms]))
        order = np.sign(gaps[0]) * np.sign(gaps[1])
        agreement = agreement_of(order > 0, order != 0)
        if agreement is None:
            return []
        seeds, at_large = (int(np.median([len(table[arm]) for arm in arms])) for table in tables)
        one = ScaleDecision(
            task=column[0],
            metric=column[1],
            truth=truth,
            small=self.names[small],
            large=self.names[self.large],
            seeds=seeds,
            cost=small * seeds / (self.large * at_large) if self.costs else None,
            agreement=agreement,
        )
        means, truths = self._means(column, small, arms), self._means(truth, self.large, arms)
        if truths is not None:
            clear = truths.probabilities(NO_SHIFT, 0.0) >= STATED
            one = replace(one, clear=agreement_of(order > 0, (order != 0) & clear))
        if means is None:
            return [one]
        return [replace(one, **self._stated(column, small, truth, means, order, seeds))]

    def _stated(
        self,
        column: Column,
        small: float,
        truth: Column,
        means: ArmMeans,
        order: Array,
        seeds: int,
    ) -> dict[str, Any]:
        """What a small scale with seeds states of its pairs: fields of a ScaleDecision."""
        weights = shift_weights(self._steps(column, truth))
        log_ratio = math.log(self.large / small)
        stated = means.probabilities(weights, log_ratio)
        right, counted = order > 0, order != 0
        bins = []
        for low, high in zip(BINS, (*BINS[1:], math.inf), strict=True):
            if pairs := agreement_of(right, counted & (stated >= low) & (stated < high)):
                bins.append((low, pairs))
        upper = np.triu_indices(len(stated), 1)

        def probability(number: int) -> float:
            """The mean over all pairs with so many seeds; it rises with them."""
            less = seeds / number
            more = replace(means, variance=means.variance * less, noise=means.noise * less)
            return float(more.probabilities(weights, log_ratio)[upper].mean())

        numbers = list(dict.fromkeys(np.geomspace(1, MOST_SEEDS, 60).astype(int).tolist()))
        place = bisect.bisect_left(numbers, SURE, key=probability)
        return {
            "stated": agreement_of(right, counted & (stated >= STATED)),
            "bins": tuple(bins),
            "probability": float(stated[upper].mean()),
            "with_shift": weights is not NO_SHIFT,
            "seeds_for_sure": numbers[place] if place < len(numbers) else None,
        }

    def _steps(self, column: Column, truth: Column) -> list[tuple[ArmMeans, ArmMeans, float]]:
        """From each scale to the next one, both smaller than the largest."""
        steps = []
        for scale in self.columns[column]:
            larger = [at for at in self.columns[truth] if NEIGHBOUR * scale < at < self.large]
            if not larger:
                continue
            tables = self.columns[column][scale], self.columns[truth][min(larger)]
            arms = tuple(sorted(arm for arm in tables[0] if tables[0][arm] and tables[1].get(arm)))
            if len(arms) >= FEWEST_ARMS:
                first = self._means(column, scale, arms)
                second = self._means(truth, min(larger), arms)
                if first is not None and second is not None:
                    steps.append((first, second, math.log(min(larger) / scale)))
        return steps

    def _means(self, column: Column, scale: float, arms: tuple[str, ...]) -> ArmMeans | None:
        key = (column, scale, arms)
        if key not in self.known:
            table = {arm: self.columns[column][scale][arm] for arm in arms}
            self.known[key] = arm_means(table, column not in self.lower, self.noise, self.groups)
        return self.known[key]
