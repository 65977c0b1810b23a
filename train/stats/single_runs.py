"""What single runs tell: mean and SD over an arm's seeds, two runs sample by sample, and one model
without seeds against a baseline that has them. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from train.stats.comparison import Difference, Spread
from train.stats.contrasts import Pair
from train.stats.model import Values
from train.stats.moderation import moderated_variances
from train.stats.power import satterthwaite
from train.stats.samples import Groups, SampleRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSd:
    """One arm over its seeds: n values, their mean and sample SD (n − 1); no SD for one value."""

    n: int
    mean: float
    sd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discordance:
    """Samples that only one of two runs got right, and McNemar's exact two-sided p."""

    only_first: int
    only_second: int
    p: float


def mean_sd(values: Sequence[float]) -> MeanSd:
    """Mean and sample SD over seeds. ValueError without a value."""
    if not values:
        raise ValueError("a mean needs at least 1 seed; there are 0")
    x = np.asarray(values, dtype=np.float64)
    sd = float(x.std(ddof=1)) if len(x) > 1 else None
    return MeanSd(n=len(x), mean=float(x.mean()), sd=sd)


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


def run_spread(values: Values, baseline: str) -> Spread | None:
    """The variance of one run of the baseline over seeds, seed effects included.

    From all arms that have every seed of the baseline: (MS of seeds + (arms − 1) MS of residual) /
    arms, with Satterthwaite's degrees of freedom; raised half-way to the baseline's own variance
    where that is larger. None where the baseline has fewer than two seeds or nothing varies.
    """
    seeds = sorted(values.get(baseline, {}))
    if len(seeds) < 2:
        return None
    rows = []
    for of_arm in values.values():
        if set(seeds) <= set(of_arm):
            rows.append([of_arm[seed] for seed in seeds])
    table = np.array(rows)
    arms, count = table.shape
    own = float(np.var([values[baseline][seed] for seed in seeds], ddof=1))
    if arms == 1:
        return Spread(variance=own, df=count - 1) if own > 0 else None
    means = table.mean(axis=0)
    between = arms * float(means.var(ddof=1))
    residual = table - table.mean(axis=1, keepdims=True) - means + table.mean()
    within = float((residual**2).sum()) / ((arms - 1) * (count - 1))
    parts = [
        (between / arms, count - 1.0),
        (within * (arms - 1) / arms, (arms - 1.0) * (count - 1)),
    ]
    variance, df = satterthwaite([part for part in parts if part[0] > 0] or parts[:1])
    variance = moderated_variances(variance, [own])[0]
    return Spread(variance=variance, df=df) if variance > 0 else None


def one_model_difference(
    values: Values,
    pair: Pair,
    samples: Mapping[str, SampleRuns] | None = None,
    floor: float = 0.0,
) -> Difference | None:
    """One model without seeds less the mean of the baseline's runs. None without a spread.

    The model counts as one run of its arm and is taken to vary as the baseline's runs do; nothing
    is paired by seed. The variance is that of a new run: run_spread · (1 + 1/n) for n seeds of the
    baseline. floor: the least variance of one run that the samples leave. With per-sample values of
    all these runs, `over_samples` adds what drawing other samples adds, the model's own errors
    included. ValueError where the arm has not exactly one value.
    """
    arm, baseline = pair
    if len(values[arm]) != 1:
        raise ValueError(f"{arm} has {len(values[arm])} values; one model has one")
    spread = run_spread(values, baseline)
    if spread is None:
        return None
    (seed,) = values[arm]
    of_baseline = values[baseline]
    factor = 1 + 1 / len(of_baseline)
    over_seeds = [Spread(variance=spread.variance * factor, df=spread.df)]
    if floor > 0:
        over_seeds.append(Spread(variance=floor * factor, df=math.inf))
    drawing = _drawing(samples, (arm, seed), (baseline, tuple(of_baseline)))
    over_samples = []
    if drawing is not None:
        for one in over_seeds:
            variance, df = satterthwaite([(one.variance, one.df), (drawing.variance, drawing.df)])
            over_samples.append(Spread(variance=variance, df=df))
    return Difference(
        arm=arm,
        baseline=baseline,
        seeds=(),
        difference=values[arm][seed] - float(np.mean(list(of_baseline.values()))),
        sd=math.sqrt(2 * max(spread.variance, floor)),
        over_seeds=tuple(over_seeds),
        over_samples=tuple(over_samples),
    )


def _drawing(
    samples: Mapping[str, SampleRuns] | None,
    one: tuple[str, int],
    others: tuple[str, tuple[int, ...]],
) -> Spread | None:
    """The variance of the difference from drawing other samples; None without per-sample values.

    The mean of several groups has the mean of the groups' standard errors, as in `sample_noise`.
    """
    if samples is None or one[1] not in samples.get(one[0], {}):
        return None
    runs = samples.get(others[0], {})
    if any(seed not in runs for seed in others[1]):
        return None
    model: Groups = samples[one[0]][one[1]]
    errors, least = [], math.inf
    for group, own in enumerate(model):
        mean = np.asarray(np.mean([runs[seed][group] for seed in others[1]], axis=0, dtype=float))
        if np.shape(mean) != np.shape(own):
            raise ValueError(
                f"runs of one task need the same samples; {one[0]} has {len(own):,} and "
                f"{others[0]} {len(mean):,}"
            )
        difference = np.subtract(own, mean, dtype=np.float64)
        errors.append(math.sqrt(float(difference.var(ddof=1)) / len(difference)))
        least = min(least, len(difference) - 1)
    variance = float(np.mean(errors)) ** 2
    return Spread(variance=variance, df=least) if variance > 0 else None
