from __future__ import annotations

import dataclasses

import pytest

from tests.support.reports import empty_report, given_report, sample_report
from train.reporting import page

OPTIONAL = (
    page.checks,
    page.funnels,
    page.examples,
    page.settings,
)


@pytest.mark.parametrize("section", OPTIONAL, ids=lambda section: section.__name__)
def test_a_section_with_nothing_to_show_is_empty(section: object) -> None:
    assert callable(section)
    assert section(empty_report()) == ""
    assert section(sample_report()) != ""


def test_arms_and_controls_have_tables_of_their_own() -> None:
    report = sample_report()
    arms = page.arms_table(report, ("baseline", "arm"))
    assert "random_like_clip30" not in arms
    assert "+4.1 [+2.9, +5.3]" in arms
    assert "random_like_clip30" in page.arms_table(report, ("random",))
    assert page.arms_table(report, ("a_a",)) == ""
    incomplete = dataclasses.replace(report.arms[1], missing=(1, 2))
    report = dataclasses.replace(report, arms=(report.arms[0], incomplete))
    assert "(without seed 1, 2)" in page.arms_table(report, ("arm",))


def test_a_task_without_its_arm_is_an_error() -> None:
    with pytest.raises(KeyError, match="clip30"):
        page.tasks(dataclasses.replace(sample_report(), arms=sample_report().arms[:1]))


def test_columns_of_data_are_left_out_where_only_predictions_are_known() -> None:
    numbers = page.arms_table(given_report(), ("baseline", "arm"))
    assert "pairs" not in numbers
    assert "+4.1 [+2.9, +5.3]" in numbers
