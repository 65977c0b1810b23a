"""Devices to plan for: their memory and speed by name, and what is free on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from manifests.disk import did_you_mean
from train.model import peak_flops

GIB = 2**30
# Name -> memory that programs can allocate, and the name in NVIDIA's datasheets.
GPUS: dict[str, tuple[float, str]] = {
    "a100-40gb": (39.4, "A100"),
    "a100-80gb": (79.1, "A100"),
    "h100-80gb": (79.1, "H100"),
    "h200-141gb": (139.7, "H200"),
    "b200-180gb": (178.3, "B200"),
    "l40s-48gb": (44.4, "L40S"),
    "l4-24gb": (22.0, "L4"),
}
# Share of the peak that training reaches. Published CLIP runs: 0.12 to 0.38 of a GPU's.
GPU_UTILISATION = 0.2
# ViT micro in fp32 reaches 56 GFLOP/s on one core (benchmarks/results/cpu_micro.json).
CPU_CORE_FLOPS = 80e9
CPU_UTILISATION = 0.7
MARGIN = (
    0.1  # of a device's memory: fragments, libraries, the context of a GPU, errors of estimates
)
DEVICE_SHARE = "CLIPMILL_DEVICE_SHARE"  # runs side by side that share this run's device


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that holds one rank: a GPU, or this machine's processor and host memory."""

    name: str
    kind: str  # cuda or cpu
    memory: int  # bytes that a rank may hold, before the margin
    utilisation: float  # share of the peak that training reaches
    cores: float = 1.0  # of a processor, for one rank

    @property
    def budget(self) -> int:
        """Bytes that an estimate may need."""
        return int(self.memory * (1 - MARGIN))

    def flops_per_s(self, precision: str) -> float:
        """Operations a second that training is assumed to reach."""
        if self.kind == "cpu":
            return self.cores * CPU_CORE_FLOPS * self.utilisation
        peak = peak_flops(self.name, precision)
        assert peak is not None
        return peak * self.utilisation


def device_of(name: str, utilisation: float | None = None, ranks: int = 1) -> Device:
    """A device by name: a GPU of `GPUS`, `cpu` (this machine), or `auto` (this machine's best).

    `ranks` share a processor and its memory. ValueError for an unknown name and for an utilisation
    outside (0, 1].
    """
    if utilisation is not None and not 0 < utilisation <= 1:
        raise ValueError(f"utilisation is {utilisation}; it must lie in (0, 1]")
    if name == "auto":
        name = _own_gpu() or "cpu"
    if name == "cpu":
        return Device(
            name="cpu",
            kind="cpu",
            memory=free_host_memory() // ranks,
            utilisation=utilisation or CPU_UTILISATION,
            cores=(os.cpu_count() or 1) / ranks,
        )
    if name in GPUS:
        memory, sheet = GPUS[name]
        size = int(memory * GIB)
        return Device(
            name=f"NVIDIA {sheet}",
            kind="cuda",
            memory=size,
            utilisation=utilisation or GPU_UTILISATION,
        )
    if peak_flops(name) is not None and torch.cuda.is_available():
        return Device(
            name=name,
            kind="cuda",
            memory=torch.cuda.get_device_properties(0).total_memory,
            utilisation=utilisation or GPU_UTILISATION,
        )
    known = [*GPUS, "cpu", "auto"]
    raise ValueError(
        f"there is no device {name!r}{did_you_mean(name, known)} (of {', '.join(known)})"
    )


def _own_gpu() -> str | None:
    """The name of this machine's first GPU; None where it has none, or none with a known peak."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0)
    return name if peak_flops(name) is not None else None


def free_memory(device: torch.device, ranks: int = 1) -> int:
    """Bytes that one rank may allocate on a device now.

    `ranks` of this machine share host memory; on GPUs each has its own. Runs that share a device
    are counted by the variable CLIPMILL_DEVICE_SHARE.
    """
    share = max(1, int(os.environ.get(DEVICE_SHARE, "1")))
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // share
    return free_host_memory() // (share * ranks)


def free_host_memory() -> int:
    """Bytes of host memory that this process may still use: of the machine, or of its cgroup."""
    free = _available()
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _cached()))
    return free


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cached() -> int:
    """Bytes of cached files in the cgroup, which are given up when memory is short."""
    try:
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
