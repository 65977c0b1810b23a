"""Units of work come back in order, and the first error is the one that is raised."""

from __future__ import annotations

import gc
import time

import pytest

from pipeline.views import row_tests
from pipeline.views.row_tests import map_units


@pytest.mark.parametrize("threads", [1, 4])
def test_results_are_in_order(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_tests, "THREADS", threads)

    def work(unit: int) -> int:
        time.sleep(0.002 * (unit % 3 == 0))
        return unit * unit

    assert list(map_units(20, work)) == [unit * unit for unit in range(20)]
    assert list(map_units(0, work)) == []


def test_the_first_error_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_tests, "THREADS", 2)
    started = []

    def work(unit: int) -> int:
        started.append(unit)
        if unit == 3:
            raise ValueError("unit 3")
        return unit

    with pytest.raises(ValueError, match="unit 3"):
        list(map_units(1000, work))
    assert len(started) < 50


def test_collections_are_rare_in_the_body_and_usual_after_it() -> None:
    usual = gc.get_threshold()
    full = gc.get_stats()[2]["collections"]
    with row_tests.few_collections():
        rows = [[number] for number in range(20 * usual[0])]
        assert gc.get_threshold()[0] == 100 * usual[0]
        assert gc.get_stats()[2]["collections"] == full
    assert len(rows) == 20 * usual[0]
    assert gc.get_threshold() == usual
