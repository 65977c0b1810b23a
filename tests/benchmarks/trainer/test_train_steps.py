from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainer.steps import AHEAD, StepPlan, measure_training, steps_of
from manifests.schema import Blend
from tests.support.steps import MEASURED, RUN_SETTINGS
from train.config import TrainConfig, configure
from train.trainer.loop import train


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


def test_the_figures_agree_with_each_other(tmp_path: Path) -> None:
    config = config_of(steps_of(3, 2, 1))
    plan = StepPlan(config=config, blend=None, iterations=3, repeats=2, warmup=1)
    measured = measure_training(plan, str(tmp_path))
    figures = {name: value or 0.0 for name, value in measured.figures.items()}
    assert len(measured.rates) == 2
    assert figures["timed_steps"] == 6
    assert figures["samples_per_s"] == pytest.approx(48 / figures["timed_s"])
    assert figures["samples_per_s"] == pytest.approx(8 * figures["global_batches_per_s"])
    assert 6 * figures["step_ms_mean"] <= 1000 * figures["timed_s"]
    assert figures["step_ms_min"] <= figures["step_ms_p50"] <= figures["step_ms_p99"]
    assert figures["step_ms_p99"] <= figures["step_ms_max"]
    tokens = figures["text_tokens_per_s"] / figures["samples_per_s"]
    assert tokens == pytest.approx(figures["tokens_per_caption"])
    hours = 12_800_000 / figures["samples_per_s"] / 3600
    assert figures["runs_per_hour_datacomp_small"] == pytest.approx(1 / hours)
    assert figures["model_tflops"] > 0
    assert measured.figures["mfu"] is None  # of a processor no peak is known
    assert measured.figures["watts"] is None
