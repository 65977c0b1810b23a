from __future__ import annotations

from typing import Any

import pytest

from benchmarks.trainer.report_form import Cell
from benchmarks.trainer.tables import scaling_lines, scaling_series


def cell(ranks: int, rate: float | None, **changes: Any) -> Cell:
    values: dict[str, Any] = {"model": "test", "dtype": "fp32", "ranks": ranks, "batch": 4}
    values |= {"global_batch": 4 * ranks, "data": "synthetic", "scaling": "weak"}
    values |= {"figures": {"samples_per_s": rate, "mfu": 0.5, "watts": 300.0}}
    values["figures"]["device_utilisation"] = 0.9
    if rate is None:
        values |= {"state": "failed", "reason": "no memory", "figures": {}}
    return Cell(**{**values, **changes})


def test_speedup_and_the_perfect_line_are_of_the_fewest_ranks() -> None:
    """The A100 table of a published CLIP g/14: 559 samples/s on 1 node, 8,633 on 16."""
    rates = {1: 559.0, 2: 1115.0, 4: 2190.0, 8: 4407.0, 16: 8633.0}
    cells = [cell(ranks, rate) for ranks, rate in rates.items()]
    (series,) = scaling_series([*reversed(cells), cell(32, None)])
    assert [c.ranks for c in series.cells] == [1, 2, 4, 8, 16]
    assert series.perfect(cells[4]) == 559 * 16
    assert series.speedup(cells[4]) == pytest.approx(15.44, abs=0.01)
    lines = scaling_lines(cells)
    assert lines[1] == "weak scaling, test, fp32, dp, synthetic, 4 samples a rank"
    assert lines[-1].split() == ["16", "4", "64", "8,633", "8,944", "15.44x", "96.5%"]
