from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from manifests import disk
from manifests.records import RunRecord
from manifests.schema import Blend
from tests.support import tasks
from train.config import TrainConfig, configure
from train.formats.model_files import load_model
from train.step.feed import ReadyBatch
from train.trainer import loop
from train.trainer.loop import StepRunner, TrainState

SETTINGS = {
    "model": "test", "samples_seen": 48, "batch_size": 8, "lanes": 4, "warmup": 2, "lr": 1e-3,
    "precision": "fp32", "threads": 0, "device": "cpu",
}  # fmt: skip
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


@pytest.fixture
def blend(tiny_pool: str) -> Blend:
    return Blend(name="tiny", pools={"p": tiny_pool}, views={"p/all": 1.0})


@pytest.fixture
def task(tmp_path: Path) -> str:
    spec = tasks.class_folders(tmp_path / "colours")
    path = tmp_path / "task.yaml"
    path.write_text(f"{{name: colours, kind: classification, data: {spec.data}, metric: logprob}}")
    return str(path)


def config_of(task: str, target: float, every: int = 2) -> TrainConfig:
    return configure({**SETTINGS, "until": {"task": task, "accuracy": target, "every": every}})


def test_a_run_stops_at_its_target_and_says_what_it_cost(
    blend: Blend, task: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    whole = loop.train(blend, config_of(task, 0.0), str(tmp_path / "whole"))
    assert whole.until is not None
    assert whole.until.reached is None
    assert (whole.steps, [each.step for each in whole.until.evaluations]) == (6, [2, 4, 6])
    values = [each.value for each in whole.until.evaluations]
    done = loop.train(blend, config_of(task, max(values[:2])), str(out))
    assert done.until is not None
    stopped = 2 + 2 * values.index(max(values[:2]))
    assert done.until.reached == done.until.evaluations[-1]
    assert (done.steps, done.samples) == (stopped, 8 * stopped)
    assert (done.until.reached.step, done.until.reached.samples) == (stopped, 8 * stopped)
    assert 0 < done.until.reached.seconds <= done.seconds["train"]
    assert done.sources["p/all"]["drawn"] == done.samples
    assert disk.from_plain(RunRecord, disk.read_json(out / "run.json")) == done
    assert disk.read_metadata(out / "until" / "colours.parquet")["metrics"]["logprob"] == max(
        values[:2]
    )
    assert (out / "checkpoints" / f"step-{stopped}").is_dir()


@pytest.mark.parametrize("ema", [None, 0.5])
def test_what_is_evaluated_is_what_is_exported(
    blend: Blend, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ema: float | None
) -> None:
    evaluated: list[dict[str, torch.Tensor]] = []
    full_weights = loop.full_weights

    def record(state: TrainState, done: int) -> dict[str, torch.Tensor]:
        evaluated.append(full_weights(state, done))
        return evaluated[-1]

    monkeypatch.setattr(loop, "full_weights", record)
    config = dataclasses.replace(config_of(task, -1e9, every=3), ema=ema)
    assert loop.train(blend, config, str(tmp_path / "run")).steps == 3
    exported = load_model(str(tmp_path / "run")).state_dict()
    for name, value in evaluated[-1].items():
        torch.testing.assert_close(exported[name], value)


def test_a_run_that_was_killed_at_its_target_trains_no_further(
    blend: Blend, task: str, tmp_path: Path
) -> None:
    config = config_of(task, -1e9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "drawn_sources", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loop.train(blend, config, str(tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepRunner, "step", lambda *_: pytest.fail("trained on"))
        done = loop.train(blend, config, str(tmp_path / "run"))
    assert (done.steps, done.resumed_at) == (2, 2)
    assert done.until is not None
    assert done.until.reached is not None


def test_a_resumed_run_keeps_its_evaluations(blend: Blend, task: str, tmp_path: Path) -> None:
    config = dataclasses.replace(config_of(task, 0.0), checkpoint_every=2)
    step = StepRunner.step

    def stop_in_the_third(runner: StepRunner, ready: ReadyBatch, waited: float) -> None:
        step(runner, ready, waited)
        runner.stopping = ready.batch.step == 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepRunner, "step", stop_in_the_third)
        with pytest.raises(SystemExit):
            loop.train(blend, config, str(tmp_path / "run"))
    done = loop.train(blend, config, str(tmp_path / "run"))
    assert done.resumed_at == 3
    assert done.until is not None
    assert [each.step for each in done.until.evaluations] == [2, 4, 6]
    seconds = [each.seconds for each in done.until.evaluations]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ({"task": "t.yaml"}, "training until a target needs all three, as in until: {task:"),
        ({"task": "t.yaml", "accuracy": 0.4}, "needs all three"),
        ({"task": "t.yaml", "accuracy": 0.4, "evry": 3}, "unknown training setting 'until_evry'"),
        ("t.yaml", "until is 't.yaml'; it must be"),
    ],
)
def test_half_a_target_is_refused(until: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure({**SETTINGS, "until": until})


def test_images_that_a_pool_stores_are_refused(
    blend: Blend, tiny_pool: str, task: str, tmp_path: Path
) -> None:
    spec = tasks.class_folders(tmp_path / "colours")
    shared = next(
        row for row in disk.read_parquet(Path(tiny_pool) / "shards" / "00000.parquet").to_pylist()
        if row["image_offset"] is not None
    )  # fmt: skip
    tar = (Path(tiny_pool) / "shards" / "00000.tar").read_bytes()
    image = tar[shared["image_offset"] : shared["image_offset"] + shared["image_length"]]
    (Path(spec.data) / "green" / "0.jpg").write_bytes(image)
    with pytest.raises(ValueError, match=r"its image green/0\.jpg is also in the pool"):
        loop.train(blend, config_of(task, 0.5), str(tmp_path / "run"))
