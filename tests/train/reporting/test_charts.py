from __future__ import annotations

import pytest

from train.ablation.wording import MINUS
from train.reporting import charts
from train.reporting.charts import ForestRow


def test_ticks_are_round_and_inside() -> None:
    assert charts.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert charts.ticks(-0.13, 0.21, 4) == [-0.1, 0, 0.1, 0.2]
    assert charts.ticks(3, 3) == [3]
    assert charts.number(12_800) == "12.8k"
    assert charts.number(-0.5) == f"{MINUS}0.5"


def test_charts_survive_what_runs_can_log() -> None:
    assert "no points were logged" in charts.lines([("raw", "#000", [])], "x", "y", "empty")
    holes = [(1.0, 2.0), (2.0, float("nan")), (3.0, 1.0)]
    assert "nan" not in charts.lines([("raw", "#000", holes)], "x", "y", "holes")
    assert charts.bars([("none", 0, "0")], "zero").count("<rect") == 1
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
