"""Data parallelism over the processes of a run (gloo on processors, nccl on GPUs), or one process without it.

`start` runs a command as so many ranks on this machine; torchrun and Ray set the same variables. `set_up` reads them,
`wrap` makes a model average its gradients over the ranks, `mean` averages numbers, `close` ends the group. The models
here fit on one device, so nothing is sharded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train.loss import Shards

TIMEOUT = timedelta(minutes=10)  # a rank that hears nothing for so long ends instead of waiting for ever
GRACE_S = 30.0  # for the other ranks to end by themselves once one has failed
STORE = "CLIPMILL_STORE"  # a file through which the ranks of one machine find each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of the run, and the device it computes on."""

    rank: int
    world: int
    device: torch.device
    began: bool  # whether `close` has a group to end

    @property
    def shards(self) -> Shards:
        """How a global batch lies over the ranks."""
        return Shards(rank=self.rank, world=self.world)


def set_up(device: str = "auto") -> Ranks:
    """Join the group that torchrun's variables name, or be alone. ValueError for a device that is not there."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    cuda = torch.cuda.is_available()
    if device.startswith("cuda") and not cuda:
        raise ValueError(f"device is {device!r}, but torch finds no GPU here; set device to cpu or auto")
    place = torch.device(("cuda" if cuda else "cpu") if device == "auto" else device)
    if world > 1 and place.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(f"rank {rank} has no GPU: there are {torch.cuda.device_count()}; start fewer ranks")
        place = torch.device("cuda", local)
        torch.cuda.set_device(place)
    began = world > 1 and not dist.is_initialized()
    if began:
        store = os.environ.get(STORE)
        method = None if store is None else f"file://{store}"
        kind = "nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(kind, init_method=method, rank=rank, world_size=world, timeout=TIMEOUT)
    return Ranks(rank=rank, world=world, device=place, began=began)


def close(ranks: Ranks) -> None:
    """End the group that `set_up` began."""
    if ranks.began:
        dist.destroy_process_group()


def wrap(model: nn.Module, ranks: Ranks) -> nn.Module:
    """`model`, with its gradients averaged over the ranks during backward. All ranks start from rank 0's parameters."""
    if ranks.world == 1:
        return model
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def mean(values: Tensor, ranks: Ranks) -> list[float]:
    """The mean over the ranks of each of a few numbers; NaN where one rank has NaN."""
    if ranks.world > 1:
        values = values.clone()
        dist.all_reduce(values)
        values /= ranks.world
    return [float(x) for x in values.tolist()]


def barrier(ranks: Ranks) -> None:
    """Wait until every rank is here."""
    if ranks.world > 1:
        dist.barrier()


def start(command: Sequence[str], world: int) -> int:
    """Run `command` as `world` ranks on this machine and pass SIGTERM on to them. The exit status of the first to fail.

    They meet through a file and talk over loopback. torchrun would do as well, but its store listens on every network
    interface and unpickles what it is sent.
    """
    threads = str(max(1, (os.cpu_count() or 1) // world))
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        shared = {"WORLD_SIZE": str(world), STORE: os.path.join(folder, "store")}
        shared |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

        def stop(*_: object) -> None:
            for process in ranks:
                process.terminate()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            for rank in range(world):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(subprocess.Popen(command, env={"OMP_NUM_THREADS": threads, **os.environ, **shared, **own}))
            return _wait(ranks)
        finally:
            signal.signal(signal.SIGTERM, before)
            for process in ranks:
                process.kill()
                process.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """0 when all have ended well; else the status of the first that did not, after the others had time to end."""
    failed, until = 0, float("inf")
    while time.monotonic() < until and None in (statuses := [rank.poll() for rank in ranks]):
        if not failed and any(statuses):
            failed, until = next(status for status in statuses if status), time.monotonic() + GRACE_S
        time.sleep(0.05)
    return failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
