"""All comparisons of an ablation, from the values of its runs: tables in, verdicts out. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from train.stats.comparison import (
    Comparison,
    Difference,
    Spread,
    dunnett_family,
    holm_family,
    single,
)
from train.stats.contrasts import (
    Noise,
    Pair,
    Samples,
    average_noise,
    average_values,
    comparable,
    differences,
    over_tasks,
    pair_noise,
    shared_noise,
    with_own_spread,
)
from train.stats.model import Values, common_seeds
from train.stats.moderation import LedgerEntry
from train.stats.power import ALPHA, satterthwaite, smallest_visible
from train.stats.samples import SampleNoise, check_mean
from train.stats.single_runs import one_model_difference

Array = np.ndarray

AVERAGE = "average"  # the key of the average over tasks in a ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """The results of one task.

    values: {arm: {seed: metric}}. samples: {arm: {seed: per-sample values}}, whose mean is the
    metric: an array, or a tuple of arrays if the metric is the mean over several groups of samples
    (two directions of retrieval); None for a run or for all runs where they are not known.
    """

    values: Values
    samples: Mapping[str, Mapping[int, Array | Sequence[Array] | None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A comparison that was not made: its arms have fewer than two seeds in common."""

    arm: str
    baseline: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnalysis:
    """What the runs show on one task, or on the average over tasks.

    sd, df: standard deviation of one run's residual, shared by all arms, with the ledger in it; its
    degrees of freedom. None where no comparison is possible.
    own_sd, own_df: of these runs alone. floor_sd: what the samples of the test set leave at least;
    drawing_sd: what drawing other samples adds to a difference, however many seeds there are
    (the median comparison). Both None without per-sample values. prior: what the ledger said. mde:
    the smallest true difference that 80 % of such ablations would call better or worse; None where
    the noise is not known.
    comparisons: the arms against the baseline, Dunnett; one model without seeds among them has an
    interval of its own kind (see `one_model_difference`). controls: Holm. a_a: not adjusted, and at
    least as wide as a paired t interval.
    without_samples: pairs whose interval is over seeds only, as per-sample values are missing.
    ledger: what these runs add to a ledger; None without degrees of freedom.
    """

    task: str
    sd: float | None
    df: float | None
    own_sd: float | None
    own_df: float
    floor_sd: float | None
    drawing_sd: float | None
    prior: LedgerEntry | None
    mde: float | None
    comparisons: tuple[Comparison, ...]
    controls: tuple[Comparison, ...]
    a_a: Comparison | None
    left_out: tuple[LeftOut, ...]
    without_samples: tuple[Pair, ...]
    ledger: LedgerEntry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All tasks in the order given, and their average (None for a single task)."""

    tasks: dict[str, TaskAnalysis]
    average: TaskAnalysis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The questions: which arms against which baseline, controls, A/A, band and level."""

    baseline: str
    arms: tuple[str, ...]
    one_models: tuple[str, ...]
    controls: tuple[Pair, ...]
    a_a: Pair | None
    band: float
    alpha: float

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
    ledger: Mapping[str, Sequence[LedgerEntry]] | None = None,
    alpha: float = ALPHA,
) -> Analysis:
    """Compare the arms with the baseline on every task and on their average.

    arms: those whose intervals hold together (Dunnett), without the baseline.
    one_models: those of them that are one model without seeds. controls: pairs
    (arm, its own baseline), a family of their own (Holm). a_a: (A/A arm, the arm that it repeats).
    All arms in the values take part in the shared variance. ledger: {task or AVERAGE: earlier
    ablations}. band: the equivalence band, in the unit of the values. Pairs with fewer than two
    seeds in common are left out and named. ValueError for no task, a band that is not above 0, an
    alpha outside 0..0.5, an arm named twice or equal to the baseline, or samples that do not fit.
    """
    if not tasks:
        raise ValueError("there is no task to analyse")
    if not band > 0:
        raise ValueError(f"the equivalence band is {band}; it must be above 0")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is between 0 and 0.5; got {alpha}")
    if len(set(arms)) < len(arms) or baseline in arms:
        raise ValueError(
            f"the arms {list(arms)} must differ from each other and from the baseline {baseline!r}"
        )
    design = Design(
        baseline=baseline,
        arms=tuple(arms),
        one_models=tuple(one_models),
        controls=tuple(controls),
        a_a=a_a,
        band=band,
        alpha=alpha,
    )
    entries = ledger or {}
    results = {}
    noises: dict[str, dict[Pair, SampleNoise | None]] = {}
    singles: dict[str, list[Difference]] = {}
    for task, scores in tasks.items():
        samples = _checked_samples(task, scores)
        noises[task] = _sample_noises(scores.values, samples, design.pairs)
        singles[task] = _single_models(scores.values, samples, noises[task], design)
        results[task] = _analyse_table(
            task, scores.values, noises[task], design, entries.get(task, ()), (), singles[task]
        )
    if len(tasks) == 1:
        return Analysis(tasks=results, average=None)
    return Analysis(
        tasks=results,
        average=_analyse_average(tasks, noises, design, entries.get(AVERAGE, ()), singles),
    )


def _checked_samples(task: str, scores: TaskScores) -> Samples | None:
    """The samples as groups; ValueError where they are not those of the values."""
    if scores.samples is None:
        return None
    rows: dict[str, dict[int, Sequence[Array]]] = {}
    for arm, runs in scores.samples.items():
        rows[arm] = {}
        for seed, groups in runs.items():
            if groups is None or seed not in scores.values.get(arm, {}):
                continue
            listed = [groups] if isinstance(groups, np.ndarray) else list(groups)
            check_mean(scores.values[arm][seed], listed, f"{task}, {arm} seed {seed}")
            rows[arm][seed] = listed
    return rows


def _sample_noises(
    values: Values, samples: Samples | None, pairs: Sequence[Pair]
) -> dict[Pair, SampleNoise | None]:
    noises: dict[Pair, SampleNoise | None] = {}
    for pair in comparable(values, pairs):
        noises[pair] = pair_noise(samples, pair, common_seeds(values, *pair))
    return noises


def _single_models(
    values: Values,
    samples: Samples | None,
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
    """The models without seeds on the average over tasks: variances of drawing samples add up."""
    rows = _single_models(values, None, noises, design)
    averaged = []
    for row in rows:
        of_tasks = [one for task in singles.values() for one in task if one.arm == row.arm]
        drawing = 0.0
        for one in of_tasks:
            if not one.over_samples:
                break
            drawing += one.over_samples[0].variance - one.over_seeds[0].variance
        else:
            # The degrees of freedom are those of samples: thousands, so the normal law serves.
            part = (drawing / len(singles) ** 2, math.inf)
            spreads = []
            for spread in row.over_seeds:
                variance, df = satterthwaite([(spread.variance, spread.df), part])
                spreads.append(Spread(variance=variance, df=df))
            row = replace(row, over_samples=tuple(spreads))
        averaged.append(row)
    return averaged


def _analyse_average(
    tasks: Mapping[str, TaskScores],
    noises: Mapping[str, Mapping[Pair, SampleNoise | None]],
    design: Design,
    ledger: Sequence[LedgerEntry],
    singles: Mapping[str, Sequence[Difference]],
) -> TaskAnalysis:
    """The average over tasks, from the runs that have a value in every task."""
    tables = [scores.values for scores in tasks.values()]
    values = average_values(tables)
    of_pairs = {}
    for pair in comparable(values, design.pairs):
        of_pairs[pair] = average_noise([noises[task].get(pair) for task in tasks])
    of_models = _average_models(values, of_pairs, design, singles)
    return _analyse_table(AVERAGE, values, of_pairs, design, ledger, tables, of_models)


def _analyse_table(
    task: str,
    values: Values,
    noises: Mapping[Pair, SampleNoise | None],
    design: Design,
    ledger: Sequence[LedgerEntry],
    tables: Sequence[Values],
    singles: Sequence[Difference],
) -> TaskAnalysis:
    """One table of values. `tables`: those of the single tasks, if this is their average.
    `singles`: the differences of the models without seeds.
    """
    seeded = _seeded(values, design, "")
    noise = shared_noise(seeded, ledger)
    family = comparable(values, design.family) if noise else []
    controls = comparable(values, design.controls) if noise else []
    last = comparable(values, [design.a_a]) if noise and design.a_a else []

    def measured(pairs: Sequence[Pair], one_baseline: bool) -> list[Difference]:
        assert noise is not None
        of_pairs = [noises.get(pair) for pair in pairs]
        rows = differences(values, noise, pairs, of_pairs, one_baseline=one_baseline)
        return [replace(row, over_tasks=over_tasks(tables, row)) for row in rows]

    in_family = measured(family, True) if family else []
    in_controls = measured(controls, False) if controls else []
    in_last = _with_own_spreads(values, noise, noises, measured(last, False) if last else [])
    compared = [*family, *controls, *last]
    floor = _floor([noises[pair] for pair in compared])
    drawing = _typical_drawing(family, noises)
    return TaskAnalysis(
        task=task,
        sd=math.sqrt(noise.variance) if noise else None,
        df=noise.df if noise else None,
        own_sd=_own_sd(noise),
        own_df=float(noise.fit.df) if noise else 0.0,
        floor_sd=math.sqrt(floor) if floor is not None else None,
        drawing_sd=math.sqrt(drawing[0]) if drawing else None,
        prior=noise.prior if noise else None,
        mde=_smallest_visible(noise, floor, in_family, drawing, design.alpha),
        comparisons=_in_order(
            design,
            dunnett_family(
                [*in_family, *singles],
                # Of a model without seeds the correlation is not known: 0 holds for any (Sidak).
                0.0 if singles else _least_correlation(noise, family),
                design.band,
                design.alpha,
            ),
        ),
        controls=holm_family(in_controls, design.band, design.alpha),
        a_a=single(in_last[0], design.band, design.alpha) if in_last else None,
        left_out=_left_out(values, design.pairs, compared),
        without_samples=tuple(pair for pair in compared if noises[pair] is None),
        ledger=_new_entry(noise),
    )


def _with_own_spreads(
    values: Values,
    noise: Noise | None,
    noises: Mapping[Pair, SampleNoise | None],
    rows: Sequence[Difference],
) -> list[Difference]:
    """The A/A pair, if there is one, with the spread of its own runs."""
    if noise is None:
        return []
    return [
        with_own_spread(values, noise, row, noises.get((row.arm, row.baseline))) for row in rows
    ]


def _in_order(design: Design, comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons in the order of the arms."""
    return tuple(sorted(comparisons, key=lambda one: design.arms.index(one.arm)))


def _floor(noises: Iterable[SampleNoise | None]) -> float | None:
    """The least variance of one run that the samples leave; None where none is known."""
    known = [one.floor for one in noises if one is not None]
    return float(np.mean(known)) / 2 if known else None


def _own_sd(noise: Noise | None) -> float | None:
    if noise is None or noise.fit.variance is None:
        return None
    return math.sqrt(noise.fit.variance)


def _new_entry(noise: Noise | None) -> LedgerEntry | None:
    """What an ablation adds to a ledger: its own variance, without prior and floor."""
    if noise is None or noise.fit.variance is None:
        return None
    return LedgerEntry(variance=noise.fit.variance, df=float(noise.fit.df))


def _least_correlation(noise: Noise | None, family: Sequence[Pair]) -> float:
    """The smallest correlation of two estimates of the family; 0.5 for a complete table."""
    if noise is None or not family:
        return 0.5
    return min(0.5, noise.fit.least_correlation(family))


def _smallest_visible(
    noise: Noise | None,
    floor: float | None,
    family: Sequence[Difference],
    drawing: tuple[float, float] | None,
    alpha: float,
) -> float | None:
    """One figure for the family: shared spread, median number of seeds and sampling part."""
    if noise is None or not family:
        return None
    if max(noise.variance, floor or 0.0) == 0:
        return None
    return smallest_visible(
        math.sqrt(noise.variance),
        seeds=int(np.median([len(one.seeds) for one in family])),
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


def _left_out(
    values: Values, pairs: Sequence[Pair], compared: Sequence[Pair]
) -> tuple[LeftOut, ...]:
    rows = []
    for pair in pairs:
        if pair not in compared:
            seeds = common_seeds(values, *pair)
            rows.append(LeftOut(arm=pair[0], baseline=pair[1], seeds=seeds))
    return tuple(rows)
