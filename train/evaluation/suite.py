"""A suite of tasks: what is present is evaluated; a group is averaged if it is complete."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipmill.manifests import disk
from clipmill.manifests.metrics import Metrics, can_be_averaged, deciding_metric
from clipmill.manifests.schema import Suite, TaskSpec
from clipmill.train.evaluation.tasks import alone, evaluate, read_samples

if TYPE_CHECKING:
    import torch

    from clipmill.train.model.open_clip_model import AnyModel
    from clipmill.train.parallel.process_group import Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAverage:
    """The mean of the deciding metrics of a group's tasks.

    None if a task has no result, or if the metrics differ in unit or direction.
    """

    group: str
    value: float | None
    tasks: int
    without: tuple[str, ...]  # tasks without a result
    mixed: tuple[str, ...] = ()  # deciding metrics that cannot be averaged

    def line(self) -> str:
        """The average and from how many tasks it is, or why there is none."""
        if self.value is not None:
            return f"{self.group}: {self.value:.4f}, the mean of {self.tasks} tasks"
        if self.mixed:
            return (
                f"{self.group}: no average, {', '.join(self.mixed)} differ in unit or in which "
                "direction is better"
            )
        names = ", ".join(self.without[:5]) + (" …" if len(self.without) > 5 else "")
        return (
            f"{self.group}: no average, {len(self.without)} of {self.tasks} tasks have no result "
            f"({names})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResults:
    """What became of every task of a suite.

    deciding: the metric that counts for each task with a result. missing: tasks without data, with
    the path. failed: tasks that ended with an error, with its message.
    """

    suite: str
    metrics: dict[str, Metrics]
    deciding: dict[str, str]
    missing: dict[str, str]
    failed: dict[str, str]
    averages: tuple[GroupAverage, ...]

    def lines(self) -> list[str]:
        """The results as text, a line for each task and group."""
        lines = []
        for task, metric in self.deciding.items():
            lines.append(f"{task}: {metric} {self.metrics[task][metric]:.4f}")
        lines += [f"{task}: missing, there is no {path}" for task, path in self.missing.items()]
        lines += [f"{task}: failed, {message}" for task, message in self.failed.items()]
        return lines + [average.line() for average in self.averages]


def missing_data(tasks: Sequence[TaskSpec]) -> dict[str, str]:
    """The tasks whose data is not there, with its path."""
    missing: dict[str, str] = {}
    for task in tasks:
        for path in (task.data, task.train_data):
            if path is not None and not disk.exists(path):
                missing.setdefault(task.name, path)
    return missing


def readable_tasks(tasks: Sequence[TaskSpec]) -> list[TaskSpec]:
    """The tasks whose data can be read."""
    readable = []
    for task in tasks:
        try:
            read_samples(task)
        except ValueError:
            continue
        readable.append(task)
    return readable


def evaluate_suite(
    model: AnyModel,
    suite: Suite,
    out: str,
    *,
    tokenizer: str = "clip",
    device: str | torch.device = "cpu",
    ranks: Ranks | None = None,
    weights: Mapping[str, str] | None = None,
) -> SuiteResults:
    """Evaluate the tasks whose data is there; one that fails does not stop the others.

    out/TASK.parquet is as `evaluate` writes it, out/suite-NAME.json has the results. ValueError for
    a suite without any data and for a metric that there is not. A collective of `ranks`.
    """
    ranks = ranks or alone()
    for task in suite.tasks:
        deciding_metric(task)
    missing = missing_data(suite.tasks)
    if len(missing) == len(suite.tasks):
        raise ValueError(
            f"suite {suite.name!r}: none of its {len(missing)} tasks has data; the first would be "
            f"at {next(iter(missing.values()))}"
        )
    metrics: dict[str, Metrics] = {}
    deciding: dict[str, str] = {}
    failed: dict[str, str] = {}
    present = [task for task in suite.tasks if task.name not in missing]
    for number, task in enumerate(present, 1):
        if ranks.rank == 0:
            logger.info("task %d of %d: %s", number, len(present), task.name)
        try:
            results = evaluate(
                model,
                [task],
                out,
                tokenizer=tokenizer,
                device=device,
                ranks=ranks,
                weights=weights,
            )
            metrics[task.name] = results[task.name]
            deciding[task.name] = _deciding(task, results[task.name])
        except ValueError as error:
            failed[task.name] = str(error)
    results_of_suite = SuiteResults(
        suite=suite.name,
        metrics=metrics,
        deciding=deciding,
        missing=missing,
        failed=failed,
        averages=group_averages(suite, metrics, deciding),
    )
    if ranks.rank == 0:
        disk.write_json(disk.join(out, f"suite-{suite.name}.json"), results_of_suite)
    return results_of_suite


def _deciding(task: TaskSpec, metrics: Metrics) -> str:
    name = deciding_metric(task)
    if name not in metrics:
        raise ValueError(
            f"task {task.name!r} has no {name}, which decides (it has {', '.join(metrics)})"
        )
    return name


def group_averages(
    suite: Suite, metrics: Mapping[str, Metrics], deciding: Mapping[str, str]
) -> tuple[GroupAverage, ...]:
    """The average of every group of the suite."""
    averages = []
    for group, tasks in suite.groups.items():
        without = tuple(task for task in tasks if task not in deciding)
        names = tuple(dict.fromkeys(deciding[task] for task in tasks if task in deciding))
        mixed = () if can_be_averaged(names) else names
        value = None
        if not without and not mixed:
            value = math.fsum(metrics[task][deciding[task]] for task in tasks) / len(tasks)
        one = GroupAverage(group=group, value=value, tasks=len(tasks), without=without, mixed=mixed)
        averages.append(one)
    return tuple(averages)
