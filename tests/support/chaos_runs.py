"""Checkpoints and a training run, for tests that kill what writes them anywhere.

The functions run in children of `forked_commands`, like those of `chaos_pools`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from clipmill.manifests import disk
from clipmill.manifests.records import CheckpointRecord, DamagedSamples
from clipmill.train.parallel import checkpoint
from clipmill.train.parallel.checkpoint import Saver
from clipmill.train.parallel.process_group import Ranks
from tests.support import commands
from tests.support.chaos_pools import Scenario
from tests.train.conftest import build_pool

ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
SHARDED = dataclasses.replace(ALONE, mesh="a mesh of one")
SETTINGS = (
    "model=test", "samples_seen=48", "batch_size=8", "lanes=4", "warmup=2", "lr=1e-3",
    "precision=fp32", "threads=1", "device=cpu", "checkpoint_every=2",
)  # fmt: skip
STEPS = 6
VOLATILE = ("log.jsonl", "run.json")


def contents(step: int) -> tuple[dict[str, Any], dict[str, Any], CheckpointRecord]:
    """Weights, moments and record of a step."""
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
    return weights, moments, record


def save_steps(ranks: Ranks, folder: str, *steps: int) -> int:
    """Save checkpoints as a training does; those of ranks with a mesh are sharded."""
    warnings.simplefilter("ignore")  # torch says that there is no process group
    checkpoint.clean(folder)
    for step in steps:
        saver = Saver(folder, ranks)
        saver.save(*contents(step))
        saver.finish()
    return 0


def saving(ranks: Ranks) -> Scenario:
    """A third checkpoint beside two."""
    return Scenario(
        lambda _, folder: save_steps(ranks, str(folder), 1, 2),
        lambda _, folder: save_steps(ranks, folder, 3),
        visible=partial(visible_problems, (2, 3)),
        problems=partial(problems_at_end, 3),
        state=state,
    )


def pool_beside(inputs: Path, folder: Path) -> None:
    pool = inputs.parent / "trained_pool"
    if not pool.exists():
        build_pool(pool)


def train(inputs: str, folder: str) -> int:
    torch.set_num_threads(1)
    pool = Path(inputs).parent / "trained_pool"
    return commands.train(["--mix", f"{pool}/all=1", "--out", folder, "--set", *SETTINGS])


def visible_problems(steps: tuple[int, ...], folder: str) -> list[str]:
    """A checkpoint of one of these steps can be loaded; without steps, one if any was saved."""
    saved, latest = checkpoint.saved_steps(folder), checkpoint.latest(folder)
    if latest is None:
        return [f"none of the checkpoints {saved} can be loaded"] if saved or steps else []
    return [f"{saved}: {latest.step} is loaded"] if steps and latest.step not in steps else []


def state(folder: str) -> dict[str, Any]:
    """Every file by its content; of the log the losses, of run.json what is no time."""
    files: dict[str, Any] = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name not in VOLATILE and not path.name.startswith("."):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name.startswith("shard-"):  # torch writes its tensors in any order
            files[name] = {key: value.tolist() for key, value in load_file(path).items()}
        elif path.name == "state.json":
            files[name] = {**disk.read_json(path), "sha256": None}
    log = Path(folder) / "log.jsonl"
    if log.exists():
        losses = {}
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            if "loss" in entry:
                losses[entry["step"]] = entry["loss"]
        files["losses"] = losses
    return files


def problems_at_end(step: int, folder: str) -> list[str]:
    """Whether the last checkpoint can be loaded."""
    latest = checkpoint.latest(folder)
    return [] if latest is not None and latest.step == step else ["the last step is lost"]


SCENARIOS = {
    "checkpoint": saving(ALONE),
    "sharded_checkpoint": saving(SHARDED),
    "train": Scenario(
        pool_beside,
        train,
        visible=partial(visible_problems, ()),
        problems=partial(problems_at_end, STEPS),
        state=state,
    ),
}
