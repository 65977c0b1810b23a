from __future__ import annotations

import json
from pathlib import Path

import pytest

from manifests import disk
from manifests.layout import AblationLayout
from manifests.schema import Ablation
from train.ablation.arms import Run, expand_runs
from train.reporting import collect
from train.reporting.results import FileHashes, read_results


def of_folder(out: str) -> tuple[Ablation, list[Run]]:
    path = AblationLayout(out).ablation_json
    ablation: Ablation = disk.from_plain(Ablation, disk.read_json(path))
    return ablation, list(expand_runs(ablation, out, built=False))


@pytest.mark.slow
def test_a_run_has_its_settings_and_the_interval_of_its_samples(concluded: str) -> None:
    ablation, trained = of_folder(concluded)
    results = read_results(ablation, concluded)
    rows = collect.run_rows(trained, results, ablation.evaluate[0])
    assert len(rows) == 6
    first = rows[0]
    assert (first.arm, first.model, first.batch_size, first.samples_seen) == ("raw", "test", 16, 64)
    assert first.low is not None
    assert first.high is not None
    assert first.low < first.value < first.high
    assert first.high - first.low > 0.3, "eight samples say little"


@pytest.mark.slow
def test_device_seconds_are_the_mean_of_the_runs_times_their_processes(folder: str) -> None:
    _, trained = of_folder(folder)
    for seed, seconds, world in ((0, 10.0, 2), (1, 4.0, 1)):
        path = Path(folder, f"runs/half/seed-{seed}/run.json")
        record = json.loads(path.read_text())
        record["seconds"]["whole"], record["world"] = seconds, world
        disk.write_json(str(path), record)
    assert collect.device_seconds(trained)["half"] == 12.0


@pytest.mark.slow
def test_curves_are_read_where_there_is_a_log(folder: str) -> None:
    _, trained = of_folder(folder)
    Path(folder, "runs/raw/seed-0/log.jsonl").unlink()
    curves = collect.read_curves(trained, FileHashes(folder=folder))
    assert (curves[0].arm, curves[0].seed) == ("raw", 1)
    assert len(curves) == 5


def test_costs_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert collect.costs_of(str(path)) == ()
    path.write_text('{"fetch": 1.5}')
    assert collect.costs_of(str(path)) == (("fetch", 1.5),)
    path.write_text('{"fetch": "long"}')
    with pytest.raises(ValueError, match="long"):
        collect.costs_of(str(path))
