"""What single runs tell: their scores with the noise of the test samples, curves, device time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from manifests import disk
from manifests.run_layout import RunLayout
from manifests.schema import TaskSpec
from train.ablation import AnyRun, Run, TaskNoise
from train.evaluation import deciding_metric
from train.reporting.results import FileHashes
from train.reporting.schema import Curve, Power, Results, RunRow
from train.stats import seeds_needed, wilson

SHARE_OF_SAMPLES = ("accuracy", "accuracy5")  # metrics that are a share of independent samples


def run_rows(runs: Sequence[AnyRun], results: Results, task: TaskSpec) -> tuple[RunRow, ...]:
    """Every finished run with its deciding metric on a task."""
    metric = deciding_metric(task)
    samples = results.tasks[task.name].samples
    rows = []
    for run in runs:
        metrics = results.arms[run.arm].runs.get(str(run.seed), {}).get(task.name)
        if metrics is None:
            continue
        value = metrics[metric]
        low = high = None
        if metric in SHARE_OF_SAMPLES and samples:
            interval = wilson(round(value * samples), samples)
            low, high = interval.low, interval.high
        config = run.config if isinstance(run, Run) else None
        row = RunRow(
            arm=run.arm,
            seed=run.seed,
            model=None if config is None else config.model,
            batch_size=None if config is None else config.batch_size,
            samples_seen=None if config is None else config.samples_seen,
            value=value,
            low=low,
            high=high,
        )
        rows.append(row)
    return tuple(rows)


def device_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """{arm: seconds of one run times its processes, the mean over its finished runs}."""
    seconds: dict[str, list[float]] = {}
    for run in runs:
        record = disk.read_json(RunLayout(run.out).run_json)
        whole = record.get("seconds", {}).get("whole")
        if whole is not None:
            seconds.setdefault(run.arm, []).append(float(whole) * record.get("world", 1))
    return {arm: sum(values) / len(values) for arm, values in seconds.items()}


def read_curves(runs: Sequence[Run], hashes: FileHashes) -> tuple[Curve, ...]:
    """The log of every run that has one, without points that are not finite."""
    curves = []
    for run in runs:
        path = RunLayout(run.out).log
        if not disk.exists(path):
            continue
        points = []
        for line in disk.read_bytes(hashes.add(path)).decode().splitlines():
            numbers = json.loads(line)
            point = (numbers["samples"], numbers["loss"], numbers["accuracy"])
            if all(map(math.isfinite, point)):
                points.append(point)
        curves.append(Curve(arm=run.arm, seed=run.seed, points=tuple(points)))
    return tuple(curves)


def power_of(noise: TaskNoise, arms: int) -> Power | None:
    """The smallest visible difference of `arms` comparisons. None where the noise is unknown."""
    if noise.mde is None or noise.sd is None or arms < 1:
        return None
    seeds = seeds_needed(
        noise.mde / 2,
        noise.sd,
        arms=arms,
        floor_sd=noise.floor_sd or 0.0,
        drawing=((noise.drawing_sd or 0.0) ** 2, float("inf")),
        prior_df=noise.prior.df if noise.prior else 0.0,
    )
    return Power(smallest=noise.mde, half=noise.mde / 2, seeds_for_half=seeds)


def costs_of(path: str) -> tuple[tuple[str, float], ...]:
    """The seconds of each stage from costs.json; empty where there is none."""
    if not disk.exists(path):
        return ()
    costs: Mapping[str, float] = disk.read_json(path)
    return tuple((name, float(seconds)) for name, seconds in costs.items())
