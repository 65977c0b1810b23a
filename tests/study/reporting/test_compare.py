from __future__ import annotations

import dataclasses
import datetime
import json
import math

import pytest

from clipmill.library.reports import Comparison
from clipmill.manifests import disk
from clipmill.study import compare
from clipmill.study.compare import (
    compare_reports,
    comparison_lines,
    render_comparison,
    report_lines,
    report_markdown,
)
from clipmill.verdict.pages import schema
from clipmill.verdict.pages.schema import Report
from clipmill.verdict.wording import DASH, MINUS
from tests.support.reports import (
    arm_report,
    comparison,
    empty_report,
    sample_report,
    with_results,
    with_task,
)


def larger(mean: float, half: float, **changes: object) -> Report:
    """The sample report at another scale, where clip30 has this difference."""
    d = dataclasses.replace(
        comparison("clip30", "raw"), difference=mean, low=mean - half, high=mean + half
    )
    d = dataclasses.replace(d, **changes)  # type: ignore[arg-type]
    report = with_task(sample_report(), comparisons=(d,))
    ablation = dataclasses.replace(report.ablation, name="large")
    return dataclasses.replace(report, ablation=ablation, samples_seen=64000)


def test_a_change_has_the_interval_of_two_independent_ablations() -> None:
    compared = compare_reports(sample_report(), larger(0.091, 0.02, verdict="better"))
    (arm,) = compared.arms
    half = math.hypot(0.012, 0.02)
    assert (arm.arm, arm.change) == ("clip30", pytest.approx(0.05))
    assert (arm.low, arm.high) == (pytest.approx(0.05 - half), pytest.approx(0.05 + half))
    assert arm.beyond_noise
    assert not arm.other_verdict
    assert compared.differs == ("samples seen per run: 6,400 and 64,000",)
    assert compared.agreement is not None
    assert (compared.agreement.alike, compared.agreement.pairs) == (1, 1)


def test_another_learning_rate_is_named() -> None:
    second = larger(0.05, 0.02)
    ablation = dataclasses.replace(second.ablation, train={"preset": "micro", "lr": 3e-4})
    first = dataclasses.replace(
        sample_report(), ablation=dataclasses.replace(ablation, train={"preset": "micro"})
    )
    compared = compare_reports(first, dataclasses.replace(second, ablation=ablation))
    assert "learning rate: 0.001 and 0.0003" in compared.differs


def test_another_verdict_and_the_same_noise_are_told_apart() -> None:
    compared = compare_reports(sample_report(), larger(0.03, 0.04, verdict="not distinguishable"))
    text = "\n".join(comparison_lines(compared))
    assert "Other verdict: clip30 (better, then not distinguishable)." in text
    assert "No difference changed by more than its noise." in text
    assert "Pairs of arms ordered alike: 1 of 1." in text
    plain = json.loads(json.dumps(disk.to_plain(compared)))
    assert plain["arms"][0]["arm"] == "clip30"
    unknown = compare_reports(sample_report(), larger(0.5, 0.0, low=None, high=None)).arms[0]
    assert (unknown.low, unknown.beyond_noise) == (None, False)


def test_a_comparison_for_a_notebook_has_the_numbers_and_the_words_of_the_terminal() -> None:
    compared = Comparison(compare_reports(sample_report(), larger(0.091, 0.02, verdict="better")))
    (row,) = compared.table.to_pylist()
    half = math.hypot(0.012, 0.02)
    assert (row["arm"], row["second"], row["second_verdict"]) == ("clip30", 0.091, "better")
    assert (row["change_low"], row["change_high"]) == pytest.approx((0.05 - half, 0.05 + half))
    assert compared.text == "\n".join(comparison_lines(compared.comparison))
    assert "| clip30 | +4.1 [+2.9, +5.3] | +9.1 [+7.1, +11.1] |" in compared.to_markdown()
    assert r"\begin{tabular}{lrrrl}" in compared.to_latex()
    assert "beyond noise" in compared.to_svg()
    assert "samples seen per run" in " ".join(compared.account)
    assert compared.to_html() == render_comparison(compared.comparison)
    assert json.loads(compared.to_json()) == compared.to_dict()


def test_the_page_has_the_table_and_a_point_per_arm() -> None:
    html = render_comparison(compare_reports(sample_report(), larger(0.091, 0.02)))
    assert html.count("<circle") == 1
    assert "Changed beyond noise: clip30 by +5.0" in html
    assert "+9.1 [+7.1, +11.1]" in html


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("baseline", "clip30", "the baseline is 'raw' in the one and 'clip30' in the other"),
        ("samples", 641, "the number of test samples is 640 in the one and 641"),
        ("metric", "logprob", "the metric is 'accuracy' in the one and 'logprob'"),
    ],
)
def test_what_is_not_comparable_is_refused(field: str, value: object, message: str) -> None:
    other = larger(0.04, 0.01)
    if field == "baseline":
        ablation = dataclasses.replace(other.ablation, baseline="clip30")
        other = dataclasses.replace(other, ablation=ablation)
    else:
        other = with_task(other, **{field: value})
    with pytest.raises(ValueError, match=message):
        compare_reports(sample_report(), other)


def test_two_ablations_without_a_common_arm_are_refused() -> None:
    other = larger(0.04, 0.01)
    other = dataclasses.replace(other, arms=(other.arms[0],))
    with pytest.raises(ValueError, match="no arm in common"):
        compare_reports(sample_report(), other)


def test_ranks_are_drawn_where_there_is_something_to_rank() -> None:
    report = sample_report()
    assert "<h2>Ranks</h2>" not in render_comparison(compare_reports(report, report))
    worse = dataclasses.replace(
        comparison("clip50", "raw", "worse"), difference=-0.02, low=-0.03, high=-0.01
    )
    three = with_task(report, comparisons=(*report.primary.comparisons, worse))
    third = dataclasses.replace(report.arms[1], arm="clip50")
    three = dataclasses.replace(three, arms=(*report.arms, third))
    html = render_comparison(compare_reports(three, three))
    assert "<h2>Ranks</h2>" in html
    for name in ("clip30: 1, then 1", "raw: 2, then 2", "clip50: 3, then 3"):
        assert f"<title>{name}</title>" in html


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


def test_the_tables_hold_the_numbers_of_the_page() -> None:
    report = sample_report()
    lines = report_lines(report)
    assert "web: links 100 > stored 80" in lines
    assert "web, not kept: dns 20" in lines
    row = next(line for line in lines if line.startswith("clip30 "))
    assert "34.1 ± 1.0" in row
    assert row.endswith("+4.1 [+2.9, +5.3]  better")
    assert lines[-1] == report.results.verdict


def test_each_line_of_the_console_is_one_also_of_the_null_web() -> None:
    null = sample_report()
    results = dataclasses.replace(null.results, verdict="No difference.\nMore seeds.")
    null = dataclasses.replace(null, results=results)
    lines = report_lines(dataclasses.replace(sample_report(), null_web=null))
    assert lines[lines.index("No difference.") + 1] == "More seeds."
    assert not any("\n" in line for line in lines)


def test_an_arm_without_a_run_has_dashes() -> None:
    report = sample_report()
    nothing = schema.SeedValues(mean=None, sd=None, values={})
    arm = dataclasses.replace(
        report.arms[1], drawn=None, repeats=None, missing=(0, 1), metrics={"objects": nothing}
    )
    report = with_task(dataclasses.replace(report, arms=(arm,)), comparisons=())
    line = compare.task_table(report, report.primary)[1]
    assert line.split() == ["clip30", "1,200", DASH, DASH, "(without", "seed", "0,", "1)"]
