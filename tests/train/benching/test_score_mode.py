from __future__ import annotations

import argparse
from typing import Any

import pytest

from train.benching import cells, score_mode
from train.benching.options import BenchOptions
from train.benching.report import Measurement
from train.benching.timing import StepPlan

NONE = argparse.Namespace()


def given(**changes: Any) -> BenchOptions:
    return BenchOptions(**{"mode": "score", "models": ("test",), "batches": (4,), **changes})


def test_ranks_score_and_the_share_of_synthetic_is_shown(
    tiny_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(module: str, plan: StepPlan, ranks: int) -> Measurement:
        assert module == "train.benching.timing.score_rank"
        assert plan.blend is not None
        figures = {"samples_per_s": 9.0 * ranks, "synthetic_samples_per_s": 10.0 * ranks}
        return Measurement(figures={**figures, "share_of_synthetic": 0.9}, rates=(9.0 * ranks,))

    monkeypatch.setattr(cells, "measure_in_ranks", measure)
    options = given(ranks=(1, 2), data=f"{tiny_pool}/all")
    lines = score_mode.lines(list(score_mode.measure(options, NONE)))
    assert "test, fp32, 2 ranks, batch 4, blend mix: 0.90 of the 20.0 samples/s of synthetic" in (
        lines
    )
    assert any(line.startswith("weak scaling, test") for line in lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtypes": ("bf16_o2",)}, "dtype is bf16-o2, which is of an optimizer"),
        ({"changes": {"micro_batch": "auto"}}, "micro_batch is a setting of training"),
        ({"data": "none.yaml"}, "none.yaml does not exist"),
    ],
)
def test_what_trains_alone_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(score_mode.measure(given(**changes), NONE))
