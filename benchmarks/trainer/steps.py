"""Steps of training and of scoring, timed in this process, which is one rank of its group or alone.

The model, its layout, the optimizer, the feed, the step and the log are those of `clipmill train`:
`prepare`, `Feed`, `StepRunner` and `Records`. Only the clock is of the benchmark. On a GPU a step's
time is that between two events of the device; the host runs ahead of them. On a processor it is the
time between the ends of two steps.

`python -m clipmill.bench.steps train FOLDER` (or `score`) is one rank: see ranks.py. A
measurement is a function of a plan and a folder, and an entry in `MEASUREMENTS`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from clipmill.bench.ranks import serve_rank
from clipmill.bench.report_form import Figures
from clipmill.bench.synthetic import SyntheticLoader
from clipmill.bench.timing import (
    Measurement,
    RankCounts,
    Telemetry,
    mark,
    seconds_between,
    summary,
    synchronize,
)
from clipmill.manifests import console
from clipmill.manifests.schema import Blend
from clipmill.train.config import TrainConfig, model_config, trained_groups
from clipmill.train.data.loader import RunLoader
from clipmill.train.model.memory import training_flops
from clipmill.train.model.open_clip_model import AnyModel, build_model
from clipmill.train.parallel import process_group
from clipmill.train.parallel.process_group import Ranks
from clipmill.train.sizing.device_fit import resolve_micro_batch
from clipmill.train.step.feed import Feed, ReadyBatch
from clipmill.train.step.update import matmul_precision, precision_context
from clipmill.train.trainer.loop import (
    LaunchedStep,
    Records,
    SaveTimer,
    StepNumbers,
    StepRunner,
    StopRequest,
    TrainState,
    prepare,
)
from clipmill.train.transforms import normalise

AHEAD = 8  # batches after the last: as many are read ahead at the end as at the start


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


# --- training -------------------------------------------------------------------------------------


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
    return RunLoader(blend, config, model, rank, world, out=folder, decides=decides)


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
                    counts.operations += flops.batch(length_B, config.captions) / config.tp
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


# --- scoring --------------------------------------------------------------------------------------
#
# A step is what a CLIP score takes once an image is decoded: the copy to the device, normalisation,
# both towers in inference mode and the product of their embeddings. Where there is a blend, each
# repeat is measured twice, on synthetic batches and on those of the loader, in alternation.


def measure_scoring(plan: StepPlan, folder: str) -> Measurement:
    """Time scoring on this rank; every rank scores its own samples. The figures of all ranks.

    With a blend the figures are those of its samples, beside synthetic_samples_per_s and
    share_of_synthetic. ValueError for settings and data that cannot be; torch.OutOfMemoryError
    where a batch does not fit.
    """
    config = plan.config
    ranks = process_group.init_distributed(config.device)
    try:
        model = build_model(model_config(config), config.seed, attention=config.attention)
        model = model.to(ranks.device).eval()
        with matmul_precision(config), torch.inference_mode(), contextlib.ExitStack() as opened:
            sources = [_Source(plan, ranks, folder, opened, synthetic=True)]
            if plan.blend is not None:
                sources.append(_Source(plan, ranks, folder, opened, synthetic=False))
            for source in sources:
                source.score(model, plan.warmup)
            for _ in range(plan.repeats):
                for source in sources:
                    source.timed(model, plan.iterations)
            return _figures(config, ranks, sources)
    finally:
        process_group.close(ranks)


class _Source:
    """Batches of one kind, and what was counted while they were scored."""

    def __init__(
        self,
        plan: StepPlan,
        ranks: Ranks,
        folder: str,
        opened: contextlib.ExitStack,
        *,
        synthetic: bool,
    ) -> None:
        self.config, self.ranks = plan.config, ranks
        self.counts, self.step_seconds = RankCounts(), list[float]()
        self._telemetry: list[tuple[float, dict[str, float | None]]] = []
        self._flops = training_flops(model_config(plan.config), trained=(0, 0))  # forward alone
        loader = loader_of(plan.config, None if synthetic else plan.blend, ranks, folder)
        batches = Feed(plan.config, ranks.device).batches(loader.batches())
        self._batches = opened.enter_context(contextlib.closing(batches))

    def score(self, model: AnyModel, steps: int) -> Tensor:
        """The scores of the next steps, in host memory. Nothing is counted: they warm up."""
        scores = []
        for ready in itertools.islice(self._batches, steps):
            scores.append(self._scores(model, ready))
        return torch.cat(scores).cpu()

    def timed(self, model: AnyModel, steps: int) -> None:
        """Score a repeat, and count what it takes."""
        device = self.ranks.device
        process_group.barrier(self.ranks)
        synchronize(device)
        used, began = time.process_time(), time.perf_counter()
        marks, scores = [mark(device)], []
        with Telemetry(device) as telemetry:
            for ready in self._take(steps):
                scores.append(self._scores(model, ready))
                marks.append(mark(device))
                length_B = ready.batch.length_B
                self.counts.tokens += int(length_B.sum())
                self.counts.operations += self._flops.batch(length_B, self.config.captions)
            torch.cat(scores).cpu()
        wall = time.perf_counter() - began
        self.counts.walls.append(wall)
        self.counts.cpu_s += time.process_time() - used
        self.step_seconds += seconds_between(marks)
        self._telemetry.append((wall, telemetry.figures()))

    def _take(self, steps: int) -> Iterator[ReadyBatch]:
        for _ in range(steps):
            asked = time.perf_counter()
            ready = next(self._batches)
            self.counts.waited += time.perf_counter() - asked
            yield ready

    def _scores(self, model: AnyModel, ready: ReadyBatch) -> Tensor:
        """The products B of the embeddings of image and caption, on the device."""
        ready.begin(passes=1)
        mean, std = model.config.image_mean, model.config.image_std
        scores = []
        for start, end in ready.captions:
            image_BCHW, captions = ready.inputs(
                slice(start, end), lambda image_BHWC: normalise(image_BHWC, mean, std)
            )
            with precision_context(self.config, self.ranks.device):
                image_BE, text_BE, _, _ = model(image_BCHW, captions)
            scores.append((image_BE * text_BE).sum(-1))
        return torch.cat(scores)

    def summary(self) -> Measurement:
        """The figures of all ranks. A collective."""
        self.counts.telemetry = _mean_telemetry(self._telemetry)
        return summary(
            self.counts,
            self.step_seconds,
            self.ranks,
            global_batch=self.config.batch_size,
            precision=self.config.precision,
            trains=False,
        )


def _mean_telemetry(repeats: list[tuple[float, dict[str, float | None]]]) -> Figures:
    """Telemetry of several repeats: means weighted by their seconds, and the sum of the joules."""
    total = sum(wall for wall, _ in repeats)
    means: Figures = {}
    for name in ("device_utilisation", "watts", "joules"):
        values: list[Any] = [figures[name] for _, figures in repeats]
        if None in values:
            means[name] = None
        elif name == "joules":
            means[name] = sum(values)
        else:
            weighted = zip(repeats, values, strict=True)
            means[name] = sum(wall * value for (wall, _), value in weighted) / total
    return means


def _figures(config: TrainConfig, ranks: Ranks, sources: list[_Source]) -> Measurement:
    synthetic, *others = [source.summary() for source in sources]
    if not others:
        return synthetic
    (measured,) = others
    one, other = measured.figures["samples_per_s"], synthetic.figures["samples_per_s"]
    assert one is not None
    assert other is not None
    figures = {
        **measured.figures,
        "synthetic_samples_per_s": other,
        "share_of_synthetic": one / other,
    }
    return Measurement(figures=figures, rates=measured.rates)


MEASUREMENTS = {"train": measure_training, "score": measure_scoring}


def main(words: list[str]) -> int:
    """One rank of a measurement. The exit status."""
    kind, folder = words
    return serve_rank(folder, StepPlan, MEASUREMENTS[kind])


if __name__ == "__main__":
    console.end_process(lambda: main(sys.argv[1:]))
