from __future__ import annotations

import dataclasses

import pytest

from manifests import disk
from manifests.layout import AblationLayout
from manifests.schema import Ablation
from tests.support.ablations import changed
from train.reporting.collect import scaling_curves, signal_rows
from train.reporting.results import read_results
from train.reporting.schema import Results


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


def test_error_against_samples_seen(ablation: Ablation, results: Results) -> None:
    sizes = (64, 128, 256)
    arms = {}
    for data in ("all", "half"):
        for size in sizes:
            arms[f"{data}-{size}"] = {"view": f"web/{data}", "train": {"samples_seen": size}}
    varied = changed(
        ablation, arms=arms, baseline="all-64", controls={}, vary={"samples_seen": list(sizes)}
    )
    of_arms = {}
    for name in arms:
        data, size = name.split("-")
        error = 0.1 + (1.0 if data == "all" else 1.2) * int(size) ** -0.5
        runs = {}
        for seed in (0, 1):
            runs[str(seed)] = {"colours": {"accuracy": 1 - error - 0.001 * seed}}
        of_arms[name] = dataclasses.replace(results.arms["raw"], runs=runs)
    (one,) = scaling_curves(varied, dataclasses.replace(results, arms=of_arms))
    raw, half = one.curves
    assert (raw.name, half.name) == ("web/all", "web/half")
    assert raw.exponent == pytest.approx(0.5, abs=0.05)
    assert raw.predicted[0] == 1024
    assert raw.predicted[1] == pytest.approx(0.1 + 1024**-0.5, abs=0.003)
    assert [n for n, _ in half.points] == [64, 128, 256]
    assert len(one.crossings) == 1
    assert scaling_curves(ablation, results) == (), "another factor varies"
