"""Sharded checkpoints, and any checkpoint into any layout.

Every rank writes its part of weights, moments, masters and averages as shard-K-….safetensors, by
torch.distributed.checkpoint with its safetensors format: tensors under our names, each with its
offset in the whole tensor in the file's header, nothing pickled, so that one process reads it
without a process group. A copy in host memory is written while training continues. When all ranks
have written, rank 0 hashes the files, writes state.json and renames the folder. One save is under
way at a time.

Keys are model/NAME and optimizer/NAME/PART.
"""

from __future__ import annotations

import dataclasses
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
from manifests.documents import CheckpointRecord
from manifests.run_layout import RunLayout
from train.dist import checkpoint, process_group
from train.dist.checkpoint import Checkpoint, Moments
from train.dist.process_group import Ranks
from train.formats import from_open_clip
from train.model import CLIP
from train.step import Update

logger = logging.getLogger(__name__)
TABLE = "text.token_embedding.weight"


# --- writing --------------------------------------------------------------------------------------


class Saver:
    """Writes the checkpoints of a sharded run in the background."""

    def __init__(self, run: str, ranks: Ranks, keep: int = checkpoint.KEEP) -> None:
        if disk.is_url(run):
            raise ValueError(
                f"--out is {run}, but the checkpoints of a sharded run (dp_shard or tp above 1) "
                "need a folder that all its ranks see; choose a local or shared folder"
            )
        self.run, self.ranks, self.keep = run, ranks, keep
        self._written: Any = None  # a future of torch's
        self._commit: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        weights: Mapping[str, Tensor],
        optimizer: Moments,
        record: CheckpointRecord,
    ) -> None:
        """Begin to write a checkpoint. It waits for the one before, and for a copy in host memory.
        A collective.

        Layout and hashes of the record are filled in.
        """
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.finish()
        began = time.perf_counter()
        parent = RunLayout(self.run).checkpoints
        folder = disk.join(parent, f".step-{record.step}.partial.shards")
        if self.ranks.rank == 0:
            shutil.rmtree(disk.local_path(folder), ignore_errors=True)
            disk.local_path(folder).mkdir(parents=True)
        process_group.barrier(self.ranks)
        tensors = {f"model/{name}": value for name, value in weights.items()}
        for name, parts in optimizer.items():
            tensors |= {f"optimizer/{name}/{part}": value for part, value in parts.items()}
        copies = {}
        for key, value in tensors.items():
            on_cpu = value.device.type == "cpu"  # async_save copies what is on a GPU
            copies[key] = value.detach().clone() if on_cpu else value.detach()
        self._written = async_save(
            copies,
            storage_writer=HuggingFaceStorageWriter(
                str(disk.local_path(folder)), save_distributed=True
            ),
            process_group=self.ranks.checkpoint_group,
            no_dist=self.ranks.world == 1,
        )
        if self.ranks.rank == 0:
            record = dataclasses.replace(record, layout=self.ranks.layout)
            self._commit = threading.Thread(
                target=self._publish, args=(folder, record), name="checkpoint"
            )
            self._commit.start()
            waited = time.perf_counter() - began
            logger.info("step %d is being saved; training waited %.2f s", record.step, waited)

    def finish(self) -> None:
        """Wait until the save under way is complete on disk, on every rank. OSError where it
        failed.
        """
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

    def _publish(self, folder: str, record: CheckpointRecord) -> None:
        try:
            self._written.result()
            names = disk.list_names(folder)
            paths = [disk.join(folder, name) for name in names]
            with ThreadPoolExecutor(4) as threads:
                hashes = list(threads.map(disk.file_sha256, paths))
            complete = dataclasses.replace(record, sha256=dict(zip(names, hashes, strict=True)))
            checkpoint.publish(self.run, folder, complete, self.keep)
        except BaseException as error:  # raised by `finish`, in the thread that trains
            self._error = error


# --- reading --------------------------------------------------------------------------------------


def newest(run: str, ranks: Ranks) -> Checkpoint | None:
    """The newest complete checkpoint, the same on every rank; rank 0 checks it. A collective."""
    if ranks.world == 1:
        return checkpoint.latest(run)
    own = checkpoint.latest(run) if ranks.rank == 0 else None
    step = process_group.all_gather_int(0 if own is None else own.step, ranks)[0]
    if step == 0:
        return None
    return checkpoint.at(run, step) if own is None else own


def restore(
    saved: Checkpoint, model: CLIP, update: Update, used_tokens: Tensor | None, ranks: Ranks
) -> None:
    """Put weights and optimizer state back, from any layout into that of `model`.

    `used_tokens` are the tokens that the run reads: the token table may have been, or may now be,
    reduced to them.
    """
    parameters = dict(model.named_parameters())
    if saved.sharded:
        weights, moments = read(saved.folder, parameters, ranks)
    else:
        weights, moments = from_open_clip(saved.model, model.config), saved.optimizer
    moments = {name: dict(parts) for name, parts in moments.items()}
    if len(weights[TABLE]) != len(parameters[TABLE]):
        weights[TABLE] = weights[TABLE][used_tokens]
    _fit_table(moments[TABLE], len(parameters[TABLE]), used_tokens)
    for name, parameter in parameters.items():
        stepped_dtype = update.stepped[name].tensors[0].dtype
        if parameter.dtype != stepped_dtype:
            # 16-bit weights with fp32 masters: the fp32 weights of a layout without masters are
            # these.
            if "master" not in moments[name] and weights[name].dtype == stepped_dtype:
                moments[name]["master"] = weights[name]
        elif "master" in moments[name]:
            weights[name] = moments[name].pop("master")
        weights[name] = _in_layout_of(parameter, weights[name])
        for part, value in moments[name].items():
            moments[name][part] = _in_layout_of(parameter, value)
    model.load_state_dict(weights)
    update.restore(moments)


def read(
    folder: str, parameters: Mapping[str, nn.Parameter], ranks: Ranks
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Weights and optimizer state of a folder of shards, each in the layout of the parameter that
    it belongs to.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    source = HuggingFaceStorageReader(str(disk.local_path(folder)))
    tensors: dict[str, Tensor] = {}
    for key, entry in source.read_metadata().state_dict_metadata.items():
        assert not isinstance(entry, BytesStorageMetadata)  # a safetensors file has tensors only
        parameter, dtype = parameters.get(key.split("/")[1]), entry.properties.dtype
        if parameter is not None and parameter.shape == entry.size:
            tensors[key] = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            tensors[key] = torch.empty(entry.size, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that this is one process
        load(
            tensors,
            storage_reader=source,
            process_group=ranks.checkpoint_group,
            no_dist=ranks.world == 1,
        )
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, name, *part = key.split("/")
        if kind == "model":
            weights[name] = value
        else:
            moments.setdefault(name, {})[part[0]] = value
    return weights, moments


def _fit_table(parts: dict[str, Tensor], rows: int, used_tokens: Tensor | None) -> None:
    """Moments of a token table, for a table of `rows` rows. A row that no token used never had a
    gradient: it is 0.
    """
    for part, value in parts.items():
        if value.ndim != 2 or len(value) == rows:
            continue
        assert used_tokens is not None
        if len(used_tokens) == rows:
            parts[part] = value[used_tokens]
        else:
            full = value.new_zeros((rows, value.shape[1]))
            parts[part] = full.index_copy(0, used_tokens, value)


def _in_layout_of(parameter: Tensor, whole: Tensor) -> Tensor:
    """This rank's part of a whole tensor that has the shape of a DTensor `parameter`; other tensors
    as they are.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(parameter, DTensor) or isinstance(whole, DTensor):
        return whole
    if whole.shape != parameter.shape:
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    slices = tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))
    part = whole[slices].to(parameter.to_local().device).contiguous().clone()
    return DTensor.from_local(
        part,
        mesh,
        placements,
        shape=parameter.shape,
        stride=parameter.stride(),
        run_check=False,
    )


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; a plain tensor as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def gathered(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors in rank 0's host memory, one after the other; {} on the other ranks. A
    collective.
    """
    # On a mesh of several dimensions it logs for every tensor that gathering takes two operations.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    whole_tensors = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if ranks.rank == 0:
            whole_tensors[name] = whole.detach().to("cpu", copy=True)
    return whole_tensors
