"""Checkpoints of a run: RUN/checkpoints/step-N/{model.safetensors, optimizer.pt, state.json}.

The ranks of a sharded model write shard-K-….safetensors instead (see `sharded_checkpoint`); any run
reads both. state.json is written last and holds the sha256 of the other files. On a local disk the
folder has another name until it is complete, then it is renamed; elsewhere state.json is the
commit. Every checkpoint is read back and compared with its hashes before older ones are removed.
Loading checks the hashes and falls back to the checkpoint before.

Only tensors are unpickled (`weights_only`). There is no random state to keep: images, crops and
their order are functions of the step, and training draws from no generator.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from manifests import disk
from manifests.documents import CheckpointRecord, read_document
from manifests.run_layout import RunLayout

KEEP = 2  # checkpoints, unless a run says otherwise
MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.pt", "state.json"
logger = logging.getLogger(__name__)

Moments = Mapping[str, Mapping[str, Tensor]]  # parameter -> name of the moment -> tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint. No tensor of a sharded one has been read."""

    folder: str
    model: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]]
    record: CheckpointRecord

    @property
    def step(self) -> int:
        """Optimizer steps that the run had done."""
        return self.record.step

    @property
    def sharded(self) -> bool:
        """Whether it was written in shards."""
        return self.record.layout is not None


def save(
    run: str,
    model: Mapping[str, Tensor],
    optimizer: Moments,
    record: CheckpointRecord,
    keep: int = KEEP,
) -> str:
    """Write and check a checkpoint, then remove all but the last `keep`. Returns its folder.

    The hashes of the record are filled in. OSError where it cannot be read back as it was written.
    """
    folder = RunLayout(run).checkpoint(record.step)
    target = folder if disk.is_url(folder) else unfinished(run, record.step)
    buffer = io.BytesIO()
    torch.save({name: dict(parts) for name, parts in optimizer.items()}, buffer)
    contiguous = {name: value.contiguous() for name, value in model.items()}
    files = {MODEL_FILE: safetensors.torch.save(contiguous), OPTIMIZER_FILE: buffer.getvalue()}
    hashes = {}
    if target == folder:  # a store: what a damaged checkpoint of this step left is none from here
        disk.remove(disk.join(folder, STATE_FILE))
    for name, data in files.items():
        disk.write_bytes(disk.join(target, name), data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    return publish(run, target, dataclasses.replace(record, sha256=hashes), keep)


def unfinished(run: str, step: int) -> str:
    """A folder of this process for a checkpoint that is being written."""
    return disk.join(run, "checkpoints", f".step-{step}.partial.{os.getpid()}")


def publish(run: str, source: str, record: CheckpointRecord, keep: int = KEEP) -> str:
    """Write state.json beside the files in `source`, make that the checkpoint, check it, remove
    older ones.

    OSError where a file that is read back does not have the sha256 of the record; older checkpoints
    then stay.
    """
    step = record.step
    folder = RunLayout(run).checkpoint(step)
    disk.write_json(disk.join(source, STATE_FILE), record.document())
    if source != folder:
        target = disk.local_path(folder)
        if target.exists():  # left by an earlier try, damaged or from before a fall-back
            shutil.rmtree(target)
        os.replace(disk.local_path(source), target)
        _sync_folder(target.parent)
    try:
        _check(folder)
    except ValueError as error:
        raise OSError(f"{folder} was written and reads back differently: {error}") from error
    prune(run, step, keep)
    for other in steps(run):
        if other > step:  # it is damaged: the run came back to before it
            _remove(RunLayout(run).checkpoint(other))
    return folder


def prune(run: str, step: int, keep: int = KEEP) -> None:
    """Remove all but the last `keep` checkpoints up to `step`, which is whole."""
    earlier = [other for other in steps(run) if other <= step]
    for other in earlier[:-keep]:
        _remove(RunLayout(run).checkpoint(other))


def latest(run: str) -> Checkpoint | None:
    """The newest complete checkpoint; None without one. Damaged ones are named in the log."""
    for step in reversed(steps(run)):
        folder = RunLayout(run).checkpoint(step)
        try:
            return read(folder)
        except (ValueError, KeyError, OSError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split())[:200]
            logger.warning("%s is damaged and is not used: %s", folder, reason)
    return None


def at(run: str, step: int) -> Checkpoint:
    """The checkpoint of `step`, which another rank has checked; shards are not hashed again."""
    folder = RunLayout(run).checkpoint(step)
    record = read_document(disk.join(folder, STATE_FILE), CheckpointRecord)
    if record.layout is None:
        return read(folder)
    return Checkpoint(folder=folder, model={}, optimizer={}, record=record)


def read(folder: str) -> Checkpoint:
    """A checkpoint whose hashes are right; ValueError where one is not."""
    record, data = _check(folder)
    if record.layout is not None:
        return Checkpoint(folder=folder, model={}, optimizer={}, record=record)
    optimizer = torch.load(io.BytesIO(data[OPTIMIZER_FILE]), map_location="cpu", weights_only=True)
    model = safetensors.torch.load(data[MODEL_FILE])
    return Checkpoint(folder=folder, model=model, optimizer=optimizer, record=record)


def clear(run: str) -> None:
    """Remove every checkpoint of a run, and what a killed save left."""
    for step in steps(run):
        _remove(RunLayout(run).checkpoint(step))
    clean(run)


def clean(run: str) -> None:
    """Remove what a killed save and any other write of a killed run left in its folders."""
    if disk.is_url(run):
        return
    layout = RunLayout(run)
    for path in disk.local_path(layout.checkpoints).glob(".step-*.partial.*"):
        shutil.rmtree(path)
    for folder in (run, layout.export, layout.until):
        for path in disk.local_path(folder).glob(".*.partial.*"):
            if path.is_file():
                path.unlink(missing_ok=True)


def _check(folder: str) -> tuple[CheckpointRecord, dict[str, bytes]]:
    """state.json and the bytes of its files ({} for shards). ValueError where a hash differs."""
    record = read_document(disk.join(folder, STATE_FILE), CheckpointRecord)
    data = {}
    for name, expected in record.sha256.items():
        if record.layout is not None:
            actual = _file_sha256(disk.join(folder, name))
        else:
            data[name] = disk.read_bytes(disk.join(folder, name))
            actual = hashlib.sha256(data[name]).hexdigest()
        if actual != expected:
            raise ValueError(f"{name} does not have the sha256 that {STATE_FILE} names")
    return record, data


def _file_sha256(path: str) -> str:
    """sha256 of a file or an object, read in pieces."""
    if not disk.is_url(path):
        return disk.file_sha256(path)
    with disk.open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def steps(run: str) -> list[int]:
    """Steps of the folders that are there, rising."""
    names = disk.list_names(RunLayout(run).checkpoints)
    numbers = [name.removeprefix("step-") for name in names if name.startswith("step-")]
    return sorted(int(number) for number in numbers if number.isdigit())


def _remove(folder: str) -> None:
    disk.remove(disk.join(folder, STATE_FILE))  # without it the folder is no checkpoint
    for name in disk.list_names(folder):
        disk.remove(disk.join(folder, name))
    if not disk.is_url(folder):
        shutil.rmtree(disk.local_path(folder))


def _sync_folder(path: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
