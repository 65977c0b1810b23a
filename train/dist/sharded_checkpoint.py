"""Checkpoints in shards, and any checkpoint into any layout.

Every rank writes what it holds of weights, moments, masters and averages as shard-K-….safetensors, by
torch.distributed.checkpoint with its safetensors format: tensors under our names, each with its place in the whole
tensor in the file's header, nothing pickled, so that one process reads it without a group. Writing goes on beside the
training, from a copy in main memory; when all ranks have written, rank 0 hashes the files, writes state.json and
renames the folder. One save is under way at a time.

Keys are model/NAME and optimizer/NAME/PART.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from manifests import disk
from train.dist import checkpoint
from train.dist import process_group
from train.dist.checkpoint import Checkpoint, Moments
from train.model import CLIP
from train.step import Update
from train.dist.process_group import Ranks
from train.formats import from_open_clip

logger = logging.getLogger(__name__)
TABLE = "text.token_embedding.weight"


# --- writing ---------------------------------------------------------------------------------------------------------


class Saver:
    """Writes the checkpoints of a sharded run in the background."""

    def __init__(self, run: str, ranks: Ranks) -> None:
        if disk.is_url(run):
            raise ValueError(f"a sharded run writes its checkpoints to a folder that all its ranks see; {run} is none")
        self.run, self.ranks = run, ranks
        self._written: Any = None  # a future of torch's
        self._commit: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, weights: Mapping[str, Tensor], optimizer: Moments, about: Mapping[str, Any]) -> None:
        """Begin to write the checkpoint of `step`; it waits for the one before and for a copy in main memory."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.finish()
        began = time.perf_counter()
        place = disk.join(self.run, "checkpoints", f".step-{step}.partial.shards")
        if self.ranks.rank == 0:
            shutil.rmtree(disk.local_path(place), ignore_errors=True)
            disk.local_path(place).mkdir(parents=True)
        process_group.barrier(self.ranks)
        tensors = {f"model/{name}": x for name, x in weights.items()}
        tensors |= {f"optimizer/{name}/{part}": x for name, parts in optimizer.items() for part, x in parts.items()}
        held = {key: x.detach().clone() if x.device.type == "cpu" else x.detach() for key, x in tensors.items()}
        writer = HuggingFaceStorageWriter(str(disk.local_path(place)), save_distributed=True)
        alone = self.ranks.world == 1
        self._written = async_save(held, storage_writer=writer, process_group=self.ranks.checkpoint_group, no_dist=alone)
        if self.ranks.rank == 0:
            layout = {name: getattr(self.ranks, name) for name in ("dp_replicate", "dp_shard", "tp")}
            state = {**about, "layout": layout}
            self._commit = threading.Thread(target=self._publish, args=(step, place, state), name="checkpoint")
            self._commit.start()
            logger.info("step %d is being saved; training waited %.2f s", step, time.perf_counter() - began)

    def finish(self) -> None:
        """Wait until what was begun is whole on disk, on every rank."""
        if self._written is None:
            return
        self._written.result()
        if self._commit is not None:
            self._commit.join()
        self._written = self._commit = None
        failed = process_group.all_gather_int(int(self._error is not None), self.ranks)
        if self._error is not None:
            raise self._error
        if any(failed):
            raise OSError("rank 0 could not save the checkpoint; its own message says why")

    def _publish(self, step: int, place: str, state: dict[str, Any]) -> None:
        try:
            self._written.result()
            names = disk.list_names(place)
            with ThreadPoolExecutor(4) as pool:
                hashes = pool.map(checkpoint.hash_of, [disk.join(place, name) for name in names])
                state = {**state, "sha256": dict(zip(names, hashes, strict=True))}
            checkpoint.publish(self.run, step, place, state)
        except BaseException as error:  # raised by `finish`, in the thread that trains
            self._error = error


# --- reading ---------------------------------------------------------------------------------------------------------


def newest(run: str, ranks: Ranks) -> Checkpoint | None:
    """The newest checkpoint that is whole, the same on every rank; rank 0 checks it."""
    if ranks.world == 1:
        return checkpoint.latest(run)
    found = checkpoint.latest(run) if ranks.rank == 0 else None
    step = process_group.all_gather_int(0 if found is None else found.step, ranks)[0]
    if step == 0:
        return None
    return checkpoint.at(run, step) if found is None else found


def restore(found: Checkpoint, model: CLIP, update: Update, used: Tensor | None, ranks: Ranks) -> None:
    """Put weights and all that belongs to the optimizer back, from any layout into that of `model`.

    `used` are the tokens that the run reads: a token table may have been, or may now be, reduced to them.
    """
    held = dict(model.named_parameters())
    if found.sharded:
        weights, moments = read(found.folder, held, ranks)
    else:
        weights, moments = from_open_clip(found.model, model.config), found.optimizer
    moments = {name: dict(parts) for name, parts in moments.items()}
    if len(weights[TABLE]) != len(held[TABLE]):
        weights[TABLE] = weights[TABLE][used]
    _fit(moments[TABLE], len(held[TABLE]), used)
    for name, parameter in held.items():
        stepped = update.stepped[name].tensors[0].dtype
        if parameter.dtype != stepped:  # 16 bits with masters: 32 from a layout that has no masters are these
            if "master" not in moments[name] and weights[name].dtype == stepped:
                moments[name]["master"] = weights[name]
        elif "master" in moments[name]:
            weights[name] = moments[name].pop("master")
        weights[name] = _laid(weights[name], parameter)
        moments[name] = {part: _laid(x, parameter) for part, x in moments[name].items()}
    model.load_state_dict(weights)
    update.restore(moments)


def read(
    folder: str, held: Mapping[str, nn.Parameter], ranks: Ranks
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Weights and optimizer state of a folder of shards, each laid out as the parameter that it belongs to."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    source = HuggingFaceStorageReader(str(disk.local_path(folder)))
    wanted: dict[str, Tensor] = {}
    for key, about in source.read_metadata().state_dict_metadata.items():
        assert not isinstance(about, BytesStorageMetadata)  # a safetensors file holds tensors alone
        like, size, dtype = held.get(key.split("/")[1]), about.size, about.properties.dtype
        if like is not None and like.shape == size:
            wanted[key] = torch.empty_like(like.detach(), dtype=dtype)
        else:
            wanted[key] = torch.empty(size, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this is one process
        load(wanted, storage_reader=source, process_group=ranks.checkpoint_group, no_dist=ranks.world == 1)
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in wanted.items():
        kind, name, *part = key.split("/")
        if kind == "model":
            weights[name] = value
        else:
            moments.setdefault(name, {})[part[0]] = value
    return weights, moments


def _fit(parts: dict[str, Tensor], rows: int, used: Tensor | None) -> None:
    """Moments of a token table for one of `rows` rows. Rows that no token used never had a gradient: theirs are 0."""
    for part, x in parts.items():
        if x.ndim == 2 and len(x) != rows:
            assert used is not None
            parts[part] = x[used] if len(used) == rows else x.new_zeros((rows, x.shape[1])).index_copy(0, used, x)


def _laid(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as this rank holds one of the shape and layout of `like`; what is no such tensor as it is."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(like, DTensor) or isinstance(whole, DTensor) or whole.shape != like.shape:
        return whole
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    own = whole[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]
    local = own.to(like.to_local().device).contiguous().clone()
    return DTensor.from_local(
        local, like.device_mesh, like.placements, shape=like.shape, stride=like.stride(), run_check=False
    )


def local(x: Tensor) -> Tensor:
    """This rank's part of a tensor that may be shared out."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part


def gathered(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors in rank 0's main memory, one after the other; nothing on the other ranks."""
    # It tells of every tensor on a mesh of several dimensions that gathering takes two operations.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    found = {}
    for name, x in tensors.items():
        whole = x.full_tensor() if hasattr(x, "full_tensor") else x
        if ranks.rank == 0:
            found[name] = whole.detach().to("cpu", copy=True)
    return found
