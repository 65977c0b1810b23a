from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainer import steps
from benchmarks.trainer.steps import StepPlan
from manifests import disk
from tests.support.steps import RUN_SETTINGS
from train.config import configure
from train.parallel import process_group


@pytest.mark.parametrize(
    ("kind", "changes", "status"),
    [
        ("train", {}, 0),
        ("train", {"dp_shard": 2}, 3),
        ("score", {"device": "cpu"}, 0),
        ("score", {"device": "cuda"}, 3),
    ],
)
def test_the_program_measures_as_a_rank(
    kind: str,
    changes: dict[str, Any],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(process_group, "end_with_parent", lambda: None)
    config = configure({**RUN_SETTINGS, "samples_seen": 88, **changes})
    disk.write_json(tmp_path / "plan.json", StepPlan(config=config, blend=None, iterations=1))
    assert steps.main([kind, str(tmp_path)]) == status
    assert (tmp_path / "result.json").exists() == (status == 0)
    assert (tmp_path / "failed-0.json").exists() == (status == 3)
