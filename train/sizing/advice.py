"""Which layout, recomputation and micro-batch a run should have on a device, and why."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from clipmill.manifests import disk
from clipmill.train.config import TrainConfig, check_world, model_config
from clipmill.train.model.memory import parameter_count, step_memory, training_flops
from clipmill.train.sizing.device_fit import (
    GIB,
    MARGIN,
    Device,
    Fit,
    Speed,
    computed_flops,
    fit,
    largest_micro_batch,
    remedies,
    sample_flops,
    step_shape,
    unfit_message,
)

# --------------------------------------------------------------------------------------------------
# Which layout, recomputation and micro-batch a run should have on a device, and why.
#
# Every layout that the ranks can fill is compared by the operations that it computes. Of those
# that compute the fewest, the simplest counts: data parallelism before FSDP2, both before tensor
# parallelism, nothing recomputed before something. Communication is not compared: there is no
# measurement of it here.


RECOMPUTE = ("none", "selective", "full")
TENSOR_PARALLEL = (1, 2, 4, 8)  # within a machine
SAME = 1e-9  # operations that differ by less are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Settings for a run on a device, whether they fit, and why they were chosen."""

    config: TrainConfig  # with a number or None as `micro_batch`
    fit: Fit
    reasons: tuple[str, ...]


def parallel_name(config: TrainConfig) -> str:
    """A layout in a word: dp, fsdp4, tp2 or tp2+fsdp4."""
    parts = [f"tp{config.tp}"] * (config.tp > 1) + [f"fsdp{config.dp_shard}"] * (
        config.dp_shard > 1
    )
    return "+".join(parts) or "dp"


def choose_precision(config: TrainConfig, device: Device) -> tuple[TrainConfig, str]:
    """The settings with the precision for a device, and the reason for it."""
    if device.kind == "cpu":
        return (
            dataclasses.replace(config, precision="fp32"),
            "fp32: few processors multiply matrices of 16 bits faster",
        )
    sheet = device.sheet
    assert sheet is not None
    if "bf16" in sheet.tflops:
        factor = sheet.tflops["bf16"] / sheet.tflops["fp32"]
        reason = (
            f"bf16: the peak of its products is {factor:.1f} x that of fp32; weights, sums and the "
            "loss stay fp32, and no loss scale is needed"
        )
        return dataclasses.replace(config, precision="bf16"), reason
    if "fp16" in sheet.tflops:
        factor = sheet.tflops["fp16"] / sheet.tflops["fp32"]
        reason = (
            f"fp16: the device has no bf16 products, and its peak is {factor:.1f} x that of fp32; "
            "the loss is scaled"
        )
        return dataclasses.replace(config, precision="fp16"), reason
    return dataclasses.replace(config, precision="fp32"), "fp32: the device has no 16-bit products"


def advise(config: TrainConfig, ranks: int, device: Device, fixed: Collection[str] = ()) -> Advice:
    """The settings of a run on `ranks` devices.

    `fixed` names settings that stay as they are; of `precision`, `micro_batch`, `recompute`,
    `dp_shard` and `tp` all others are chosen. Where nothing fits, the settings are the given ones
    in the precision of the device. ValueError where the ranks do not fill the layout.
    """
    reasons = []
    if "precision" not in fixed:
        config, reason = choose_precision(config, device)
        reasons.append(reason)
    if "micro_batch" not in fixed:
        config = dataclasses.replace(config, micro_batch="auto")
    best: tuple[float, TrainConfig, Fit] | None = None
    for candidate in _candidates(config, ranks, device, fixed):
        result = fit(candidate, ranks, device)
        if not result.fits:
            continue
        flops = computed_flops(candidate, pieces=result.micro_batch is not None)
        if best is None or flops < best[0] * (1 - SAME):
            best = flops, candidate, result
        if flops <= sample_flops(candidate) * (1 + SAME):
            break  # the simplest without operations computed twice
    if best is None:
        result = fit(config, ranks, device)
        return Advice(config=_resolved(config, result), fit=result, reasons=tuple(reasons))
    _, chosen, result = best
    reasons += [*_layout_reasons(config, chosen, result, ranks, device), *_piece_reasons(result)]
    return Advice(config=_resolved(chosen, result), fit=result, reasons=tuple(reasons))


def _resolved(config: TrainConfig, result: Fit) -> TrainConfig:
    return dataclasses.replace(config, micro_batch=result.micro_batch)


def _candidates(
    config: TrainConfig, ranks: int, device: Device, fixed: Collection[str]
) -> Iterator[TrainConfig]:
    """Every layout that the ranks and the model can have, the simplest first."""
    whole = device.kind == "cpu"
    tensor = (config.tp,) if "tp" in fixed else (1,) if whole else TENSOR_PARALLEL
    for tp, recompute in itertools.product(
        tensor, (config.recompute,) if "recompute" in fixed else RECOMPUTE
    ):
        if ranks % tp:
            continue
        shards = [config.dp_shard]
        if "dp_shard" not in fixed:
            shards = [1] if whole else list(_divisors_of_two(ranks // tp))
        for dp_shard in shards:
            try:
                candidate = dataclasses.replace(
                    config, tp=tp, recompute=recompute, dp_shard=dp_shard
                )
                check_world(candidate, ranks // tp)
            except ValueError:
                if {"tp", "dp_shard"} <= set(fixed):
                    raise
                continue
            yield candidate


def _divisors_of_two(number: int) -> Iterator[int]:
    """1, 2, 4 … as long as they divide, and the number itself."""
    power = 1
    while number % power == 0 and power < number:
        yield power
        power *= 2
    yield number


def _layout_reasons(
    config: TrainConfig, chosen: TrainConfig, result: Fit, ranks: int, device: Device
) -> Iterator[str]:
    memory = result.memory
    lasting = (memory.weights + memory.gradients + memory.optimizer) / GIB
    states = f"weights, gradients and optimizer take {lasting:,.1f} GiB a rank"
    name = parallel_name(chosen)
    if name == "dp":
        yield f"dp: {states}, and the rest fits beside them"
    else:
        plain = dataclasses.replace(chosen, tp=1, dp_shard=1, recompute="none")
        alone = fit(dataclasses.replace(plain, micro_batch=config.micro_batch), ranks, device)
        if not alone.fits:
            why = f"with dp a rank would need {alone.needed / GIB:,.1f} GiB"
        elif alone.micro_batch is not None:
            why = f"dp would need micro-batches of {alone.micro_batch:,}, and with them more work"
        else:
            why = "as stated"
        yield f"{name}: {states}; {why}"
    if chosen.recompute != "none":
        yield f"recompute {chosen.recompute}: what all blocks keep for backward does not fit"


def _piece_reasons(result: Fit) -> Iterator[str]:
    if result.micro_batch is not None:
        yield (
            f"micro_batch {result.micro_batch:,}: all {result.samples:,} samples of a rank do not "
            "fit at once; the second forward pass adds a third to the operations"
        )


# --------------------------------------------------------------------------------------------------
# Everything that a run needs on a device, as one document and as lines for a person.


MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What a sample keeps for backward with one way of recomputing, and what fits with it."""

    recompute: str
    bytes_per_sample: int
    largest_micro_batch: int  # of a rank; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Memory, speed and time of a run."""

    advice: Advice
    parallel: str
    ranks: int
    parameters: int
    flops_per_sample: float  # that the result of a sample needs, forward and backward
    flops_unpruned: float  # as trainers count that compute all tokens of the last blocks
    activations: tuple[Activations, ...]
    remedies: tuple[str, ...]
    samples: int
    speed: Speed
    hours: float

    @property
    def device_hours(self) -> float:
        """Of all ranks together."""
        return self.hours * self.ranks


def requirements(
    advice: Advice, ranks: int, device: Device, speed: Speed, *, samples: int
) -> Requirements:
    """All figures of a run with these settings, at this speed."""
    config = advice.config
    model = model_config(config)
    return Requirements(
        advice=advice,
        parallel=parallel_name(config),
        ranks=ranks,
        parameters=parameter_count(model),
        flops_per_sample=sample_flops(config),
        flops_unpruned=training_flops(model, whole=True).sample(model.context_length),
        activations=tuple(_activations(config, ranks, device)),
        remedies=() if advice.fit.fits else tuple(remedies(config, ranks, device)),
        samples=samples,
        speed=speed,
        hours=speed.hours(samples),
    )


def _activations(config: TrainConfig, ranks: int, device: Device) -> Iterator[Activations]:
    for recompute in dict.fromkeys((*RECOMPUTE, config.recompute)):
        changed = dataclasses.replace(config, recompute=recompute, micro_batch=None)
        shape = dataclasses.replace(step_shape(changed, ranks, device.kind), samples=1)
        largest = largest_micro_batch(changed, ranks, device)
        yield Activations(
            recompute=recompute,
            bytes_per_sample=step_memory(model_config(changed), shape).activations,
            largest_micro_batch=largest,
        )


# --- in words -------------------------------------------------------------------------------------


def requirement_lines(needs: Requirements) -> Iterator[str]:
    """The figures, as a person reads them."""
    config, fit_, rate = needs.advice.config, needs.advice.fit, needs.speed.samples_per_s
    pieces = "all at once"
    if fit_.micro_batch is not None:
        pieces = f"in micro-batches of {fit_.micro_batch:,}"
    name = fit_.device.name
    on = f"on {name}" if needs.ranks == 1 else f"on {needs.ranks:,} x {name}"
    yield f"{config.model}, {fit_.samples:,} samples a rank {pieces}, {on}"
    yield (
        f"{needs.parameters:,} parameters, {needs.flops_per_sample / 1e9:,.1f} GFLOP a sample to "
        f"train ({needs.flops_unpruned / 1e9:,.1f} where the last blocks compute all tokens)"
    )
    yield (
        f"layout {needs.parallel}, precision {config.precision}, recompute {config.recompute}, "
        f"batch {config.batch_size:,}"
    )
    for reason in needs.advice.reasons:
        yield f"  {reason}"
    yield from _memory_lines(needs)
    yield f"speed: {rate:,.{0 if rate >= 10 else 2}f} samples/s ({needs.speed.source})"
    hours = f"{needs.hours:,.1f} hours"
    if needs.hours >= 48:
        hours = f"{needs.hours / 24:,.1f} days"
    yield f"{hours} for {needs.samples:,} samples: {needs.device_hours:,.1f} device-hours"
    if not fit_.fits:
        yield f"it does not fit: {unfit_message(fit_)}; {'; '.join(needs.remedies)}"


def _memory_lines(needs: Requirements) -> Iterator[str]:
    fit_ = needs.advice.fit
    yield "memory of a rank:"
    for name, bytes_ in disk.to_plain(fit_.memory).items():
        yield f"  {name:<12}{bytes_ / GIB:>10,.2f} GiB"
    yield (
        f"  {'needed':<12}{fit_.needed / GIB:>10,.2f} GiB of {fit_.device.memory / GIB:,.2f}, "
        f"of which {MARGIN:.0%} stay free"
    )
    yield "activations of a sample, and the largest micro-batch:"
    for each in needs.activations:
        words = f"{each.largest_micro_batch:,}" if each.largest_micro_batch else "none fits"
        if each.largest_micro_batch == fit_.samples:
            words = f"all {words}"
        size = f"{each.bytes_per_sample / MIB:>10,.2f} MiB"
        yield f"  {'recompute ' + each.recompute:<22}{size}  {words}"
