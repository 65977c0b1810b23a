from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clipmill.bench.steps import AHEAD, StepPlan, measure_training
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, configure
from clipmill.train.trainer.loop import train
from tests.support.steps import MEASURED, RUN_SETTINGS


def config_of(steps: int, **changes: Any) -> TrainConfig:
    return configure({**RUN_SETTINGS, "samples_seen": 8 * steps, **changes})


def deterministic(path: Path) -> list[dict[str, Any]]:
    lines = []
    for line in (path / "log.jsonl").read_text().splitlines():
        lines.append({k: v for k, v in json.loads(line).items() if k not in MEASURED})
    return lines


def test_it_is_the_trainers_own_step(tiny_pool: str, tmp_path: Path) -> None:
    """The log of the timed steps is that of a run with the same settings."""
    blend = Blend(name="b", pools={"p": tiny_pool}, views={"p/all": 1.0})
    plan = StepPlan(config=config_of(14), blend=blend, iterations=2, repeats=2, warmup=2)
    assert plan.steps == plan.config.steps == 6 + AHEAD
    measured = measure_training(plan, str(tmp_path / "bench"))
    train(blend, plan.config, str(tmp_path / "run"))
    timed = deterministic(tmp_path / "bench")
    assert len(timed) == 6
    assert timed == deterministic(tmp_path / "run")[:6]
    assert measured.figures["loss"] == timed[-1]["loss"]
    assert not (tmp_path / "bench" / "checkpoints").exists()
