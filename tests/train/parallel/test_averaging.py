from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from manifests import disk
from manifests.records import CheckpointRecord, DamagedSamples
from train.config import configure
from train.formats.open_clip_files import to_open_clip
from train.model.architecture import MODELS
from train.model.clip import CLIP
from train.parallel import checkpoint
from train.parallel.checkpoint import Saver

# Said by torch where there is no group.
in_one_process = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
CONFIG = configure({"model": "test", "samples_seen": 48, "batch_size": 8, "lanes": 4, "warmup": 2})


def record_of(step: int) -> CheckpointRecord:
    identity = {"config": disk.to_plain(CONFIG)}
    return CheckpointRecord(
        bad=DamagedSamples(count=0, samples=()),
        step=step,
        identity=identity,
        order="o",
        config_hash="c",
        sha256={},
    )


def model_of(seed: int) -> CLIP:
    return CLIP(MODELS["test"], seed=seed)


def save(run: Path, step: int) -> None:
    """A checkpoint with the weights that seed `step` draws."""
    weights = to_open_clip(model_of(step))
    checkpoint.save(str(run), weights, {}, record_of(step), keep=3)


def test_the_mean_of_the_last_is_the_mean_of_their_weights(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    model, steps = checkpoint.mean_of_last(str(tmp_path), 3)
    assert steps == (2, 3, 4)
    expected = [model_of(seed).state_dict() for seed in steps]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, sum(each[name] for each in expected) / 3)
    (last, steps) = checkpoint.mean_of_last(str(tmp_path), 1)
    assert steps == (4,)
    for name, value in last.state_dict().items():
        assert torch.equal(value, expected[2][name])


@in_one_process
def test_sharded_checkpoints_are_averaged_too(tmp_path: Path) -> None:
    ranks = dataclasses.replace(checkpoint.ALONE, mesh="a mesh of one rank")
    saver = Saver(str(tmp_path), ranks, keep=2)
    for step in (1, 2):
        model = model_of(step)
        saver.save(dict(model.state_dict()), {}, record_of(step))
        saver.finish()
    model, _ = checkpoint.mean_of_last(str(tmp_path), 2)
    first, second = (model_of(seed).state_dict() for seed in (1, 2))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, (first[name] + second[name]) / 2)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(ValueError, match=r"has 1 checkpoints, not 2; .* keep_checkpoints=K"):
        checkpoint.mean_of_last(str(tmp_path), 2)
    with pytest.raises(ValueError, match="number of checkpoints to average is 0"):
        checkpoint.mean_of_last(str(tmp_path), 0)
    path = tmp_path / "checkpoints" / "step-1" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"step-1 is damaged: model\.safetensors does not have"):
        checkpoint.mean_of_last(str(tmp_path), 1)
