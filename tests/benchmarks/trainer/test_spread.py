from __future__ import annotations

import pytest

from benchmarks.trainer.timing import percentile_figures, spread_figures


def test_the_statistics_of_known_values() -> None:
    figures = spread_figures("step_ms", [1.0, 2.0, 3.0, 6.0])
    assert figures == {
        "step_ms_mean": 3.0,
        "step_ms_sd": pytest.approx((14 / 3) ** 0.5),
        "step_ms_min": 1.0,
        "step_ms_max": 6.0,
    }
    figures = percentile_figures("step_ms", [float(value) for value in range(101)])
    assert figures == {f"step_ms_p{p}": float(p) for p in (50, 90, 95, 99)}
