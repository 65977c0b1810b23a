from __future__ import annotations

import pytest

from manifests.layout import AblationLayout, RunLayout
from manifests.schema import Weights


def test_paths_of_a_run_and_an_ablation() -> None:
    run = RunLayout("/run")
    assert run.task_predictions("objects") == "/run/eval/objects.parquet"
    assert run.task_predictions("t", Weights(average_last=3)) == "/run/eval-average-3/t.parquet"
    assert AblationLayout("/out").run("raw", 2) == "/out/runs/raw/seed-2"
    assert AblationLayout("/out").model("laion") == "/out/runs/laion/model"


def test_weights_are_of_one_kind() -> None:
    with pytest.raises(ValueError, match="ema or average_last, not both"):
        RunLayout("/run").predictions_of(Weights(ema=True, average_last=2))
