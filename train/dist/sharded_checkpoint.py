"""Sharded checkpoints, and any checkpoint into any layout.

Every rank writes its part of weights, moments, masters and averages as shard-K-….safetensors, by
torch.distributed.checkpoint with its safetensors format: tensors under our names, each with its
offset in the whole tensor in the file's header, nothing pickled, so that one process reads it
without a process group. `saver` publishes them.

Keys are model/NAME and optimizer/NAME/PART.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manifests import disk
from manifests.documents import CheckpointRecord, read_document
from train.dist import checkpoint, process_group
from train.dist.checkpoint import Checkpoint, Moments
from train.dist.process_group import Ranks
from train.formats import from_open_clip
from train.model import CLIP
from train.step import Update

TABLE = "text.token_embedding.weight"


# --- writing --------------------------------------------------------------------------------------


def begin_write(
    folder: str, weights: Mapping[str, Tensor], optimizer: Moments, ranks: Ranks
) -> Any:
    """Begin to write this rank's part into a local folder: a future of torch's.

    Training may change the tensors once this has returned. A collective.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save

    tensors = {f"model/{name}": value for name, value in weights.items()}
    for name, parts in optimizer.items():
        tensors |= {f"optimizer/{name}/{part}": value for part, value in parts.items()}
    copies = {}
    for key, value in tensors.items():
        on_cpu = value.device.type == "cpu"  # async_save copies what is on a GPU
        copies[key] = value.detach().clone() if on_cpu else value.detach()
    return async_save(
        copies,
        storage_writer=HuggingFaceStorageWriter(
            str(disk.local_path(folder)), save_distributed=True
        ),
        process_group=ranks.checkpoint_group,
        no_dist=ranks.world == 1,
    )


def own_files(folder: str, ranks: Ranks) -> list[str]:
    """The names of the shards that this rank wrote into `folder`."""
    prefix = f"shard-{ranks.rank + 1:05d}-"
    return [name for name in disk.list_names(folder) if name.startswith(prefix)]


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
    # A locked parameter has no moments.
    moments = {name: dict(moments.get(name, {})) for name in {**parameters, **moments}}
    if len(weights[TABLE]) != len(parameters[TABLE]):
        weights[TABLE] = weights[TABLE][used_tokens]
    _fit_table(moments[TABLE], len(parameters[TABLE]), used_tokens)
    for name, parameter in parameters.items():
        stepped = update.stepped.get(name)
        stepped_dtype = parameter.dtype if stepped is None else stepped.tensors[0].dtype
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
    from torch.distributed.checkpoint.state_dict_loader import load

    with _local_shards(folder) as local_folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that this is one process
        tensors = _empty_tensors(HuggingFaceStorageReader(local_folder), parameters)
        load(
            tensors,
            storage_reader=HuggingFaceStorageReader(local_folder),
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


@contextlib.contextmanager
def _local_shards(folder: str) -> Iterator[str]:
    """A local folder with the shards of a checkpoint: its own, or one that they are copied to."""
    if not disk.is_url(folder):
        yield str(disk.local_path(folder))
        return
    record = read_document(disk.join(folder, checkpoint.STATE_FILE), CheckpointRecord)
    with disk.scratch_folder("clipmill-shards-") as local_folder:

        def copy(name: str) -> None:
            Path(local_folder, name).write_bytes(disk.read_bytes(disk.join(folder, name)))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(copy, record.sha256))
        yield str(local_folder)


def _empty_tensors(source: Any, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """What is read from `source`, each tensor in the layout of its parameter."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    tensors: dict[str, Tensor] = {}
    for key, entry in source.read_metadata().state_dict_metadata.items():
        assert not isinstance(entry, BytesStorageMetadata)  # a safetensors file has tensors only
        parameter, dtype = parameters.get(key.split("/")[1]), entry.properties.dtype
        if parameter is not None and parameter.shape == entry.size:
            tensors[key] = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            tensors[key] = torch.empty(entry.size, dtype=dtype)
    return tensors


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
