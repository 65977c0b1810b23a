from __future__ import annotations

import dataclasses

from tests.support.reports import sample_report, with_task
from train.ablation.wording import DASH
from train.reporting import compare, schema
from train.reporting.compare import report_lines


def test_the_tables_hold_the_numbers_of_the_page() -> None:
    report = sample_report()
    lines = report_lines(report)
    assert "web: links 100 > stored 80" in lines
    assert "web, not kept: dns 20" in lines
    row = next(line for line in lines if line.startswith("clip30 "))
    assert "34.1 ± 1.0" in row
    assert row.endswith("+4.1 [+2.9, +5.3]  better")
    assert lines[-1] == report.results.verdict


def test_an_arm_without_a_run_has_dashes() -> None:
    report = sample_report()
    nothing = schema.SeedValues(mean=None, sd=None, values={})
    arm = dataclasses.replace(
        report.arms[1], drawn=None, repeats=None, missing=(0, 1), metrics={"objects": nothing}
    )
    report = with_task(dataclasses.replace(report, arms=(arm,)), comparisons=())
    line = compare.task_table(report, report.primary)[1]
    assert line.split() == ["clip30", "1,200", DASH, DASH, "(without", "seed", "0,", "1)"]
