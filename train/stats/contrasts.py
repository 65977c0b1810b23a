"""Differences of arms with their noise: from one task, and from the average over tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from train.stats.comparison import Difference, Spread
from train.stats.model import AdditiveFit, Values, common_seeds, fit_additive, paired_variance
from train.stats.moderation import (
    LedgerEntry,
    combine_with_prior,
    fit_prior,
    moderated_variances,
)
from train.stats.power import satterthwaite
from train.stats.samples import SampleNoise, SampleRuns, sample_noise

Array = np.ndarray
Pair = tuple[str, str]  # (arm, its baseline)
Samples = Mapping[str, SampleRuns]  # {arm: {seed: groups of per-sample values}}

LEAST_SEEDS = 2
LEAST_TASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What all runs of a table say of the noise of one run.

    fit: the additive model. prior: from the ledger, None without. variance, df: the shared
    variance of a run's residual with the prior in it.
    """

    fit: AdditiveFit
    prior: LedgerEntry | None
    variance: float
    df: float


def shared_noise(values: Values, ledger: Sequence[LedgerEntry]) -> Noise | None:
    """The model of a table and its shared variance; None where nothing gives a variance."""
    if not any(values.values()):
        return None
    fit, prior = fit_additive(values), fit_prior(ledger)
    variance, df = combine_with_prior(fit.variance, fit.df, prior)
    if variance is None:
        return None
    return Noise(fit=fit, prior=prior, variance=variance, df=max(1.0, df))


def comparable(values: Values, pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that share at least two seeds."""
    return [pair for pair in pairs if len(common_seeds(values, *pair)) >= LEAST_SEEDS]


def pair_noise(samples: Samples | None, pair: Pair, seeds: Sequence[int]) -> SampleNoise | None:
    """The noise from samples of a pair; None unless every common seed has per-sample values."""
    if samples is None:
        return None
    runs = []
    for arm in pair:
        of_arm = samples.get(arm, {})
        if any(seed not in of_arm for seed in seeds):
            return None
        runs.append({seed: of_arm[seed] for seed in seeds})
    return sample_noise(runs[0], runs[1])


def differences(
    values: Values,
    noise: Noise,
    pairs: Sequence[Pair],
    sample_noises: Sequence[SampleNoise | None],
    *,
    one_baseline: bool,
) -> list[Difference]:
    """Each pair's difference and spreads. `one_baseline`: the variances are moderated together.

    Independent errors on the samples leave a variance at least, which is known without many seeds:
    the interval is the wider of that of the runs and that of this floor with infinite degrees of
    freedom. Simulated for true variances of 1 to 6 floors (1, 4, 8 arms × 2, 3, 5 seeds), it covers
    at least as well as without a floor (up to 98.9 %) and is 0-5 % wider; raising the variance to
    the floor under the few degrees of freedom of the runs is up to 29 % wider (coverage 100 %).
    """
    own = [paired_variance(values, *pair) for pair in pairs]
    pooled = 2 * noise.variance
    if one_baseline:
        variances = moderated_variances(pooled, own)
    else:
        variances = [moderated_variances(pooled, [variance])[0] for variance in own]
    rows = []
    for pair, variance, samples in zip(pairs, variances, sample_noises, strict=True):
        share = noise.fit.factor(*pair) / 2
        over_seeds = [Spread(variance=variance * share, df=noise.df)]
        over_samples = []
        if samples is not None:
            over_seeds.append(Spread(variance=samples.floor * share, df=math.inf))
            over_samples = [add_drawing(spread, samples) for spread in over_seeds]
        rows.append(
            Difference(
                arm=pair[0],
                baseline=pair[1],
                seeds=common_seeds(values, *pair),
                difference=noise.fit.estimate(*pair),
                sd=math.sqrt(max(variance, samples.floor if samples else 0.0)),
                over_seeds=tuple(over_seeds),
                over_samples=tuple(over_samples),
            )
        )
    return rows


def with_own_spread(
    values: Values, noise: Noise, row: Difference, samples: SampleNoise | None
) -> Difference:
    """The same difference with the spread of its own runs beside the shared one: for the A/A pair.

    Its interval is then at least that of a paired t test. An A/A arm is there to warn, and no rule
    that borrows from quieter arms keeps its false alarms at 5 %: with a baseline of 3 times the
    spread of 3 arms, the shared variance calls 11.0-12.8 % different (2 to 8 seeds, 20,000 tables
    each), half-way to the pair's own included.
    """
    own = paired_variance(values, row.arm, row.baseline)
    share = noise.fit.factor(row.arm, row.baseline) / 2
    spread = Spread(variance=own * share, df=len(row.seeds) - 1)
    over_samples = row.over_samples
    if samples is not None:
        over_samples = (*over_samples, add_drawing(spread, samples))
    return replace(row, over_seeds=(*row.over_seeds, spread), over_samples=over_samples)


def add_drawing(over_seeds: Spread, samples: SampleNoise) -> Spread:
    """The spread over seeds and samples."""
    if samples.drawing == 0:
        return over_seeds
    df = samples.drawing**2 / samples.drawing_error
    variance, total_df = satterthwaite(
        [(over_seeds.variance, over_seeds.df), (samples.drawing, df)]
    )
    return Spread(variance=variance, df=total_df)


def average_values(tables: Sequence[Values]) -> dict[str, dict[int, float]]:
    """Means over tasks of the runs that have a value in every task."""
    rows: dict[str, dict[int, float]] = {}
    for arm in tables[0]:
        seeds = set(tables[0][arm])
        for table in tables[1:]:
            seeds &= set(table.get(arm, {}))
        means = {}
        for seed in sorted(seeds):
            means[seed] = float(np.mean([table[arm][seed] for table in tables]))
        rows[arm] = means
    return rows


def average_noise(noises: Sequence[SampleNoise | None]) -> SampleNoise | None:
    """The noise of samples of an average over tasks with different samples; None if one is None."""
    known = [noise for noise in noises if noise is not None]
    if len(known) < len(noises):
        return None
    count = len(known) ** 2
    return SampleNoise(
        floor=sum(noise.floor for noise in known) / count,
        drawing=sum(noise.drawing for noise in known) / count,
        drawing_error=sum(noise.drawing_error for noise in known) / count**2,
    )


def over_tasks(tables: Sequence[Values], one: Difference) -> tuple[Spread, ...]:
    """The spread of a mean difference if the tasks are a random sample too; () below 3 tasks.

    The variance of the tasks' differences / T holds the tasks, their samples and what seeds do to
    each task alone; the part of the seeds that all tasks share is added: variance over seeds less
    (mean square of seeds × tasks) / (T S), at least 0.
    """
    if len(tables) < LEAST_TASKS:
        return ()
    table = np.array(
        [
            [values[one.arm][seed] - values[one.baseline][seed] for seed in one.seeds]
            for values in tables
        ]
    )
    tasks, seeds = table.shape
    between = float(table.mean(axis=1).var(ddof=1)) / tasks
    residual = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    residual_square = float((residual**2).sum()) / ((tasks - 1) * (seeds - 1))
    runs = one.over_seeds[0]
    common = max(0.0, runs.variance - residual_square / (tasks * seeds))
    variance, df = satterthwaite([(between, tasks - 1), (common, runs.df)])
    return (Spread(variance=variance, df=df),)
