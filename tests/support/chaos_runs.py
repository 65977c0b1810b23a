"""Checkpoints and a training run, for tests that kill what writes them anywhere.

The functions run in children of `forked_commands`, like those of `chaos_pools`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from manifests import disk
from manifests.records import CheckpointRecord, DamagedSamples
from tests.support import commands
from tests.train.conftest import build_pool
from train.parallel import checkpoint
from train.parallel.checkpoint import Saver
from train.parallel.process_group import Ranks

ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)
SHARDED = dataclasses.replace(ALONE, mesh="a mesh of one")
SETTINGS = (
    "model=test", "samples_seen=48", "batch_size=8", "lanes=4", "warmup=2", "lr=1e-3",
    "precision=fp32", "threads=1", "device=cpu", "checkpoint_every=2",
)  # fmt: skip
STEPS = 6
VOLATILE = ("log.jsonl", "run.json")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run folder and what writes into it."""

    prepare: Callable[[str, str], None]  # (inputs, folder)
    run: Callable[[str, str], int]


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


def save_whole(_: str, folder: str, *steps: int) -> int:
    return save_by(ALONE, folder, steps)


def save_sharded(_: str, folder: str, *steps: int) -> int:
    warnings.simplefilter("ignore")  # torch says that there is no process group
    return save_by(SHARDED, folder, steps)


def save_by(ranks: Ranks, folder: str, steps: tuple[int, ...]) -> int:
    checkpoint.clean(folder)
    for step in steps or (3,):
        saver = Saver(folder, ranks)
        saver.save(*contents(step))
        saver.finish()
    return 0


def two_whole(inputs: str, folder: str) -> None:
    save_whole(inputs, folder, 1, 2)


def two_sharded(inputs: str, folder: str) -> None:
    save_sharded(inputs, folder, 1, 2)


def pool_beside(inputs: str, folder: str) -> None:
    pool = Path(inputs).parent / "trained_pool"
    if not pool.exists():
        build_pool(pool)


def train(inputs: str, folder: str) -> int:
    torch.set_num_threads(1)
    pool = Path(inputs).parent / "trained_pool"
    return commands.train(["--mix", f"{pool}/all=1", "--out", folder, "--set", *SETTINGS])


SCENARIOS = {
    "checkpoint": Scenario(two_whole, save_whole),
    "sharded_checkpoint": Scenario(two_sharded, save_sharded),
    "train": Scenario(pool_beside, train),
}


def prepare(name: str, inputs: str, folder: str) -> None:
    Path(folder).mkdir(parents=True)
    SCENARIOS[name].prepare(inputs, folder)


def run(name: str, inputs: str, folder: str) -> int:
    return SCENARIOS[name].run(inputs, folder)


def visible_problems(name: str, folder: str) -> list[str]:
    """A checkpoint that has been there before, or a newer one, can be loaded."""
    saved = checkpoint.saved_steps(folder)
    latest = checkpoint.latest(folder)
    if name == "train":
        whole = latest is not None or not saved
        return [] if whole else [f"none of the checkpoints {saved} can be loaded"]
    if latest is None or latest.step not in (2, 3):
        return [f"{saved}: {latest and latest.step} is loaded"]
    return []


def leftovers(folder: str) -> list[str]:
    names = []
    for path in sorted(Path(folder).rglob("*")):
        if path.name.startswith(".") or ".partial" in path.name:
            names.append(str(path.relative_to(folder)))
    return names


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


def problems_at_end(folder: str) -> list[str]:
    """Whether the last checkpoint of a finished run can be loaded."""
    latest = checkpoint.latest(folder)
    return [] if latest is not None and latest.step in (3, STEPS) else ["the last step is lost"]


def resume(name: str, inputs: str, folder: str) -> dict[str, Any]:
    """Look at what a killed command left, run it again, and look at the result."""
    before = visible_problems(name, folder)
    status = SCENARIOS[name].run(inputs, folder)
    latest = checkpoint.latest(folder)
    expected = STEPS if name == "train" else 3
    problems = [] if latest is not None and latest.step == expected else ["the last step is lost"]
    return {
        "visible": before,
        "status": status,
        "problems": problems,
        "leftovers": leftovers(folder),
        "state": state(folder),
    }
