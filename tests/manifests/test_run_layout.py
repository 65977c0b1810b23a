from __future__ import annotations

from manifests.layout import AblationLayout, RunLayout


def test_paths_of_a_run_and_an_ablation() -> None:
    run = RunLayout("/run")
    assert run.task_predictions("objects") == "/run/eval/objects.parquet"
    assert run.averaged_predictions(3) == "/run/eval-average-3"
    assert AblationLayout("/out").run("raw", 2) == "/out/runs/raw/seed-2"
    assert AblationLayout("/out").model("laion") == "/out/runs/laion/model"
