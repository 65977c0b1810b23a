"""From what each rank has timed to the figures of a cell: the ends of steps on a device, the
statistics of repeats, what a GPU says of itself, and the sums over all ranks.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch

from clipmill.bench.report_form import Figures
from clipmill.manifests import disk
from clipmill.train.config import PRESETS
from clipmill.train.parallel import process_group
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.sizing.device_fit import peak_flops
from clipmill.train.trainer.logbook import peak_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of a cell by name, and the samples/s of each repeat."""

    figures: Figures
    rates: tuple[float, ...]


# --- the ends of steps ----------------------------------------------------------------------------


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mark(device: torch.device) -> Any:
    """The end of a step: an event of the device, or the time."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(marks: Sequence[Any]) -> list[float]:
    """Seconds between marks. The device must have passed all of them."""
    seconds = []
    for one, other in itertools.pairwise(marks):
        is_time = isinstance(one, float)
        seconds.append(other - one if is_time else one.elapsed_time(other) / 1000)
    return seconds


# --- statistics -----------------------------------------------------------------------------------

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Statistics of at least one value."""

    count: int
    mean: float
    sd: float | None  # of a sample (divided by count - 1); None for one value
    min: float
    max: float


def spread_of(values: Sequence[float]) -> Spread:
    """The statistics of some values. ValueError for none."""
    if not values:
        raise ValueError("there are no values to take the mean of")
    return Spread(
        count=len(values),
        mean=statistics.fmean(values),
        sd=statistics.stdev(values) if len(values) > 1 else None,
        min=min(values),
        max=max(values),
    )


def spread_figures(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The statistics by name: NAME_mean, NAME_sd, NAME_min, NAME_max."""
    spread = spread_of(values)
    return {
        f"{name}_mean": spread.mean,
        f"{name}_sd": spread.sd,
        f"{name}_min": spread.min,
        f"{name}_max": spread.max,
    }


def percentile_figures(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """NAME_p50, NAME_p90, NAME_p95 and NAME_p99, with straight lines between the values.

    Of one value every percentile is that value; of few values the high ones are near the largest.
    """
    points = np.percentile(np.asarray(values, np.float64), PERCENTILES)
    return {f"{name}_p{p}": float(point) for p, point in zip(PERCENTILES, points, strict=True)}


# --- what a GPU says of itself --------------------------------------------------------------------

INTERVAL_S = 0.1  # NVML averages the utilisation over 1/6 s to 1 s


class Telemetry:
    """Utilisation, power and energy of a GPU, read in a thread while its block runs.

    NVML is read through the package pynvml (pip install nvidia-ml-py), which is optional. Without
    it every figure is None.
    """

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


# --- the figures of all ranks ---------------------------------------------------------------------

# Runs of an ablation whose number in an hour is reported, by preset
RUNS_OF = ("datacomp_small", "micro")


@dataclass(slots=True, kw_only=True)
class RankCounts:
    """What one rank has counted in all its repeats."""

    operations: float = 0.0  # floating-point, of this rank
    tokens: int = 0  # of the captions, without padding
    waited: float = 0.0  # seconds in which it waited for batches
    cpu_s: float = 0.0  # of all threads of the process
    walls: list[float] = field(default_factory=list)  # seconds of each repeat
    telemetry: dict[str, float | None] = field(default_factory=dict)
    peak_memory_bytes: int = 0


def summary(
    counts: RankCounts,
    step_seconds: Sequence[float],
    ranks: Ranks,
    *,
    global_batch: int,
    precision: str,
    trains: bool,
) -> Measurement:
    """The figures, the same on every rank. A collective.

    A repeat takes as long as its slowest rank; the times of steps are those of this rank.
    ValueError where nothing was timed.
    """
    milliseconds = [1000 * seconds for seconds in step_seconds]
    times = spread_figures("step_ms", milliseconds) | percentile_figures("step_ms", milliseconds)
    counts.peak_memory_bytes = peak_memory(ranks.device)
    every_rank = []
    for plain in process_group.all_gather_json(disk.to_plain(counts), ranks):
        every_rank.append(RankCounts(**plain))
    walls = []
    for repeat in range(len(counts.walls)):
        walls.append(max(own.walls[repeat] for own in every_rank))
    seconds, steps = sum(walls), len(step_seconds)
    samples = steps * global_batch
    rates = tuple(steps // len(walls) * global_batch / wall for wall in walls)
    rate, world = samples / seconds, ranks.world
    # ranks of a tensor-parallel group read the same samples
    tokens = sum(own.tokens for own in every_rank[:: ranks.tp])
    operations = sum(own.operations for own in every_rank) / seconds
    peak = peak_flops(_device_name(ranks.device), precision)
    figures: Figures = {
        "samples_per_s": rate,
        **spread_figures("samples_per_s", rates),
        "samples_per_s_per_gpu": rate / world,
        "global_batches_per_s": rate / global_batch,
        "samples_per_cpu_s": samples / sum(own.cpu_s for own in every_rank),
        "text_tokens_per_s": tokens / seconds,
        "tokens_per_caption": tokens / samples,
        "model_tflops": operations / 1e12,
        "model_tflops_per_gpu": operations / world / 1e12,
        "mfu": None if peak is None else operations / world / peak,
        "wait_share": max(own.waited for own in every_rank) / seconds,
        "peak_memory_bytes": max(own.peak_memory_bytes for own in every_rank),
        "timed_s": seconds,
        "timed_steps": steps,
        **times,
        **_power(every_rank, samples),
    }
    if trains:
        for preset in RUNS_OF:
            figures[f"runs_per_hour_{preset}"] = 3600 * rate / PRESETS[preset]().samples_seen
    return Measurement(figures=figures, rates=rates)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _power(every_rank: Sequence[RankCounts], samples: int) -> Figures:
    """Mean utilisation, watts of all devices together, and samples for a joule."""
    busy = _sum([own.telemetry.get("device_utilisation") for own in every_rank])
    joules = _sum([own.telemetry.get("joules") for own in every_rank])
    return {
        "device_utilisation": None if busy is None else busy / len(every_rank),
        "watts": _sum([own.telemetry.get("watts") for own in every_rank]),
        "samples_per_joule": samples / joules if joules else None,
    }


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum; None where a value is None."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
