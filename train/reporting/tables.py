"""Which metric tells the arms apart, and how the error falls with the samples seen."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from manifests.schema import Ablation, TaskSpec
from train.ablation import Run
from train.evaluation import METRICS, deciding_metric
from train.reporting.schema import Results, Scaling, ScalingCurve, SignalRow
from train.stats import find_crossing, fit_scaling, metric_signals, predict_error

SEED = 20240229
LEAST_SIZES = 3
AHEAD = 4.0  # a prediction is for so many times the largest size
Table = dict[str, dict[int, float]]  # {arm: {seed: value}}


def signal_rows(ablation: Ablation, results: Results) -> tuple[SignalRow, ...]:
    """The metrics of every task, most signal first, over the arms of the ablation.

    Without controls, whose differences are no signal. A metric is left out where fewer than two
    arms have two seeds in common.
    """
    rows = []
    for task in ablation.evaluate:
        values = {}
        for metric in _metrics(results, task):
            table = _complete(_values(ablation, results, task, metric))
            if table:
                values[metric] = table
        if not values:
            continue
        lower = [name for name in values if not METRICS[name].higher_is_better]
        generator = np.random.default_rng(SEED)
        for one in metric_signals(values, generator, lower_is_better=lower):
            ratio = None if one.ratio is None else (one.ratio.value, one.ratio.low, one.ratio.high)
            row = SignalRow(
                task=task.name,
                metric=one.metric,
                unit=METRICS[one.metric].unit,
                deciding=one.metric == deciding_metric(task),
                arms=one.arms,
                seeds=one.seeds,
                best=one.best,
                spread=one.spread,
                noise=one.noise,
                ratio=ratio,
                single_agreement=one.single_agreement,
                half_agreement=one.half_agreement,
            )
            rows.append(row)
    return tuple(rows)


def _metrics(results: Results, task: TaskSpec) -> list[str]:
    """The known metrics of a task in the order of the runs."""
    names: dict[str, None] = {}
    for arm in results.arms.values():
        for tasks in arm.runs.values():
            names |= dict.fromkeys(tasks.get(task.name, {}))
    return [name for name in names if name in METRICS]


def _values(ablation: Ablation, results: Results, task: TaskSpec, metric: str) -> Table:
    table: Table = {}
    for arm, runs in results.arms.items():
        if arm not in ablation.arms:
            continue
        for seed, tasks in runs.runs.items():
            value = tasks.get(task.name, {}).get(metric)
            if value is not None and np.isfinite(value):
                table.setdefault(arm, {})[int(seed)] = float(value)
    return table


def _complete(table: Table) -> Table:
    """The arms with the seeds that all of them have; {} where there are too few."""
    common = set.intersection(*(set(by_seed) for by_seed in table.values())) if table else set()
    if len(table) < 2 or len(common) < 2:
        return {}
    return {arm: {seed: by_seed[seed] for seed in sorted(common)} for arm, by_seed in table.items()}


def scaling_curves(
    ablation: Ablation,
    runs: Sequence[Run],
    values: Mapping[str, Mapping[str, Mapping[int, float]]],
) -> tuple[Scaling, ...]:
    """The error of every kind of data against samples seen, on each task.

    values: {task: {arm: {seed: deciding metric}}}. () where the ablation varies something else; a
    task is left out where its metric is no share, and a kind of data with fewer than 3 sizes.
    """
    if "samples_seen" not in ablation.vary:
        return ()
    arms: dict[str, dict[float, str]] = {}  # kind of data -> samples seen -> arm
    for run in runs:
        if run.arm in ablation.arms:
            data = " + ".join(sorted(run.blend.views))
            arms.setdefault(data, {})[float(run.config.samples_seen)] = run.arm
    found = []
    for task in ablation.evaluate:
        if METRICS[deciding_metric(task)].unit == "share":
            one = _scaling(task, arms, values[task.name])
            found += [one] if one is not None else []
    return tuple(found)


def _scaling(
    task: TaskSpec,
    arms: Mapping[str, Mapping[float, str]],
    values: Mapping[str, Mapping[int, float]],
) -> Scaling | None:
    """The curves of a task; None without one."""
    used = {data: of_data for data, of_data in arms.items() if len(of_data) >= LEAST_SIZES}
    seeds = [set(values[arm]) for of_data in used.values() for arm in of_data.values()]
    common = sorted(set.intersection(*seeds)) if seeds else []
    if not common:
        return None
    metric = deciding_metric(task)
    higher = METRICS[metric].higher_is_better
    errors: dict[str, dict[float, dict[int, float]]] = {}
    for data, of_data in used.items():
        for size, arm in sorted(of_data.items()):
            by_seed = {s: 1 - values[arm][s] if higher else values[arm][s] for s in common}
            errors.setdefault(data, {})[size] = by_seed
    fits = fit_scaling(errors, np.random.default_rng(SEED))
    curves, warnings = [], []
    for data, fit in fits.items():
        ahead = predict_error(fit, AHEAD * fit.sizes[-1])
        warnings += [ahead.warning] if ahead.warning else []
        means = {n: float(np.mean(list(of_n.values()))) for n, of_n in errors[data].items()}
        curve = ScalingCurve(
            name=data,
            floor=fit.law.floor,
            scale=fit.law.scale,
            exponent=fit.law.exponent,
            unit=fit.law.unit,
            points=tuple(means.items()),
            predicted=(ahead.n, ahead.error.value, ahead.error.low, ahead.error.high),
        )
        curves.append(curve)
    crossings = []
    for first, second in itertools.combinations(fits.values(), 2):
        crossing = find_crossing(first, second)
        crossings.append(crossing.sentence())
        warnings += [crossing.warning] if crossing.warning else []
    return Scaling(
        task=task.name,
        metric=metric,
        curves=tuple(curves),
        crossings=tuple(crossings),
        warnings=tuple(dict.fromkeys(warnings)),
    )
