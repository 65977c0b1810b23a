from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest

from clipmill.bench import cells
from clipmill.bench.options import BenchOptions
from clipmill.bench.ranks import MeasurementFailed
from clipmill.bench.steps import StepPlan
from clipmill.bench.timing import Measurement
from clipmill.bench.training import train_cells, train_lines

NONE = argparse.Namespace()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Measurements without processes: a step of 6 samples does not fit."""
    calls: list[tuple[int, int, int]] = []

    def measure(program: Sequence[str], plan: StepPlan, ranks: int) -> Measurement:
        assert program == ("clipmill.bench.steps", "train")
        assert plan.config.steps == plan.steps
        assert plan.config.model == "test"
        calls.append((ranks, plan.config.batch_size, plan.iterations))
        if plan.config.batch_size == 6:
            raise MeasurementFailed("OutOfMemoryError: no memory")
        return Measurement(figures={"samples_per_s": 10.0 * ranks}, rates=(10.0 * ranks,))

    monkeypatch.setattr(cells, "measure_in_ranks", measure)
    return calls


def given(**changes: Any) -> BenchOptions:
    values = {"mode": "train", "models": ("test",), "ranks": (1, 2), "iterations": 5}
    return BenchOptions(**{**values, **changes})


def test_cells_that_fail_say_why_and_the_others_go_on(
    measured: list[tuple[int, int, int]],
) -> None:
    options = given(ranks=(1, 2, 3, 1000), batches=(2,), global_batches=(4,))
    measured_now = list(train_cells(options, NONE))
    assert [(c.scaling, c.ranks, c.state) for c in measured_now] == [
        ("weak", 1, "measured"),
        ("weak", 2, "measured"),
        ("weak", 3, "failed"),
        ("weak", 1000, "failed"),
        ("strong", 1, "measured"),
        ("strong", 2, "measured"),
        ("strong", 3, "failed"),
        ("strong", 1000, "failed"),
    ]
    assert measured_now[2].reason == "OutOfMemoryError: no memory"
    assert "1000 ranks are more than" in (measured_now[3].reason or "")
    assert measured_now[6].reason == (
        "3 ranks in layout dp cannot share a global batch of 4 evenly"
    )
    # 2 ranks of 2 samples are a cell of both tables, and are measured once
    assert measured == [(1, 2, 5), (2, 4, 5), (3, 6, 5), (1, 4, 5)]
    lines = train_lines(measured_now)
    assert sum(line.startswith("failed: ") for line in lines) == 4
    assert "strong scaling, test, fp32, dp, synthetic, 4 samples a step" in lines
