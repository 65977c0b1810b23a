from __future__ import annotations

import dataclasses
import datetime

from tests.support.reports import arm_report, empty_report, sample_report, with_results
from train.ablation.wording import DASH, MINUS
from train.reporting.compare import report_markdown


def test_the_summary_has_the_verdict_and_a_row_per_arm() -> None:
    lines = report_markdown(sample_report(), datetime.date(2026, 11, 22)).splitlines()
    assert "**On objects, better than raw: clip30 +4.1 [+2.9, +5.3] points.**" in lines
    assert "| clip30 | 3 | 34.1 ± 1.0 | +4.1 [+2.9, +5.3] | better |" in lines
    assert lines.index("Controls:") < lines.index(
        f"| random_like_clip30 | 3 | 30.0 ± 1.0 |  | {DASH} |"
    )
    assert any("smallest visible difference is 2.9 points" in line for line in lines)
    assert "written on 2026-11-22" in lines[-1]


def test_a_large_ablation_has_forty_lines_at_most() -> None:
    report = sample_report()
    arms = [arm_report(f"arm{i}", "arm", 0.3) for i in range(50)]
    random = [arm_report(f"random_like_arm{i}", "random", 0.3) for i in range(50)]
    gaps = tuple(f"arm{i} is incomplete: without seed 1" for i in range(50))
    report = dataclasses.replace(report, arms=(report.arms[0], *arms, *random), gaps=gaps)
    lines = report_markdown(report).splitlines()
    assert len(lines) <= 40
    assert "| and 41 more | | | | |" in lines
    assert "- and 47 more remarks" in lines


def test_text_cannot_break_the_table() -> None:
    report = empty_report()
    ablation = dataclasses.replace(report.ablation, question="a | b\n<script>")
    report = dataclasses.replace(report, ablation=ablation)
    text = report_markdown(report)
    assert "a \\| b &lt;script>" in text
    assert "<script>" not in text


def test_losses_on_other_tasks_are_named() -> None:
    report = sample_report()
    loss = dataclasses.replace(
        report.results.comparisons[0],
        task="pets",
        verdict="worse",
        difference=-0.04,
        low=-0.05,
        high=-0.03,
    )
    loss_text = "-4.0 [-5.0, -3.0]".replace("-", MINUS)
    pets = dataclasses.replace(report.primary, task="pets", comparisons=(loss,))
    tasks = {"objects": report.primary, "pets": pets}
    text = report_markdown(with_results(report, tasks=tasks))
    assert f"Worse on other tasks: clip30 on pets {loss_text}." in text
