"""Comparisons, controls, A/A and the verdict in words, from the scores of the runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from manifests import disk
from manifests.schema import Ablation
from train.ablation import wording
from train.ablation.arms import A_A, RANDOM_LIKE, arm_config
from train.ablation.history import EarlierLook
from train.ablation.rounds import (
    DEFAULT_BAND,
    ArmRounds,
    Study,
    arm_rounds,
    compare_in_round,
    round_sizes,
    rounds_note,
)
from train.evaluation.metrics import METRICS, can_be_averaged, chance_of
from train.evaluation.tasks import Metrics, deciding_metric
from train.stats.analysis import TaskAnalysis, TaskScores, analyse
from train.stats.comparison import Comparison, Power, Verdict
from train.stats.scaling import (
    Crossing,
    MetricSignal,
    PowerLaw,
    Prediction,
    find_crossing,
    fit_scaling,
    metric_signals,
    predict_error,
)

OPPOSITE: dict[Verdict, Verdict] = {
    "better": "worse",
    "worse": "better",
    "practically equal": "practically equal",
    "not distinguishable": "not distinguishable",
}
BAND_OF_ROOM = 0.02  # the band of equality is at most this share of the room of the metric
# Nearer to an end than so many bands, a metric can hardly move: nothing is called equal there.
NEAR_BANDS = 10
CHANCE_ERRORS = 2.0  # standard errors of random guesses


# --- where the scores of a task lie: at chance, near an end, or with room to move -----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task's number of samples, and the headline metric of random guesses."""

    samples: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRange:
    """Where the scores lie in the range of a task's metric.

    best: the mean of the best arm. chance: of random answers; None where it is not known. near: the
    end that the metric is so close to that it can hardly move. at_chance: no arm is above chance by
    more than two standard errors. band: differences inside ± it are practically equal; 0: nothing
    is called equal.
    """

    task: str
    metric: str
    unit: str
    best: float
    chance: float | None
    near: Literal["floor", "ceiling"] | None
    at_chance: bool
    band: float

    @property
    def sentence(self) -> str:
        """How near the scores are to an end; without a full stop."""
        best = wording.in_unit(self.best, self.unit)
        if self.at_chance:
            chance = wording.in_unit(self.chance, self.unit)
            return (
                f"No model is above chance on {self.task}: the best arm has {best}, chance {chance}"
            )
        of_chance = ""
        if self.near == "floor" and self.chance is not None:
            of_chance = f", chance gives {wording.in_unit(self.chance, self.unit)}"
        return f"{self.metric} is near its {self.near} on {self.task}: {best} at best{of_chance}"


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

    @property
    def sentence(self) -> str:
        """Its score, beside chance where that is known; without a full stop."""
        chance = "" if self.chance is None else f"; chance is {self._in_unit(self.chance)}"
        value = self._in_unit(self.value)
        return (
            f"The scorer, trained on {self.view}, has {self.metric} {value} on {self.task}{chance}"
        )

    @property
    def caution(self) -> str:
        """What the headline adds where the scorer is at chance; otherwise empty."""
        if not self.at_chance:
            return ""
        value, chance = self._in_unit(self.value), self._in_unit(self.chance)
        return (
            f" The scorer is at chance on {self.task} ({value} against {chance}): what it filtered "
            "says little about CLIP-score filtering."
        )

    def _in_unit(self, value: float | None) -> str:
        return wording.in_unit(value, self.unit)


def scorer_score(view: str, task: str, metric: str, value: float, facts: TaskFacts) -> ScorerScore:
    """The score of a scorer, beside chance."""
    chance = chance_of(metric, facts.chance)
    return ScorerScore(
        view=view,
        task=task,
        metric=metric,
        unit=METRICS[metric].unit,
        value=value,
        chance=chance,
        at_chance=_is_at_chance(metric, value, chance, facts.samples),
    )


def _is_at_chance(metric: str, value: float, chance: float | None, samples: int) -> bool:
    """Whether a share is not above chance by more than CHANCE_ERRORS standard errors of guesses."""
    kind = METRICS[metric]
    if kind.unit != "share" or not kind.higher_is_better or chance is None or not samples:
        return False
    return value <= chance + CHANCE_ERRORS * math.sqrt(chance * (1 - chance) / samples)


def largest_of(metric: str) -> float:
    """The largest value of a metric whose least value is 0; infinite for one without bounds."""
    return 1.0 if METRICS[metric].unit == "share" else math.inf


def range_of(
    ablation: Ablation, task: str, metric: str, scores: TaskScores, facts: TaskFacts | None
) -> TaskRange | None:
    """Where the scores of a task lie in the range of its metric; None without a finished run of the
    baseline. Only shares have ends; for another unit nothing is equal unless the manifest says so.
    """
    means = {
        arm: float(np.mean(list(runs.values()))) for arm, runs in scores.values.items() if runs
    }
    if ablation.baseline not in means:
        return None
    kind, stated = METRICS[metric], ablation.equivalence
    of_baseline = means[ablation.baseline]
    best = max(means.values()) if kind.higher_is_better else min(means.values())
    chance = None if facts is None else chance_of(metric, facts.chance)
    near: Literal["floor", "ceiling"] | None = None
    band = stated or 0.0
    at_chance = _is_at_chance(metric, best, chance, facts.samples if facts else 0)
    if kind.unit == "share":
        wanted = DEFAULT_BAND if stated is None else stated
        least = chance or 0.0
        if kind.higher_is_better:
            above, below = of_baseline - least, 1 - of_baseline
            at_floor, at_ceiling = best - least, below
        else:  # the floor of an error is not known
            above, below = math.inf, of_baseline
            at_floor, at_ceiling = math.inf, below
        if at_floor < NEAR_BANDS * wanted:
            near = "floor"
        elif at_ceiling < NEAR_BANDS * wanted:
            near = "ceiling"
        room = max(0.0, min(above, below))
        band = min(wanted, BAND_OF_ROOM * room) if stated is None else stated
    return TaskRange(
        task=task,
        metric=metric,
        unit=kind.unit,
        best=best,
        chance=chance,
        near="floor" if at_chance else near,
        at_chance=at_chance,
        band=0.0 if at_chance or near else band,
    )


# --- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison(Comparison):
    """A comparison on a task, the unit of its metric, and its sentence."""

    task: str
    metric: str
    unit: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNoise:
    """The noise of a task's metric, shared by all arms, as standard deviations of one run.

    own_sd, own_df: of all runs. sd, df: at least that of the arms and the baseline alone. floor_sd:
    what the samples of the test set leave at least. drawing_sd: what another test set would add to
    a difference, however many seeds there are. power: what such ablations can see.
    """

    task: str
    metric: str
    unit: str
    own_sd: float | None
    own_df: float
    sd: float | None
    df: float | None
    floor_sd: float | None
    drawing_sd: float | None
    power: Power | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended without a result."""

    arm: str
    seed: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """What the runs show.

    comparisons: every arm of the manifest against the baseline, primary task first; the intervals
    of the primary task hold together (Dunnett), and those of all other tasks do (Bonferroni over
    the tasks). average: the same for the mean over tasks; empty for one task, and where the metrics
    differ in unit or direction. controls, on the primary task: arms against the random subset of
    their size, and the subsets against the baseline (Holm). aa: the A/A arm against the arm that it
    repeats.
    noise, ranges: of each task, primary first; a task without scores has no range.
    other_metrics: where the primary metric is near its floor or ceiling, the arms against the
    baseline by the other metrics of the same predictions, over seeds; adjusted for their number.
    earlier_looks: the verdicts that were seen before this one with other seeds, task or metric.
    headline: one sentence. verdict: the headline, then one line for each comparison and each gap.
    rounds: of an ablation with `stop`, how many seeds each arm was run with, and why no more.
    scorer: of the scorer that the ablation trained; None without one.
    """

    headline: str
    verdict: str
    comparisons: tuple[TaskComparison, ...]
    average: tuple[TaskComparison, ...]
    controls: tuple[TaskComparison, ...]
    aa: TaskComparison | None
    noise: tuple[TaskNoise, ...]
    failed: tuple[FailedRun, ...]
    incomplete: dict[str, tuple[int, ...]]  # arm -> seeds without a result
    rounds: tuple[ArmRounds, ...] = ()
    ranges: tuple[TaskRange, ...] = ()
    other_metrics: tuple[TaskComparison, ...] = ()
    earlier_looks: tuple[EarlierLook, ...] = ()
    scorer: ScorerScore | None = None


def conclude(
    ablation: Ablation,
    scores: Mapping[str, TaskScores],
    failed: Sequence[FailedRun] = (),
    incomplete: Mapping[str, tuple[int, ...]] | None = None,
    runs: int = 0,
    study: Study | None = None,
    facts: Mapping[str, TaskFacts] | None = None,
    others: Mapping[str, TaskScores] | None = None,
    earlier: Sequence[EarlierLook] = (),
    scorer: ScorerScore | None = None,
) -> Conclusions:
    """All comparisons and the verdict, from the scores by task. `failed` are of `runs` runs, which
    are those that the rounds of `study` asked for. facts: of the tasks; without them no chance is
    known. others: the scores of the primary task by its other metrics. earlier: see
    `Conclusions.earlier_looks`.
    """
    tasks = sorted(ablation.evaluate, key=lambda task: task.name != ablation.primary)
    metrics = {task.name: deciding_metric(task) for task in tasks}
    ranges = {}
    for name, metric in metrics.items():
        one = range_of(ablation, name, metric, scores[name], (facts or {}).get(name))
        if one is not None:
            ranges[name] = one
    asked = {}
    for name, metric in metrics.items():
        band = ranges[name].band if name in ranges else 0.0
        asked[name] = replace(scores[name], band=band, limit=largest_of(metric))
    arms = [arm for arm in ablation.arms if arm != ablation.baseline]
    one_models = [name for name, arm in ablation.arms.items() if arm.is_one_model]
    looks = 1 + len(earlier)
    analysis = analyse(
        asked,
        ablation.baseline,
        arms=arms,
        band=0.0,
        one_models=one_models,
        controls=_control_pairs(ablation),
        a_a=(A_A, ablation.controls.a_a) if ablation.controls.a_a else None,
        primary=ablation.primary,
        rounds=len(round_sizes(ablation)),
        looks=looks,
        average=can_be_averaged(list(metrics.values())),
    )
    if study is not None:
        analysis.tasks[ablation.primary] = _at_last_looks(
            ablation, analysis.tasks[ablation.primary], study, asked[ablation.primary], looks
        )
    comparisons: list[TaskComparison] = []
    for name, of_task in analysis.tasks.items():
        comparisons += _on_task(of_task, of_task.comparisons, metrics[name])
    primary = analysis.tasks[ablation.primary]
    decides = metrics[ablation.primary]
    controls = _on_task(primary, primary.controls, decides)
    aa = _on_task(primary, [primary.a_a], decides)[0] if primary.a_a else None
    average: list[TaskComparison] = []
    if analysis.average is not None:  # its metrics have the unit and direction of `decides`
        average = _on_task(analysis.average, analysis.average.comparisons, decides)
    near = ranges.get(ablation.primary)
    by_others: list[TaskComparison] = []
    if near is not None and near.near is not None and others:
        by_others = _by_other_metrics(ablation, others, arms, one_models, looks)
    missing = dict(incomplete or {})
    on_primary = [row for row in comparisons if row.task == ablation.primary]
    headline = _headline(ablation, on_primary, primary) + _caution(near, by_others)
    if scorer is not None:
        headline += scorer.caution
    lines = [headline, *(row.sentence for row in on_primary)]
    lines += [row.sentence for row in by_others if row.verdict in ("better", "worse")]
    lines += _control_lines(controls, aa)
    if scorer is not None:
        lines.append(f"{scorer.sentence}.")
    rounds: tuple[ArmRounds, ...] = ()
    if study is not None:
        rounds = arm_rounds(ablation, study, {row.arm: row for row in on_primary})
    if rounds:
        lines += [rounds_note(ablation), *(row.sentence for row in rounds)]
    if earlier:
        lines.append(looks_line(earlier))
    if study is None and _is_open(on_primary):
        lines.append(MORE_SEEDS)
    lines += _gaps(failed, missing, runs)
    noise = [_noise(of_task, metrics[name]) for name, of_task in analysis.tasks.items()]
    return Conclusions(
        headline=headline,
        verdict="\n".join(lines),
        comparisons=tuple(comparisons),
        average=tuple(average),
        controls=tuple(controls),
        aa=aa,
        noise=tuple(noise),
        failed=tuple(failed),
        incomplete=missing,
        rounds=rounds,
        ranges=tuple(ranges.values()),
        other_metrics=tuple(by_others),
        earlier_looks=tuple(earlier),
        scorer=scorer,
    )


# --- other metrics --------------------------------------------------------------------------------


def _by_other_metrics(
    ablation: Ablation,
    others: Mapping[str, TaskScores],
    arms: Sequence[str],
    one_models: Sequence[str],
    looks: int,
) -> list[TaskComparison]:
    """The arms by the other metrics of the primary task, adjusted over all of them."""
    scores = {name: replace(one, limit=largest_of(name)) for name, one in others.items()}
    analysis = analyse(
        scores,
        ablation.baseline,
        arms=arms,
        band=0.0,
        one_models=one_models,
        rounds=len(round_sizes(ablation)),
        looks=looks,
        average=False,
    )
    rows = []
    for metric, of_task in analysis.tasks.items():
        named = replace(of_task, task=f"{ablation.primary} by {metric}")
        for row in _on_task(named, of_task.comparisons, metric):
            rows.append(replace(row, task=ablation.primary))
    return rows


def _caution(near: TaskRange | None, by_others: Sequence[TaskComparison]) -> str:
    """What the headline adds where the scores are at chance or at an end of the metric."""
    if near is None or near.near is None:
        return ""
    text = f" {near.sentence}: nothing can be called equal by it"
    clear = [row for row in by_others if row.verdict in ("better", "worse")]
    if clear:
        metric = min(clear, key=lambda row: row.p_adjusted).metric
        words = [f"{row.arm} is {row.verdict}" for row in clear if row.metric == metric]
        text += f"; {metric} of the same predictions tells arms apart: {', '.join(words)}"
    elif by_others:
        count = len({row.metric for row in by_others})
        text += f"; none of the {count} other metrics of these predictions tells the arms apart"
    return f"{text}."


# --- looks ----------------------------------------------------------------------------------------

MORE_SEEDS = (
    "More seeds: a new manifest with `stop` plans the looks at them. Seeds that are added to this "
    "one count as another look, with wider intervals."
)


def _is_open(rows: Sequence[TaskComparison]) -> bool:
    return any(row.verdict == "not distinguishable" and row.low is not None for row in rows)


def looks_line(earlier: Sequence[EarlierLook]) -> str:
    """Which verdicts were seen before this one, and what its intervals hold."""
    seen = []
    for one in earlier:
        seen.append(f"{len(one.seeds)} seeds by {one.metric} on {one.task} ({one.date[:10]})")
    looks = 1 + len(earlier)
    return (
        f"Look {looks} at these arms; verdicts were seen with {', with '.join(seen)}. A look has "
        f"half the error of the one before: these are intervals of {wording.level(looks)} for this "
        "look alone. Over all looks a difference that is not there is called in up to 10 % of "
        "ablations, not 5 %; `stop` in a new manifest keeps 5 %."
    )


def _control_lines(controls: Sequence[TaskComparison], aa: TaskComparison | None) -> list[str]:
    """The controls and the A/A arm, with a warning where equal data differ."""
    lines = [f"Control: {row.sentence}" for row in controls]
    if aa is not None:
        lines.append(f"A/A, equal data in another order: {aa.sentence}")
        if aa.verdict in ("better", "worse"):
            lines.append(
                "Equal data differ: by chance alone this happens in 1 of 20 ablations; "
                "do not believe a verdict above without more seeds."
            )
    return lines


def _at_last_looks(
    ablation: Ablation, primary: TaskAnalysis, study: Study, scores: TaskScores, looks: int
) -> TaskAnalysis:
    """The analysis with the comparison of each arm from its last look, by the band of `scores`.

    The smallest visible difference is that of one number of seeds, so it is left out.
    """
    rows = []
    for row in primary.comparisons:
        seen = study.scores.get(row.arm)
        if seen is not None:
            seen = replace(seen, band=scores.band, limit=scores.limit)
            row = compare_in_round(ablation, seen, looks)[row.arm]
        rows.append(row)
    return replace(primary, comparisons=tuple(rows), power=None)


def _control_pairs(ablation: Ablation) -> list[tuple[str, str]]:
    """Each arm with its random subsets, then the random subsets with the baseline."""
    arms = ablation.controls.random_like
    pairs = [(arm, RANDOM_LIKE + arm) for arm in arms]
    return pairs + [(RANDOM_LIKE + arm, ablation.baseline) for arm in arms]


def _on_task(
    of_task: TaskAnalysis, comparisons: Sequence[Comparison], metric: str
) -> list[TaskComparison]:
    unit = METRICS[metric].unit
    rows = []
    for one in comparisons:
        comparison = one
        if not METRICS[metric].higher_is_better:
            comparison = replace(one, verdict=OPPOSITE[one.verdict])
        sentence = wording.describe(comparison, of_task.task, unit, of_task.power)
        fields = {"task": of_task.task, "metric": metric, "unit": unit, "sentence": sentence}
        plain = {**disk.to_plain(comparison), **fields}
        rows.append(disk.from_plain(TaskComparison, plain))
    return rows


def _noise(of_task: TaskAnalysis, metric: str) -> TaskNoise:
    return TaskNoise(
        task=of_task.task,
        metric=metric,
        unit=METRICS[metric].unit,
        own_sd=of_task.own_sd,
        own_df=of_task.own_df,
        sd=of_task.sd,
        df=of_task.df,
        floor_sd=of_task.floor_sd,
        drawing_sd=of_task.drawing_sd,
        power=of_task.power,
    )


# --- the headline ---------------------------------------------------------------------------------


def _headline(ablation: Ablation, rows: Sequence[TaskComparison], primary: TaskAnalysis) -> str:
    """One sentence about the arms of the manifest on the primary task, without the controls."""
    if not rows:
        return "Nothing can be compared: no arm shares two finished seeds with the baseline."
    base, task = ablation.baseline, ablation.primary
    clear = [row for row in rows if row.verdict in ("better", "worse")]
    if not clear:
        equal = [row for row in rows if row.verdict == "practically equal"]
        if len(equal) == len(rows):
            names = ", ".join(row.arm for row in rows)
            return f"No difference on {task}: practically equal to {base} are {names}."
        power = _power(rows[0], primary)
        return f"No difference to {base} found on {task}: {_differences(rows)}{power}."
    parts = []
    for word in ("better", "worse"):
        some = [row for row in clear if row.verdict == word]
        if some:
            parts.append(f"{word} than {base}: {_differences(some)}")
    text = "; ".join(parts)
    rest = len(rows) - len(clear)
    others = f"; no difference was found for {rest} of {len(rows)} arms" if rest else ""
    return f"On {task}, {text}{others}."


def _power(row: TaskComparison, primary: TaskAnalysis) -> str:
    """What these runs could have shown, and how many seeds would show half of that."""
    if primary.power is None:
        return ""
    text = f"; {wording.could_have_seen(primary.power, row.unit)}"
    shown = wording.percent(primary.power.half, row.unit)
    if primary.power.seeds_for_half is None:
        return f"{text}; no number of seeds would show {shown} on this test set"
    return f"{text}; {primary.power.seeds_for_half} seeds would see {shown}"


def _differences(rows: Sequence[TaskComparison]) -> str:
    texts = []
    for row in rows:
        difference = wording.interval(row.difference, row.low, row.high, row.unit)
        texts.append(f"{row.arm} {difference} {wording.unit_of_difference(row.unit)}")
    return ", ".join(texts)


def _gaps(
    failed: Sequence[FailedRun], incomplete: Mapping[str, tuple[int, ...]], runs: int
) -> list[str]:
    """Which runs are missing, and which arms are therefore incomplete."""
    lines = []
    if failed:
        first = failed[0]
        lines.append(
            f"{len(failed)} of {runs} runs ended without a result; the first is "
            f"{wording.run_name(first.arm, first.seed)}: {first.error}"
        )
    if incomplete:
        arms = [f"{arm} ({wording.without(seeds)})" for arm, seeds in incomplete.items()]
        lines.append(f"Incomplete: {', '.join(arms)}. The other seeds are used.")
    return lines


# --------------------------------------------------------------------------------------------------
# Tables over whole ablations: which metric tells the arms apart, and how accuracy grows with the
# samples seen. Pure.
#
# The runs of an ablation are {arm: {seed: {task: {metric: value}}}}, as results.json has them.


RunMetrics = Mapping[str, Mapping[str, Mapping[str, Metrics]]]  # arm, seed, task
Table = dict[str, dict[int, float]]  # {arm: {seed: value}}

LEAST_ARMS = 2
LEAST_SEEDS = 2
LEAST_SIZES = 3
AHEAD = 4  # a prediction is for so many times the largest size
RANDOM_SEED = 20221016  # of bootstraps: the same runs give the same tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSignals:
    """The metrics of a task by signal over noise, most first. deciding: that of the verdict."""

    task: str
    deciding: str
    rows: tuple[MetricSignal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTable:
    """Error against samples seen on a task, for each kind of data.

    metric: that of which the error is taken. curves, points: by the name of the data, the fitted
    curve and (samples seen, mean error over seeds). predictions: at AHEAD times the largest size,
    in the order of the curves. crossings: of every two kinds of data.
    """

    task: str
    metric: str
    sizes: tuple[float, ...]
    curves: dict[str, PowerLaw]
    points: dict[str, tuple[tuple[float, float], ...]]
    predictions: tuple[Prediction, ...]
    crossings: tuple[Crossing, ...]


def metric_tables(
    ablation: Ablation, runs: RunMetrics, draws: int = 1000
) -> tuple[TaskSignals, ...]:
    """Signal and noise of all metrics of every task, in the order of the manifest.

    Of the arms that share the most seeds, without controls and single models; a task on which
    fewer than two arms share two seeds is left out. `draws`: resamples of the bootstrap.
    """
    tables = []
    for task in ablation.evaluate:
        values = {}
        for metric in _metrics_of(runs, task.name):
            table = _common_seeds(_table(ablation, runs, task.name, metric))
            if table:
                values[metric] = table
        if not values:
            continue
        lower = [name for name in values if name in METRICS and not METRICS[name].higher_is_better]
        generator = np.random.default_rng(RANDOM_SEED)
        rows = metric_signals(values, generator, lower_is_better=lower, draws=draws)
        signals = TaskSignals(task=task.name, deciding=deciding_metric(task), rows=tuple(rows))
        tables.append(signals)
    return tuple(tables)


def scaling_tables(
    ablation: Ablation, runs: RunMetrics, draws: int = 200
) -> tuple[ScalingTable, ...]:
    """Curves of error against samples seen, of an ablation that varies `samples_seen`.

    Arms with the same data are the sizes of one curve. () for another factor, and on a task without
    a curve: 3 sizes with two seeds in common, and a metric that is a share.
    """
    if "samples_seen" not in ablation.vary:
        return ()
    sizes: dict[str, dict[float, str]] = {}  # data -> samples seen -> arm
    for name, arm in ablation.arms.items():
        if arm.is_trained:
            samples = float(arm_config(ablation, name).samples_seen)
            data = arm.view or arm.blend or " + ".join(sorted(arm.views or {}))
            sizes.setdefault(data, {})[samples] = name
    tables = []
    for task in ablation.evaluate:
        metric = deciding_metric(task)
        if METRICS[metric].unit != "share":
            continue
        values = _table(ablation, runs, task.name, metric)
        errors = _errors_by_size(sizes, values, METRICS[metric].higher_is_better)
        if errors:
            tables.append(_scaling(task.name, metric, errors, draws))
    return tuple(tables)


def _errors_by_size(
    sizes: Mapping[str, Mapping[float, str]], values: Table, higher_is_better: bool
) -> dict[str, dict[float, dict[int, float]]]:
    """{data: {samples seen: {seed: error}}} of the data with enough sizes, over common seeds."""
    usable = {}
    for data, by_size in sizes.items():
        present = {size: arm for size, arm in by_size.items() if values.get(arm)}
        if len(present) >= LEAST_SIZES:
            usable[data] = present
    arms = [arm for by_size in usable.values() for arm in by_size.values()]
    if not arms:
        return {}
    seeds = set.intersection(*(set(values[arm]) for arm in arms))
    if len(seeds) < LEAST_SEEDS:
        return {}
    errors: dict[str, dict[float, dict[int, float]]] = {}
    for data, by_size in usable.items():
        errors[data] = {}
        for size, arm in sorted(by_size.items()):
            errors[data][size] = {}
            for seed in sorted(seeds):
                value = values[arm][seed]
                errors[data][size][seed] = 1 - value if higher_is_better else value
    return errors


def _scaling(
    task: str,
    metric: str,
    errors: Mapping[str, Mapping[float, Mapping[int, float]]],
    draws: int,
) -> ScalingTable:
    fits = fit_scaling(errors, np.random.default_rng(RANDOM_SEED), draws=draws)
    largest = max(fit.sizes[-1] for fit in fits.values())
    names, crossings = list(fits), []
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            crossings.append(find_crossing(fits[first], fits[second]))
    points = {}
    for name, by_size in errors.items():
        points[name] = tuple(
            (size, float(np.mean(list(by_seed.values())))) for size, by_seed in by_size.items()
        )
    every = sorted({size for fit in fits.values() for size in fit.sizes})
    return ScalingTable(
        task=task,
        metric=metric,
        sizes=tuple(every),
        curves={name: fit.law for name, fit in fits.items()},
        points=points,
        predictions=tuple(predict_error(fit, AHEAD * largest) for fit in fits.values()),
        crossings=tuple(crossings),
    )


def _metrics_of(runs: RunMetrics, task: str) -> list[str]:
    """The metrics that a task's runs have, in order."""
    names: dict[str, None] = {}
    for of_arm in runs.values():
        for of_seed in of_arm.values():
            names |= dict.fromkeys(of_seed.get(task, {}))
    return list(names)


def _table(ablation: Ablation, runs: RunMetrics, task: str, metric: str) -> Table:
    """The values of the arms of the manifest that have seeds."""
    table: Table = {}
    for name, arm in ablation.arms.items():
        if arm.is_one_model:
            continue
        table[name] = {}
        for seed, of_seed in runs.get(name, {}).items():
            value = of_seed.get(task, {}).get(metric)
            if value is not None and np.isfinite(value):
                table[name][int(seed)] = float(value)
    return table


def _common_seeds(table: Table) -> Table:
    """The arms with two seeds at least, and the seeds that all of these have; {} for too few."""
    arms = {arm: of_arm for arm, of_arm in table.items() if len(of_arm) >= LEAST_SEEDS}
    if len(arms) < LEAST_ARMS:
        return {}
    seeds = set.intersection(*(set(of_arm) for of_arm in arms.values()))
    if len(seeds) < LEAST_SEEDS:
        return {}
    return {arm: {seed: of_arm[seed] for seed in sorted(seeds)} for arm, of_arm in arms.items()}
