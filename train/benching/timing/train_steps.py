"""Steps of training, timed in this process, which is one rank of its group or alone.

The model, its layout, the optimizer, the feed, the step and the log are those of `train/run.py`:
`prepare`, `Feed`, `StepRunner` and `Records`. Only the clock is of the benchmark. On a GPU a step's
time is that between two events of the device; the host runs ahead of them. On a processor it is the
time between the ends of two steps.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import cast

from manifests.schema import Blend
from train.benching.report import Measurement
from train.benching.timing.clock import mark, seconds_between, synchronize
from train.benching.timing.summary import RankCounts, summary
from train.benching.timing.synthetic import SyntheticLoader
from train.benching.timing.telemetry import Telemetry
from train.capacity import resolve_micro_batch
from train.config import TrainConfig, model_config, trained_groups
from train.model import training_flops
from train.parallel import Ranks, process_group
from train.step import GROUPS, Feed, matmul_precision
from train.trainer import (
    LaunchedStep,
    Records,
    RunLoader,
    SaveTimer,
    StepNumbers,
    StepRunner,
    StopRequest,
    TrainState,
    open_loader,
    prepare,
)

AHEAD = 8  # steps after the last: as many batches are read ahead at the end as at the start


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
        loader = loader_of(plan.config, plan.blend, ranks, folder)
        with matmul_precision(plan.config):
            config = resolve_micro_batch(plan.config, ranks)
            state = prepare(config, folder, ranks, loader, {})
            return _timed(plan, state)
    finally:
        if state is not None:
            state.saver.close()
        process_group.close(ranks)


def loader_of(config: TrainConfig, blend: Blend | None, ranks: Ranks, folder: str) -> RunLoader:
    """The loader of a blend for this rank, or of synthetic samples. `folder` is of all ranks."""
    model, rank, world = model_config(config), ranks.data_parallel.rank, ranks.dp
    if blend is None:
        # It has what a run uses of a loader.
        return cast("RunLoader", SyntheticLoader(config, model, rank, world))
    decides = ranks.rank == 0
    return open_loader(blend, config, model, rank, world, out=folder, decides=decides)


def _timed(plan: StepPlan, state: TrainState) -> Measurement:
    """Warm up, then time every repeat by itself: the device is idle at its start and its end."""
    config, device = state.config, state.ranks.device
    flops = training_flops(state.model.config, trained=trained_groups(config))
    counts, step_seconds, losses = RankCounts(), [], []
    batches = Feed(config, device).batches(state.loader.batches())
    with contextlib.closing(Records(state)) as records, contextlib.closing(batches):

        def finished(launched: LaunchedStep, numbers: StepNumbers) -> None:
            records.finished(launched, numbers)
            losses.append(numbers.loss)

        runner = StepRunner(state, StopRequest(state.ranks.rank), SaveTimer(config), finished)
        for _ in range(plan.warmup):
            runner.step(next(batches), 0.0)
        runner.read()
        with Telemetry(device) as telemetry:
            for _ in range(plan.repeats):
                process_group.barrier(state.ranks)
                synchronize(device)
                used, began = time.process_time(), time.perf_counter()
                marks = [mark(device)]
                for _ in range(plan.iterations):
                    asked = time.perf_counter()
                    ready = next(batches)
                    waited = time.perf_counter() - asked
                    runner.step(ready, waited)
                    marks.append(mark(device))
                    counts.waited += waited
                    length_B = ready.batch.length_B
                    counts.tokens += int(length_B.sum())
                    # ranks of a tensor-parallel group divide the operations of a sample
                    counts.operations += flops.batch(length_B, config.captions, GROUPS) / config.tp
                runner.read()
                synchronize(device)
                counts.walls.append(time.perf_counter() - began)
                counts.cpu_s += time.process_time() - used
                step_seconds += seconds_between(marks)
    counts.telemetry = telemetry.figures()
    measured = summary(
        counts,
        step_seconds,
        state.ranks,
        global_batch=config.batch_size,
        precision=config.precision,
        trains=True,
    )
    return Measurement(figures={**measured.figures, "loss": losses[-1]}, rates=measured.rates)
