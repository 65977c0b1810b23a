from __future__ import annotations

import pytest
import torch

from manifests.documents import CheckpointRecord
from tests.train.dist.test_checkpoint import steps
from train.dist import checkpoint, sharded_checkpoint
from train.dist.process_group import Ranks

# Said by torch where there is no group.
in_one_process = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def save_shards(run, step):
    saver = sharded_checkpoint.Saver(str(run), ALONE)
    weights = {"w": torch.full((3,), float(step)), "s": torch.tensor(float(step))}
    moments = {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}
    record = CheckpointRecord(step=step, identity={"a": "b"}, order="o", config_hash="c", sha256={})
    saver.save(weights, moments, record)
    weights["w"].fill_(-1)  # training goes on
    saver.finish()


@in_one_process
def test_shards_are_read_without_a_group_and_hold_what_was_there_when_saving_began(tmp_path):
    for step in (1, 2, 3):
        save_shards(tmp_path, step)
    assert steps(tmp_path) == ["step-2", "step-3"]
    newest = checkpoint.latest(str(tmp_path))
    assert (newest.step, newest.sharded, newest.record.identity) == (3, True, {"a": "b"})
    weights, moments = sharded_checkpoint.read(newest.folder, {}, ALONE)
    assert torch.equal(weights["w"], torch.full((3,), 3.0))
    assert (weights["s"].item(), moments["w"]["step"].item()) == (3, 3)
    assert torch.equal(moments["w"]["exp_avg"], torch.full((3,), 0.5))


@in_one_process
def test_a_damaged_shard_is_noticed(tmp_path, caplog):
    save_shards(tmp_path, 1)
    save_shards(tmp_path, 2)
    [path] = (tmp_path / "checkpoints" / "step-2").glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert checkpoint.latest(str(tmp_path)).step == 1
    assert "step-2 is damaged and is not used" in caplog.text


@in_one_process
def test_a_save_that_fails_in_the_background_is_raised(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoint, "publish", fail)
    with pytest.raises(OSError, match="the disk is full"):
        save_shards(tmp_path, 1)
    assert checkpoint.latest(str(tmp_path)) is None


def test_shards_need_a_folder_that_all_ranks_see():
    with pytest.raises(ValueError, match="s3://b/run, but the checkpoints of a sharded run"):
        sharded_checkpoint.Saver("s3://b/run", ALONE)
