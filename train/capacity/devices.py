"""Devices to plan for: their memory and speed by name, and what is free on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from manifests.disk import did_you_mean
from train.hardware import DeviceSheet, own_sheets, read_sheets, sheet_of

GIB = 2**30
# ViT micro in fp32 reaches 56 GFLOP/s on one core (benchmarks/results/cpu_micro.json).
CPU_CORE_FLOPS = 80e9
CPU_UTILISATION = 0.7
# Share of a device's memory: fragments, libraries, the context of a GPU, errors of estimates.
MARGIN = 0.1
DEVICE_SHARE = "CLIPMILL_DEVICE_SHARE"  # runs side by side that share this run's device


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that holds one rank: a GPU, or this machine's processor and host memory."""

    name: str
    kind: str  # cuda or cpu
    memory: int  # bytes that a rank may hold, before the margin
    utilisation: float | None = None  # share of the peak that training reaches; None: not stated
    cores: float = 1.0  # of a processor, for one rank
    sheet: DeviceSheet | None = None  # of a GPU that is planned for

    @property
    def budget(self) -> int:
        """Bytes that an estimate may need."""
        return int(self.memory * (1 - MARGIN))

    def peak_flops(self, precision: str) -> float:
        """Operations a second at most. ValueError for a precision that the device lacks."""
        if self.kind == "cpu":
            return self.cores * CPU_CORE_FLOPS
        assert self.sheet is not None
        peak = self.sheet.peak_flops(precision)
        if peak is None:
            has = ", ".join(self.sheet.tflops)
            raise ValueError(
                f"precision is {precision}, which {self.name} has no products of; set it to one "
                f"of {has}"
            )
        return peak

    def is_called(self, name: str) -> bool:
        """Whether a run's record with this name of a device is of a device of this kind."""
        if self.kind == "cpu":
            return "processor" in name
        if self.sheet is None:
            return name == self.name
        if self.sheet in own_sheets().values():
            return sheet_of(name) == self.sheet
        return any(word in name for word in self.sheet.matches)


def device_of(name: str, utilisation: float | None = None, ranks: int = 1) -> Device:
    """A device by name: of clipmill's data sheets, of a file (`FILE.json` or `FILE.json:NAME`),
    `cpu` (this machine), or `auto` (this machine's best).

    `ranks` share a processor and its memory. ValueError for an unknown name, a wrong file, and for
    an utilisation outside (0, 1].
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
            utilisation=utilisation,
            cores=(os.cpu_count() or 1) / ranks,
        )
    sheet, memory = _sheet_of_name(name), None
    if sheet is None and torch.cuda.is_available() and name == torch.cuda.get_device_name(0):
        sheet = sheet_of(name)
        memory = torch.cuda.get_device_properties(0).total_memory
    if sheet is None:
        known = [*own_sheets(), "cpu", "auto"]
        raise ValueError(
            f"there is no device {name!r}{did_you_mean(name, known)} (of {', '.join(known)}, or a "
            "FILE.json of devices)"
        )
    return Device(
        name=sheet.name,
        kind="cuda",
        memory=int(sheet.memory_gib * GIB) if memory is None else memory,
        utilisation=utilisation,
        sheet=sheet,
    )


def _sheet_of_name(name: str) -> DeviceSheet | None:
    """The sheet of a name that a person wrote. ValueError for a file without that device."""
    path, is_file, key = name.partition(".json")
    if not is_file:
        return own_sheets().get(name)
    path, key = path + is_file, key.removeprefix(":")
    sheets = read_sheets(path)
    if not key and len(sheets) == 1:
        return next(iter(sheets.values()))
    if key not in sheets:
        missing = f"no device {key!r}" if key else f"{len(sheets)} devices"
        raise ValueError(f"{path} has {missing}; write {path}:NAME, of {', '.join(sheets)}")
    return sheets[key]


def _own_gpu() -> str | None:
    """The name of this machine's first GPU; None where it has none, or none with a known peak."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0)
    return name if sheet_of(name) is not None else None


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
