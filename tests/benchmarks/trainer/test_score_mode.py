from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.trainer import cells
from benchmarks.trainer.options import BenchOptions
from benchmarks.trainer.steps import StepPlan
from benchmarks.trainer.timing import Measurement
from benchmarks.trainer.training import score_cells, score_lines

NONE = argparse.Namespace()


def given(**changes: Any) -> BenchOptions:
    return BenchOptions(**{"mode": "score", "models": ("test",), "batches": (4,), **changes})


def test_ranks_score_and_the_share_of_synthetic_is_shown(
    tiny_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(program: Sequence[str], plan: StepPlan, ranks: int) -> Measurement:
        assert program == ("benchmarks.trainer.steps", "score")
        assert plan.blend is not None
        figures = {"samples_per_s": 9.0 * ranks, "synthetic_samples_per_s": 10.0 * ranks}
        return Measurement(figures={**figures, "share_of_synthetic": 0.9}, rates=(9.0 * ranks,))

    monkeypatch.setattr(cells, "measure_in_ranks", measure)
    options = given(ranks=(1, 2), data=f"{tiny_pool}/all")
    lines = score_lines(list(score_cells(options, NONE)))
    assert "test, fp32, 2 ranks, batch 4, blend mix: 0.90 of the 20.0 samples/s of synthetic" in (
        lines
    )
    assert any(line.startswith("weak scaling, test") for line in lines)
