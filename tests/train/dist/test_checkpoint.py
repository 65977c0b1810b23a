from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from manifests import disk
from train.dist import checkpoint
from train.dist import sharded_checkpoint
from train.dist.process_group import Ranks

ROOT = Path(__file__).resolve().parents[3]


def save(run, step, value=None):
    moments = {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}
    return checkpoint.save(str(run), step, {"w": torch.full((3,), float(value or step))}, moments, {"identity": "me"})


def steps(run):
    return sorted(os.listdir(run / "checkpoints"))


def test_what_is_saved_comes_back_and_two_are_kept(tmp_path):
    assert checkpoint.latest(str(tmp_path)) is None
    for step in (2, 9, 10):
        save(tmp_path, step)
    assert steps(tmp_path) == ["step-10", "step-9"]
    found = checkpoint.latest(str(tmp_path))
    assert (found.step, found.state["identity"]) == (10, "me")
    assert torch.equal(found.model["w"], torch.full((3,), 10.0))
    assert torch.equal(found.optimizer["w"]["exp_avg"], torch.full((3,), 0.5))


def test_urls_are_folders_too():
    run = "memory://runs/a"
    for step in (1, 2, 3):
        save(run, step)
    assert disk.list_names(disk.join(run, "checkpoints")) == ["step-2", "step-3"]
    assert checkpoint.latest(run).step == 3


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_is_not_used_and_the_one_before_is(tmp_path, caplog, name, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "checkpoints" / "step-2" / name
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        place = data.index(b"sha256") + 12 if name == "state.json" else len(data) // 2
        data[place] ^= 1
        path.write_bytes(data)
    assert checkpoint.latest(str(tmp_path)).step == 1
    assert "step-2 is damaged and is not used" in caplog.text
    save(tmp_path, 2, 7.0)  # the run comes by here again
    assert torch.equal(checkpoint.latest(str(tmp_path)).model["w"], torch.full((3,), 7.0))


def test_a_damaged_later_one_does_not_cost_a_good_earlier_one(tmp_path):
    for step in (1, 2, 9):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "step-9" / "model.safetensors").write_bytes(b"")
    save(tmp_path, 3)
    assert steps(tmp_path) == ["step-2", "step-3"]


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_a_pickle_in_a_checkpoint_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / save(tmp_path, 1)
    data = io.BytesIO()
    torch.save({"w": Bomb()}, data)
    (folder / "optimizer.pt").write_bytes(data.getvalue())
    state = json.loads((folder / "state.json").read_text())
    state["sha256"]["optimizer.pt"] = hashlib.sha256(data.getvalue()).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))
    assert checkpoint.latest(str(tmp_path)) is None
    assert not (tmp_path / "exploded").exists()


# Kills the process at its N-th write, fsync or rename of a save.
KILLED = """
import os, sys
sys.path[:0] = [sys.argv[1]]
from tests.train.dist import test_checkpoint
from pathlib import Path
left = int(sys.argv[3])
def counted(real):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return real(*args, **kwargs)
    return call
run = Path(sys.argv[2])
test_checkpoint.save(run, 1)
for round in range(40):
    if os.fork() == 0:
        left = round
        os.fsync, os.replace, os.unlink = counted(os.fsync), counted(os.replace), counted(os.unlink)
        test_checkpoint.save(run, 2)
        os._exit(0)
    _, status = os.wait()
    found = test_checkpoint.checkpoint.latest(str(run))
    assert found is not None and found.step in (1, 2), round
    if os.waitstatus_to_exitcode(status) == 0:
        test_checkpoint.checkpoint.clean(str(run))
        assert sorted(os.listdir(run / "checkpoints")) == ["step-1", "step-2"]
        print("rounds", round)
        break
"""


def test_a_save_that_is_killed_anywhere_leaves_a_checkpoint_to_load(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path), "0"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 5


def test_clear_removes_all_and_clean_only_what_was_left_unfinished(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / ".step-2.partial.77").mkdir()
    checkpoint.clean(str(tmp_path))
    assert steps(tmp_path) == ["step-1"]
    checkpoint.clear(str(tmp_path))
    assert steps(tmp_path) == []


# Said by torch where there is no group.
in_one_process = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def save_shards(run, step):
    saver = sharded_checkpoint.Saver(str(run), ALONE)
    weights = {"w": torch.full((3,), float(step)), "s": torch.tensor(float(step))}
    saver.save(step, weights, {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}, {"a": "b"})
    weights["w"].fill_(-1)  # training goes on
    saver.finish()


@in_one_process
def test_shards_are_read_without_a_group_and_hold_what_was_there_when_saving_began(tmp_path):
    for step in (1, 2, 3):
        save_shards(tmp_path, step)
    assert steps(tmp_path) == ["step-2", "step-3"]
    found = checkpoint.latest(str(tmp_path))
    assert (found.step, found.sharded, found.state["a"]) == (3, True, "b")
    weights, moments = sharded_checkpoint.read(found.folder, {}, ALONE)
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
    with pytest.raises(ValueError, match="s3://b/run is none"):
        sharded_checkpoint.Saver("s3://b/run", ALONE)
