from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk
from manifests.layout import AblationLayout, RunLayout
from manifests.schema import Ablation
from train.ablation.arms import Run, expand_runs
from train.reporting.collect import collect_contract


def runs_of(folder: str) -> list[Run]:
    path = AblationLayout(folder).ablation_json
    return list(expand_runs(disk.from_plain(Ablation, disk.read_json(path)), folder, built=False))


def test_equal_settings_are_one_value_for_all_runs(concluded: str) -> None:
    contract = collect_contract(runs_of(concluded))
    assert contract is not None
    assert contract.runs == 6
    assert contract.config_hash is not None
    rows = {row.setting: row for row in contract.rows}
    assert rows["samples seen of a run"].value == "64"
    assert rows["model"].main
    assert not rows["eps"].main
    assert "seed" not in rows
    assert set(contract.blends) == {"raw", "half", "a_a"}


def test_a_setting_that_differs_names_its_arms(folder: str) -> None:
    runs = runs_of(folder)
    path = RunLayout(next(run for run in runs if run.arm == "half").out).run_json
    record = disk.read_json(path)
    for settings in (record["config"], record["identity"]["config"]):
        settings["eps"] = 1e-3
    disk.write_json(path, record)
    contract = collect_contract(runs)
    assert contract is not None
    assert contract.config_hash is None
    (row,) = (row for row in contract.rows if row.setting == "eps")
    assert row.value is None
    assert row.main, "what differs is never folded"
    assert row.by_arm["half"].startswith("0.001, ")


def test_initial_weights_are_known_by_content_and_versions_are_shared(folder: str) -> None:
    """The same path may have other weights; and seeds may differ where the arms do not."""
    runs = runs_of(folder)
    for run in runs:
        path = RunLayout(run.out).run_json
        record = disk.read_json(path)
        record["config"]["init"] = "/models/base"
        record["identity"]["initial_weights"] = ("a" if run.arm == "raw" else "b") * 64
        record["identity"]["pixels"] = 1 + run.seed
        disk.write_json(path, record)
    contract = collect_contract(runs)
    assert contract is not None
    assert contract.config_hash is None
    rows = {row.setting: row for row in contract.rows}
    assert rows["initial weights"].by_arm["raw"] == "/models/base (sha256 aaaaaaaaaaaa)"
    assert rows["initial weights"].by_arm["half"] == "/models/base (sha256 bbbbbbbbbbbb)"
    assert rows["version of the order"].value == "2"
    assert rows["version of the pixels"].value is None
    assert rows["version of the pixels"].by_arm["half"] == "1, 2"


def test_no_runs_and_damaged_records(folder: str) -> None:
    assert collect_contract([]) is None
    runs = runs_of(folder)
    Path(RunLayout(runs[0].out).run_json).write_text("{}")
    with pytest.raises(ValueError, match="is no RunRecord"):
        collect_contract(runs)
