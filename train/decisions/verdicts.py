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
from train.stats.scales import Column, ScaleDecision, ScaleTables
from train.stats.signals import MetricSignal, metric_signals

BASELINES = ("baseline", "base", "raw", "control", "unfiltered", "no_filter", "none", "default")
MOST_SIGNALS = 200  # metrics of tasks whose signal is estimated, and whose smaller scales are read
LEAST_ALIKE = 3  # values that two arms share before they count as one arm
Runs = dict[str, dict[int, float]]  # {arm: {seed: value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a table. None: it is chosen, and said.

    task: the one that decides. metric: of every task. lower: metrics or tasks of which less is
    better. without: tasks that are left out. effect: the difference whose price is asked, in the
    unit of the values. band: differences inside ± it are practically equal; 0: none is. noise: a
    published standard deviation of one run, for scales with one run of each arm.
    """

    baseline: str | None = None
    task: str | None = None
    metric: str | None = None
    lower: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    effect: float | None = None
    band: float = 0.0
    noise: float | None = None


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
    largest = _largest_scale(chosen, results.scales, notes)
    top = [row for row in chosen if row.scale == largest]
    arms = tuple(dict.fromkeys(row.arm for row in top))
    baseline = _baseline(arms, question, notes)
    tables, of_unit = _tables(_paired(top, baseline, notes), question, notes)
    can_average = _can_average(tables, question, notes, refusals)
    analysis = _analysis(tables, baseline, arms, question, average=can_average)
    result = analysis.average or next(iter(analysis.tasks.values()))
    if question.task is not None:
        result = analysis.tasks[question.task]
    averaged = analysis.tasks if result is analysis.average else [result.task]
    of_tasks = [tables[task] for task in averaged]
    values = average_values([scores.values for scores in of_tasks])
    metrics = {scores.metric for scores in of_tasks}
    samples = {row.task: row.samples for row in top}
    refusals += _refusals(values, result, baseline, arms)
    noise, effect = analysis.noises[result.task], question.effect
    if effect is not None:
        effect *= of_unit.get(result.task, max(of_unit.values()))
    return Decision(
        baseline=baseline,
        arms=arms,
        task=result.task,
        metric=result.metric if len(metrics) == 1 else f"{len(metrics)} metrics",
        scale=results.scales[largest],
        result=result,
        values=values,
        tasks=analysis.tasks,
        signals=_signals(rows, largest, question),
        scales=_scale_decisions(rows, largest, results, question, result.task, can_average),
        effect=effect,
        seeds_for_effect=noise.seeds_for(effect) if noise and effect is not None else None,
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


def _headline_metrics(rows: Sequence[Measurement], question: Question) -> dict[str, str]:
    """One metric for each task: the metric asked for, or the likeliest headline."""
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
    return chosen


def _headline_rows(rows: Sequence[Measurement], question: Question) -> list[Measurement]:
    """The rows of the headline metric of each task."""
    chosen = _headline_metrics(rows, question)
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


def _largest_scale(
    rows: Sequence[Measurement], names: Mapping[float, str], notes: list[str]
) -> float:
    """The largest scale of two arms or more."""
    arms: dict[float, set[str]] = defaultdict(set)
    for row in rows:
        arms[row.scale].add(row.arm)
    enough = [scale for scale in arms if len(arms[scale]) > 1]
    if not enough:
        where = " at each scale" if len(arms) > 1 else f", {rows[0].arm}"
        raise ValueError(
            f"there is one arm{where}: a comparison needs two; name what tells arms apart with "
            f"--arm ({'; '.join(notes)})"
        )
    if larger := [names[scale] for scale in arms if scale > max(enough)]:
        notes.append(f"left out: scales with one arm, {', '.join(larger)}")
    return max(enough)


def _paired(rows: Sequence[Measurement], baseline: str, notes: list[str]) -> Sequence[Measurement]:
    """The rows, with the places of the seeds instead of the seeds where some arm has several runs
    but not two seeds of the baseline: such runs are not paired by seed.
    """
    seeds: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        seeds[row.arm].add(row.seed)
    alone = [arm for arm, own in seeds.items() if len(own) > 1 and len(own & seeds[baseline]) < 2]
    if not alone or len(seeds[baseline]) < 2:
        return rows
    notes.append(
        f"seed: {_some(alone)} has not two seeds of {baseline}, so runs are not paired by seed"
    )
    places = {arm: {seed: i for i, seed in enumerate(sorted(own))} for arm, own in seeds.items()}
    return [row._replace(seed=places[row.arm][row.seed]) for row in rows]


def _some(names: Sequence[str]) -> str:
    """Three names and a count of the rest."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _tables(
    rows: Sequence[Measurement], question: Question, notes: list[str]
) -> tuple[dict[str, TaskScores], dict[str, float]]:
    """The scores of every task, and what makes its values those of the scores: 0.01 for
    percentages.
    """
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.task].append(row)
    tables, of_unit = {}, {}
    for task, of_task in groups.items():
        metric = of_task[0].metric
        numbers = [row.value for row in of_task]
        of_unit[task] = 0.01 if _are_percentages(task, metric, numbers) else 1.0
        numbers = [number * of_unit[task] for number in numbers]
        values = {
            arm: {seed: value * of_unit[task] for seed, value in runs.items()}
            for arm, runs in _runs_of(of_task).items()
        }
        is_share = min(numbers) >= 0 and max(numbers) <= 1 and len(set(numbers)) > 1
        unit = METRICS[metric].unit if metric in METRICS else "share" if is_share else ""
        tables[task] = TaskScores(
            values=values,
            samples=_samples_of(of_task, values),
            band=question.band * of_unit[task],
            limit=1.0 if unit == "share" else math.inf,
            metric=metric,
            unit=unit,
            higher_is_better=_is_higher_better(of_task, question),
        )
    if percentages := [task for task, factor in of_unit.items() if factor < 1]:
        notes.append(f"read as percentages: {_some(percentages)}")
    return tables, of_unit


def _are_percentages(task: str, metric: str, numbers: Sequence[float]) -> bool:
    """Whether a metric that is a share has values up to 100."""
    name = task if metric == "value" else metric
    is_share = SHARES.search(plain_name(name)) is not None
    return is_share and min(numbers) >= 0 and 1 < max(numbers) <= 100


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
    """Whether the tasks have one average, as an ablation's: of one unit and one direction. Why not
    is a refusal.
    """
    if averages := [task for task in tables if is_average(task)]:
        notes.append(f"not averaged again: {_some(averages)}")
    singles = [scores for task, scores in tables.items() if task not in averages]
    metrics = list(dict.fromkeys(scores.metric for scores in singles))
    units = {scores.unit for scores in singles}
    if len(singles) < 2:
        return False
    if len({scores.higher_is_better for scores in singles}) > 1:
        why = "metrics of both directions"
    elif len(units) > 1 or (units == {""} and len(metrics) > 1):
        why = "different units"
    else:
        if len(metrics) > 1:
            notes.append(f"the average is of {len(metrics)} metrics, {_some(metrics)}")
        return True
    refusals.append(
        f"no average over the {len(singles)} tasks: they have {why}; choose by --metric, --task or "
        "--without"
    )
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
        band=max(scores.band or 0.0 for scores in singles.values()),
        primary=question.task,
        average=average and len(singles) > 1,
    )


def is_average(task: str) -> bool:
    """Whether the name of a column says that it is an average of others."""
    return AVERAGES.search(plain_name(task)) is not None


# --- what cannot be decided -----------------------------------------------------------------------


def _refusals(values: Runs, result: TaskResult, baseline: str, arms: Sequence[str]) -> list[str]:
    lacking = [arm for arm in arms if not values.get(arm)]
    refusals = [f"{_some(lacking)} not compared: a task is missing (--without)"] if lacking else []
    if all(len(runs) < 2 for runs in values.values()):
        return [
            *refusals,
            "no verdict: every arm has one run, so the noise between runs is not known; give two "
            "seeds or more",
        ]
    if result.sd == 0:
        refusals.append(
            "no verdict: nothing varies between the runs of an arm; were the seeds different?"
        )
    compared = {baseline, *lacking, *(row.arm for row in result.comparisons)}
    if few := [arm for arm in arms if arm not in compared]:
        refusals.append(f"{_some(few)} not compared with {baseline}: two runs are needed in common")
    return refusals


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
    large: float,
    results: Results,
    question: Question,
    headline: str,
    can_average: bool,
) -> tuple[ScaleDecision, ...]:
    """All metrics of every task at every smaller scale, and the average over tasks where there is
    one, against the headline at the largest scale.
    """
    groups: dict[Column, list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.scale <= large:
            groups[row.task, row.metric].append(row)
    columns: dict[Column, dict[float, Runs]] = {}
    for column, of_one in groups.items():
        by_scale: dict[float, list[Measurement]] = defaultdict(list)
        for row in of_one:
            by_scale[row.scale].append(row)
        columns[column] = {scale: _runs_of(each) for scale, each in by_scale.items()}
    scales = sorted({row.scale for row in rows if row.scale <= large})
    if len(scales) < 2:
        return ()
    metrics = _headline_metrics(rows, question)
    singles = [(task, metric) for task, metric in metrics.items() if not is_average(task)]
    # A task that some scale lacks would make the average another one there
    singles = [column for column in singles if columns.get(column, {}).keys() == set(scales)]
    if can_average and len(singles) > 1:
        columns[AVERAGE, ""] = {
            scale: average_values([columns[column][scale] for column in singles])
            for scale in scales
        }
    first = (headline, metrics.get(headline, ""))
    lower = {column for column, of_one in groups.items() if not _is_higher_better(of_one, question)}
    if lower.issuperset(singles):
        lower.add((AVERAGE, ""))
    order = dict.fromkeys([first, (AVERAGE, ""), *metrics.items(), *columns])
    kept = [column for column in order if column in columns][:MOST_SIGNALS]
    tables = ScaleTables(
        columns={column: columns[column] for column in kept},
        lower=lower,
        names=results.scales,
        costs=results.costs,
        noise=question.noise,
    )
    return tables.decisions(kept[0])
