"""Steps of training, timed in this process, which is one rank of its group or alone.

The model, its layout, the optimizer, the feed, the step and the log are those of `train/run.py`:
`prepare`, `Feed`, `StepRunner` and `Records`. Only the clock is of the benchmark. On a GPU a step's
time is that between two events of the device; the host runs ahead of them. On a processor it is the
time between the ends of two steps.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass
from typing import Any, cast

import torch

from manifests.schema import Blend
from train.benching.report import Figures, Measurement
from train.benching.timing.spread import percentile_figures, spread_figures
from train.benching.timing.synthetic import SyntheticLoader
from train.benching.timing.telemetry import Telemetry
from train.capacity import resolve_micro_batch
from train.config import PRESETS, TrainConfig, model_config, trained_groups
from train.dist import Ranks, process_group
from train.hardware import peak_flops
from train.model import training_flops
from train.running import (
    LaunchedStep,
    Records,
    RunLoader,
    SaveTimer,
    StepNumbers,
    StepRunner,
    StopRequest,
    TrainState,
    open_loader,
    peak_memory,
    prepare,
)
from train.step import GROUPS, Feed, ReadyBatch, matmul_precision

AHEAD = 8  # steps after the last: as many batches are read ahead at the end as at the start
# Runs of an ablation whose number in an hour is reported, by preset
RUNS_OF = ("datacomp_small", "micro")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What is timed: `repeats` times `iterations` steps, after `warmup` steps."""

    config: TrainConfig  # of at least `steps` steps
    blend: Blend | None  # None: synthetic samples
    iterations: int
    repeats: int = 1
    warmup: int = 2

    @property
    def steps(self) -> int:
        """Steps of the run that is needed."""
        return steps_of(self.iterations, self.repeats, self.warmup)


def steps_of(iterations: int, repeats: int, warmup: int) -> int:
    """Steps of a run in which so many are timed."""
    return warmup + repeats * iterations + AHEAD


def measure_training(plan: StepPlan, folder: str) -> Measurement:
    """Time steps on this rank. The figures, the same on every rank.

    `folder` is an empty one, shared by the ranks, for what a run writes. ValueError for settings,
    data and layouts that cannot be; torch.OutOfMemoryError where a step does not fit.
    """
    assert plan.config.steps >= plan.steps
    ranks = process_group.init_distributed(plan.config.device)
    state: TrainState | None = None
    try:
        ranks = process_group.build_mesh(ranks, plan.config)
        loader = _loader(plan, ranks, folder)
        with matmul_precision(plan.config):
            config = resolve_micro_batch(plan.config, ranks)
            state = prepare(config, folder, ranks, loader, {})
            return _timed(plan, state)
    finally:
        if state is not None:
            state.saver.close()
        process_group.close(ranks)


def _loader(plan: StepPlan, ranks: Ranks, folder: str) -> RunLoader:
    model, rank, world = model_config(plan.config), ranks.data_parallel.rank, ranks.dp
    if plan.blend is None:
        # It has what a run uses of a loader.
        return cast("RunLoader", SyntheticLoader(plan.config, model, rank, world))
    decides = ranks.rank == 0
    return open_loader(plan.blend, plan.config, model, rank, world, out=folder, decides=decides)


class _Counter:
    """What the steps that count computed on this rank."""

    def __init__(self, state: TrainState, records: Records) -> None:
        config = state.config
        self._flops = training_flops(state.model.config, trained=trained_groups(config))
        self._config, self._records = config, records
        self.operations = self.waited = 0.0
        self.tokens = 0
        self.loss = 0.0

    def batch(self, ready: ReadyBatch, waited: float) -> None:
        """Count a batch of this rank; ranks of a tensor-parallel group divide its operations."""
        length_B, config = ready.batch.length_B, self._config
        self.operations += self._flops.batch(length_B, config.captions, GROUPS) / config.tp
        self.tokens += int(length_B.sum())
        self.waited += waited

    def finished(self, launched: LaunchedStep, numbers: StepNumbers) -> None:
        """Write the line of a step to the log."""
        self._records.finished(launched, numbers)
        self.loss = numbers.loss


def _timed(plan: StepPlan, state: TrainState) -> Measurement:
    """Warm up, then time every repeat by itself: the device is idle at its start and its end."""
    config, device = state.config, state.ranks.device
    batches = Feed(config, device).batches(state.loader.batches())
    times: list[float] = []
    walls: list[float] = []
    with contextlib.closing(Records(state)) as records, contextlib.closing(batches):
        counter = _Counter(state, records)
        runner = StepRunner(
            state, StopRequest(state.ranks.rank), SaveTimer(config), counter.finished
        )
        for _ in range(plan.warmup):
            runner.step(next(batches), 0.0)
        runner.read()
        cpu_s = 0.0
        with Telemetry(device) as telemetry:
            for _ in range(plan.repeats):
                process_group.barrier(state.ranks)
                _synchronize(device)
                used, began = time.process_time(), time.perf_counter()
                marks = [_mark(device)]
                for _ in range(plan.iterations):
                    asked = time.perf_counter()
                    ready = next(batches)
                    waited = time.perf_counter() - asked
                    runner.step(ready, waited)
                    counter.batch(ready, waited)
                    marks.append(_mark(device))
                runner.read()
                _synchronize(device)
                walls.append(time.perf_counter() - began)
                cpu_s += time.process_time() - used
                times += _times(marks)
    own = {
        "operations": counter.operations,
        "tokens": counter.tokens,
        "waited": counter.waited,
        "cpu_s": cpu_s,
        "peak_memory_bytes": peak_memory(device),
        **telemetry.figures(),
    }
    every_rank = process_group.all_gather_json({**own, "walls": walls}, state.ranks)
    figures = {"loss": counter.loss, **_step_figures(times)}
    return _summary(plan, state.ranks, every_rank, figures)


def _mark(device: torch.device) -> Any:
    """The end of a step: an event of the device, or the time."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _times(marks: list[Any]) -> list[float]:
    """Seconds between marks; the device has passed all of them."""
    seconds = []
    for one, other in itertools.pairwise(marks):
        is_time = isinstance(one, float)
        seconds.append(other - one if is_time else one.elapsed_time(other) / 1000)
    return seconds


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _step_figures(times: list[float]) -> Figures:
    milliseconds = [1000 * seconds for seconds in times]
    return spread_figures("step_ms", milliseconds) | percentile_figures("step_ms", milliseconds)


def _summary(
    plan: StepPlan, ranks: Ranks, every_rank: list[dict[str, Any]], figures: Figures
) -> Measurement:
    """The figures of all ranks together. A repeat takes as long as its slowest rank."""
    config, world = plan.config, ranks.world
    walls = []
    for repeat in range(plan.repeats):
        walls.append(max(own["walls"][repeat] for own in every_rank))
    seconds, steps = sum(walls), plan.repeats * plan.iterations
    rates = tuple(plan.iterations * config.batch_size / wall for wall in walls)
    rate = steps * config.batch_size / seconds
    operations = sum(own["operations"] for own in every_rank) / seconds
    different = every_rank[:: ranks.tp]  # ranks of a tensor-parallel group read the same samples
    device = ranks.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = peak_flops(name, config.precision)
    joules = _sum(own["joules"] for own in every_rank)
    watts = _sum(own["watts"] for own in every_rank)
    busy = _sum(own["device_utilisation"] for own in every_rank)
    figures |= {
        "samples_per_s": rate,
        **spread_figures("samples_per_s", rates),
        "samples_per_s_per_gpu": rate / world,
        "global_batches_per_s": rate / config.batch_size,
        "samples_per_cpu_s": steps * config.batch_size / sum(own["cpu_s"] for own in every_rank),
        "text_tokens_per_s": sum(own["tokens"] for own in different) / seconds,
        "tokens_per_caption": sum(own["tokens"] for own in different) / (steps * config.batch_size),
        "model_tflops": operations / 1e12,
        "model_tflops_per_gpu": operations / world / 1e12,
        "mfu": None if peak is None else operations / world / peak,
        "wait_share": max(own["waited"] for own in every_rank) / seconds,
        "peak_memory_bytes": max(own["peak_memory_bytes"] for own in every_rank),
        "device_utilisation": None if busy is None else busy / world,
        "watts": watts,
        "samples_per_joule": None if not joules else steps * config.batch_size / joules,
        "timed_s": seconds,
        "timed_steps": steps,
    }
    for preset in RUNS_OF:
        figures[f"runs_per_hour_{preset}"] = 3600 * rate / PRESETS[preset]().samples_seen
    return Measurement(figures=figures, rates=rates)


def _sum(values: Any) -> float | None:
    """The sum; None where a value is None."""
    values = list(values)
    return None if None in values else sum(values)
