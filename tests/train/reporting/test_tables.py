from __future__ import annotations

import dataclasses

import pytest

from manifests import disk
from manifests.pool_layout import AblationLayout
from manifests.schema import Ablation
from tests.support.ablations import changed
from train.ablation import Run, expand_runs
from train.reporting import Results, read_results
from train.reporting.tables import scaling_curves, signal_rows


@pytest.fixture(scope="module")
def ablation(concluded: str) -> Ablation:
    path = AblationLayout(concluded).ablation_json
    read: Ablation = disk.from_plain(Ablation, disk.read_json(path))
    return read


@pytest.fixture(scope="module")
def results(ablation: Ablation, concluded: str) -> Results:
    return read_results(ablation, concluded)


def test_every_metric_of_a_task_has_its_signal_and_noise(
    ablation: Ablation, results: Results
) -> None:
    rows = signal_rows(ablation, results)
    assert {row.task for row in rows} == {task.name for task in ablation.evaluate}
    assert [row.metric for row in rows if row.deciding] == ["accuracy"]
    assert {"accuracy", "logprob", "margin"} <= {row.metric for row in rows}
    assert {row.arms for row in rows} == {2}, "the A/A arm is no signal"
    assert signal_rows(ablation, results) == rows, "the resamples have a fixed seed"


def test_one_seed_tells_no_noise(ablation: Ablation, results: Results) -> None:
    arms = {}
    for name, arm in results.arms.items():
        arms[name] = dataclasses.replace(arm, runs={"0": arm.runs["0"]})
    assert signal_rows(ablation, dataclasses.replace(results, arms=arms)) == ()


def runs_of_sizes(folder: str, ablation: Ablation) -> list[Run]:
    """Six runs: raw and half at three sizes, as if they were arms."""
    first = {run.arm: run for run in expand_runs(ablation, folder, built=False)}
    runs = []
    for data in ("raw", "half"):
        for size in (64, 128, 256):
            config = dataclasses.replace(first[data].config, samples_seen=size)
            run = dataclasses.replace(first[data], arm=f"{data}-{size}", config=config)
            runs.append(run)
    return runs


def test_error_against_samples_seen(ablation: Ablation, concluded: str) -> None:
    runs = runs_of_sizes(concluded, ablation)
    varied = changed(
        ablation,
        arms={run.arm: {"view": "web/all"} for run in runs},
        baseline="raw-64",
        controls={},
        vary={"samples_seen": [64, 128, 256]},
    )
    values = {}
    for run in runs:
        size = run.config.samples_seen
        error = 0.1 + (1.0 if run.arm.startswith("raw") else 1.2) * size**-0.5
        values[run.arm] = {0: 1 - error, 1: 1 - error - 0.001}
    (one,) = scaling_curves(varied, runs, {"colours": values})
    raw, half = one.curves
    assert raw.exponent == pytest.approx(0.5, abs=0.05)
    assert raw.predicted[0] == 1024
    assert raw.predicted[1] == pytest.approx(0.1 + 1024**-0.5, abs=0.003)
    assert [n for n, _ in half.points] == [64, 128, 256]
    assert len(one.crossings) == 1
    assert scaling_curves(ablation, runs, {"colours": values}) == (), "another factor varies"
    assert scaling_curves(varied, runs[:2], {"colours": values}) == (), "two sizes are no curve"
