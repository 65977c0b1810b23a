"""Runs that are killed, and resumed as they were or by other processes, end as if nothing had
happened. What readers do to a run of several ranks: nothing hangs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clipmill.manifests import disk
from clipmill.manifests.schema import Blend
from clipmill.train.config import configure
from clipmill.train.parallel import checkpoint
from clipmill.train.trainer import loop
from clipmill.train.trainer.loop import StepRunner
from tests.support import commands
from tests.support.forked_commands import CommandServer
from tests.support.steps import RUN_SETTINGS
from tests.support.trials import some

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
ROOT = Path(__file__).resolve().parents[2]
STEPS = 40
SETTINGS = {
    **RUN_SETTINGS,
    "samples_seen": 4 * STEPS,
    "batch_size": 4,
    "lanes": 2,
    "checkpoint_every": 3,
    "model.drop_patch_rate": 0.25,
}


def trained(pool, out, **changes):
    blend = Blend(name="tiny", pools={"p": pool}, views={"p/all": 1.0})
    loop.train(blend, configure({**SETTINGS, **changes}), str(out))


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def hashes(out):
    """Of weights and optimizer state of the last checkpoint."""
    newest = checkpoint.latest(str(out))
    assert newest is not None
    assert newest.step == STEPS
    return newest.record.sha256


@pytest.fixture(scope="module")
def whole(tiny_pool, tmp_path_factory):
    """A run that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    trained(tiny_pool, out)
    torch.set_num_threads(before)
    return out


class Killed(Exception):
    pass


def end_in(patch, step, *, by_signal=False):
    """Let a run end in its step number `step`."""
    real = StepRunner.step

    def step_or_end(runner, ready, waited):
        if ready.batch.step == step:
            if by_signal:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed
        real(runner, ready, waited)

    patch.setattr(StepRunner, "step", step_or_end)


def test_a_run_that_is_killed_in_each_of_its_steps_ends_the_same_to_the_bit(
    tiny_pool, tmp_path, whole
):
    """One run that is killed forty times, each time a step later, with other threads each time."""
    for step in range(STEPS):
        with pytest.MonkeyPatch.context() as patch:
            end_in(patch, step)
            with pytest.raises(Killed):
                trained(tiny_pool, tmp_path, threads=step % 3)
        assert checkpoint.saved_steps(str(tmp_path))[-1:] == [step // 3 * 3][: step // 3]
    trained(tiny_pool, tmp_path)
    assert hashes(tmp_path) == hashes(whole)
    assert losses(tmp_path) == losses(whole)


def train_and_die(pool, out, step):
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        end_in(patch, step, by_signal=True)
        trained(pool, Path(out), threads=1)


def test_what_sigkill_ends_in_any_step_is_resumed_to_the_bit(tiny_pool, tmp_path, whole):
    """SIGKILL also ends a save that is under way. All steps with CLIPMILL_CHAOS=1."""
    with CommandServer() as server:
        for step in some(list(range(STEPS)), "resume", 3):
            out = tmp_path / str(step)
            ended = server.try_to(train_and_die, tiny_pool, str(out), step)
            assert ended.watched.outcome == "exit -9", ended.output
            saved = checkpoint.latest(str(out))
            assert (0 if saved is None else saved.step) in (step // 3 * 3, step // 3 * 3 - 3, 0)
            trained(tiny_pool, out)
            assert hashes(out) == hashes(whole)


def words(**changes):
    given = {**SETTINGS, "batch_size": 12, "lanes": 4, "samples_seen": 72, **changes}
    return ["--set", *(f"{key}={value}" for key, value in given.items())]


def cut_back(out, step):
    """Make a whole run one that ended after `step`."""
    disk.remove(out / "run.json")
    for path in (out / "checkpoints").iterdir():
        if path.name != f"step-{step}":
            shutil.rmtree(path)


def test_other_ranks_micro_batches_tiles_and_threads_go_on_with_the_same_losses(
    tiny_pool, tmp_path
):
    one, out = tmp_path / "one", tmp_path / "run"
    mix = ["--mix", f"{tiny_pool}/all=1"]
    keep = {"checkpoint_every": 2, "keep_checkpoints": 9}
    assert commands.train([*mix, "--out", str(one), *words()]) == 0
    three = words(**keep, captions="packed")
    assert commands.train([*mix, "--out", str(out), *three, "--ranks", "3"]) == 0
    cut_back(out, 2)
    two = words(**keep, micro_batch=4, loss_tile=5, threads=2, dp_shard=2)
    assert commands.train([*mix, "--out", str(out), *two, "--ranks", "2"]) == 0
    cut_back(out, 4)
    last = words(micro_batch=5, captions="packed", recompute="full", threads=1)
    assert commands.train([*mix, "--out", str(out), *last]) == 0
    record = disk.read_json(out / "run.json")
    assert (record["resumed_at"], record["world"]) == (4, 1)
    assert len(losses(out)) == 6
    assert losses(out) == pytest.approx(losses(one), abs=2e-5)


# --- readers --------------------------------------------------------------------------------------


def test_a_shard_that_is_missing_ends_a_run_of_two_ranks_with_its_name(make_pool, tmp_path, capfd):
    """Corrupt ones: tests/train/test_refusals.py."""
    pool = make_pool(tmp_path / "pool")
    (Path(pool) / "shards" / "00001.tar").unlink()
    arguments = ["--mix", f"{pool}/all=1", "--out", str(tmp_path / "run"), *words(threads=1)]
    assert commands.train([*arguments, "--ranks", "2"]) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert any("00001.tar cannot be read at step" in line for line in errors), errors
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.fixture
def mix(tiny_pool):
    return ["--mix", f"{tiny_pool}/all=1"]


def test_a_resume_that_is_required_starts_no_other_run(mix, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = [*mix, "--out", str(out), *words(samples_seen=24)]
    assert commands.train([*arguments, "--resume", "required"]) == 2
    assert f"{out} has no checkpoint to resume from; check --out" in capsys.readouterr().err
    assert not (out / "checkpoints").exists()
    assert commands.train([*arguments, "--resume", "auto"]) == 0
    disk.remove(out / "run.json")
    assert commands.train([*arguments, "--resume", "required"]) == 0
    assert disk.read_json(out / "run.json")["resumed_at"] == 2
    capsys.readouterr()
    assert commands.train([*arguments, "--resume", "required", "--restart"]) == 2
    assert "Mutually exclusive arguments: {--resume, --restart}" in capsys.readouterr().err
    for state in (out / "checkpoints").rglob("state.json"):
        state.write_text("{")
    (out / "run.json").unlink()
    assert commands.train([*arguments, "--resume", "required"]) == 2
    assert f"{out} has no whole checkpoint to resume from" in capsys.readouterr().err


LOST = """
import os, signal, sys
sys.path.insert(0, {root!r})
from clipmill.commands.app import main
from clipmill.train.trainer import loop
from clipmill.train.trainer.loop import StepRunner
real = StepRunner.step
def step(runner, ready, waited):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and ready.batch.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    real(runner, ready, waited)
StepRunner.step = step
raise SystemExit(main(["train", *sys.argv[1:]]))
"""


def test_torchrun_starts_the_ranks_again_and_they_resume(mix, tmp_path):
    script, out = tmp_path / "lost.py", tmp_path / "run"
    script.write_text(LOST.format(root=str(ROOT)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", "--monitor-interval", "0.1", str(script)]
    command += [*mix, "--out", str(out), *words(checkpoint_every=2)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # as docs/stages/train.md says
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert disk.read_json(out / "run.json")["resumed_at"] in (2, 4)
    assert commands.train([*mix, "--out", str(tmp_path / "one"), *words()]) == 0
    assert losses(out) == pytest.approx(losses(tmp_path / "one"), abs=2e-5)
