"""Tables over whole ablations: which metric tells the arms apart, and how accuracy grows with the
samples seen. Pure.

The runs of an ablation are {arm: {seed: {task: {metric: value}}}}, as results.json has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from manifests.schema import Ablation
from train.ablation.factors import arm_config
from train.evaluation import METRICS, Metrics, deciding_metric
from train.stats import (
    Crossing,
    MetricSignal,
    PowerLaw,
    Prediction,
    find_crossing,
    fit_scaling,
    metric_signals,
    predict_error,
)

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
