"""`analyse`: all comparisons of an ablation, from the values of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import numpy as np

from clipmill.manifests.arrays import Array
from clipmill.verdict.stats.comparison import (
    ALPHA,
    NO_DIRECTION,
    OPPOSITE,
    Comparison,
    Difference,
    Penalty,
    Power,
    StudyNoise,
    dunnett_family,
    holm_family,
    single,
)
from clipmill.verdict.stats.model import (
    AdditiveFit,
    Groups,
    PairLayout,
    RunGroups,
    SampleNoise,
    SampleRuns,
    Spread,
    Values,
    fit_additive,
    group_of,
    moderated_spreads,
    own_spread,
    pair_layout,
    sample_noise,
    satterthwaite,
)

# --------------------------------------------------------------------------------------------------
# Differences of arms with their noise: from one task, and from the average over tasks. Pure.


Pair = tuple[str, str]  # (arm, its baseline)
Samples = Mapping[str, SampleRuns]  # {arm: {run: groups of per-sample values}}

LEAST_RUNS = 2
LEAST_TASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What all runs of a table say of the noise of one run.

    fit: the additive model. variance, df: the shared variance of a run's residual.
    """

    fit: AdditiveFit
    variance: float
    df: float


def shared_noise(
    values: Values, family: Sequence[str] = (), groups: RunGroups | None = None
) -> Noise | None:
    """The model of a table and its shared variance; None where nothing gives a variance.

    family: the baseline and the arms whose intervals hold together. Quiet controls tell nothing of
    an arm that varies more than they do: the shared variance is at least that of the family's runs,
    and the other runs at most double its degrees of freedom.
    """
    if not any(values.values()):
        return None
    fit = fit_additive(values, groups)
    if fit.variance is None:
        return None
    variance, df = fit.variance, float(fit.df)
    inside = {arm: values[arm] for arm in family if values.get(arm)}
    own = fit_additive(inside, groups) if len(inside) > 1 else None
    if own is not None and own.variance is not None:
        variance, df = max(variance, own.variance), min(df, 2.0 * own.df)
    return Noise(fit=fit, variance=variance, df=df)


def comparable(
    values: Values, pairs: Sequence[Pair], groups: RunGroups | None = None
) -> dict[Pair, PairLayout]:
    """{pair: its layout} of the pairs that share at least two seeds; with `groups`, of those of at
    least two runs each that share a group and leave a residual in the groups that they share.
    """
    layouts = {}
    for pair in pairs:
        layout = layout_of(values, pair, groups)
        if fewest_runs(values, pair) >= LEAST_RUNS and layout.groups and layout.df > 0:
            layouts[pair] = layout
    return layouts


def layout_of(values: Values, pair: Pair, groups: RunGroups | None) -> PairLayout:
    """How the runs of a pair lie in their common groups."""
    return pair_layout(values.get(pair[0], {}), values.get(pair[1], {}), groups)


def fewest_runs(values: Values, pair: Pair) -> int:
    """The smaller number of runs of the two."""
    return min(len(values.get(arm, {})) for arm in pair)


def pair_noise(
    samples: Samples, pair: Pair, layout: PairLayout, groups: RunGroups | None = None
) -> SampleNoise | None:
    """The noise from samples of a pair; None unless every run in common groups has per-sample
    values.
    """
    runs = []
    for arm, of_groups in zip(pair, layout.runs, strict=True):
        of_arm, wanted = samples.get(arm, {}), list(chain.from_iterable(of_groups.values()))
        if any(run not in of_arm for run in wanted):
            return None
        runs.append({run: of_arm[run] for run in wanted})
    return sample_noise(runs[0], runs[1], groups)


def differences(
    values: Values,
    noise: Noise,
    pairs: Sequence[Pair],
    sample_noises: Sequence[SampleNoise | None],
    *,
    one_baseline: bool,
    limit: float = math.inf,
    groups: RunGroups | None = None,
) -> list[Difference]:
    """Each pair's difference and spreads. `limit`: the largest difference that there can be.

    `one_baseline`: the arms of a family; their variances are moderated together. A pair of fewer
    runs than some arm has fewer degrees of freedom, and its own variance is put together from those
    of the arms, each with its weight in the estimate. Otherwise (the
    controls, the A/A pair) the spread of the pair's own runs stands beside the shared one, and the
    interval is at least that of a paired t test (Welch's for a single group): a control is there to
    warn, and the spread that quieter arms share calls 8 to 16 % of equal data different where the
    baseline varies two or three times as much as they do.

    Independent errors on the samples leave a variance at least, which is known without many seeds:
    the interval is the wider of that of the runs and that of this floor with infinite degrees of
    freedom. Simulated for true variances of 1 to 6 floors (1, 4, 8 arms × 2, 3, 5 seeds), it covers
    at least as well as without a floor (up to 98.9 %) and is 0-5 % wider; raising the variance to
    the floor under the few degrees of freedom of the runs is up to 29 % wider (coverage 100 %).
    """
    own = [own_spread(values, *pair, groups) for pair in pairs]
    pooled = 2 * noise.variance
    seeds = [layout_of(values, pair, groups).seeds for pair in pairs]  # that are paired
    runs = [len(of) or fewest_runs(values, pair) for of, pair in zip(seeds, pairs, strict=True)]
    if one_baseline:
        most = max((len(values[arm]) for pair in pairs for arm in pair), default=0)
        variances, dfs = [one.variance for one in own], [one.df for one in own]
        if runs and min(runs) < most:
            of_runs = noise.fit.run_variances()
            for number, (pair, count) in enumerate(zip(pairs, runs, strict=True)):
                if count < most:
                    variances[number] = noise.fit.own_variance(*pair, of_runs)
                    # Welch's are too many where the arm of few runs shows less than its variance
                    dfs[number] = min(dfs[number], count - 1)
        moderated = moderated_spreads(pooled, noise.df, variances, dfs, runs, most)
        spreads = [[one] for one in moderated]
    else:
        spreads = [[Spread(variance=pooled, df=noise.df), one] for one in own]
    rows = []
    for number, (pair, of_pair) in enumerate(zip(pairs, spreads, strict=True)):
        samples = sample_noises[number]
        if samples is not None:
            of_pair = [*of_pair, Spread(variance=samples.floor, df=math.inf)]
        share = noise.fit.factor(*pair) / 2
        over_seeds = [replace(one, variance=one.variance * share) for one in of_pair]
        over_samples = [add_drawing(one, samples) for one in over_seeds if samples is not None]
        rows.append(
            Difference(
                arm=pair[0],
                baseline=pair[1],
                seeds=seeds[number],
                runs=runs[number],
                difference=noise.fit.estimate(*pair),
                sd=math.sqrt(max(one.variance for one in of_pair)),
                over_seeds=tuple(over_seeds),
                over_samples=tuple(over_samples),
                limit=limit,
            )
        )
    return rows


def add_drawing(over_seeds: Spread, samples: SampleNoise) -> Spread:
    """The spread over seeds and samples."""
    if samples.drawing == 0:
        return over_seeds
    df = samples.drawing**2 / samples.drawing_error
    return Spread(*satterthwaite([(over_seeds.variance, over_seeds.df), (samples.drawing, df)]))


def average_values(tables: Sequence[Values]) -> Values:
    """Means over tasks of the runs that have a value in every task: a run number is one run in all
    tasks.
    """
    rows: Values = {}
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
        floor=math.fsum(noise.floor for noise in known) / count,
        drawing=math.fsum(noise.drawing for noise in known) / count,
        drawing_error=math.fsum(noise.drawing_error for noise in known) / count**2,
    )


def over_tasks(
    tables: Sequence[Values], one: Difference, groups: RunGroups | None = None
) -> tuple[Spread, ...]:
    """The spread of a mean difference if the tasks are a random sample too; () below 3 tasks.

    The variance of the tasks' differences / T holds the tasks, their samples and what runs do to
    each task alone; the part of the runs that all tasks share is added: variance over runs less
    its part from runs × tasks, at least 0. That part is (mean square of seeds × tasks) / (T S) for
    pairs; with `groups`, from the residual of arm + group in each task's table of the two arms,
    the runs' means over tasks taken out.
    """
    if len(tables) < LEAST_TASKS:
        return ()
    count = len(tables)
    of_tasks, of_residual = (
        _paired_tasks(tables, one) if groups is None else _grouped_tasks(tables, one, groups)
    )
    between = float(of_tasks.var(ddof=1)) / count
    runs = one.over_seeds[0]
    common = max(0.0, runs.variance - of_residual)
    return (Spread(*satterthwaite([(between, count - 1), (common, runs.df)])),)


def _paired_tasks(tables: Sequence[Values], one: Difference) -> tuple[Array, float]:
    """The tasks' differences, and the variance of their mean from seeds × tasks."""
    table = np.array(
        [
            [values[one.arm][seed] - values[one.baseline][seed] for seed in one.seeds]
            for values in tables
        ]
    )
    tasks, seeds = table.shape
    residual = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    residual_square = float((residual**2).sum()) / ((tasks - 1) * (seeds - 1))
    return table.mean(axis=1), residual_square / (tasks * seeds)


def _grouped_tasks(
    tables: Sequence[Values], one: Difference, groups: RunGroups
) -> tuple[Array, float]:
    """As `_paired_tasks`, for runs in groups; only runs with a value in every task count."""
    pair = (one.baseline, one.arm)
    means = _in_order(average_values([{arm: of[arm] for arm in pair} for of in tables]), groups)
    of_tasks, square, df, factor = [], 0.0, 0, 0.0
    for values in tables:
        own: Values = {}
        rest: Values = {}
        for arm, of_arm in means.items():
            own[arm] = {run: values[arm][run] for run in of_arm}
            rest[arm] = {run: values[arm][run] - mean for run, mean in of_arm.items()}
        fit = fit_additive(own, groups)
        of_tasks.append(fit.estimate(one.arm, one.baseline))
        factor, df = fit.factor(one.arm, one.baseline), fit.df
        square += (fit_additive(rest, groups).variance or 0.0) * df
    variance = square / ((len(tables) - 1) * df)
    return np.array(of_tasks), variance * factor / len(tables)


# --------------------------------------------------------------------------------------------------
# What single runs tell: mean and SD over an arm's seeds, two runs sample by sample, and one model
# without seeds against a baseline that has them. Pure.


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample SD (n − 1) over seeds, no SD for one seed. ValueError without a value."""
    if not values:
        raise ValueError("a mean needs at least 1 seed; there are 0")
    x = np.asarray(values, dtype=np.float64)
    return float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None


def mcnemar(first: Sequence[bool] | Array, second: Sequence[bool] | Array) -> float:
    """McNemar's exact two-sided p of two runs on the same samples, correct or not: the samples that
    only one of them got right under an exact binomial.

    It is about these two models, not about their data: the noise of another seed is not in it.
    ValueError for lists of different lengths.
    """
    from scipy.stats import binomtest

    if len(first) != len(second):
        raise ValueError(f"{len(first)} samples cannot be paired with {len(second)}")
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0


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
    for _ in range(2):  # half-way to the prior of one arm, then of the arm: see `moderated_spreads`
        variance = max(variance, (variance + own) / 2)
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
    included.
    """
    arm, baseline = pair
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
    part = None if drawing is None else (drawing.variance, drawing.df)
    return Difference(
        arm=arm,
        baseline=baseline,
        seeds=(),
        difference=values[arm][seed] - float(np.mean(list(of_baseline.values()))),
        sd=math.sqrt(2 * max(spread.variance, floor)),
        over_seeds=tuple(over_seeds),
        over_samples=_with_part(over_seeds, part),
    )


def _with_part(spreads: Sequence[Spread], part: tuple[float, float] | None) -> tuple[Spread, ...]:
    """Each spread with another (variance, df) added; () for None."""
    if part is None:
        return ()
    return tuple(Spread(*satterthwaite([(one.variance, one.df), part])) for one in spreads)


def over_average(row: Difference, of_tasks: Sequence[Difference], tasks: int) -> Difference:
    """One model's difference on the average over tasks, with the variance of drawing samples, which
    adds up over the tasks; unchanged where a task has no per-sample values.
    """
    drawing = 0.0
    for one in of_tasks:
        if not one.over_samples:
            return row
        drawing += one.over_samples[0].variance - one.over_seeds[0].variance
    # The degrees of freedom are those of samples: thousands, so the normal law serves.
    part = (drawing / tasks**2, math.inf)
    return replace(row, over_samples=_with_part(row.over_seeds, part))


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
        difference = np.subtract(own, mean, dtype=np.float64)
        errors.append(math.sqrt(float(difference.var(ddof=1)) / len(difference)))
        least = min(least, len(difference) - 1)
    variance = float(np.mean(errors)) ** 2
    return Spread(variance=variance, df=least) if variance > 0 else None


# --------------------------------------------------------------------------------------------------
# All comparisons of an ablation, from the values of its runs: tables in, verdicts out. Pure.


AVERAGE = "average"  # the name of the average over tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRange:
    """Where the scores of a task lie in the range of its metric.

    best: the mean of the best arm. near: the end that the metric is so close to that it can hardly
    move. at_chance: no arm is above chance by more than two standard errors. band: differences
    inside ± it are practically equal; 0: nothing is called equal.
    """

    best: float
    near: Literal["floor", "ceiling"] | None
    at_chance: bool
    band: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """The scores of one task's runs.

    values: {arm: {run: metric}}. samples: {arm: {run: per-sample values}} of the runs of which they
    are known: an array for each group of samples (two directions of retrieval); the metric is the
    mean of their means.
    band: the equivalence band of this task, 0 where nothing can be called equal; None: that of all
    tasks. limit: the largest value there is, where the smallest is 0 (1 for a share).
    is_guessed: nobody says which direction is better, so no arm is called better or worse.
    test_samples, chance, range: as of TaskResult.
    """

    values: Values
    samples: Samples = field(default_factory=dict)
    band: float | None = None
    limit: float = math.inf
    metric: str = ""
    unit: str = "share"
    higher_is_better: bool = True
    is_guessed: bool = False
    test_samples: int = 0
    chance: float | None = None
    range: TaskRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerScore:
    """What the scorer that an ablation trained reaches on the primary task.

    view: what it was trained on. chance: of random answers; None where it is not known. at_chance:
    it is not above chance by more than two standard errors of the test set.
    """

    view: str
    task: str
    metric: str
    unit: str
    value: float
    chance: float | None
    at_chance: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What the runs show on one task, or on the average over tasks.

    unit: `share` (values of 0 to 1), `nats`, `rank` or "". sd, df: standard deviation of one run's
    residual, shared by all arms, at least that of the arms and the baseline alone; its degrees of
    freedom. None where no comparison is possible.
    own_sd, own_df: of all runs. floor_sd: what the samples of the test set leave at least;
    drawing_sd: what drawing other samples adds to a difference, however many seeds there are
    (the median comparison). Both None without per-sample values.
    power: what such ablations can see; None where the noise is not known.
    comparisons: the arms against the baseline, Dunnett; one model without seeds among them has an
    interval of its own kind (see `one_model_difference`). controls: Holm. a_a: not adjusted. The
    intervals of controls and a_a are at least as wide as those of a paired t test. A comparison of
    arms with fewer than two seeds in common is not made.
    samples: the number of test samples. chance: the metric of random answers, None where it is not
    known. range: where the scores lie. mcnemar: {arm: p} of one run each against the baseline's.
    """

    task: str
    metric: str
    unit: str
    sd: float | None
    df: float | None
    own_sd: float | None
    own_df: float
    floor_sd: float | None
    drawing_sd: float | None
    power: Power | None
    comparisons: tuple[Comparison, ...]
    controls: tuple[Comparison, ...]
    a_a: Comparison | None
    samples: int = 0
    chance: float | None = None
    range: TaskRange | None = None
    mcnemar: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All tasks in the order given, and their average (None for a single task). noises: of the
    tasks and of AVERAGE; None where nothing is known of it.
    """

    tasks: dict[str, TaskResult]
    average: TaskResult | None
    noises: dict[str, StudyNoise | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The questions: which arms against which baseline, controls, A/A, rounds, looks; and the group
    of every run.
    """

    baseline: str
    arms: tuple[str, ...]
    one_models: tuple[str, ...]
    controls: tuple[Pair, ...]
    a_a: Pair | None
    rounds: int
    looks: int
    groups: RunGroups | None = None

    @property
    def family(self) -> tuple[Pair, ...]:
        """The arms that have seeds, with the baseline."""
        return tuple((arm, self.baseline) for arm in self.arms if arm not in self.one_models)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair that is compared."""
        last = (self.a_a,) if self.a_a else ()
        return self.family + self.controls + last


def analyse(
    tasks: Mapping[str, TaskScores],
    baseline: str,
    *,
    arms: Sequence[str],
    band: float,
    one_models: Sequence[str] = (),
    controls: Sequence[Pair] = (),
    a_a: Pair | None = None,
    primary: str | None = None,
    rounds: int = 1,
    looks: int = 1,
    average: bool = True,
    groups: RunGroups | None = None,
) -> Analysis:
    """Compare the arms with the baseline on every task and on their average.

    groups: the group of every run number, one for all arms. None: a run number is a seed, runs of
    one seed are paired, and a pair of arms needs two seeds in common. One group for all runs: no
    run is paired, and the noise is that inside of the arms (the one-way layout). Several groups are
    blocks, with one run of an arm in each or more: runs are compared inside of a block. An arm then
    needs two runs and a group in common with the baseline; the numbers of runs may differ. The
    order of the runs inside of an arm changes nothing, but a run number is one run in all tasks.
    An interval over blocks (as groups, or with a run number for each block and seed) is about these
    blocks, not about others like them. The residual holds the interaction of arm and block, which
    makes it wider than these blocks need; see `blocks.interaction`.
    arms: those whose intervals hold together (Dunnett), without the baseline.
    one_models: those of them that are one model without seeds. controls: pairs
    (arm, its own baseline), a family of their own (Holm). a_a: (A/A arm, the arm that it repeats).
    All arms in the values take part in the shared variance. band: the equivalence band, in the
    unit of the values; 0: nothing can be called equal. primary: the task that was chosen before the
    runs; its comparisons hold together, and those of all other tasks hold together too. None: those
    of all tasks do. rounds, looks: see `Penalty`.
    average: whether to average over the tasks; their values must mean the same. Its band is the
    mean of theirs: a task that can hardly move has a band of 0. Pairs that have too few runs are
    left out. ValueError for no task, an unknown primary, a band below 0, an arm named twice or
    equal to the baseline, samples that do not fit, a run without a group, or `one_models` beside
    `groups`: one model is compared with runs that are seeds.
    """
    if not tasks:
        raise ValueError("there is no task to analyse")
    if primary is not None and primary not in tasks:
        raise ValueError(f"the primary task {primary!r} is not one of {list(tasks)}")
    if not band >= 0:
        raise ValueError(f"the equivalence band is {band}; it is at least 0")
    if len(set(arms)) < len(arms) or baseline in arms:
        raise ValueError(
            f"the arms {list(arms)} must differ from each other and from the baseline {baseline!r}"
        )
    if groups is not None and one_models:
        raise ValueError(
            f"{list(one_models)} cannot be single models of runs that are in groups; leave "
            "`one_models` or `groups` out"
        )
    design = Design(
        baseline=baseline,
        arms=tuple(arms),
        one_models=tuple(one_models),
        controls=tuple(controls),
        a_a=a_a,
        rounds=rounds,
        looks=looks,
        groups=groups,
    )
    asked, results = {}, {}
    known: dict[str, StudyNoise | None] = {}
    noises: dict[str, dict[Pair, SampleNoise | None]] = {}
    singles: dict[str, list[Difference]] = {}
    for task, given in tasks.items():
        scores = replace(
            given,
            values=_in_order(given.values, groups),
            band=band if given.band is None else given.band,
        )
        noises[task] = _sample_noises(scores.values, scores.samples, design)
        singles[task] = _single_models(scores.values, scores.samples, noises[task], design)
        together = 1 if task == primary else len(tasks) - (primary is not None)
        penalty = Penalty(tasks=together, rounds=rounds, looks=looks)
        results[task], known[task] = _analyse_table(
            task, scores, noises[task], design, penalty, singles[task]
        )
        asked[task] = scores
    if len(tasks) == 1 or not average:
        return Analysis(tasks=results, average=None, noises=known)
    tables = tuple(scores.values for scores in asked.values())
    values = _in_order(average_values(tables), groups)
    of_pairs = {}
    for pair in comparable(values, design.pairs, groups):
        of_pairs[pair] = average_noise([noises[task].get(pair) for task in noises])
    like = asked[primary or next(iter(asked))]
    scores = replace(
        like,
        values=values,
        samples={},
        band=float(np.mean([scores.band for scores in asked.values()])),
        limit=max(scores.limit for scores in asked.values()),
        is_guessed=any(scores.is_guessed for scores in asked.values()),
        test_samples=0,
        chance=None,
        range=None,
    )
    of_average, known[AVERAGE] = _analyse_table(
        AVERAGE,
        scores,
        of_pairs,
        design,
        Penalty(rounds=rounds, looks=looks),
        _average_models(values, of_pairs, design, singles),
        tables,
    )
    return Analysis(tasks=results, average=of_average, noises=known)


def _in_order(values: Values, groups: RunGroups | None) -> Values:
    """The runs of each arm by group and value, so that no rounding depends on their numbers; as
    they are without `groups`.
    """
    if groups is None:
        return values
    rows = {}
    for arm, of_arm in values.items():
        order = sorted(of_arm, key=lambda run: (group_of(run, groups), of_arm[run]))
        rows[arm] = {run: of_arm[run] for run in order}
    return rows


def _sample_noises(
    values: Values, samples: Samples, design: Design
) -> dict[Pair, SampleNoise | None]:
    """Of the pairs that can be compared."""
    layouts = comparable(values, design.pairs, design.groups)
    return {pair: pair_noise(samples, pair, of, design.groups) for pair, of in layouts.items()}


def _single_models(
    values: Values,
    samples: Samples,
    noises: Mapping[Pair, SampleNoise | None],
    design: Design,
) -> list[Difference]:
    """The differences of the models without seeds; without those that have no result."""
    rows = []
    for arm in design.one_models:
        if len(values.get(arm, {})) != 1:
            continue
        floor = _floor(noises.values()) or 0.0
        one = one_model_difference(
            _seeded(values, design, arm), (arm, design.baseline), samples, floor
        )
        if one is not None:
            rows.append(one)
    return rows


def _seeded(values: Values, design: Design, arm: str) -> Values:
    """The table without the models that have no seeds, but for one of them."""
    others = set(design.one_models) - {arm}
    return {name: of_arm for name, of_arm in values.items() if name not in others}


def _average_models(
    values: Values,
    noises: Mapping[Pair, SampleNoise | None],
    design: Design,
    singles: Mapping[str, Sequence[Difference]],
) -> list[Difference]:
    """The models without seeds on the average over tasks."""
    rows = []
    for row in _single_models(values, {}, noises, design):
        of_tasks = [one for task in singles.values() for one in task if one.arm == row.arm]
        rows.append(over_average(row, of_tasks, len(singles)))
    return rows


def _analyse_table(
    task: str,
    scores: TaskScores,
    noises: Mapping[Pair, SampleNoise | None],
    design: Design,
    penalty: Penalty,
    singles: Sequence[Difference],
    tables: Sequence[Values] = (),
) -> tuple[TaskResult, StudyNoise | None]:
    """One table of values, and its noise. `noises`: of all pairs that can be compared. `singles`:
    the differences of the models without seeds.
    `tables`: those of the single tasks, if it is their average.
    """
    values, band = scores.values, scores.band or 0.0
    inside = (design.baseline, *(arm for arm, _ in design.family))
    groups = design.groups
    noise = shared_noise(_seeded(values, design, ""), inside, groups)
    a_a = [design.a_a] if design.a_a else []
    family, controls, last = (
        [pair for pair in pairs if noise and pair in noises]
        for pairs in (design.family, design.controls, a_a)
    )

    def measured(pairs: Sequence[Pair], one_baseline: bool) -> list[Difference]:
        if noise is None or not pairs:
            return []
        rows = differences(
            values,
            noise,
            pairs,
            [noises[pair] for pair in pairs],
            one_baseline=one_baseline,
            limit=scores.limit,
            groups=groups,
        )
        return [replace(row, over_tasks=over_tasks(tables, row, groups)) for row in rows]

    def named(rows: Iterable[Comparison]) -> tuple[Comparison, ...]:
        kept = []
        words = {} if scores.higher_is_better else OPPOSITE
        words = NO_DIRECTION if scores.is_guessed else words
        for row in rows:
            verdict = words.get(row.verdict, row.verdict)
            kept.append(
                replace(row, task=task, metric=scores.metric, unit=scores.unit, verdict=verdict)
            )
        return tuple(kept)

    in_family = measured(family, True)
    compared = [*family, *controls, *last]
    floor = _floor([noises[pair] for pair in compared])
    drawing = _typical_drawing(family, noises)
    alone = (band, Penalty(rounds=design.rounds, looks=design.looks))
    # Of a model without seeds the correlation is not known: 0 holds for any (Sidak).
    correlation = 0.0 if singles or noise is None else noise.fit.least_correlation(family)
    models = [replace(one, limit=scores.limit) for one in singles]
    of_arms = dunnett_family([*in_family, *models], correlation, band, penalty)
    of_a_a = named(single(one, *alone) for one in measured(last, False))
    known = _study_noise(noise, floor, in_family, drawing, ALPHA / penalty.factor)
    if known and groups is not None:
        layouts = [layout_of(values, pair, groups) for pair in family]
        known = replace(
            known,
            # as many runs of two equal arms tell a difference as well
            seeds=max(LEAST_RUNS, round(np.median([one.weights.sum() for one in layouts]))),
            paired=not any(sum(one.df_within) for one in layouts),
        )
    of_baseline = values.get(design.baseline, {})
    result = TaskResult(
        task=task,
        metric=scores.metric,
        unit=scores.unit,
        sd=math.sqrt(noise.variance) if noise else None,
        df=noise.df if noise else None,
        own_sd=math.sqrt(noise.fit.variance or 0.0) if noise else None,
        own_df=float(noise.fit.df) if noise else 0.0,
        floor_sd=math.sqrt(floor) if floor is not None else None,
        drawing_sd=math.sqrt(drawing[0]) if drawing else None,
        power=known.power(_possible(of_baseline, scores.limit)) if known else None,
        comparisons=named(sorted(of_arms, key=lambda one: design.arms.index(one.arm))),
        controls=named(holm_family(measured(controls, False), *alone)),
        a_a=of_a_a[0] if of_a_a else None,
        samples=scores.test_samples,
        chance=scores.chance,
        range=scores.range,
    )
    return result, known


def _possible(of_baseline: Mapping[int, float], limit: float) -> float | None:
    """The largest difference to the baseline's mean that there can be; None without a bound."""
    if math.isinf(limit):
        return None
    if not of_baseline:
        return limit
    mean = float(np.mean(list(of_baseline.values())))
    return max(mean, limit - mean)


def _floor(noises: Iterable[SampleNoise | None]) -> float | None:
    """The least variance of one run that the samples leave; None where none is known."""
    known = [one.floor for one in noises if one is not None]
    return float(np.mean(known)) / 2 if known else None


def _study_noise(
    noise: Noise | None,
    floor: float | None,
    family: Sequence[Difference],
    drawing: tuple[float, float] | None,
    alpha: float,
) -> StudyNoise | None:
    """From the family's shared spread, median number of seeds and sampling part."""
    if noise is None or not family or max(noise.variance, floor or 0.0) == 0:
        return None
    return StudyNoise(
        run_sd=math.sqrt(noise.variance),
        seeds=int(np.median([one.runs for one in family])),
        arms=len(family),
        df=noise.df,
        floor_sd=math.sqrt(floor or 0.0),
        drawing=drawing or (0.0, math.inf),
        alpha=alpha,
    )


def _typical_drawing(
    family: Sequence[Pair], noises: Mapping[Pair, SampleNoise | None]
) -> tuple[float, float] | None:
    """The median variance from drawing other samples, and its df; None without samples."""
    known = [one for one in (noises[pair] for pair in family) if one is not None]
    if not known:
        return None
    middle = sorted(known, key=lambda one: one.drawing)[len(known) // 2]
    if middle.drawing == 0:
        return 0.0, math.inf
    return middle.drawing, middle.drawing**2 / middle.drawing_error
