from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support.reports import empty_report, sample_report
from train.ablation import wording
from train.reporting import page


def test_metrics_of_a_task_with_the_deciding_one_in_bold() -> None:
    html = page.signal_tables(sample_report())
    assert "Metrics of objects over 2 arms and 3 seeds" in html
    assert "<b>accuracy</b>" in html
    assert "4.1 [2.0, 9.0]" in html
    assert html.index("logprob") < html.index("<b>accuracy</b>")
    silent = dataclasses.replace(sample_report().signals[0], ratio=None)
    assert wording.DASH in page.signal_tables(
        dataclasses.replace(empty_report(), signals=(silent,))
    )
    assert page.signal_tables(empty_report()) == ""


def test_scaling_shows_points_curves_crossings_and_predictions() -> None:
    html = page.scaling(sample_report())
    assert html.count("<polyline") == 1
    assert html.count("<circle") == 3
    assert "12.5 [11.0, 14.0]" in html
    assert "overtakes" in html
    assert "4.0 times the largest" in html
    numbers = re.search(r'points="([^"]*)" stroke', html)
    assert numbers is not None
    heights = [float(pair.split(",")[1]) for pair in numbers.group(1).split()]
    assert heights == sorted(heights), "the error falls: the line goes down the page"
    assert page.scaling(empty_report()) == ""


def test_a_curve_without_points_is_no_curve() -> None:
    (one,) = sample_report().scaling
    bare = dataclasses.replace(one, curves=(dataclasses.replace(one.curves[0], points=()),))
    with pytest.raises(ValueError, match="min"):
        page.scaling(dataclasses.replace(sample_report(), scaling=(bare,)))
