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
from manifests.records import CheckpointRecord, DamagedSamples
from train.parallel import checkpoint

ROOT = Path(__file__).resolve().parents[3]


def save(run, step, value=None, identity=None, keep=checkpoint.KEEP):
    moments = {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}
    record = CheckpointRecord(
        bad=DamagedSamples(count=0, samples=()),
        step=step,
        identity=identity or {"me": 1},
        order="o",
        config_hash="c",
        sha256={},
    )
    weights = {"w": torch.full((3,), float(value or step))}
    return checkpoint.save(str(run), weights, moments, record, keep)


def steps(run):
    return sorted(os.listdir(run / "checkpoints"))


def test_what_is_saved_comes_back_and_two_are_kept(tmp_path):
    assert checkpoint.latest(str(tmp_path)) is None
    for step in (2, 9, 10):
        save(tmp_path, step)
    assert steps(tmp_path) == ["step-10", "step-9"]
    newest = checkpoint.latest(str(tmp_path))
    assert (newest.step, newest.record.identity) == (10, {"me": 1})
    assert torch.equal(newest.model["w"], torch.full((3,), 10.0))
    assert torch.equal(newest.optimizer["w"]["exp_avg"], torch.full((3,), 0.5))


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
        offset = data.index(b"sha256") + 12 if name == "state.json" else len(data) // 2
        data[offset] ^= 1
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
from tests.train.parallel import test_checkpoint
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
    latest = test_checkpoint.checkpoint.latest(str(run))
    assert latest is not None and latest.step in (1, 2), round
    if os.waitstatus_to_exitcode(status) == 0:
        test_checkpoint.checkpoint.clean(str(run))
        assert sorted(os.listdir(run / "checkpoints")) == ["step-1", "step-2"]
        print("rounds", round)
        break
"""


def test_a_save_that_is_killed_anywhere_leaves_a_checkpoint_to_load(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path), "0"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 5


def test_clear_removes_all_and_clean_only_what_was_left_unfinished(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / ".step-2.partial.77").mkdir()
    documents = ("run.json", "blend.json", "nonfinite-0.json", "log.jsonl")
    left = [*documents, "export/open_clip_model.safetensors"]
    for name in left:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("whole")
        path.with_name(f".{path.name}.partial.77-0123abcd").write_text("half")
    checkpoint.clean(str(tmp_path))
    assert not list(tmp_path.rglob(".*"))
    assert all((tmp_path / name).read_text() == "whole" for name in left)
    assert steps(tmp_path) == ["step-1"]
    checkpoint.clear(str(tmp_path))
    assert steps(tmp_path) == []


def test_a_kill_before_older_ones_were_removed_leaves_none_of_them(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, keep=9)
    (tmp_path / "checkpoints" / "step-1" / "state.json").unlink()  # killed while it was removed
    save(tmp_path, 5, keep=9)
    checkpoint.prune(str(tmp_path), 3, 2)
    assert steps(tmp_path) == ["step-2", "step-3", "step-5"]  # a later one may be damaged
    checkpoint.prune(str(tmp_path), 5, 2)
    assert steps(tmp_path) == ["step-3", "step-5"]


def test_a_checkpoint_is_read_back_before_older_ones_are_removed(tmp_path, monkeypatch):
    for step in (1, 2):
        save(tmp_path, step)
    real = disk.write_bytes

    def write_one_bit_wrong(path, data):
        if path.endswith("optimizer.pt"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_bytes", write_one_bit_wrong)
        with pytest.raises(
            OSError, match=r"step-3 was written and reads back differently: optimizer"
        ):
            save(tmp_path, 3)
    assert steps(tmp_path) == ["step-1", "step-2", "step-3"]
    assert checkpoint.latest(str(tmp_path)).step == 2
    save(tmp_path, 3)
    assert steps(tmp_path) == ["step-2", "step-3"]
