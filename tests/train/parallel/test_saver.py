from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from manifests import disk
from manifests.disk import files
from manifests.layout import RunLayout
from manifests.records import CheckpointRecord, DamagedSamples
from tests.train.parallel.test_checkpoint import steps
from train.parallel import checkpoint, process_group
from train.parallel.checkpoint import Saver
from train.parallel.process_group import Ranks

# Said by torch where there is no group.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
WHOLE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
SHARDED = dataclasses.replace(WHOLE, mesh="a mesh of one rank")
both = pytest.mark.parametrize("ranks", [WHOLE, SHARDED], ids=["whole", "sharded"])


def save(saver, step):
    """Save, and change the weights before the save is complete, as training does."""
    weights = {"w": torch.full((3,), float(step)), "s": torch.tensor(float(step))}
    moments = {"w": {"step": torch.tensor(float(step)), "exp_avg": torch.full((3,), 0.5)}}
    record = CheckpointRecord(
        bad=DamagedSamples(count=0, samples=()),
        step=step,
        identity={"a": "b"},
        order="o",
        config_hash="c",
        sha256={},
    )
    waited = saver.save(weights, moments, record)
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
        assert save(saver, step) >= 0
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
        assert may_end.wait(60)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "publish", slow)
    saver = Saver(str(tmp_path), ranks)
    save(saver, 1)
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
    save(saver, 1)
    saver.finish()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "publish", fail)
        save(saver, 2)
        with pytest.raises(OSError, match="the disk is full"):
            save(saver, 3)
    assert checkpoint.latest(str(tmp_path)).step == 1
    save(saver, 3)
    saver.finish()
    assert checkpoint.saved_steps(str(tmp_path)) == [1, 3]
    checkpoint.clean(str(tmp_path))
    assert steps(tmp_path) == ["step-1", "step-3"]


def test_the_save_of_a_run_that_has_failed_is_complete_when_it_ends(tmp_path, monkeypatch, caplog):
    saver = Saver(str(tmp_path), WHOLE)
    save(saver, 1)
    saver.close()
    assert checkpoint.latest(str(tmp_path)).step == 1
    monkeypatch.setattr(checkpoint, "publish", lambda *_: 1 / 0)
    save(saver, 2)
    saver.close()
    assert "the checkpoint could not be saved: division by zero" in caplog.text


def test_a_store_gets_no_shard_of_another_world_size(tmp_path):
    """A checkpoint that was damaged, and written again by fewer ranks."""
    run = f"memory://{tmp_path.name}"
    folder = f"{run}/checkpoints/step-1"
    disk.write_bytes(f"{folder}/shard-00002-model-00001-of-00001.safetensors", b"of another run")
    saver = Saver(run, SHARDED)
    save(saver, 1)
    saver.finish()
    weights, _ = contents(checkpoint.latest(run))
    assert torch.equal(weights["w"], torch.full((3,), 1.0))


class Dead(BaseException):
    """The process has been killed: nothing of it runs any more."""


def kill_at(patch, number):
    """Every change of the store from number `number` on fails. Returns the counted changes."""
    changes = []

    def counted(real):
        def change(*arguments, **options):
            changes.append(real.__name__)
            if len(changes) >= number:
                raise Dead
            return real(*arguments, **options)

        return change

    for name in ("_put", "remove_object"):
        patch.setattr(files, name, counted(getattr(files, name)))
    return changes


@both
@pytest.mark.parametrize("damaged", [False, True])
def test_a_save_to_a_store_that_is_killed_at_any_request_leaves_one_to_load(
    tmp_path, monkeypatch, ranks, damaged
):
    """`damaged`: the step has been saved before, the copy was damaged, and the run came back."""
    number, outcomes = 0, []
    while not outcomes or outcomes[-1] == "killed":
        number += 1
        run = f"memory://{tmp_path.name}-{number}"
        saver = Saver(run, ranks, keep=2)
        for step in (1, 2, *([3] if damaged else [])):
            save(saver, step)
        saver.finish()
        if damaged:
            folder = RunLayout(run).checkpoint(3)
            [shard] = disk.list_names(folder, ".safetensors")
            disk.write_bytes(f"{folder}/{shard}", b"damaged")
        with monkeypatch.context() as patch:
            changes = kill_at(patch, number)
            save(saver, 3)
            try:
                saver.finish()
                outcomes.append("saved")
            except Dead:
                outcomes.append("killed")
        newest = checkpoint.latest(run)
        assert newest.step in (2, 3), (number, changes)
        weights, _ = contents(newest)
        assert torch.equal(weights["w"], torch.full((3,), float(newest.step)))
        save(saver, 3)  # the run comes by here again
        saver.finish()
        assert checkpoint.latest(run).step == 3
    assert len(outcomes) >= 4


def test_a_rank_whose_write_failed_fails_the_save_of_all(tmp_path, monkeypatch):
    saver = Saver(str(tmp_path), SHARDED)
    save(saver, 1)
    saver.finish()
    monkeypatch.setattr(process_group, "all_gather_json", lambda own, ranks, group: [own, None])
    save(saver, 2)
    with pytest.raises(OSError, match="rank 1 could not write its part of the checkpoint"):
        saver.finish()
    monkeypatch.setattr(process_group, "all_gather_int", lambda own, ranks: [own, 1])
    monkeypatch.setattr(process_group, "all_gather_json", lambda own, ranks, group: [own, {}])
    save(saver, 3)
    with pytest.raises(OSError, match="rank 1 could not save the checkpoint; its own message"):
        saver.finish()
    assert checkpoint.latest(str(tmp_path)).step == 3  # published by this rank
