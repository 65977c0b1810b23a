"""benchmarks/growth.py: exponents beside a fixed cost, verdicts, the steps, and its table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.scaling import document, growth_fit

COUNTS = np.array([10.0, 20.0, 40.0, 80.0])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 3.0])
def test_the_exponent_is_found_beside_a_fixed_cost(exponent: float, fixed: float) -> None:
    seconds = fixed + 0.5 * (COUNTS / 10) ** exponent
    found, cost = growth_fit.exponent_of(COUNTS, seconds)
    assert found == pytest.approx(exponent, abs=0.011)
    if exponent > 0:
        assert cost == pytest.approx(fixed, abs=0.05)


def result(seconds: np.ndarray, spread: float, *, sort: bool = False) -> dict:
    repeats = {
        int(count): [value * (1 - spread), value, value * (1 + spread)]
        for count, value in zip(COUNTS, seconds, strict=True)
    }
    return {**growth_fit.fitted(repeats), "sort": sort}


def test_a_verdict_needs_repeats_that_agree() -> None:
    steep = COUNTS**1.3
    assert growth_fit.verdict(result(steep, 0.001)) == "ABOVE"
    assert growth_fit.verdict(result(steep, 0.001, sort=True)) == "a sort"
    assert growth_fit.verdict(result(COUNTS**1.0, 0.001)) == "within"
    noisy = result(COUNTS**1.1, 0.4)
    assert noisy["exponent_range"][0] < 1.05 < noisy["exponent_range"][1]
    assert growth_fit.verdict(noisy) == "not decided"
    flat = {**noisy, "plain": 0.1}
    assert growth_fit.verdict(flat) == "a fixed cost hides it"
    # plain is below 1: a fixed cost that is fitted too large could explain the exponent
    assert growth_fit.verdict({**result(steep, 0.001), "plain": 0.9}) == "not decided"


# --- benchmarks/scale.py: exponents, bars, the projection


def row(count: int, cpu_s: float, **more: Any) -> dict[str, Any]:
    return {"count": count, "cpu_s": cpu_s, "wall_s": 2.0, "peak_mib": 100, "load": [1.0], **more}


def part(**steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"unit": "rows", "base": 1000, "cores": 2, "steps": steps}


def test_a_bar_is_held_missed_or_not_measured() -> None:
    made = {
        "plan": part(plan=[row(8000, 1.0) | {"wall_s": 241.0}]),
        "views": part(three_views=[row(4000, 1.0)]),
        "command": part(build_until_plan=[row(8000, 1.0) | {"wall_s": 239.0}]),
    }
    lines = list(document.bar_lines(made))
    assert "| plan, one process | 240 s | 241 s | 8,000 rows, 1 s of CPU | missed |" in lines
    assert (
        "| `clipmill build --until plan` | 240 s | 239 s | 8,000 rows, 1 s of CPU | holds |"
        in lines
    )
    assert "| three views over 50 million rows | 60 s | | | not measured at 8x |" in lines
