"""Everything that a run needs on a device, as one document and as lines for a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from manifests import disk
from train.capacity.devices import GIB, MARGIN, Device
from train.capacity.footprint import fit, largest_micro_batch, remedies, step_shape, unfit_message
from train.capacity.layouts import RECOMPUTE, Advice
from train.capacity.pool_size import PoolSize
from train.capacity.throughput import Speed, computed_flops, sample_flops
from train.config import TrainConfig, model_config
from train.model import parameter_count, step_memory, training_flops

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What a sample keeps for backward with one way of recomputing, and what fits with it."""

    recompute: str
    bytes_per_sample: int
    largest_micro_batch: int  # of a rank; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Memory, speed, time and money of a run. Bytes are of one rank."""

    model: str
    parameters: int
    flops_per_sample: float  # that the result of a sample needs, forward and backward
    flops_computed: float  # with those that are computed twice
    flops_unpruned: float  # as trainers count that compute all tokens of the last blocks
    device: str
    ranks: int
    parallel: str
    precision: str
    recompute: str
    batch_size: int
    micro_batch: int | None
    samples_per_rank: int
    reasons: tuple[str, ...]
    fits: bool
    memory: dict[str, int]
    needed: int
    device_memory: int
    activations: tuple[Activations, ...]
    remedies: tuple[str, ...]
    why_not: str | None
    samples: int
    samples_per_s: float
    speed_source: str
    hours: float
    device_hours: float
    cost: float | None  # of all device-hours; None without a price
    kilowatt_hours: float | None  # at the highest power of the devices alone
    pool: PoolSize | None


def requirements(
    advice: Advice,
    ranks: int,
    device: Device,
    speed: Speed,
    *,
    samples: int,
    price: float | None = None,
    pool: PoolSize | None = None,
) -> Requirements:
    """All figures of a run with these settings, at this speed. `price`: of a device-hour."""
    config, result = advice.config, advice.fit
    model = model_config(config)
    hours = speed.hours(samples)
    device_hours = hours * ranks
    watts = None if device.sheet is None else device.sheet.watts
    return Requirements(
        model=config.model,
        parameters=parameter_count(model),
        flops_per_sample=sample_flops(config),
        flops_computed=computed_flops(config, pieces=result.micro_batch is not None),
        flops_unpruned=training_flops(model, whole=True).sample(model.context_length),
        device=device.name,
        ranks=ranks,
        parallel=advice.parallel,
        precision=config.precision,
        recompute=config.recompute,
        batch_size=config.batch_size,
        micro_batch=result.micro_batch,
        samples_per_rank=result.samples,
        reasons=advice.reasons,
        fits=result.fits,
        memory=disk.to_plain(result.memory),
        needed=result.needed,
        device_memory=device.memory,
        activations=tuple(_activations(config, ranks, device)),
        remedies=() if result.fits else tuple(remedies(config, ranks, device)),
        why_not=None if result.fits else unfit_message(result),
        samples=samples,
        samples_per_s=speed.samples_per_s,
        speed_source=speed.source,
        hours=hours,
        device_hours=device_hours,
        cost=None if price is None else price * device_hours,
        kilowatt_hours=None if watts is None else device_hours * watts / 1000,
        pool=pool,
    )


def _activations(config: TrainConfig, ranks: int, device: Device) -> Iterator[Activations]:
    for recompute in dict.fromkeys((*RECOMPUTE, config.recompute)):
        changed = dataclasses.replace(config, recompute=recompute, micro_batch=None)
        shape = dataclasses.replace(step_shape(changed, ranks, device.kind), samples=1)
        largest = largest_micro_batch(changed, ranks, device)
        if config.precision == "bf16_o2" and not fit(changed, ranks, device).fits:
            largest = 0  # it adds up no gradients of pieces
        yield Activations(
            recompute=recompute,
            bytes_per_sample=step_memory(model_config(changed), shape).activations,
            largest_micro_batch=largest,
        )


# --- in words -------------------------------------------------------------------------------------


def requirement_lines(needs: Requirements) -> Iterator[str]:
    """The figures, as a person reads them."""
    pieces = "all at once"
    if needs.micro_batch is not None:
        pieces = f"in micro-batches of {needs.micro_batch:,}"
    on = f"on {needs.device}" if needs.ranks == 1 else f"on {needs.ranks:,} x {needs.device}"
    yield f"{needs.model}, {needs.samples_per_rank:,} samples a rank {pieces}, {on}"
    yield (
        f"{needs.parameters:,} parameters, {needs.flops_per_sample / 1e9:,.1f} GFLOP a sample to "
        f"train ({needs.flops_unpruned / 1e9:,.1f} where the last blocks compute all tokens)"
    )
    yield (
        f"layout {needs.parallel}, precision {needs.precision}, recompute {needs.recompute}, "
        f"batch {needs.batch_size:,}"
    )
    for reason in needs.reasons:
        yield f"  {reason}"
    yield from _memory_lines(needs)
    yield (
        f"speed: {needs.samples_per_s:,.{0 if needs.samples_per_s >= 10 else 2}f} samples/s "
        f"({needs.speed_source})"
    )
    yield _time_line(needs)
    if needs.pool is not None:
        yield _pool_line(needs.pool)
    if needs.why_not is not None:
        yield f"it does not fit: {needs.why_not}; {'; '.join(needs.remedies)}"


def _memory_lines(needs: Requirements) -> Iterator[str]:
    yield "memory of a rank:"
    for name, bytes_ in needs.memory.items():
        yield f"  {name:<12}{bytes_ / GIB:>10,.2f} GiB"
    yield (
        f"  {'needed':<12}{needs.needed / GIB:>10,.2f} GiB of {needs.device_memory / GIB:,.2f}, "
        f"of which {MARGIN:.0%} stay free"
    )
    yield "activations of a sample, and the largest micro-batch:"
    for each in needs.activations:
        words = f"{each.largest_micro_batch:,}" if each.largest_micro_batch else "none fits"
        if each.largest_micro_batch == needs.samples_per_rank:
            words = f"all {words}"
        size = f"{each.bytes_per_sample / MIB:>10,.2f} MiB"
        yield f"  {'recompute ' + each.recompute:<22}{size}  {words}"


def _time_line(needs: Requirements) -> str:
    line = f"{needs.hours:,.1f} hours"
    if needs.hours >= 48:
        line = f"{needs.hours / 24:,.1f} days"
    line += f" for {needs.samples:,} samples: {needs.device_hours:,.1f} device-hours"
    if needs.cost is not None:
        line += f", {needs.cost:,.0f} at the stated price"
    if needs.kilowatt_hours is not None:
        line += f", at most {needs.kilowatt_hours:,.0f} kWh of the devices"
    return line


def _pool_line(pool: PoolSize) -> str:
    line = (
        f"pool of {pool.pairs:,} pairs at {pool.image_size} pixels: "
        f"{pool.stored_bytes / 1e12:,.3f} TB ({pool.bytes_per_pair / 1e3:,.1f} kB an image, "
        f"{pool.source}), {pool.downloaded_bytes / 1e12:,.3f} TB to download"
    )
    if pool.download_days is not None:
        line += f" in {pool.download_days:,.2f} days"
    return line
