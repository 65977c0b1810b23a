from __future__ import annotations

import dataclasses

import pytest

from tests.support.reports import sample_report
from train.ablation.wording import DASH
from train.reporting import compare
from train.reporting.compare import report_lines


def test_the_tables_hold_the_numbers_of_the_page() -> None:
    report = sample_report()
    lines = report_lines(report)
    assert "web: links 100 > stored 80" in lines
    assert "web, not kept: dns 20" in lines
    row = next(line for line in lines if line.startswith("clip30 "))
    assert "34.1 ± 1.0" in row
    assert row.endswith("+4.1 [+2.9, +5.3]  better")
    assert lines[-1] == report.verdict


def test_an_arm_without_a_run_has_dashes() -> None:
    report = sample_report()
    arm = dataclasses.replace(report.arms[1], drawn=None, repeats=None, missing=(0, 1))
    task = report.tasks[0]
    row = dataclasses.replace(task.rows[1], mean=None, sd=None, values={}, difference=None)
    report = dataclasses.replace(report, arms=(report.arms[0], arm, report.arms[2]))
    line = compare.task_table(report, dataclasses.replace(task, rows=(row,)))[1]
    assert line.split() == ["clip30", "1,200", DASH, DASH, "(without", "seed", "0,", "1)"]


def test_a_row_of_an_unknown_arm_is_an_error() -> None:
    report = dataclasses.replace(sample_report(), arms=())
    with pytest.raises(StopIteration):
        compare.task_table(report, report.tasks[0])
