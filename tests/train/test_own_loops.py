"""The scripts for training loops of one's own: killed in the middle of an epoch and started again,
each ends with the weights of the run that was left alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.open_clip_configs import TEXT, VIT

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BATCH, KILLED_AT = 8, 8  # 48 rows: an epoch has 6 steps, so the second one is cut after its second
# Runs a script whose process ends with the batch of a step, before anything is done with it.
PROGRAM = """
import os, runpy, signal, sys
import open_clip
from clipmill.train.data import own_loop
script, configs, killed_at, *words = sys.argv[1:]
open_clip.add_model_config(configs)
finished = own_loop.Loader._finished
def killed(self, batch, inner):
    if batch.step == int(killed_at):
        os.kill(os.getpid(), signal.SIGKILL)
    return finished(self, batch, inner)
own_loop.Loader._finished = killed
sys.argv = [script, *words]
runpy.run_path(script, run_name="__main__")
"""
CLIP = {
    "text_config": {
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
        "num_hidden_layers": 2, "max_position_embeddings": 16, "vocab_size": 49408,
    },
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
        "num_hidden_layers": 2, "image_size": 32, "patch_size": 16,
    },
    "projection_dim": 16, "model_type": "clip",
}  # fmt: skip


@pytest.fixture
def configs(tmp_path):
    """A folder with the tiny models of both kinds."""
    folder = tmp_path / "configs"
    folder.mkdir()
    model = {"embed_dim": 32, "vision_cfg": VIT, "text_cfg": TEXT}
    (folder / "tiny.json").write_text(json.dumps(model))
    (folder / "clip").mkdir()
    (folder / "clip/config.json").write_text(json.dumps(CLIP))
    return folder


def start(script, configs, view, out, model, killed_at, **variables):
    """A script as a process, in this interpreter, on one thread."""
    words = [str(EXAMPLES / script), str(configs), str(killed_at), view, str(out), model]
    out.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words, str(BATCH)],
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(script, configs, view, out, model="tiny", killed_at=-1, world=1):
    """Run a script to its end, or to the step at which it is killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    processes = [
        start(script, configs, view, out, model, killed_at, RANK=str(rank), **ranks)
        for rank in range(world)
    ]
    outputs = [process.communicate()[0] for process in processes]
    expected = 0 if killed_at < 0 else -signal.SIGKILL
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == expected, output


def tensors(value):
    """Every tensor of a checkpoint, by its path."""
    found = {}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items:
        if isinstance(part, torch.Tensor):
            found[str(key)] = part
        elif isinstance(part, (dict, list, tuple)):
            found |= {f"{key}.{name}": tensor for name, tensor in tensors(part).items()}
    return found


def assert_a_kill_changes_nothing(script, configs, pool, tmp_path, file, read, **more):
    """`read(file)` of the folder of a run that was killed is that of a run that was not."""
    view, alone, again = f"{pool}/all", tmp_path / "alone", tmp_path / "again"
    run(script, configs, view, alone, **more)
    run(script, configs, view, again, killed_at=KILLED_AT, **more)
    before = tensors(read(again / file)) if (again / file).exists() else {}
    run(script, configs, view, again, **more)
    expected, found = tensors(read(alone / file)), tensors(read(again / file))
    assert expected.keys() == found.keys()
    assert len(expected) > 20
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    moved = [name for name, x in before.items() if not torch.equal(x, found[name])]
    assert moved or not before  # the kill was before the end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "world"), [("pytorch_loop", 2), ("open_clip_loop", 1), ("siglip_loop", 1)]
)
def test_a_loop_of_open_clips_models_is_resumed_to_the_bit(
    script, world, configs, tiny_pool, tmp_path
):
    assert_a_kill_changes_nothing(
        f"{script}.py", configs, tiny_pool, tmp_path, "checkpoint.pt", torch.load, world=world
    )


@pytest.mark.slow
def test_a_trainer_of_hugging_face_is_resumed_to_the_bit(configs, tiny_pool, tmp_path):
    pytest.importorskip("accelerate")
    from safetensors.torch import load_file

    assert_a_kill_changes_nothing(
        "transformers_trainer.py",
        configs,
        tiny_pool,
        tmp_path,
        "checkpoint-12/model.safetensors",
        load_file,
        model=str(configs / "clip"),
    )


@pytest.mark.slow
def test_a_lightning_run_is_resumed_to_the_bit(configs, tiny_pool, tmp_path):
    pytest.importorskip("lightning")
    assert_a_kill_changes_nothing(
        "lightning_loop.py",
        configs,
        tiny_pool,
        tmp_path,
        "last.ckpt",
        lambda path: torch.load(path, weights_only=False)["state_dict"],
    )


def test_each_script_fits_on_a_screen():
    for path in EXAMPLES.glob("*_*.py"):
        if path.name != "__init__.py":
            assert len(path.read_text().splitlines()) <= 60, path.name
