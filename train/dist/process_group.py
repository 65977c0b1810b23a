"""The processes of a run (gloo on CPUs, nccl on GPUs), and the mesh of a model over them.

`init_distributed` reads the variables that torchrun, Ray and `launch` set; `build_mesh` gives the
ranks their layout; `apply_ddp` averages gradients where every rank holds the whole model (for the
rest see `parallelize`).

The mesh has the dimensions dp_replicate x dp_shard x tp, in this order over the ranks. Ranks of one
tp group see the same samples and hold parts of the same layers; all others see different samples.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train.config import TrainConfig, check_layout
from train.step import DataParallel

TIMEOUT = timedelta(minutes=10)  # after which a rank that waits for another one fails
STORE = "CLIPMILL_STORE"  # a file through which the ranks of one machine find each other
MESH = ("dp_replicate", "dp_shard", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of the run, and the device it computes on."""

    rank: int
    world: int
    device: torch.device
    owns_group: bool  # whether `close` has a group to end
    dp_shard: int = 1
    tp: int = 1
    mesh: Any = None  # of MESH's dimensions; None where every rank holds the whole model
    dp_group: Any = None  # the ranks with the same part of the layers; None: all
    checkpoint_group: Any = None  # a gloo group of all ranks, for saving in the background

    @property
    def dp(self) -> int:
        """Ranks that see different samples."""
        return self.world // self.tp

    @property
    def dp_replicate(self) -> int:
        """Copies of the whole model."""
        return self.world // (self.dp_shard * self.tp)

    @property
    def layout(self) -> dict[str, int]:
        """The sizes of the mesh's dimensions, by name."""
        return {"dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard, "tp": self.tp}

    @property
    def fsdp(self) -> bool:
        """Whether FSDP2 averages the gradients.

        With tensor parallelism it does so even where it shards over one rank: DDP refuses DTensors.
        """
        return self.dp_shard > 1 or (self.tp > 1 and self.dp_replicate > 1)

    @property
    def data_parallel(self) -> DataParallel:
        """How a global batch lies over the ranks."""
        return DataParallel(rank=self.rank // self.tp, world=self.dp, group=self.dp_group)


def init_distributed(device: str = "auto") -> Ranks:
    """Join the group that torchrun's variables name, or be alone. ValueError for a device that is
    not there.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if device.startswith("cuda") and not cuda:
        raise ValueError(
            f"device is {device!r}, but torch finds no GPU here; set device to cpu or auto"
        )
    target = torch.device(("cuda" if cuda else "cpu") if device == "auto" else device)
    if world > 1 and target.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"rank {rank} has no GPU: there are {torch.cuda.device_count()}; start fewer ranks"
            )
        target = torch.device("cuda", local)
        torch.cuda.set_device(target)
    began = world > 1 and not dist.is_initialized()
    if began:
        store = os.environ.get(STORE)
        method = None if store is None else f"file://{store}"
        # gloo too: tensors that are offloaded lie in host memory
        kind = "cpu:gloo,cuda:nccl" if target.type == "cuda" else "gloo"
        dist.init_process_group(
            kind, init_method=method, rank=rank, world_size=world, timeout=TIMEOUT
        )
    return Ranks(rank=rank, world=world, device=target, owns_group=began)


def build_mesh(ranks: Ranks, config: TrainConfig) -> Ranks:
    """The ranks on the mesh that the settings ask for. ValueError where they do not fill it."""
    check_layout(config, ranks.world)
    if config.dp_shard == config.tp == 1:
        return ranks
    from torch.distributed.device_mesh import init_device_mesh

    shape = (ranks.world // (config.dp_shard * config.tp), config.dp_shard, config.tp)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=MESH)
    columns = [list(range(t, ranks.world, config.tp)) for t in range(config.tp)]
    own, _ = dist.new_subgroups_by_enumeration(columns)
    checkpoint_group = dist.new_group(backend="gloo")
    return dataclasses.replace(
        ranks,
        dp_shard=config.dp_shard,
        tp=config.tp,
        mesh=mesh,
        dp_group=own,
        checkpoint_group=checkpoint_group,
    )


def close(ranks: Ranks) -> None:
    """End the group that `init_distributed` began."""
    if ranks.owns_group:
        dist.destroy_process_group()


def apply_ddp(model: nn.Module, ranks: Ranks) -> nn.Module:
    """`model` in DDP, which averages gradients during backward. All ranks start from rank 0's
    parameters.

    On a mesh `parallelize` has done that; with one rank there is nothing to average.
    """
    if ranks.world == 1 or ranks.mesh is not None:
        return model
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def mean(values: Tensor, ranks: Ranks) -> Tensor:
    """The mean over the ranks of each of a few numbers; NaN where one rank has NaN.

    It stays on the device: on a GPU nothing waits for it.
    """
    if ranks.world > 1:
        values = values.clone()
        dist.all_reduce(values)
        values /= ranks.world
    return values


def all_gather_int(number: int, ranks: Ranks) -> list[int]:
    """An integer of each rank, in their order."""
    if ranks.world == 1:
        return [number]
    numbers = torch.zeros(ranks.world, dtype=torch.int64, device=ranks.device)
    numbers[ranks.rank] = number
    dist.all_reduce(numbers)
    return [int(value) for value in numbers.tolist()]


def all_gather_json(value: Any, ranks: Ranks, group: Any = None) -> list[Any]:
    """A plain value of each rank, in rank order. It is sent as JSON: nothing is unpickled.

    `group` is another group of all ranks, for host memory: for a thread beside the one that trains.
    """
    if ranks.world == 1:
        return [value]
    device = ranks.device if group is None else torch.device("cpu")
    data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=device)
    length = torch.tensor([len(data)], device=device)
    lengths = [torch.empty_like(length) for _ in range(ranks.world)]
    dist.all_gather(lengths, length, group=group)
    padded = torch.zeros(max(int(each) for each in lengths), dtype=torch.uint8, device=device)
    padded[: len(data)] = data
    parts = [torch.empty_like(padded) for _ in range(ranks.world)]
    dist.all_gather(parts, padded, group=group)
    texts = [bytes(part[:length].tolist()) for part, length in zip(parts, lengths, strict=True)]
    return [json.loads(text) for text in texts]


def barrier(ranks: Ranks) -> None:
    """Wait until every rank is here."""
    if ranks.world > 1:
        dist.barrier()
