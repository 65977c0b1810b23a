"""The figures of all ranks together, from what each has counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from manifests import disk
from train.benching.report import Figures, Measurement
from train.benching.timing.spread import percentile_figures, spread_figures
from train.capacity import peak_flops
from train.config import PRESETS
from train.parallel import Ranks, process_group
from train.trainer import peak_memory

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
