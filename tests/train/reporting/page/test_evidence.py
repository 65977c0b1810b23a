from __future__ import annotations

import dataclasses

import pytest

from tests.support.reports import empty_report, given_report, sample_report
from train.reporting import page

OPTIONAL = (page.changes, page.curves, page.costs, page.single_runs)


@pytest.mark.parametrize("section", OPTIONAL, ids=lambda section: section.__name__)
def test_a_section_with_nothing_to_show_is_empty(section: object) -> None:
    assert callable(section)
    assert section(empty_report()) == ""
    assert section(sample_report()) != ""


def test_losses_come_first_in_the_forest_of_tasks() -> None:
    report = sample_report()
    assert page.task_forests(report) == "", "one task needs no forest of tasks"
    task = report.tasks[0]
    difference = task.rows[1].difference
    assert difference is not None
    lower = dataclasses.replace(difference, mean=-0.02, low=-0.03, high=-0.01)
    row = dataclasses.replace(task.rows[1], difference=lower)
    other = dataclasses.replace(task, task="a loss", rows=(task.rows[0], row))
    html = page.task_forests(dataclasses.replace(report, tasks=(task, other)))
    assert html.index(">a loss<") < html.index(">objects<")


def test_changes_show_samples_with_images_and_keep_controls_apart() -> None:
    html = page.changes(sample_report())
    arm, control = html.split("<h3>The same for controls</h3>")
    assert "12 samples are right in most seeds of clip30" in arm
    assert "red &lt;star&gt;" in arm
    assert arm.count("<figure>") == 1, "a sample without an image is not drawn"
    assert "many comparisons" in arm
    assert "random_like_clip30 against raw" in control
    assert "<star>" not in html


def test_samples_without_any_image_are_listed() -> None:
    report = sample_report()
    change = report.changes[0]
    change = dataclasses.replace(change, shown=change.shown[1:])
    html = page.changes(dataclasses.replace(report, changes=(change,)))
    assert "<figure>" not in html
    assert "<td>star/1.jpg</td>" in html


def test_share_kept_needs_arms_of_different_size() -> None:
    report = sample_report()
    assert page.share_kept(report) == ""
    raw = dataclasses.replace(report.arms[0], share=1.0)
    html = page.share_kept(dataclasses.replace(report, arms=(raw, *report.arms[1:])))
    assert html.count("<circle") == 3
    assert html.count('class="whisker"') == 1, "only clip30 has a difference"
    assert html.count('class="link"') == 1, "clip30 and its random control"
    assert "Hollow circles are random subsets" in html


def test_cost_is_per_point_of_an_arm_that_is_better() -> None:
    html = page.costs(sample_report())
    assert f"{82 / 4.1:,.1f}" in html
    assert "random_like_clip30" not in html


def test_single_runs_have_their_interval_and_no_settings_if_unknown() -> None:
    html = page.single_runs(sample_report())
    assert "29.0 [27.0, 31.0]" in html
    assert ">micro<" in html
    assert ">batch<" not in page.single_runs(given_report())


def test_curves_of_an_unknown_arm_are_an_error() -> None:
    with pytest.raises(KeyError, match="raw"):
        page.curves(dataclasses.replace(sample_report(), arms=()))
