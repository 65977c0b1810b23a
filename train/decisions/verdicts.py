"""What a table of results decides: arms against a baseline, metrics, and small scales. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from train.decisions.tables import (
    AVERAGES,
    HEADLINES,
    LOWER,
    SHARES,
    Measurement,
    Results,
    plain_name,
)
from train.evaluation.metrics import METRICS
from train.stats.analysis import AVERAGE, Analysis, TaskResult, TaskScores, analyse, average_values
from train.stats.model import Values
from train.stats.scaling import MetricSignal, ScaleAgreement, metric_signals, scale_agreement

BASELINES = ("baseline", "base", "raw", "control", "unfiltered", "no_filter", "none", "default")
MOST_SIGNALS = 200  # metrics of tasks whose signal is estimated
LEAST_ALIKE = 3  # values that two arms share before they count as one arm
Runs = dict[str, dict[int, float]]  # {arm: {seed: value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a table. None: it is chosen, and said.

    task: the one that decides. metric: of every task. lower: metrics or tasks of which less is
    better. without: tasks that are left out. effect: the difference whose price is asked, in the
    unit of the values. band: differences inside ± it are practically equal; 0: none is.
    """

    baseline: str | None = None
    task: str | None = None
    metric: str | None = None
    lower: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    effect: float | None = None
    band: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """How often a small scale orders two arms as the largest one does, on one task or on the
    average over tasks. small, large: the names of the scales.
    """

    task: str
    metric: str
    small: str
    large: str
    agreement: ScaleAgreement


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdicts on a table.

    task: what the headline is of, a task or the average. scale: the name of the largest scale,
    whose runs are compared. result: the comparisons on it. values: its runs. tasks: the results of
    every task. signals: which metric of which task separates the arms best. seeds_for_effect:
    None where no number suffices, or nothing was asked or is known. sampling: half of the 95 %
    interval that the test samples alone leave to a difference of two runs, where nothing else is
    known. refusals: what cannot be decided, and why. notes: what was guessed.
    """

    baseline: str
    arms: tuple[str, ...]
    task: str
    metric: str
    scale: str
    result: TaskResult
    values: Runs
    tasks: dict[str, TaskResult]
    signals: tuple[MetricSignal, ...]
    scales: tuple[ScaleDecision, ...]
    effect: float | None
    seeds_for_effect: int | None
    sampling: float | None
    refusals: tuple[str, ...]
    notes: tuple[str, ...]


def decide(results: Results, question: Question) -> Decision:
    """The verdicts on the largest scale of a table, and how the smaller ones agree with it.

    ValueError for an unknown arm, task or metric, fewer than two arms, or a metric that the table
    gives two directions.
    """
    notes = list(results.notes)
    refusals: list[str] = []
    rows = [row for row in results.rows if row.task not in question.without]
    _check_names(results.rows, question)
    rows = _without_copies(rows, notes)
    chosen = _headline_rows(rows, question)
    largest = max(row.scale for row in chosen)
    top = [row for row in chosen if row.scale == largest]
    arms = tuple(dict.fromkeys(row.arm for row in top))
    baseline = _baseline(arms, question, notes)
    if len(arms) < 2:
        raise ValueError(f"there is one arm, {arms[0]}: a comparison needs two")
    tables = _tables(top, question, results, notes)
    can_average = _can_average(tables, question, notes, refusals)
    analysis = _analysis(tables, baseline, arms, question, average=can_average)
    result = _result_of(analysis, question)
    values = {arm: dict(runs) for arm, runs in _values_of(result.task, tables, analysis).items()}
    samples = {row.task: row.samples for row in top}
    refusals += _refusals(values, result, arms)
    noise = analysis.noises[result.task]
    return Decision(
        baseline=baseline,
        arms=arms,
        task=result.task,
        metric=result.metric,
        scale=results.scales[largest],
        result=result,
        values=values,
        tasks=analysis.tasks,
        signals=_signals(rows, largest, question),
        scales=_scale_decisions(chosen, results.scales, question, can_average),
        effect=question.effect,
        seeds_for_effect=noise.seeds_for(question.effect) if noise and question.effect else None,
        sampling=None if noise else _sampling(result, values, samples.get(result.task, 0)),
        refusals=tuple(refusals),
        notes=tuple(notes),
    )


# --- what is compared -----------------------------------------------------------------------------


def _check_names(rows: Sequence[Measurement], question: Question) -> None:
    """ValueError for a name that the table does not have."""
    tasks = {row.task for row in rows}
    metrics = {row.metric for row in rows}
    told = [(name, "task", tasks) for name in (question.task, *question.without) if name]
    told += [(question.metric, "metric", metrics)] if question.metric else []
    told += [(name, "metric or task", metrics | tasks) for name in question.lower]
    for name, what, there in told:
        if name not in there:
            raise ValueError(f"there is no {what} {name!r} (of {', '.join(sorted(there)[:40])})")
    if question.task in question.without:
        raise ValueError(f"the task {question.task!r} decides and is left out")


def _without_copies(rows: list[Measurement], notes: list[str]) -> list[Measurement]:
    """The rows without arms that repeat another one at a scale: the same runs under two names."""
    by_arm: dict[tuple[str, float], dict[tuple[str, str, int], float]] = defaultdict(dict)
    for row in rows:
        by_arm[row.arm, row.scale][row.task, row.metric, row.seed] = row.value
    first: dict[tuple[float, frozenset[tuple[tuple[str, str, int], float]]], str] = {}
    copies: dict[str, str] = {}
    for (arm, scale), values in by_arm.items():
        if len(values) >= LEAST_ALIKE and len(set(values.values())) > 1:
            original = first.setdefault((scale, frozenset(values.items())), arm)
            if original != arm:
                copies[arm] = original
    for arm, original in copies.items():
        notes.append(f"left out: {arm}, at one scale the same runs as {original}")
    return [row for row in rows if row.arm not in copies]


def _headline_rows(rows: Sequence[Measurement], question: Question) -> list[Measurement]:
    """The rows of one metric for each task: the metric asked for, or the likeliest headline."""
    metrics: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.metric not in metrics[row.task]:
            metrics[row.task].append(row.metric)
    chosen = {}
    for task, names in metrics.items():
        if question.metric is not None:
            chosen[task] = question.metric
            continue
        ranks = {plain_name(name): name for name in names}
        chosen[task] = next((ranks[name] for name in HEADLINES if name in ranks), names[0])
    kept = [row for row in rows if row.metric == chosen[row.task]]
    if not kept:
        raise ValueError("no row is left to compare")
    return kept


def _baseline(arms: Sequence[str], question: Question, notes: list[str]) -> str:
    if question.baseline is not None:
        if question.baseline not in arms:
            shown = ", ".join(arms[:40])
            raise ValueError(f"there is no arm {question.baseline!r} (of {shown})")
        return question.baseline
    plain = {plain_name(arm): arm for arm in reversed(arms)}
    baseline = next((plain[name] for name in BASELINES if name in plain), arms[0])
    notes.append(f"baseline: {baseline}")
    return baseline


def _tables(
    rows: Sequence[Measurement], question: Question, results: Results, notes: list[str]
) -> dict[str, TaskScores]:
    """The scores of every task."""
    if not results.is_numbered and not _share_a_seed(rows):
        notes.append("seed: the arms have no seed in common, so their runs are not paired by it")
        rows = _numbered(rows)
    values: dict[str, Runs] = {}
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.task].append(row)
        values.setdefault(row.task, {}).setdefault(row.arm, {})[row.seed] = row.value
    tables = {}
    percentages: list[str] = []
    for task, of_task in values.items():
        metric = groups[task][0].metric
        numbers = [row.value for row in groups[task]]
        if _are_percentages(task, metric, numbers):
            percentages.append(task)
            for runs in of_task.values():
                runs |= {seed: value / 100 for seed, value in runs.items()}
            numbers = [number / 100 for number in numbers]
        is_share = min(numbers) >= 0 and max(numbers) <= 1 and len(set(numbers)) > 1
        unit = METRICS[metric].unit if metric in METRICS else "share" if is_share else ""
        samples = _samples_of(groups[task], of_task)
        tables[task] = TaskScores(
            values=of_task,
            samples=samples,
            limit=1.0 if unit == "share" else math.inf,
            metric=metric,
            unit=unit,
            higher_is_better=_is_higher_better(groups[task], question),
        )
    if percentages:
        notes.append(f"read as percentages: {', '.join(percentages)}")
    return tables


def _are_percentages(task: str, metric: str, numbers: Sequence[float]) -> bool:
    """Whether a metric that is a share has values up to 100."""
    name = task if metric == "value" else metric
    is_share = SHARES.search(plain_name(name)) is not None
    return is_share and min(numbers) >= 0 and 1 < max(numbers) <= 100


def _seeds_of(rows: Sequence[Measurement]) -> dict[str, set[int]]:
    seeds: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        seeds[row.arm].add(row.seed)
    return seeds


def _share_a_seed(rows: Sequence[Measurement]) -> bool:
    """Whether two arms have a seed in common, or no arm has two runs."""
    seeds = list(_seeds_of(rows).values())
    counts = [len(each) for each in seeds]
    return sum(counts) > len(set().union(*seeds)) or max(counts) == 1


def _numbered(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows with the places of their seeds among those of their arm."""
    places = {
        arm: {seed: place for place, seed in enumerate(sorted(seeds))}
        for arm, seeds in _seeds_of(rows).items()
    }
    return [row._replace(seed=places[row.arm][row.seed]) for row in rows]


def _samples_of(
    rows: Sequence[Measurement], values: Runs
) -> dict[str, dict[int, np.ndarray | None]] | None:
    """Values per sample, where the table has them. ValueError where they are not those of the
    value, or of other samples than those of another run.
    """
    if not any(row.per_sample is not None for row in rows):
        return None
    samples: dict[str, dict[int, np.ndarray | None]] = {}
    sizes = set()
    for row in rows:
        samples.setdefault(row.arm, {})[row.seed] = row.per_sample
        if row.per_sample is None:
            continue
        sizes.add(len(row.per_sample))
        mean, value = float(np.mean(row.per_sample)), values[row.arm][row.seed]
        if len(row.per_sample) < 2 or abs(mean - value) > 1e-5 * max(1.0, abs(value)):
            raise ValueError(
                f"{row.arm} seed {row.seed} on {row.task}: the mean of the {len(row.per_sample)} "
                f"values per sample is {mean:.6g}, and the value {value:.6g}"
            )
    if len(sizes) > 1:
        raise ValueError(
            f"{rows[0].task}: runs have values of {min(sizes)} and {max(sizes)} samples"
        )
    return samples


def _is_higher_better(rows: Sequence[Measurement], question: Question) -> bool:
    """The direction of a task's metric, as the table says, as the user says, or by its name."""
    one = rows[0]
    if one.metric in question.lower or one.task in question.lower:
        return False
    stated = {row.higher for row in rows} - {None}
    if len(stated) > 1:
        raise ValueError(f"{one.task}, {one.metric}: the table gives it both directions")
    if stated:
        return bool(stated.pop())
    if one.metric in METRICS:
        return METRICS[one.metric].higher_is_better
    name = one.task if one.metric == "value" else one.metric
    return LOWER.search(plain_name(name)) is None


def _can_average(
    tables: Mapping[str, TaskScores],
    question: Question,
    notes: list[str],
    refusals: list[str],
) -> bool:
    """Whether the tasks have one average; why not is a refusal."""
    if len(tables) == 1:
        return False
    metrics = {scores.metric for scores in tables.values()}
    directions = {scores.higher_is_better for scores in tables.values()}
    if len(metrics) == 1 and len(directions) == 1 and len({s.unit for s in tables.values()}) == 1:
        return True
    why = "both directions" if len(directions) > 1 else f"the metrics {', '.join(sorted(metrics))}"
    if len(metrics) == 1 and len(directions) == 1:
        why = "values of different units"
    refusals.append(f"no average over the {len(tables)} tasks: they have {why}")
    return False


def _analysis(
    tables: Mapping[str, TaskScores],
    baseline: str,
    arms: Sequence[str],
    question: Question,
    *,
    average: bool,
) -> Analysis:
    """`analyse` of an ablation on these tables; averages among the columns are averaged no more."""
    singles = {task: one for task, one in tables.items() if not is_average(task)} or dict(tables)
    if question.task is not None:
        singles[question.task] = tables[question.task]
    others = [arm for arm in arms if arm != baseline]
    runs: dict[str, int] = defaultdict(int)
    for scores in tables.values():
        for arm, of_arm in scores.values.items():
            runs[arm] = max(runs[arm], len(of_arm))
    models = [arm for arm in others if runs[arm] == 1] if runs[baseline] > 1 else []
    return analyse(
        singles,
        baseline,
        arms=others,
        one_models=models,
        band=question.band,
        primary=question.task,
        average=average and len(singles) > 1,
    )


def is_average(task: str) -> bool:
    """Whether the name of a column says that it is an average of others."""
    return AVERAGES.search(plain_name(task)) is not None


def _result_of(analysis: Analysis, question: Question) -> TaskResult:
    """What the headline is of: the task asked for, the average, or the first task."""
    if question.task is not None:
        return analysis.tasks[question.task]
    return analysis.average or next(iter(analysis.tasks.values()))


def _values_of(task: str, tables: Mapping[str, TaskScores], analysis: Analysis) -> Values:
    """The runs of a task, or the averages of the runs over the tasks."""
    if task in tables:
        return tables[task].values
    return average_values([tables[name].values for name in analysis.tasks])


# --- what cannot be decided -----------------------------------------------------------------------


def _refusals(values: Runs, result: TaskResult, arms: Sequence[str]) -> list[str]:
    runs = [len(values.get(arm, {})) for arm in arms]
    if max(runs) < 2:
        return [
            "no verdict: every arm has one run, so the noise between runs is not known; give two "
            "seeds or more"
        ]
    if result.sd is None:
        return ["no verdict: no two arms have two runs in common"]
    if result.sd == 0:
        return ["no verdict: nothing varies between the runs of an arm; were the seeds different?"]
    short = [arm for arm, count in zip(arms, runs, strict=True) if count == 0]
    return [f"not compared, as they lack some task: {', '.join(short)}"] if short else []


def _sampling(result: TaskResult, values: Runs, samples: int) -> float | None:
    """1.96 standard errors of a difference of two shares on `samples` samples each."""
    means = [float(np.mean(list(runs.values()))) for runs in values.values() if runs]
    if result.unit != "share" or not samples or not means:
        return None
    p = float(np.mean(means))
    return 1.96 * math.sqrt(2 * p * (1 - p) / samples)


# --- which metric, which scale --------------------------------------------------------------------


def _signals(
    rows: Iterable[Measurement], scale: float, question: Question
) -> tuple[MetricSignal, ...]:
    """Signal to noise of the metrics of all tasks, where there are two or more."""
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.scale == scale:
            groups[row.task, row.metric].append(row)
    tables, lower = {}, []
    several = len({metric for _, metric in groups}) > 1
    for (task, metric), of_one in list(groups.items())[:MOST_SIGNALS]:
        name = f"{task}, {metric}" if several else task
        tables[name] = _runs_of(of_one)
        if not _is_higher_better(of_one, question):
            lower.append(name)
    signals = metric_signals(tables, lower)
    return tuple(signals) if len(signals) > 1 else ()


def _runs_of(rows: Iterable[Measurement]) -> Runs:
    runs: Runs = {}
    for row in rows:
        runs.setdefault(row.arm, {})[row.seed] = row.value
    return runs


def _scale_decisions(
    rows: Sequence[Measurement],
    names: Mapping[float, str],
    question: Question,
    can_average: bool,
) -> tuple[ScaleDecision, ...]:
    """Every scale against the largest one: the average first, then the tasks."""
    means = _scale_means(rows)
    metrics = {row.task: row.metric for row in rows}
    sizes = sorted({row.scale for row in rows})
    decisions = []
    for small in sizes[:-1]:
        tasks = [task for task in means if _shared_arms(means[task], small, sizes[-1])]
        singles = [task for task in tasks if not is_average(task)]
        if question.task is None and can_average and len(singles) > 1:
            averages = {
                scale: _mean_over(means, singles, scale, (small, sizes[-1]))
                for scale in (small, sizes[-1])
            }
            decisions += _decision(AVERAGE, "", averages, small, sizes[-1], names)
        for task in sorted(tasks, key=lambda task: task != question.task):  # stable
            decisions += _decision(task, metrics[task], means[task], small, sizes[-1], names)
    return tuple(decisions)


def _scale_means(rows: Sequence[Measurement]) -> dict[str, dict[float, dict[str, float]]]:
    """{task: {scale: {arm: mean over seeds}}}."""
    lists: dict[str, dict[float, dict[str, list[float]]]] = {}
    for row in rows:
        of_scale = lists.setdefault(row.task, {}).setdefault(row.scale, {})
        of_scale.setdefault(row.arm, []).append(row.value)
    means: dict[str, dict[float, dict[str, float]]] = {}
    for task, of_task in lists.items():
        means[task] = {
            scale: {arm: float(np.mean(values)) for arm, values in arms.items()}
            for scale, arms in of_task.items()
        }
    return means


def _shared_arms(means: Mapping[float, Mapping[str, float]], small: float, large: float) -> bool:
    """Whether at least three arms have a value at both scales."""
    return len(set(means.get(small, {})) & set(means.get(large, {}))) >= 3


def _mean_over(
    means: Mapping[str, Mapping[float, Mapping[str, float]]],
    tasks: Sequence[str],
    scale: float,
    both: tuple[float, float],
) -> dict[str, float]:
    """The mean over tasks of the arms that have every task at both scales."""
    arms = set.intersection(*(set(means[task][size]) for task in tasks for size in both))
    return {arm: float(np.mean([means[task][scale][arm] for task in tasks])) for arm in arms}


def _decision(
    task: str,
    metric: str,
    means: Mapping[float, Mapping[str, float]],
    small: float,
    large: float,
    names: Mapping[float, str],
) -> list[ScaleDecision]:
    arms = set(means[small]) & set(means[large])
    agreement = scale_agreement(
        {arm: means[small][arm] for arm in arms}, {arm: means[large][arm] for arm in arms}
    )
    if agreement is None:
        return []
    return [
        ScaleDecision(
            task=task, metric=metric, small=names[small], large=names[large], agreement=agreement
        )
    ]
