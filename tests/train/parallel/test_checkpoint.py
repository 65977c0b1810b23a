"""Checkpoints: what comes back, what is damaged, their mean, and saves beside training."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import threading

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from clipmill.manifests import disk
from clipmill.manifests.disk import files
from clipmill.manifests.layout import RunLayout
from clipmill.manifests.records import CheckpointRecord, DamagedSamples
from clipmill.train.config import configure
from clipmill.train.formats.open_clip_files import to_open_clip
from clipmill.train.model.architecture import MODELS
from clipmill.train.model.clip import CLIP
from clipmill.train.parallel import checkpoint, process_group
from clipmill.train.parallel.checkpoint import Saver
from clipmill.train.parallel.process_group import Ranks

# Said by torch where there is no group.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def record_of(step, identity):
    return CheckpointRecord(
        bad=DamagedSamples(count=0, samples=()),
        step=step,
        identity=identity,
        order="o",
        config_hash="c",
        sha256={},
    )


def save(run, step, value=None, keep=checkpoint.KEEP):
    moments = {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}
    weights = {"w": torch.full((3,), float(value or step))}
    return checkpoint.save(str(run), weights, moments, record_of(step, {"me": 1}), keep)


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


# --------------------------------------------------------------------------------------------------


CONFIG = configure({"model": "test", "samples_seen": 48, "batch_size": 8, "lanes": 4, "warmup": 2})
IDENTITY = {"config": disk.to_plain(CONFIG)}


def model_of(seed):
    return CLIP(MODELS["test"], seed=seed)


def save_seed(run, step):
    """A checkpoint with the weights that seed `step` draws."""
    weights = to_open_clip(model_of(step))
    checkpoint.save(str(run), weights, {}, record_of(step, IDENTITY), keep=3)


def test_the_mean_of_the_last_is_the_mean_of_their_weights(tmp_path):
    for step in (1, 2, 3, 4):
        save_seed(tmp_path, step)
    model, steps = checkpoint.mean_of_last(str(tmp_path), 3)
    assert steps == (2, 3, 4)
    expected = [model_of(seed).state_dict() for seed in steps]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, sum(each[name] for each in expected) / 3)
    (last, steps) = checkpoint.mean_of_last(str(tmp_path), 1)
    assert steps == (4,)
    for name, value in last.state_dict().items():
        assert torch.equal(value, expected[2][name])


def test_sharded_checkpoints_are_averaged_too(tmp_path):
    saver = Saver(str(tmp_path), SHARDED, keep=2)
    for step in (1, 2):
        model = model_of(step)
        saver.save(dict(model.state_dict()), {}, record_of(step, IDENTITY))
        saver.finish()
    model, _ = checkpoint.mean_of_last(str(tmp_path), 2)
    first, second = (model_of(seed).state_dict() for seed in (1, 2))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, (first[name] + second[name]) / 2)


def test_what_is_not_there_is_named(tmp_path):
    save_seed(tmp_path, 1)
    with pytest.raises(ValueError, match=r"has 1 checkpoints, not 2; .* keep_checkpoints=K"):
        checkpoint.mean_of_last(str(tmp_path), 2)
    with pytest.raises(ValueError, match="number of checkpoints to average is 0"):
        checkpoint.mean_of_last(str(tmp_path), 0)
    path = tmp_path / "checkpoints" / "step-1" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"step-1 is damaged: model\.safetensors does not have"):
        checkpoint.mean_of_last(str(tmp_path), 1)


# --------------------------------------------------------------------------------------------------


# --------------------------------------------------------------------------------------------------


WHOLE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
SHARDED = dataclasses.replace(WHOLE, mesh="a mesh of one rank")
both = pytest.mark.parametrize("ranks", [WHOLE, SHARDED], ids=["whole", "sharded"])


def save_with(saver, step):
    """Save, and change the weights before the save is complete, as training does."""
    weights = {"w": torch.full((3,), float(step)), "s": torch.tensor(float(step))}
    moments = {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}
    waited = saver.save(weights, moments, record_of(step, {"a": "b"}))
    weights["w"].fill_(-1)
    moments["w"]["exp_avg"].fill_(-1)
    return waited


def contents(saved):
    if saved.sharded:
        return checkpoint.read_sharded(saved.folder, {}, WHOLE)
    return saved.model, saved.optimizer


@both
@pytest.mark.parametrize("store", [False, True])
def test_what_was_there_when_saving_began_comes_back_from_every_place(tmp_path, ranks, store):
    run = f"memory://{tmp_path.name}" if store else str(tmp_path)
    saver = Saver(run, ranks, keep=2)
    for step in (1, 2, 3):
        assert save_with(saver, step) >= 0
    saver.finish()
    # The filesystem in memory lists folders that are empty.
    left = [n for n in checkpoint.saved_steps(run) if disk.list_names(RunLayout(run).checkpoint(n))]
    assert left == [2, 3]
    newest = checkpoint.latest(run)
    assert (newest.step, newest.sharded) == (3, ranks is SHARDED)
    weights, moments = contents(newest)
    assert torch.equal(weights["w"], torch.full((3,), 3.0))
    assert (weights["s"].item(), moments["w"]["step"].item()) == (3, 3)
    assert torch.equal(moments["w"]["exp_avg"], torch.full((3,), 0.5))


@both
def test_training_does_not_wait_for_the_disk(tmp_path, monkeypatch, ranks):
    may_end, real = threading.Event(), checkpoint.publish

    def slow(*arguments):
        assert may_end.wait(900)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "publish", slow)
    saver = Saver(str(tmp_path), ranks)
    save_with(saver, 1)
    assert checkpoint.latest(str(tmp_path)) is None  # not published, and training goes on
    may_end.set()
    saver.finish()
    assert checkpoint.latest(str(tmp_path)).step == 1


@both
def test_a_save_that_fails_is_raised_by_the_next_and_leaves_the_one_before(
    tmp_path, monkeypatch, ranks
):
    def fail(*_):
        raise OSError("the disk is full")

    saver = Saver(str(tmp_path), ranks)
    save_with(saver, 1)
    saver.finish()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "publish", fail)
        save_with(saver, 2)
        with pytest.raises(OSError, match="the disk is full"):
            save_with(saver, 3)
    assert checkpoint.latest(str(tmp_path)).step == 1
    save_with(saver, 3)
    saver.finish()
    assert checkpoint.saved_steps(str(tmp_path)) == [1, 3]
    checkpoint.clean(str(tmp_path))
    assert steps(tmp_path) == ["step-1", "step-3"]


def test_the_save_of_a_run_that_has_failed_is_complete_when_it_ends(tmp_path, monkeypatch, caplog):
    saver = Saver(str(tmp_path), WHOLE)
    save_with(saver, 1)
    saver.close()
    assert checkpoint.latest(str(tmp_path)).step == 1
    monkeypatch.setattr(checkpoint, "publish", lambda *_: 1 / 0)
    save_with(saver, 2)
    saver.close()
    assert "the checkpoint could not be saved: division by zero" in caplog.text


def test_no_shard_of_another_world_size_is_read(tmp_path):
    """A checkpoint that was damaged, and written again by fewer ranks."""
    run = f"memory://{tmp_path.name}"
    other = f"{run}/checkpoints/step-1/shard-00002-model-00001-of-00001.safetensors"
    disk.write_bytes(other, b"of another run")
    saver = Saver(run, SHARDED)
    save_with(saver, 1)
    saver.finish()
    weights, _ = contents(checkpoint.latest(run))
    assert torch.equal(weights["w"], torch.full((3,), 1.0))
    with pytest.raises(FileNotFoundError):
        checkpoint.read_sharded(f"{run}/checkpoints/step-4", {}, WHOLE)


class Dead(BaseException):
    """The process has been killed: nothing of it runs any more."""


def kill_at(patch, number):
    """Every change of the store or the disk from number `number` on fails. Returns those made."""
    changes = []

    def counted(real):
        def change(*arguments, **options):
            changes.append(real.__name__)
            if len(changes) >= number:
                raise Dead
            return real(*arguments, **options)

        return change

    calls = {files: ("_put", "remove_object"), os: ("fsync", "replace", "unlink", "rmdir")}
    for module, names in calls.items():
        for name in names:
            patch.setattr(module, name, counted(getattr(module, name)))
    return changes


@both
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_a_save_that_is_killed_anywhere_leaves_a_checkpoint_to_load(
    tmp_path, monkeypatch, ranks, damaged, store
):
    """`damaged`: the step has been saved before, the copy was damaged, and the run came back."""
    number, outcomes = 0, []
    while not outcomes or outcomes[-1] == "killed":
        number += 1
        run = f"memory://{tmp_path.name}-{number}" if store else str(tmp_path / str(number))
        saver = Saver(run, ranks, keep=2)
        for step in (1, 2, *([3] if damaged else [])):
            save_with(saver, step)
        saver.finish()
        if damaged:
            folder = RunLayout(run).checkpoint(3)
            [shard] = disk.list_names(folder, ".safetensors")
            disk.write_bytes(f"{folder}/{shard}", b"damaged")
        with monkeypatch.context() as patch:
            changes = kill_at(patch, number)
            save_with(saver, 3)
            with contextlib.suppress(Dead, CheckpointException):
                saver.finish()
        outcomes.append("killed" if len(changes) >= number else "saved")
        newest = checkpoint.latest(run)
        assert newest.step in (2, 3), (number, changes)
        weights, _ = contents(newest)
        assert torch.equal(weights["w"], torch.full((3,), float(newest.step)))
        save_with(saver, 3)  # the run comes by here again
        saver.finish()
        assert checkpoint.latest(run).step == 3
    assert len(outcomes) >= 4


def test_a_rank_whose_write_failed_fails_the_save_of_all(tmp_path, monkeypatch):
    saver = Saver(str(tmp_path), SHARDED)
    save_with(saver, 1)
    saver.finish()
    monkeypatch.setattr(process_group, "all_gather_json", lambda own, ranks, group: [own, None])
    save_with(saver, 2)
    with pytest.raises(OSError, match="rank 1 could not write its part of the checkpoint"):
        saver.finish()
    monkeypatch.setattr(process_group, "all_gather_int", lambda own, ranks: [own, 1])
    monkeypatch.setattr(process_group, "all_gather_json", lambda own, ranks, group: [own, {}])
    save_with(saver, 3)
    with pytest.raises(OSError, match="rank 1 could not save the checkpoint; its own message"):
        saver.finish()
    assert checkpoint.latest(str(tmp_path)).step == 3  # published by this rank
