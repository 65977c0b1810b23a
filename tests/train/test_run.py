from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from manifests import disk
from train import run
from train.weights import load_export

ROOT = Path(__file__).resolve().parents[2]
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
    path.write_text(yaml.safe_dump({"name": "tiny", "pools": {"p": tiny_pool}, "views": {"p/all": 1}}))
    return str(path)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_it_trains_and_ends_with_one_line_of_json(blend, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert run.main([blend, "--out", out, *changes(), "--json"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert json.loads(said) == disk.read_json(disk.join(out, "run.json"))
    resolved = disk.join(out, "blend.json")
    assert disk.read_json(resolved)["views"] == {"p/all": 1.0}
    assert run.main([resolved, "--out", str(tmp_path / "again"), *changes()]) == 0
    one, other = (load_export(disk.join(str(tmp_path / name), "export")) for name in ("run", "again"))
    assert torch.equal(one.visual.proj, other.visual.proj)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "batchsize=8"], "error: unknown training setting 'batchsize'; did you mean 'batch_size'?"),
        (["--set", "lr"], "error: --set 'lr' is not KEY=VALUE"),
        (["--ranks", "0"], "error: --ranks is 0; it must be at least 1"),
        (["--preset", "micro"], "error: "),  # 48 rows are less than a batch of 128
        (["--preset", "micro", "--ranks", "3"], "error: 3 ranks cannot share 32 lanes evenly"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(blend, tmp_path, capsys, arguments, said):
    assert run.main([blend, "--out", str(tmp_path / "run"), *arguments]) == 2
    found = capsys.readouterr().err
    assert found.startswith(said)
    assert found.count("\n") == 1


def test_a_blend_that_is_not_there_is_a_mistake(tmp_path, capsys):
    assert run.main([str(tmp_path / "none.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert "none.yaml does not exist" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_number_that_is_none_is_status_3(blend, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("train.loop.normalise", lambda image, *_: image.permute(0, 3, 1, 2).float() * float("nan"))
    assert run.main([blend, "--out", str(tmp_path / "run"), *changes()]) == 3
    assert "error: step 1: the loss is nan" in capsys.readouterr().err


def test_two_ranks_train_as_one_process_does(blend, tmp_path, capfd):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert run.main([blend, "--out", one, *changes(grad_clip=1)]) == 0
    assert run.main([blend, "--out", two, *changes(grad_clip=1), "--ranks", "2", "--json"]) == 0
    done = json.loads(capfd.readouterr().out)
    assert done["world"] == 2
    lines = [
        [json.loads(line) for line in disk.read_bytes(disk.join(out, "log.jsonl")).splitlines()] for out in (one, two)
    ]
    assert len(lines[0]) == len(lines[1]) == 6
    for a, b in zip(*lines, strict=True):
        for name in ("loss", "accuracy", "lr", "grad_norm", "logit_scale"):
            assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-6), (a["step"], name)
    ours, theirs = (load_export(disk.join(out, "export")).state_dict() for out in (one, two))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5, msg=name)


def test_sigterm_ends_with_status_75_and_the_next_start_goes_on(blend, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, str(ROOT / "train" / "run.py"), blend, "--out", str(out), *changes(samples_seen="80k")]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (out / "log.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    [saved] = os.listdir(out / "checkpoints")
    step = int(saved.removeprefix("step-"))
    assert f"stopped by SIGTERM after step {step} of 10000; it is saved" in said
    assert not (out / "run.json").exists()


BLOCKED = ("pydantic", "ray", "duckdb", "open_clip", "webdataset", "simplejpeg", "xxhash", "scipy", "yaml")


def test_a_resolved_blend_is_trained_without_any_of_the_pipeline_s_libraries(tiny_pool, tmp_path):
    blend = {"name": "b", "pools": {"p": tiny_pool}, "views": {"p/all": 1.0}, "seed": 0, "max_repeats": None}
    disk.write_json(tmp_path / "blend.json", blend)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        f"from train import run\n"
        f"raise SystemExit(run.main({[str(tmp_path / 'blend.json'), '--out', str(tmp_path / 'run'), *changes()]!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "run.json").exists()
