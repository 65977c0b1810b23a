from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from manifests import disk
from train.benching import machine
from train.benching.report import Cell, Report, check_target, read_report, write_report


def cell(**changes: object) -> Cell:
    values: dict[str, object] = {"model": "test", "dtype": "fp32", "ranks": 2, "batch": 4}
    values |= {
        "global_batch": 8,
        "data": "synthetic",
        "figures": {"samples_per_s": 2.0, "mfu": None},
    }
    return Cell(**{**values, **changes})  # type: ignore[arg-type]


def report(*cells: Cell) -> Report:
    return Report(
        mode="train",
        date="2026-01-31T12:00:00Z",
        command="python train/bench.py",
        commit=None,
        machine=machine.this_machine(torch.device("cpu")),
        options={"ranks": [2]},
        cells=cells,
    )


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "report.json")
    written = report(cell(rates=(1.0, 2.0)), cell(state="failed", reason="no memory", figures={}))
    check_target(path)
    write_report(path, written)
    assert read_report(path) == written
    assert not written.complete
    check_target(path)  # a report may be replaced
    assert cell().label == "test, fp32, 2 ranks, batch 4, synthetic"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "is no report of train/bench.py"),
        (lambda text: '{"steps": 3}', "is no report of train/bench.py"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "reads version 1"),
        (lambda text: text.replace('"ranks": 2', '"ranks": "two"'), "it must be a whole number"),
        (lambda text: text.replace('"measured"', '"perhaps"'), "state is 'perhaps'"),
        (lambda text: text.replace("2.0", "NaN"), "figure samples_per_s is nan"),
        (lambda text: text.replace('"model": "test",', ""), "no value for 'model'"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_and_stays(
    tmp_path: Path, change: object, message: str
) -> None:
    assert callable(change)
    path = tmp_path / "report.json"
    text = change(json.dumps(disk.to_plain(report(cell())), sort_keys=True))
    path.write_text(text)
    with pytest.raises(ValueError, match=r"report\.json") as error:
        read_report(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="-o would replace a file that is no whole report"):
        check_target(str(path))
    assert path.read_text() == text


def test_targets_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder"):
        check_target(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        check_target(str(tmp_path / "file" / "report.json"))
    with pytest.raises(FileNotFoundError):
        read_report(tmp_path / "none.json")
    with pytest.raises(ValueError, match="must be finite"):
        cell(figures={"mfu": math.inf})
