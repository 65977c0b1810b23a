"""Batches scored by both towers, timed in this process, which is one rank of its group or alone.

A step is what a CLIP score takes once an image is decoded: the copy to the device, normalisation,
both towers in inference mode and the product of their embeddings. Where there is a blend, each
repeat is measured twice, on synthetic batches and on those of the loader, in alternation.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from train.benching.report import Figures, Measurement
from train.benching.timing.clock import mark, seconds_between, synchronize
from train.benching.timing.summary import RankCounts, summary
from train.benching.timing.telemetry import Telemetry
from train.benching.timing.train_steps import StepPlan, loader_of
from train.config import TrainConfig, model_config
from train.model import CLIP, training_flops
from train.parallel import Ranks, process_group
from train.step import GROUPS, Feed, ReadyBatch, matmul_precision, precision_context
from train.transforms import normalise


def measure_scoring(plan: StepPlan, folder: str) -> Measurement:
    """Time scoring on this rank; every rank scores its own samples. The figures of all ranks.

    With a blend the figures are those of its samples, beside synthetic_samples_per_s and
    share_of_synthetic. ValueError for settings and data that cannot be; torch.OutOfMemoryError
    where a batch does not fit.
    """
    config = plan.config
    ranks = process_group.init_distributed(config.device)
    try:
        model = CLIP(model_config(config), config.seed, attention=config.attention)
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

    def score(self, model: CLIP, steps: int) -> Tensor:
        """The scores of the next steps, in host memory. Nothing is counted: they warm up."""
        scores = []
        for ready in itertools.islice(self._batches, steps):
            scores.append(self._scores(model, ready))
        return torch.cat(scores).cpu()

    def timed(self, model: CLIP, steps: int) -> None:
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
                self.counts.operations += self._flops.batch(length_B, self.config.captions, GROUPS)
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

    def _scores(self, model: CLIP, ready: ReadyBatch) -> Tensor:
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
