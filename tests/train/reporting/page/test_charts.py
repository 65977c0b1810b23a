from __future__ import annotations

import re

import pytest

from train.ablation.wording import MINUS
from train.reporting import charts
from train.reporting.charts import ForestRow


def test_charts_survive_what_runs_can_log() -> None:
    nothing = charts.band_over_seeds("raw", "#000", [])
    assert "no points were logged" in charts.bands([nothing], "x", "y", "empty")
    holes = [(1.0, 2.0), (2.0, float("nan")), (3.0, 1.0)]
    band = charts.band_over_seeds("raw", "#000", [holes])
    assert "nan" not in charts.bands([band], "x", "y", "holes")
    same = ForestRow(name="same", mean=0.0, low=0.0, high=0.0, colour="#000")
    assert "nan" not in charts.forest([same], 0.5, "flat")


def test_a_forest_row_has_an_interval_and_a_dot_per_seed() -> None:
    row = ForestRow(name="a<b", mean=-4.0, low=-5.0, high=-3.0, colour="#123", dots=(-5.0, -3.5))
    svg = charts.forest([row], 1.0, "t")
    assert svg.count('class="seed"') == 2
    assert svg.count('class="whisker"') == 1
    assert "a&lt;b" in svg
    assert f">{MINUS}4<" in svg
    unknown = ForestRow(name="a", mean=0.0, low=None, high=None, colour="#123")
    svg = charts.forest([unknown], 1.0, "t")
    assert 'class="whisker"' not in svg
    assert svg.count("<circle") == 1


def test_a_histogram_without_a_bin_is_an_error() -> None:
    svg = charts.histogram([0, 1, 2], {"stored": [1, 2]}, {"v": 1.0, "out": 9.0}, {}, "h")
    assert svg.count('class="mark"') == 1, "a threshold outside the axis is not drawn"
    with pytest.raises(IndexError):
        charts.histogram([], {}, {}, {}, "h")


def test_a_band_has_the_mean_and_the_extremes_of_the_seeds() -> None:
    seeds = [[(1.0, 4.0), (2.0, 3.0)], [(1.0, 6.0), (2.0, 5.0), (3.0, 1.0)]]
    band = charts.band_over_seeds("raw", "#000", seeds)
    assert band.points == ((1.0, 5.0, 4.0, 6.0), (2.0, 4.0, 3.0, 5.0))
    svg = charts.bands([band], "x", "y", "t")
    assert svg.count("<polyline") == svg.count("<polygon") == 1, "one line per arm, not per seed"


def test_labels_of_near_thresholds_are_on_lines_of_their_own() -> None:
    marks = {"clip30": 1.0, "basic_and_clip30": 1.01, "out": 9.0}
    svg = charts.histogram([0, 1, 2], {"stored": [1, 2]}, marks, {}, "h")
    heights = [
        float(re.findall(r'y="([\d.]+)"', text)[0])
        for text in re.findall(r"<text[^>]*>(?=clip30|basic)", svg)
    ]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= 12


def test_a_scatter_marks_controls_and_shows_intervals() -> None:
    point = charts.Point(name="a<b", colour="#123", x=30.0, y=4.0, low=2.0, high=6.0)
    random = charts.Point(name="r", colour="#456", x=30.0, y=0.0, hollow=True)
    svg = charts.scatter([point, random], "x", "y", "t")
    assert svg.count("<circle") == 2
    assert svg.count('class="whisker"') == 1
    assert svg.count('fill="var(--paper)"') == 1
    assert "a&lt;b" in svg
    with pytest.raises(ValueError, match="empty"):
        charts.scatter([], "x", "y", "t")


def test_a_strip_has_a_dot_per_seed_and_one_mean() -> None:
    svg = charts.strip([0.1, 0.2, 0.3], "#123", (0.1, 0.3), 0.15, "raw")
    assert svg.count('class="seed"') == 3
    assert svg.count('class="mean-mark"') == svg.count('class="reference"') == 1
    assert "nan" not in charts.strip([0.1], "#123", (0.1, 0.1), None, "raw")
    assert charts.strip([], "#123", (0.0, 1.0), None, "raw").count("<circle") == 0
