import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from clipmill.manifests import console, disk
from clipmill.manifests.folder_lock import locked_folder
from clipmill.manifests.layout import RunLayout
from clipmill.train.formats.open_clip_files import load_export
from clipmill.train.trainer import loop
from tests.support import commands
from tests.support.blocked import BLOCKED

SETTINGS = {
    "model": "test",
    "samples_seen": "48",
    "batch_size": "8",
    "lanes": "4",
    "warmup": "2",
    "lr": "1e-3",
    "precision": "fp32",
    "threads": "1",
    "log_every": "1",
    "device": "cpu",
}


def changes(**others):
    return ["--set", *(f"{key}={value}" for key, value in {**SETTINGS, **others}.items())]


@pytest.fixture
def blend(tiny_pool, tmp_path):
    path = tmp_path / "blend.yaml"
    path.write_text(
        yaml.safe_dump({"name": "tiny", "pools": {"p": tiny_pool}, "views": {"p/all": 1}})
    )
    return str(path)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{pool}"], "{pool} is a pool, not a blend: write --mix {pool}/all=1 instead"),
        (["{tmp}"], "{tmp} is a folder; give the YAML file of a blend"),
        (["{blend}", "--mix", "{pool}/all=1"], "Mutually exclusive arguments: {{BLEND, --mix}}"),
        ([], "give either BLEND.yaml or --mix"),
        (["{blend}", "--seed", "3"], "--seed goes with --mix"),
        (["--mix", "{tmp}/none/all=1"], "pool 'none' of the blend does not exist: {tmp}/none"),
        (["--mix", "{pool}/al=1"], "has no view 'al'; did you mean 'all'? (it has all, half)"),
        (["{blend}", "--out", "{blend}"], "blend.yaml is a file; name a folder"),
        (["{blend}", "--out", "{blend}/x"], "blend.yaml"),
        (["{blend}", "--set", "init=nowhere"], "init: nowhere does not exist: give a finished run"),
        (["{blend}", "--set", "batchsize=8"], "'batchsize'; did you mean 'batch_size'?"),
        (["{blend}", "--set", "lr"], "--set 'lr' is not KEY=VALUE"),
        (["{blend}", "--set", "model.vision_mlp=0"], "vision_mlp is 0; it must be at least 1"),
        (["{blend}", "--ranks", "0"], "--ranks is 0; it must be at least 1"),
        (["{blend}", "--ranks", "3"], "3 ranks cannot share a batch of 8 evenly"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(blend, tiny_pool, tmp_path, capsys, arguments, message):
    names = {"pool": tiny_pool, "tmp": tmp_path, "blend": blend}
    given = [argument.format(**names) for argument in arguments]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "run")]
    assert commands.train([*given, *changes()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message.format(**names) in error
    assert error.count("\n") == 1


def test_a_plan_is_that_of_its_ranks(blend, capsys):
    assert commands.train([blend, "--plan", "--ranks", "4", *changes()]) == 0
    assert "48 samples" in capsys.readouterr().out
    for ranks, message in (("1000", "error: 1000 ranks cannot share a batch of 8"), ("0", "error")):
        assert commands.train([blend, "--plan", "--ranks", ranks, *changes()]) == 2
        assert capsys.readouterr().err.startswith(message)


def weights_of(out):
    return load_export(disk.join(str(out), "export")).state_dict()


def assert_near(ours, theirs):
    """But for the biases of keys: their gradient is 0, and of its rounding errors AdamW makes whole
    steps.
    """
    for name, value in ours.items():
        pair = [
            x.view(2, 3, -1)[:, ::2] if name.endswith("qkv.bias") else x
            for x in (value, theirs[name])
        ]
        torch.testing.assert_close(*pair, rtol=0, atol=1e-4, msg=name)


def interrupted(out, step):
    """Make a whole run one that ended after `step`."""
    disk.remove(out / "run.json")
    for path in (out / "checkpoints").iterdir():
        if path.name != f"step-{step}":
            shutil.rmtree(path)


def under_torchrun(world, command):
    """The command as torchrun starts it, with torchrun's variables; the exit statuses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(world)
    ]
    return [process.wait(timeout=900) for process in processes]


@pytest.mark.slow
def test_a_sharded_run_under_torchrun_is_gone_on_with_by_one_process_and_back(blend, tmp_path):
    one, out = tmp_path / "one", tmp_path / "run"
    assert commands.train([blend, "--out", str(one), *changes(checkpoint_every=2)]) == 0
    script = f"{console.ROOT}/train/run.py"  # as torchrun starts it
    shards = changes(checkpoint_every=2, dp_shard=2, recompute="full", captions="packed")
    assert under_torchrun(2, [sys.executable, script, blend, "--out", str(out), *shards]) == [0, 0]
    assert disk.read_json(out / "run.json")["layout"] == {"dp_replicate": 1, "dp_shard": 2, "tp": 1}
    wanted = weights_of(one)
    assert_near(weights_of(out), wanted)
    for ranks in (1, 2):
        interrupted(out, step=4)
        layout = changes(checkpoint_every=2, tp=ranks)
        assert commands.train([blend, "--out", str(out), *layout, "--ranks", str(ranks)]) == 0
        assert disk.read_json(out / "run.json")["resumed_at"] == 4
        assert_near(weights_of(out), wanted)
    assert disk.read_json(out / "run.json")["layout"]["tp"] == 2


NAN = """
import sys
sys.path.insert(0, sys.argv[1])
import os, torch
from clipmill.commands.app import main
from clipmill.train.trainer import loop
real = loop.normalise
def normalise(*args):
    image = real(*args).contiguous()
    if os.environ["RANK"] == "1":
        image[2, 0, 0, 0] = float("nan")
    return image
loop.normalise = normalise
raise SystemExit(main(["train", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_a_number_that_is_none_is_traced_to_its_rank_and_shard_also_where_gradients_are_shared_out(
    blend, tmp_path
):
    out = tmp_path / "run"
    command = [sys.executable, "-c", NAN, console.ROOT, blend, "--out", str(out)]
    assert under_torchrun(2, [*command, *changes(dp_shard=2)]) == [3, 3]
    first, other = (disk.read_json(out / f"nonfinite-{rank}.json") for rank in (1, 0))
    found = (first["rank"], first["step"], first["tensors"][0], len(first["keys"]))
    assert found == (1, 1, "image features", 1)
    assert first["shards"] == [first["keys"][0][:-4]]
    assert other["tensors"][0].startswith("gradient of")
    assert not (out / "checkpoints").exists()


def started(blend, out, arguments, **environment):
    """clipmill train as a process of its own, once it has written its first log line."""
    command = console.program(["train", blend, "--out", str(out), *arguments])
    process = subprocess.Popen(
        command,
        cwd=out.parent,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 900
    while not (out / "log.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "number"),
    [
        ([], signal.SIGTERM),
        ([], signal.SIGINT),
        # Which signals reach the ranks is in tests/train/parallel/test_process_group.py.
        (["--ranks", "2", "--set", "dp_shard=2"], signal.SIGHUP),
    ],
)
def test_a_stop_signal_ends_with_status_75_and_the_run_is_saved(blend, tmp_path, layout, number):
    out = tmp_path / "run"
    with started(blend, out, [*changes(samples_seen="80k"), *layout]) as process:
        process.send_signal(number)
        _, stderr = process.communicate(timeout=900)
    assert process.returncode == 75, stderr
    [saved] = os.listdir(out / "checkpoints")
    step = int(saved.removeprefix("step-"))
    assert f"stopped by {number.name} after step {step} of 10000; it is saved" in stderr
    assert "Traceback" not in stderr
    assert not (out / "run.json").exists()
    assert ("layout" in disk.read_json(out / "checkpoints" / saved / "state.json")) == bool(layout)


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
from clipmill.commands.app import main
from clipmill.train.trainer.loop import StepRunner
real = StepRunner.step
def step(runner, ready, waited):
    if ready.batch.step == 2:
        open(sys.argv[2], "w").close()
        time.sleep(3600)
    return real(runner, ready, waited)
StepRunner.step = step
raise SystemExit(main(["train", *sys.argv[3:]]))
"""


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_run_at_once(blend, tmp_path):
    out, marker = tmp_path / "run", tmp_path / "marker"
    command = [sys.executable, "-c", SLOW, console.ROOT, str(marker), blend, "--out", str(out)]
    with subprocess.Popen([*command, *changes()], stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 900
        while not marker.exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        stderr = ""
        while "a second one ends at once" not in stderr and (line := process.stderr.readline()):
            stderr += line
        process.send_signal(signal.SIGINT)
        stderr += process.communicate(timeout=900)[1]
    assert process.returncode == -signal.SIGINT
    assert "saving after this step; a second one ends at once" in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--restart"], ["--ranks", "2"]])
def test_a_run_that_another_process_trains_is_left_alone_until_that_ends(
    blend, tmp_path, capsys, monkeypatch, more
):
    monkeypatch.setattr(loop, "LOCK_WAIT_S", 0.0)
    out = tmp_path / "run"
    (out / "checkpoints" / ".step-4.partial").mkdir(parents=True)  # what the other one writes
    (out / "log.jsonl").write_text("{}\n")
    command = [blend, "--out", str(out), *changes(), *more]
    with locked_folder(RunLayout(str(out)).lock, "clipmill train"):
        before = sorted(out.rglob("*"))
        assert commands.train(command) == 75
        assert sorted(out.rglob("*")) == before
    error = capsys.readouterr().err
    assert error.startswith(f"error: {out} is in use by clipmill train, process {os.getpid()} on ")
    assert error.count("\n") == 1
    if not more:
        assert commands.train(command) == 0


def test_a_mix_needs_no_file_and_leaves_one(tiny_pool, tmp_path):
    out = tmp_path / "run"
    mix = ["--mix", f"{tiny_pool}/all=0.75", f"{tiny_pool}/half=0.25", "--seed", "5"]
    assert commands.train([*mix, "--out", str(out), *changes()]) == 0
    blend = disk.read_json(out / "blend.json")
    assert blend["views"] == {"pool/all": 0.75, "pool/half": 0.25}
    assert (blend["seed"], blend["pools"]) == (5, {"pool": tiny_pool})
    sources = disk.read_json(out / "run.json")["sources"]
    assert sources["pool/all"]["drawn"] == 36
    assert (
        commands.train([str(out / "blend.json"), "--out", str(tmp_path / "again"), *changes()]) == 0
    )
    first, again = (weights_of(tmp_path / name) for name in ("run", "again"))
    assert torch.equal(first["visual.proj"], again["visual.proj"])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dp_shard", "tp"])
def test_initial_weights_are_loaded_before_the_model_is_sharded(blend, tmp_path, layout):
    first = tmp_path / "first"
    assert commands.train([blend, "--out", str(first), *changes(seed=9)]) == 0
    losses = []
    for ranks, change in (("1", {}), ("2", {layout: 2})):
        out = tmp_path / ranks
        settings = changes(init=str(first), **change)
        assert commands.train([blend, "--out", str(out), *settings, "--ranks", ranks]) == 0
        lines = disk.read_bytes(out / "log.jsonl").splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    hashes = [
        disk.read_json(tmp_path / r / "run.json")["identity"]["initial_weights"] for r in "12"
    ]
    assert hashes[0] == hashes[1]


def test_a_run_starts_from_a_checkpoint_of_open_clip_s_training(blend, tmp_path):
    first = str(tmp_path / "first")
    assert commands.train([blend, "--out", first, *changes()]) == 0
    export = load_file(disk.join(first, "export", "open_clip_model.safetensors"))
    state = {f"module.{name}": value for name, value in export.items()}
    optimizer = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}
    path = tmp_path / "epoch_1.pt"
    torch.save({"epoch": 1, "name": "x", "state_dict": state, "optimizer": optimizer}, path)
    starts = {"init": str(path), "lr": "1e-30", "weight_decay": 0}
    assert commands.train([blend, "--out", str(tmp_path / "run"), *changes(**starts)]) == 0
    trained = load_file(tmp_path / "run" / "export" / "open_clip_model.safetensors")
    assert all(torch.equal(trained[name], value) for name, value in export.items())


@pytest.mark.ray
def test_without_a_cluster_ray_is_refused(blend, tmp_path, capsys, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(
        ray, "is_initialized", lambda: False
    )  # other tests of this process may have left one
    assert (
        commands.train([blend, "--out", str(tmp_path / "run"), *changes(), "--ranks", "2", "--ray"])
        == 2
    )
    assert "--ray joins the cluster of a `ray job submit`" in capsys.readouterr().err


ON_RAY = """
import shlex
import sys
sys.path.insert(0, sys.argv[1])
import os
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
import ray
from clipmill.manifests import ray_runtime
with ray_runtime.given_ports(ray) as port:  # as the product does: on a busy machine it starts too
    ray.init(address="local", num_cpus=2, include_dashboard=False,
             object_store_memory=128 * 2**20, log_to_driver=False,
             _node_ip_address="127.0.0.1", _temp_dir=sys.argv[2], _metrics_export_port=port,
             runtime_env={"env_vars": {"PYTHONPATH": sys.argv[1], "GLOO_SOCKET_IFNAME": "lo",
                                       "OMP_NUM_THREADS": "1"},
                          "py_executable": shlex.quote(sys.executable)})
from clipmill.commands.app import main
from clipmill.library import training
marker, train = sys.argv[3], training.train_on_ray

def worker(request):
    import os, signal
    from clipmill.train.trainer.loop import StepRunner
    real = StepRunner.step

    def step(runner, ready, waited):
        lost = os.environ["RANK"] == "1" and ready.batch.step == 3
        if lost and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        real(runner, ready, waited)

    StepRunner.step = step
    return train(request)

training.train_on_ray = worker
raise SystemExit(main(["train", *sys.argv[4:]]))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_workers_of_ray_train_are_ranks_and_are_started_again_where_one_is_lost(blend, tmp_path):
    out = tmp_path / "run"
    with tempfile.TemporaryDirectory(
        prefix="run-", dir="/tmp"
    ) as folder:  # short: a socket's path is cut at 107
        command = [sys.executable, "-c", ON_RAY, console.ROOT, folder, str(tmp_path / "lost")]
        command += [blend, "--out", str(out), *changes(checkpoint_every=1), "--ranks", "2", "--ray"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    record = disk.read_json(out / "run.json")
    assert (record["world"], record["resumed_at"]) in ((2, 2), (2, 3))
    assert (tmp_path / "lost").exists()
    assert commands.train([blend, "--out", str(tmp_path / "one"), *changes()]) == 0
    assert_near(weights_of(out), weights_of(tmp_path / "one"))


@pytest.mark.slow
def test_a_resolved_blend_is_trained_without_any_of_the_pipeline_s_libraries(tiny_pool, tmp_path):
    blend = {
        "name": "b",
        "pools": {"p": tiny_pool},
        "views": {"p/all": 1.0},
        "seed": 0,
        "max_repeats": None,
    }
    disk.write_json(tmp_path / "blend.json", blend)
    arguments = [str(tmp_path / "blend.json"), "--out", str(tmp_path / "run"), *changes()]
    code = (
        f"import sys; sys.path.insert(0, {console.ROOT!r})\n"
        # as where they are not installed: with None in sys.modules cyclopts takes one for imported
        "class Missing:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {BLOCKED!r}:\n"
        "            raise ModuleNotFoundError(f'{name} is blocked', name=name)\n"
        "sys.meta_path.insert(0, Missing)\n"
        "from clipmill.commands.app import main\n"
        f"status = main({['train', *arguments]!r})\n"
        "assert 'torch._dynamo' not in sys.modules, 'its import costs 1.5 s'\n"
        "raise SystemExit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "run.json").exists()
