"""train/report.py as a command. What a report holds is tested in tests/train/reporting/."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.report import main


def test_a_folder_that_is_no_ablation_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        assert main([str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert "ablation.json" in line


def test_a_folder_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "folder" in capsys.readouterr().err
