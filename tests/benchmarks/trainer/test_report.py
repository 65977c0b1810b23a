from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.trainer.report import check_target, this_machine, write_report
from train.sizing.device_fit import Cell, Report, read_report


def report(*cells: Cell) -> Report:
    return Report(
        mode="train",
        date="2026-01-31T12:00:00Z",
        command="clipmill bench",
        commit=None,
        machine=this_machine(torch.device("cpu")),
        options={"ranks": [2]},
        cells=cells,
    )


def test_a_report_is_written_whole_and_may_be_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "report.json")
    sizes = {"ranks": 2, "batch": 4, "global_batch": 8}
    cell = Cell(model="test", dtype="fp32", data="synthetic", figures={"mfu": None}, **sizes)
    check_target(path)
    write_report(path, report(cell))
    assert read_report(path) == report(cell)
    check_target(path)


@pytest.mark.parametrize("text", ["[]", '{"format": "clipmill bench rep', '{"steps": 3}'])
def test_a_damaged_or_foreign_file_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="-o would replace a file that is no whole report") as e:
        check_target(str(path))
    assert "\n" not in str(e.value)
    assert path.read_text() == text


def test_targets_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder"):
        check_target(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        check_target(str(tmp_path / "file" / "report.json"))
