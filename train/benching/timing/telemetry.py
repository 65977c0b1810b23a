"""Utilisation, power and energy of a GPU while something runs, where NVML answers.

NVML is read through the package pynvml (pip install nvidia-ml-py), which is optional.
"""

from __future__ import annotations

import importlib
import statistics
import threading
import time
from types import TracebackType
from typing import Any

import torch

INTERVAL_S = 0.1  # NVML averages the utilisation over 1/6 s to 1 s


class Telemetry:
    """Reads a GPU in a thread while its block runs. Without NVML every figure is None."""

    def __init__(self, device: torch.device) -> None:
        self._nvml, self._handle = _open(device)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._utilisation: list[float] = []
        self._watts: list[float] = []
        self._joules: float | None = None
        self._seconds = 0.0

    def __enter__(self) -> Telemetry:
        self._began = time.perf_counter()
        self._energy = self._read_energy()
        if self._handle is not None:
            self._thread = threading.Thread(target=self._sample, daemon=True, name="telemetry")
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._seconds = time.perf_counter() - self._began
        after = self._read_energy()
        if after is not None and self._energy is not None:
            self._joules = after - self._energy

    def figures(self) -> dict[str, float | None]:
        """Means over the block: device_utilisation (0 to 1), watts, and joules of all of it."""
        watts = statistics.fmean(self._watts) if self._watts else None
        joules = self._joules
        if joules is None and watts is not None:
            joules = watts * self._seconds
        if joules is not None and self._seconds > 0:
            watts = joules / self._seconds
        busy = statistics.fmean(self._utilisation) if self._utilisation else None
        return {"device_utilisation": busy, "watts": watts, "joules": joules}

    def _sample(self) -> None:
        while True:
            try:
                rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
                self._utilisation.append(rates.gpu / 100)
                self._watts.append(self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)
            except self._nvml.NVMLError:  # of a GPU that does not say
                pass
            if self._stop.wait(INTERVAL_S):
                return

    def _read_energy(self) -> float | None:
        """Joules since the driver was loaded; None for a GPU that does not count them."""
        if self._handle is None:
            return None
        try:
            millijoules: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except self._nvml.NVMLError:
            return None
        return millijoules / 1000


def _open(device: torch.device) -> tuple[Any, Any]:
    """NVML and its handle of a CUDA device; the handle is None where there is none."""
    if device.type != "cuda":
        return None, None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, None
    try:
        nvml.nvmlInit()
        # The number of a device in NVML ignores CUDA_VISIBLE_DEVICES, and its UUID does not.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        return nvml, nvml.nvmlDeviceGetHandleByUUID(name.encode())
    except nvml.NVMLError:
        return nvml, None
