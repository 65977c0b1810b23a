"""benchmarks/scale.py: the page says what the results say, the exponents are right, and what a
process starts is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale
from benchmarks.scaling import document

ROOT = Path(__file__).resolve().parents[2]


def results() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(scale.RESULTS.read_text())
    return loaded


def row(count: int, cpu_s: float, **more: Any) -> dict[str, Any]:
    return {"count": count, "cpu_s": cpu_s, "wall_s": 2.0, "peak_mib": 100, "load": [1.0], **more}


def part(**steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"unit": "rows", "base": 1000, "cores": 2, "steps": steps}


@pytest.mark.parametrize("page", document.PAGES)
def test_a_page_is_the_one_that_the_results_make(page: str) -> None:
    text = (ROOT / page).read_text()
    made = document.page(results(), text, document.PAGES[page])
    assert made == text, "run python benchmarks/scale.py --docs"


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
