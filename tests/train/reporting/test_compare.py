from __future__ import annotations

import dataclasses
import json
import math

import pytest

from manifests import disk
from tests.support.reports import comparison, sample_report, with_task
from train.reporting.compare import compare_reports, comparison_lines, render_comparison
from train.reporting.schema import Report


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


def test_another_verdict_and_the_same_noise_are_told_apart() -> None:
    compared = compare_reports(sample_report(), larger(0.03, 0.04, verdict="not distinguishable"))
    text = "\n".join(comparison_lines(compared))
    assert "Other verdict: clip30 (better, then not distinguishable)." in text
    assert "No difference changed by more than its noise." in text
    assert "Pairs of arms ordered alike: 1 of 1." in text
    plain = json.loads(json.dumps(disk.to_plain(compared)))
    assert plain["arms"][0]["arm"] == "clip30"


def test_without_an_interval_nothing_is_beyond_noise() -> None:
    compared = compare_reports(sample_report(), larger(0.5, 0.0, low=None, high=None))
    assert compared.arms[0].low is None
    assert not compared.arms[0].beyond_noise


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
