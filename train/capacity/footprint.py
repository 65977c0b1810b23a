"""The memory of a run's step on a device, the micro-batch that fits, and what would fit instead."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from train.capacity.devices import GIB, MARGIN, Device, free_memory
from train.config import (
    TrainConfig,
    check_layout,
    model_config,
    recompute_interval,
    trained_groups,
)
from train.dist import Ranks, process_group
from train.model import StepMemory, StepShape, step_memory
from train.step import loss_tile

BATCHES_AHEAD = 6  # in host memory: four read ahead, one in use, one being copied
FRIENDLY = 8  # a micro-batch that does not divide the batch is a multiple of this
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a run's step fits a device."""

    memory: StepMemory  # with `micro_batch`, or of the smallest step where nothing fits
    needed: int  # bytes: the step's peak, and on a processor the images that are read ahead
    device: Device
    micro_batch: int | None  # samples of a rank at once; None: all
    samples: int  # of a rank

    @property
    def fits(self) -> bool:
        """Whether the step stays below the device's memory, less the margin."""
        return self.needed <= self.device.budget


def step_shape(config: TrainConfig, ranks: int, kind: str) -> StepShape:
    """The shape of a step on one of `ranks` ranks; `kind` is cuda or cpu.

    Captions count as long as the context, which is the most that they can need. ValueError where
    the ranks do not fill the layout.
    """
    data_parallel = check_layout(config, ranks)
    samples = math.ceil(config.batch_size / data_parallel)
    model = model_config(config)
    assert config.micro_batch != "auto"
    return StepShape(
        samples=samples,
        micro_batch=config.micro_batch,
        tokens=model.context_length,
        longest=model.context_length,
        captions=config.captions,
        precision=config.precision,
        device=kind,
        recompute_every=recompute_interval(config.recompute),
        selective=config.recompute == "selective",
        muon=config.optimizer == "muon",
        ema=config.ema is not None,
        data_parallel=data_parallel,
        dp_shard=config.dp_shard,
        tp=config.tp,
        reshard=config.reshard_after_forward,
        cpu_offload=config.cpu_offload,
        local_loss=config.local_loss,
        loss_tile=_tile(config, samples, data_parallel),
        trained=trained_groups(config),
    )


def _tile(config: TrainConfig, samples: int, data_parallel: int) -> int | None:
    rows = samples if config.local_loss else samples * data_parallel
    return loss_tile(rows, samples * data_parallel, config.loss_tile)


def fit(config: TrainConfig, ranks: int, device: Device) -> Fit:
    """The step of one of `ranks` ranks on a device; with `micro_batch: auto` the largest that fits.

    Where none fits, `micro_batch` is 1 and `fits` is False.
    """
    whole = config if config.micro_batch != "auto" else _with_micro_batch(config, None)
    shape = step_shape(whole, ranks, device.kind)
    result = _fit(whole, shape, device)
    can_divide = config.micro_batch == "auto" and config.precision != "bf16_o2"
    if result.fits or not can_divide or shape.samples == 1:
        return result
    largest = _largest(whole, shape, device)
    friendly = friendly_micro_batch(shape.samples, max(1, largest))
    return _fit(whole, dataclasses.replace(shape, micro_batch=friendly), device)


def largest_micro_batch(config: TrainConfig, ranks: int, device: Device) -> int:
    """The most samples of a rank that fit at once, even or not; 0 where not even one fits."""
    whole = _with_micro_batch(config, None)
    shape = step_shape(whole, ranks, device.kind)
    return shape.samples if _fit(whole, shape, device).fits else _largest(whole, shape, device)


def _largest(config: TrainConfig, shape: StepShape, device: Device) -> int:
    """The largest micro-batch below all samples that fits; 0: none."""
    fitting, largest = 0, shape.samples - 1
    while fitting < largest:  # memory rises with the micro-batch
        middle = (fitting + largest + 1) // 2
        piece = dataclasses.replace(shape, micro_batch=middle)
        if _fit(config, piece, device).fits:
            fitting = middle
        else:
            largest = middle - 1
    return fitting


def friendly_micro_batch(samples: int, largest: int) -> int:
    """The micro-batch of at most `largest` samples that cuts a rank's samples most evenly.

    It is the largest divisor; or a multiple of 8, where the largest divisor is less than half.
    """
    divisor = next(size for size in range(largest, 0, -1) if samples % size == 0)
    if 2 * divisor > largest:
        return divisor
    return max(largest // FRIENDLY * FRIENDLY, largest if largest < FRIENDLY else FRIENDLY)


def _with_micro_batch(
    config: TrainConfig, micro_batch: int | Literal["auto"] | None
) -> TrainConfig:
    return dataclasses.replace(config, micro_batch=micro_batch)


def _fit(config: TrainConfig, shape: StepShape, device: Device) -> Fit:
    model = model_config(config)
    memory = step_memory(model, shape)
    ahead = 0
    if device.kind == "cpu":
        height, width = model.height_width
        batch = shape.samples * 3 * height * width
        ahead = batch * max(2, min(BATCHES_AHEAD, 2 + GIB // batch))
    return Fit(
        memory=memory,
        needed=memory.peak + ahead,
        device=device,
        micro_batch=shape.micro_batch,
        samples=shape.samples,
    )


# --- what would fit -------------------------------------------------------------------------------


def refuse_unfit(config: TrainConfig, ranks: int, device: Device) -> Fit:
    """The fit of a run. ValueError with the numbers and the settings that would fit."""
    result = fit(config, ranks, device)
    if not result.fits:
        raise ValueError(f"{unfit_message(result)}; {'; '.join(remedies(config, ranks, device))}")
    return result


def unfit_message(result: Fit) -> str:
    """Why a step does not fit, in numbers."""
    memory = result.memory
    lasting = memory.weights + memory.gradients + memory.optimizer + memory.copies
    at_once = "at once"
    if result.micro_batch is not None:
        at_once = f"in micro-batches of {result.micro_batch}"
    return (
        f"a step of {result.samples:,} samples a rank {at_once} needs "
        f"{result.needed / GIB:,.1f} GiB (weights, gradients and optimizer {lasting / GIB:,.1f}, "
        f"activations {memory.activations / GIB:,.1f}), and {result.device.name} has "
        f"{result.device.memory / GIB:,.1f} GiB, less {MARGIN:.0%}"
    )


def remedies(config: TrainConfig, ranks: int, device: Device) -> list[str]:
    """Changes that would make the step fit, the cheapest first; or that nothing here does."""
    ways = []
    for words, changed, world in _changes(config, ranks):
        if fit(changed, world, device).fits:
            ways.append(words)
    if ways:
        return [f"it fits with {ways[0]}", *(f"or with {way}" for way in ways[1:3])]
    return ["no number of ranks up to the batch makes it fit: choose a smaller model or batch"]


def _changes(config: TrainConfig, ranks: int) -> Iterator[tuple[str, TrainConfig, int]]:
    """Other settings, in words and as settings and ranks."""
    auto = config
    if config.precision != "bf16_o2":
        auto = _with_micro_batch(config, "auto")
    if config.micro_batch != "auto":
        yield "micro_batch: auto", auto, ranks
    full = dataclasses.replace(auto, recompute="full")
    if config.recompute != "full":
        yield "micro_batch: auto and recompute: full", full, ranks
    more = 2 * ranks
    while more // config.tp <= config.batch_size:
        if config.batch_size % (more // config.tp) == 0:
            yield f"ranks: {more}", _with_dp_shard(config, config.dp_shard), more
            if config.optimizer != "muon":
                words = f"ranks: {more}, dp_shard: {more // config.tp} and recompute: full"
                yield words, _with_dp_shard(full, more // config.tp), more
        more *= 2


def _with_dp_shard(config: TrainConfig, dp_shard: int) -> TrainConfig:
    return dataclasses.replace(config, dp_shard=dp_shard)


# --- when a run starts ----------------------------------------------------------------------------


def resolve_micro_batch(config: TrainConfig, ranks: Ranks) -> TrainConfig:
    """The settings with a number in place of `micro_batch: auto`. A collective.

    It is the same on all ranks: the least of what their devices have room for. ValueError where
    not even one sample fits.
    """
    if config.micro_batch != "auto":
        return config
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world))
    memory = free_memory(ranks.device, local)
    memory = min(process_group.all_gather_int(memory, ranks))
    name = f"{ranks.device.type} (what is free on it)"
    if ranks.device.type == "cuda":
        name = f"{torch.cuda.get_device_name(ranks.device)} (what is free on it)"
    device = Device(name=name, kind=ranks.device.type, memory=memory, utilisation=1.0)
    result = refuse_unfit(config, ranks.world, device)
    logger.info(
        "micro_batch auto: %s of %d samples a rank at once; about %.1f of %.1f GiB are needed",
        "all" if result.micro_batch is None else result.micro_batch,
        result.samples,
        result.needed / GIB,
        memory / GIB,
    )
    return _with_micro_batch(config, result.micro_batch)
