"""The processes of a run (gloo on CPUs, nccl on GPUs), how they start, and the mesh over them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clipmill.manifests import console
from clipmill.train.config import TrainConfig, check_layout
from clipmill.train.step.loss import DataParallel

# --------------------------------------------------------------------------------------------------
# The processes of a run (gloo on CPUs, nccl on GPUs), and the mesh of a model over them.
#
# `init_distributed` reads the variables that torchrun, Ray and `launch` set; `build_mesh` gives
# the ranks their layout; `apply_ddp` averages gradients where every rank holds the whole model
# (for the rest see `parallelize`).
#
# The mesh has the dimensions dp_replicate x dp_shard x tp, in this order over the ranks. Ranks of
# one tp group see the same samples and hold parts of the same layers; all others see different
# samples.


TIMEOUT = timedelta(minutes=10)  # after which a rank that waits inside of a step fails
# After which a rank fails that waits for files of another one: a store may be slow for long. A rank
# that has ended is noticed at once.
HOST_TIMEOUT = timedelta(hours=6)
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
    # Gloo groups of all ranks, with HOST_TIMEOUT; None: the default group
    host_group: Any = None  # for values of the host, and for waiting
    checkpoint_group: Any = None  # for the thread that saves a sharded model

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


ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"), owns_group=False)


def init_distributed(device: str = "auto", timeout: timedelta | None = None) -> Ranks:
    """Join the group that torchrun's variables name, or be alone. ValueError for a device that is
    not there.

    timeout: after which a rank that waits inside of a step fails, by default TIMEOUT.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if device.startswith("cuda") and not cuda:
        raise ValueError(
            f"device is {device!r}, but torch finds no GPU here; set device to cpu or auto"
        )
    target = torch.device(("cuda" if cuda else "cpu") if device == "auto" else device)
    if target.type == "cuda":
        target = _own_gpu(target, rank, world)
        torch.cuda.set_device(target)  # streams, events and NCCL use the current device
    began = world > 1 and not dist.is_initialized()
    if began:
        store = os.environ.get(STORE)
        method = None if store is None else f"file://{store}"
        # gloo too: for tensors in host memory
        kind = "cpu:gloo,cuda:nccl" if target.type == "cuda" else "gloo"
        dist.init_process_group(
            kind,
            init_method=method,
            rank=rank,
            world_size=world,
            timeout=timeout or TIMEOUT,
            # Otherwise NCCL guesses the GPU by the rank, which may be another job's.
            device_id=target if target.type == "cuda" else None,
        )
    host_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT) if world > 1 else None
    return Ranks(rank=rank, world=world, device=target, owns_group=began, host_group=host_group)


def _own_gpu(asked: torch.device, rank: int, world: int) -> torch.device:
    """The GPU of this process, with its number. ValueError where torch sees no such GPU."""
    there = torch.cuda.device_count()
    if world > 1:
        number = int(os.environ.get("LOCAL_RANK", "0"))
        if number >= there:
            raise ValueError(f"rank {rank} has no GPU: there are {there}; start fewer ranks")
    else:
        number = torch.cuda.current_device() if asked.index is None else asked.index
        if number >= there:
            raise ValueError(
                f"device is 'cuda:{number}', but torch sees {there} GPU{'s' if there > 1 else ''} "
                f"here, from cuda:0 on; set device to cuda"
            )
    return torch.device("cuda", number)


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
    checkpoint_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
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

    On a mesh `parallelize` has done that; with one rank there is nothing to average. The running
    statistics of BatchNorm are not broadcast: all ranks have them of the whole batch.
    """
    if ranks.world == 1 or ranks.mesh is not None:
        return model
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(
        model, device_ids=devices, gradient_as_bucket_view=True, broadcast_buffers=False
    )


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
    """An integer of each rank, in their order. It waits for files of another rank, too."""
    if ranks.world == 1:
        return [number]
    numbers = torch.zeros(ranks.world, dtype=torch.int64)
    numbers[ranks.rank] = number
    dist.all_reduce(numbers, group=ranks.host_group)
    return [int(value) for value in numbers.tolist()]


def all_gather_json(value: Any, ranks: Ranks, group: Any = None) -> list[Any]:
    """A plain value of each rank, in rank order. It is sent as JSON: nothing is unpickled.

    `group` is another one than the host's: for a thread beside the one that trains.
    """
    if ranks.world == 1:
        return [value]
    group = ranks.host_group if group is None else group
    data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
    length = torch.tensor([len(data)])
    lengths = [torch.empty_like(length) for _ in range(ranks.world)]
    dist.all_gather(lengths, length, group=group)
    padded = torch.zeros(max(int(each) for each in lengths), dtype=torch.uint8)
    padded[: len(data)] = data
    parts = [torch.empty_like(padded) for _ in range(ranks.world)]
    dist.all_gather(parts, padded, group=group)
    texts = [bytes(part[:length].tolist()) for part, length in zip(parts, lengths, strict=True)]
    return [json.loads(text) for text in texts]


def barrier(ranks: Ranks) -> None:
    """Wait until every rank is here, however long its files take."""
    if ranks.world > 1:
        dist.barrier(group=ranks.host_group)


# --------------------------------------------------------------------------------------------------
# Start a command as several ranks on this machine, with the variables that torchrun sets.


GRACE_S = 30.0  # for the other ranks to end by themselves once one has failed


def launch_ranks(
    command: Sequence[str], world: int, variables: Mapping[str, str] | None = None
) -> int:
    """Run `command`, a process of clipmill, as `world` ranks on this machine. The exit status of
    the first that fails, or 0. `variables` go over those of this process.

    The first stop signal is passed on to every rank; the second kills them, unless it is SIGHUP,
    which comes twice of a closed terminal. Ranks have a session of their own, so that Ctrl-C
    reaches them once, through this process. 128 + N where signal N ended them. They find each other
    through a file and communicate over loopback: the store of torchrun listens on every network
    interface and unpickles what it receives.
    """
    threads = str(max(1, (os.cpu_count() or 1) // world))
    ranks: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if received and number == signal.SIGHUP:
            return
        received.append(number)
        for process in ranks:
            if len(received) > 1:
                process.kill()
            else:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in console.stop_signals()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            shared = {"WORLD_SIZE": str(world), STORE: os.path.join(folder, "store")}
            shared |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
            shared = console.child_variables(**(variables or {}), **shared)
            shared.setdefault("OMP_NUM_THREADS", threads)
            for rank in range(world):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                process = subprocess.Popen(command, env={**shared, **own}, start_new_session=True)
                ranks.append(process)
                if received:  # while the ranks before this one were started
                    ranks[-1].terminate()
            status = _wait(ranks)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        for process in ranks:
            process.kill()
            process.wait()
    # Ended by the signal: there was nothing to save yet, or there were two signals
    if status < 0 and received:
        return 128 + received[-1]
    return status


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """0 when every rank ends with 0; else the status of the first that fails, after the others had
    time to end.
    """
    failed, until = 0, float("inf")
    while time.monotonic() < until:
        statuses = [rank.poll() for rank in ranks]
        if None not in statuses:
            break
        if not failed and any(statuses):
            failed = next(status for status in statuses if status)
            until = time.monotonic() + GRACE_S
        time.sleep(0.05)
    return failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
