"""Which layout, recomputation and micro-batch a run should have on a device, and why."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests import disk
from train.config import TrainConfig, check_world, model_config
from train.model.architecture import MODELS
from train.model.memory import parameter_count, step_memory, training_flops
from train.sizing.device_fit import (
    GIB,
    MARGIN,
    Cell,
    Device,
    Fit,
    Speed,
    computed_flops,
    fit,
    largest_micro_batch,
    processor_name,
    read_report,
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

    @property
    def parallel(self) -> str:
        """The layout as `--parallel` takes it."""
        return parallel_name(self.config)


def parallel_name(config: TrainConfig) -> str:
    """A layout in a word: dp, fsdp4, tp2 or tp2+fsdp4."""
    parts = [f"tp{config.tp}"] * (config.tp > 1) + [f"fsdp{config.dp_shard}"] * (
        config.dp_shard > 1
    )
    return "+".join(parts) or "dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks share a model: the text of --parallel, and the settings it stands for."""

    name: str
    dp_shard: int = 1  # 0: all ranks
    tp: int = 1

    def shards(self, ranks: int) -> int:
        """The setting dp_shard for so many ranks."""
        return self.dp_shard or max(1, ranks // self.tp)


def parse_layout(text: str) -> Layout:
    """`dp`, `fsdp`, `fsdp4`, `tp2` or `tp2+fsdp4`. ValueError for another text."""
    sizes: dict[str, int] = {}
    for part in text.split("+"):
        kind = part.rstrip("0123456789")
        number = part[len(kind) :]
        allowed = kind == "fsdp" or (kind == "tp" and number) or part == "dp"
        if not allowed or kind in sizes or (number and int(number) < 2):
            raise ValueError(
                f"--parallel is {text!r}; it must be dp, fsdp, fsdpN, tpN or tpN+fsdpN with N of "
                "at least 2, like tp2"
            )
        sizes[kind] = int(number or 0)
    if "dp" in sizes and len(sizes) > 1:
        raise ValueError(f"--parallel is {text!r}; dp stands alone")
    return Layout(name=text, dp_shard=sizes.get("fsdp", 1), tp=sizes.get("tp", 1))


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
# Storage and download time of a pool of image-text pairs, by the image size.
#
# The bytes of an image are those that photographs had when they were stored (image_bytes.json, by
# benchmarks/fetching/image_bytes.py): JPEGs of quality 95 whose shorter side has the image size.
# Other pools differ with their images: the result names what was measured. Captions, addresses and
# columns are not counted.


MEASURED = Path(__file__).parent / "image_bytes.json"
SMALLEST, LARGEST = 32, 4096  # image sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """What a pool of so many pairs takes."""

    pairs: int
    image_size: int
    bytes_per_pair: float
    stored_bytes: float
    downloaded_bytes: float
    download_days: float | None  # None without a bandwidth
    source: str


def pool_size(
    pairs: int, image_size: int, mbit_per_s: float | None = None, path: Path = MEASURED
) -> PoolSize:
    """The storage of a pool, and the time that its images take to arrive.

    Bytes grow linearly with the pixels, between and beyond the image sizes that were measured.
    ValueError for numbers that no pool has.
    """
    if pairs < 1:
        raise ValueError(f"pairs is {pairs}; it must be at least 1")
    if not SMALLEST <= image_size <= LARGEST:
        raise ValueError(
            f"image size is {image_size}; it must lie in [{SMALLEST}, {LARGEST}] pixels"
        )
    if mbit_per_s is not None and not 0 < mbit_per_s < math.inf:
        raise ValueError(f"bandwidth is {mbit_per_s}; it must be above 0 Mbit/s")
    result = disk.read_json(path)
    stored = _bytes_at(result, image_size)
    downloaded = pairs * float(result["downloaded_bytes"])
    days = None
    if mbit_per_s is not None:
        days = downloaded * 8 / (mbit_per_s * 1e6) / 86400
    inside = image_size in {int(size) for size in result["stored_bytes"]}
    words = "measured" if inside else "by the line through the sizes measured"
    return PoolSize(
        pairs=pairs,
        image_size=image_size,
        bytes_per_pair=stored,
        stored_bytes=pairs * stored,
        downloaded_bytes=downloaded,
        download_days=days,
        source=f"{words} with {result['title']}",
    )


def _bytes_at(result: Any, image_size: int) -> float:
    """The bytes of an image: the least-squares line of the bytes over the pixels."""
    sizes = {int(size): float(each["mean"]) for size, each in result["stored_bytes"].items()}
    if image_size in sizes:
        return sizes[image_size]
    pixels = [size * size for size in sizes]
    mean_x, mean_y = sum(pixels) / len(pixels), sum(sizes.values()) / len(sizes)
    products = [(x - mean_x) * (y - mean_y) for x, y in zip(pixels, sizes.values(), strict=True)]
    slope = sum(products) / sum((x - mean_x) ** 2 for x in pixels)
    return max(1.0, mean_y + slope * (image_size * image_size - mean_x))


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


# --------------------------------------------------------------------------------------------------
# A speed that was measured.


def reported_speed(path: str, advice: Advice, ranks: int, device: Device) -> Speed:
    """The speed that a report of `clipmill bench` gives for a run.

    A cell of the same model, text length and precision counts as it is, for each rank; of these the
    one whose ranks, layout and batch are nearest. Else the share of the peak that the nearest model
    reached counts. ValueError for a report of another device, without a cell of the mode train, or
    of a model that is not known here.
    """
    report = read_report(path)
    name = report.machine.device
    is_same = report.machine.kind == "cpu" if device.kind == "cpu" else device.is_called(name)
    if not is_same:
        raise ValueError(f"{path} was measured on {name}, not on {device.name}; change --device")
    cells = [cell for cell in report.cells if cell.measured and cell.rates]
    config = advice.config
    cells = [cell for cell in cells if cell.dtype == config.precision]
    if report.mode != "train" or not cells:
        raise ValueError(
            f"{path} has no speed of training in {config.precision} (mode {report.mode}); measure "
            "it: clipmill bench --mode train --dtype "
            f"{config.precision.replace('_', '-')}"
        )
    flops = computed_flops(config, pieces=advice.fit.micro_batch is not None)
    length = report.options.get("text_length")

    def is_same_model(cell: Cell) -> bool:
        known = MODELS[cell.model].context_length
        return cell.model == config.model and (length or known) == (config.context_length or known)

    def distance(cell: Cell) -> tuple[float, float, bool, float]:
        """How far a cell is from the run: by model, ranks, layout and samples of a rank."""
        work = _measured_flops(cell, length, path)
        far = 0.0 if is_same_model(cell) else 1 + abs(math.log(work / flops))
        layout = parse_layout(cell.parallel)
        is_other = (layout.shards(cell.ranks) > 1, layout.tp) != (config.dp_shard > 1, config.tp)
        samples = cell.global_batch / cell.ranks
        return (
            far,
            abs(math.log(cell.ranks / ranks)),
            is_other,
            abs(math.log(samples * ranks / config.batch_size)),
        )

    cell = min(cells, key=distance)
    rate = sum(cell.rates) / len(cell.rates)
    if device.kind != "cpu":  # ranks share a processor, and each has a GPU of its own
        rate *= ranks / cell.ranks
    source = f"measured for {cell.label}"
    if device.kind == "cpu" and name != processor_name():
        source += f", on {name}"
    if device.kind != "cpu" and ranks != cell.ranks:
        source += f", times {ranks:,}/{cell.ranks:,} ranks"
    if not is_same_model(cell):
        work = _measured_flops(cell, length, path)
        rate *= work / flops
        source += f", at the same operations a second, {flops / work:.3g} x as many a sample"
    return Speed(samples_per_s=rate, source=source)


def _measured_flops(cell: Cell, text_length: int | None, path: str) -> float:
    """Operations of a sample of a cell. ValueError for a model that is not known here."""
    model = MODELS.get(cell.model)
    if model is None:
        raise ValueError(f"{path} measured a model {cell.model!r}, which is not known here")
    return training_flops(model).sample(text_length or model.context_length)
