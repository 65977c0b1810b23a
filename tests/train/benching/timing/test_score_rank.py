from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from manifests import disk
from tests.support.steps import RUN_SETTINGS
from train.benching.timing import rank_group
from train.benching.timing.train_steps import StepPlan
from train.config import configure


@pytest.mark.parametrize(("batch", "status"), [(8, 0), (7, 3)])
def test_the_module_measures_as_a_rank(
    batch: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["score_rank", str(tmp_path)])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(rank_group, "_end_with", lambda parent: None)
    config = configure(
        {**RUN_SETTINGS, "samples_seen": 88, "device": "cpu" if batch == 8 else "cuda"}
    )
    disk.write_json(tmp_path / "plan.json", StepPlan(config=config, blend=None, iterations=1))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("train.benching.timing.score_rank", run_name="__main__")
    assert ended.value.code == status
    assert (tmp_path / "result.json").exists() == (status == 0)
    assert (tmp_path / "failed-0.json").exists() == (status == 3)
