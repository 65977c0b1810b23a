"""Checkpoints of a run: RUN/checkpoints/step-N/{model.safetensors, optimizer.pt, state.json}.

Where a model is sharded, its ranks write shard-K-….safetensors instead (see `reshard`); any run reads both. state.json
comes last and holds the sha256 of the others. Locally the folder is made under another name and renamed
when it is whole; elsewhere state.json is the commit. Loading checks the hashes and falls back to the checkpoint before.
Nothing is unpickled but tensors (`weights_only`). No random state is kept because there is none: pictures, crops and
their order are functions of the step, and training draws from no generator.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from manifests import disk

KEEP = 2
logger = logging.getLogger(__name__)

Moments = Mapping[str, Mapping[str, Tensor]]  # parameter -> name of the moment -> tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that is whole: after `step` steps. Of one in shards no tensor has been read."""

    step: int
    folder: str
    model: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]]
    state: dict[str, Any]

    @property
    def sharded(self) -> bool:
        """Whether it was written in shards."""
        return "layout" in self.state


def save(run: str, step: int, model: Mapping[str, Tensor], optimizer: Moments, state: Mapping[str, Any]) -> str:
    """Write and check the checkpoint of `step`, then remove all but the last two. Returns its folder."""
    folder = disk.join(run, "checkpoints", f"step-{step}")
    place = folder if disk.is_url(folder) else unfinished(run, step)
    buffer = io.BytesIO()
    torch.save({name: dict(parts) for name, parts in optimizer.items()}, buffer)
    hashes = {}
    for name, data in (
        ("model.safetensors", safetensors.torch.save({k: v.contiguous() for k, v in model.items()})),
        ("optimizer.pt", buffer.getvalue()),
    ):
        disk.write_bytes(disk.join(place, name), data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    return publish(run, step, place, {**state, "sha256": hashes})


def unfinished(run: str, step: int) -> str:
    """A folder of this process for a checkpoint that is being written."""
    return disk.join(run, "checkpoints", f".step-{step}.partial.{os.getpid()}")


def publish(run: str, step: int, place: str, state: Mapping[str, Any]) -> str:
    """Write state.json beside the files at `place`, make that the checkpoint of `step`, check it, remove older ones."""
    folder = disk.join(run, "checkpoints", f"step-{step}")
    disk.write_json(disk.join(place, "state.json"), {**state, "step": step})
    if place != folder:
        target = disk.local_path(folder)
        if target.exists():  # left by an earlier try, damaged or from before a fall-back
            shutil.rmtree(target)
        os.replace(disk.local_path(place), target)
        _sync_folder(target.parent)
    _check(folder)
    steps = _steps(run)
    before = [earlier for earlier in steps if earlier <= step]
    for other in steps:  # a later one is damaged: the run came back to before it
        if other not in before[-KEEP:]:
            _remove(disk.join(run, "checkpoints", f"step-{other}"))
    return folder


def latest(run: str) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none. Damaged ones are named in the log."""
    for step in reversed(_steps(run)):
        folder = disk.join(run, "checkpoints", f"step-{step}")
        try:
            return _read(folder, step)
        except (ValueError, KeyError, OSError, pickle.UnpicklingError) as error:
            logger.warning("%s is damaged and is not used: %s", folder, " ".join(str(error).split())[:200])
    return None


def at(run: str, step: int) -> Checkpoint:
    """The checkpoint of `step`, which another rank found whole; shards are not hashed again."""
    folder = disk.join(run, "checkpoints", f"step-{step}")
    state = disk.read_json(disk.join(folder, "state.json"))
    if "layout" not in state:
        return _read(folder, step)
    return Checkpoint(step=step, folder=folder, model={}, optimizer={}, state=state)


def _read(folder: str, step: int) -> Checkpoint:
    state, data = _check(folder)
    if "layout" in state:
        return Checkpoint(step=step, folder=folder, model={}, optimizer={}, state=state)
    optimizer = torch.load(io.BytesIO(data["optimizer.pt"]), map_location="cpu", weights_only=True)
    model = safetensors.torch.load(data["model.safetensors"])
    return Checkpoint(step=step, folder=folder, model=model, optimizer=optimizer, state=state)


def clear(run: str) -> None:
    """Remove every checkpoint of a run, and what a killed save left."""
    for step in _steps(run):
        _remove(disk.join(run, "checkpoints", f"step-{step}"))
    clean(run)


def clean(run: str) -> None:
    """Remove what a killed save left."""
    parent = disk.local_path(disk.join(run, "checkpoints"))
    if not disk.is_url(run) and parent.is_dir():
        for path in parent.glob(".step-*.partial.*"):
            shutil.rmtree(path)


def _check(folder: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """state.json and the bytes of the files that it names; of shards none are kept. ValueError where a hash differs."""
    state = disk.read_json(disk.join(folder, "state.json"))
    data = {}
    for name, expected in state["sha256"].items():
        if "layout" in state:
            found = hash_of(disk.join(folder, name))
        else:
            data[name] = disk.read_bytes(disk.join(folder, name))
            found = hashlib.sha256(data[name]).hexdigest()
        if found != expected:
            raise ValueError(f"{name} does not have the sha256 that state.json names")
    return state, data


def hash_of(path: str) -> str:
    """sha256 of a local file, of which little is held at a time."""
    with open(disk.local_path(path), "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _steps(run: str) -> list[int]:
    """Steps of the folders that are there, rising."""
    found = [name.removeprefix("step-") for name in disk.list_names(disk.join(run, "checkpoints")) if name[:5] == "step-"]
    return sorted(int(step) for step in found if step.isdigit())


def _remove(folder: str) -> None:
    disk.remove(disk.join(folder, "state.json"))  # from here on it is no checkpoint
    for name in disk.list_names(folder):
        disk.remove(disk.join(folder, name))
    if not disk.is_url(folder):
        shutil.rmtree(disk.local_path(folder))


def _sync_folder(path: os.PathLike[str]) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
