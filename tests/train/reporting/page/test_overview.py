from __future__ import annotations

import dataclasses

import pytest

from tests.support.reports import empty_report, sample_report
from train.reporting import page


def test_both_intervals_are_told_in_plain_words() -> None:
    row = sample_report().comparisons[0]
    text = page.interval_text(row)
    assert "Other seeds on this same test set would give between +3.1 and +5.1." in text
    assert "another test set of this size would give between +2.9 and +5.3." in text
    assert text.endswith("The headline is the wider one, over seeds and samples.")
    alone = dataclasses.replace(row, low_samples=None, high_samples=None)
    assert "Values of single samples are not known" in page.interval_text(alone)
    same = dataclasses.replace(row, low_seeds=None, high_seeds=None)
    assert page.interval_text(same).endswith("so there is no interval.")
    tasks = dataclasses.replace(row, low_tasks=-0.01, high_tasks=0.09)
    assert "Over other tasks of this kind as well" in page.interval_text(tasks)


def test_the_noise_of_a_run_and_the_floor_of_the_samples_are_named() -> None:
    report = sample_report()
    own, floor = page.noise_texts(report)
    assert "differs from another by 0.9 points" in own
    assert "0.4 points" in floor
    assert page.noise_texts(dataclasses.replace(report, noise=())) == []


def test_power_names_one_difference_and_the_seeds_for_half_of_it() -> None:
    report = sample_report()
    smallest, half = page.power_texts(report)
    assert "smallest visible difference is 2.9 points" in smallest
    assert half.startswith("Half of it, 1.")
    assert half.endswith(" points, needs 11 seeds of each arm.")
    assert report.power is not None
    never = dataclasses.replace(report.power, seeds_for_half=None)
    assert "No number of seeds" in page.power_texts(dataclasses.replace(report, power=never))[1]
    assert page.power_texts(empty_report()) == []


def test_an_incomplete_arm_is_named_and_has_no_difference() -> None:
    report = sample_report()
    nothing = dataclasses.replace(report.arms[1].metrics["objects"], mean=None, sd=None, values={})
    arm = dataclasses.replace(
        report.arms[1], metrics={"objects": nothing}, difference=None, missing=(0, 1)
    )
    report = dataclasses.replace(report, arms=(report.arms[0], arm))
    lines = page.arm_lines(report, ("arm",))
    assert "(without seed 0, 1)" in lines
    assert "none finished" in lines
    assert page.arm_lines(report, ("a_a",)) == ""


def test_a_report_without_its_task_is_an_error() -> None:
    with pytest.raises(StopIteration):
        page.primary_task(dataclasses.replace(sample_report(), primary="nothing"))
