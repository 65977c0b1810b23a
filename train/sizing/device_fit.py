"""Whether a run fits a device and how long it takes: data sheets, published speeds, memory."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clipmill.manifests import disk
from clipmill.manifests.disk import did_you_mean
from clipmill.manifests.late import torch
from clipmill.train.config import (
    TrainConfig,
    check_layout,
    model_config,
    recompute_interval,
    trained_groups,
)
from clipmill.train.model.architecture import MODELS, ModelConfig, OpenClipConfig
from clipmill.train.model.memory import (
    StepMemory,
    StepShape,
    mixes_samples,
    step_memory,
    training_flops,
)

if TYPE_CHECKING:
    from clipmill.train.parallel.process_group import Ranks

# --------------------------------------------------------------------------------------------------
# Speeds of CLIP training that others published, in `published.json`: samples/s of one device.


PUBLISHED = Path(__file__).parent / "published.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSpeed:
    """One published run in 16 bits with captions padded to the context."""

    model: str
    device: str  # a key of `own_sheets`
    ranks: int
    samples_per_s: float  # of one device
    source: str


@functools.cache
def published_speeds() -> tuple[PublishedSpeed, ...]:
    """The published runs that clipmill knows."""
    speeds = disk.read_json(PUBLISHED)["speeds"]
    return tuple(disk.from_plain(PublishedSpeed, each) for each in speeds)


# --------------------------------------------------------------------------------------------------
# Data sheets of devices: memory and peak by precision, with the source of each.
#
# The figures are data: `devices.json` beside this file.


OWN_SHEETS = Path(__file__).parent / "devices.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """One kind of GPU."""

    name: str  # as people write it
    matches: tuple[str, ...]  # words of the name that torch reports; the longest match counts
    memory_gib: float  # that programs can allocate
    tflops: dict[str, float]  # dense peak of matrix products with 32-bit sums, by precision
    sources: dict[str, str]  # of each figure above

    def peak_flops(self, precision: str) -> float | None:
        """Operations a second at most; None where the device has no products of this precision."""
        value = self.tflops.get(precision)
        return None if value is None else 1e12 * value


@functools.cache
def own_sheets() -> dict[str, DeviceSheet]:
    """The devices that clipmill knows, by their keys, such as a100-80gb."""
    devices = disk.read_json(OWN_SHEETS)["devices"]
    return {key: disk.from_plain(DeviceSheet, value) for key, value in devices.items()}


def sheet_of(name: str) -> DeviceSheet | None:
    """The sheet of a device by the name that torch reports; None for an unknown one."""
    best: tuple[int, DeviceSheet] | None = None
    for sheet in own_sheets().values():
        for word in sheet.matches:
            if word in name and (best is None or len(word) > best[0]):
                best = len(word), sheet
    return None if best is None else best[1]


def peak_flops(device: str, precision: str = "bf16") -> float | None:
    """Peak operations a second of a device by the name that torch reports; None if unknown."""
    sheet = sheet_of(device)
    return None if sheet is None else sheet.peak_flops(precision)


# --------------------------------------------------------------------------------------------------
# Devices to plan for: their memory and speed by name, and what is free on this machine.


GIB = 2**30
# ViT micro in fp32 reaches 56 GFLOP/s on one core (benchmarks/results/cpu_micro.json).
CPU_CORE_FLOPS = 80e9
CPU_UTILISATION = 0.7
# Share of a device's memory: fragments, libraries, the context of a GPU, errors of estimates.
MARGIN = 0.1
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "max 100000", or microseconds of each period
DEVICE_SHARE = "CLIPMILL_DEVICE_SHARE"  # runs side by side that share this run's device


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that holds one rank: a GPU, or this machine's processor and host memory."""

    name: str
    kind: str  # cuda or cpu
    memory: int  # bytes that a rank may hold, before the margin
    utilisation: float | None = None  # share of the peak that training reaches; None: not stated
    cores: float = 1.0  # of a processor, for one rank
    sheet: DeviceSheet | None = None  # of a GPU that is planned for

    @property
    def budget(self) -> int:
        """Bytes that an estimate may need."""
        return int(self.memory * (1 - MARGIN))

    def peak_flops(self, precision: str) -> float:
        """Operations a second at most. ValueError for a precision that the device lacks."""
        if self.kind == "cpu":
            return self.cores * CPU_CORE_FLOPS
        assert self.sheet is not None
        peak = self.sheet.peak_flops(precision)
        if peak is None:
            has = ", ".join(self.sheet.tflops)
            raise ValueError(
                f"precision is {precision}, which {self.name} has no products of; set it to one "
                f"of {has}"
            )
        return peak

    def is_called(self, name: str) -> bool:
        """Whether a run's record with this name of a device is of a device of this kind."""
        return "processor" in name if self.kind == "cpu" else sheet_of(name) == self.sheet


def device_of(name: str, utilisation: float | None = None, ranks: int = 1) -> Device:
    """A device by name: of clipmill's data sheets, `cpu` (this machine), or `auto` (this machine's
    best).

    `ranks` share a processor and its memory. ValueError for an unknown name, and for an utilisation
    outside (0, 1].
    """
    if utilisation is not None and not 0 < utilisation <= 1:
        raise ValueError(f"utilisation is {utilisation}; it must lie in (0, 1]")
    if name == "auto":
        name = _own_gpu() or "cpu"
    if name == "cpu":
        return Device(
            name="cpu",
            kind="cpu",
            memory=free_host_memory() // ranks,
            utilisation=utilisation,
            cores=usable_cores() / ranks,
        )
    sheet, memory = own_sheets().get(name), None
    if sheet is None and torch.cuda.is_available() and name == torch.cuda.get_device_name(0):
        sheet = sheet_of(name)
        memory = torch.cuda.get_device_properties(0).total_memory
    if sheet is None:
        known = [*own_sheets(), "cpu", "auto"]
        raise ValueError(
            f"there is no device {name!r}{did_you_mean(name, known)} (of {', '.join(known)})"
        )
    return Device(
        name=sheet.name,
        kind="cuda",
        memory=int(sheet.memory_gib * GIB) if memory is None else memory,
        utilisation=utilisation,
        sheet=sheet,
    )


def _own_gpu() -> str | None:
    """The name of this machine's first GPU; None where it has none, or none with a known peak."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0)
    return name if sheet_of(name) is not None else None


def free_memory(device: torch.device, ranks: int = 1) -> int:
    """Bytes that one rank may allocate on a device now.

    `ranks` of this machine share host memory; on GPUs each has its own. Runs that share a device
    are counted by the variable CLIPMILL_DEVICE_SHARE.
    """
    share = max(1, int(os.environ.get(DEVICE_SHARE, "1")))
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // share
    return free_host_memory() // (share * ranks)


def usable_cores() -> int:
    """Cores that this process may use: of the machine, by its affinity, or by its cgroup."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    try:
        quota, period = CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return cores
    return min(cores, max(1, int(quota) // int(period))) if quota.isdigit() else cores


def free_host_memory() -> int:
    """Bytes of host memory that this process may still use: of the machine, or of its cgroup."""
    free = _available()
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _cached()))
    return free


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cached() -> int:
    """Bytes of cached files in the cgroup, which are given up when memory is short."""
    try:
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


# --------------------------------------------------------------------------------------------------
# The memory of a run's step on a device, the micro-batch that fits, and what would fit instead.


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
    from clipmill.train.step.loss import loss_tile  # with torch

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
        data_parallel=data_parallel,
        dp_shard=config.dp_shard,
        tp=config.tp,
        loss_tile=loss_tile(samples, samples * data_parallel, config.loss_tile),
        trained=trained_groups(config),
    )


def fit(config: TrainConfig, ranks: int, device: Device) -> Fit:
    """The step of one of `ranks` ranks on a device; with `micro_batch: auto` the largest that fits.

    Where none fits, `micro_batch` is 1 and `fits` is False; a model with BatchNorm takes all
    samples at once. ValueError where micro-batches of such a model are asked for.
    """
    whole = config if config.micro_batch != "auto" else _with_micro_batch(config, None)
    shape = step_shape(whole, ranks, device.kind)
    _refuse_micro_batches(whole, shape)
    result = _fit(whole, shape, device)
    if result.fits or config.micro_batch != "auto" or shape.samples == 1:
        return result
    if mixes_samples(model_config(config), shape.trained):
        return result
    largest = _largest(whole, shape, device)
    friendly = friendly_micro_batch(shape.samples, max(1, largest))
    return _fit(whole, dataclasses.replace(shape, micro_batch=friendly), device)


def largest_micro_batch(config: TrainConfig, ranks: int, device: Device) -> int:
    """The most samples of a rank that fit at once, even or not; 0 where not even one fits."""
    whole = _with_micro_batch(config, None)
    shape = step_shape(whole, ranks, device.kind)
    if _fit(whole, shape, device).fits:
        return shape.samples
    return (
        0 if mixes_samples(model_config(config), shape.trained) else _largest(whole, shape, device)
    )


def _refuse_micro_batches(config: TrainConfig, shape: StepShape) -> None:
    """ValueError for micro-batches of a model that mixes the samples of a batch."""
    if shape.piece < shape.samples and mixes_samples(model_config(config), shape.trained):
        raise ValueError(
            f"micro_batch is {config.micro_batch}, and {config.model} has BatchNorm, whose mean and"
            " variance are those of all samples of a batch: micro-batches would train another "
            "model; leave micro_batch out, and start more ranks or set recompute to full where "
            "memory is short"
        )


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
            words = f"ranks: {more}, dp_shard: {more // config.tp} and recompute: full"
            yield words, _with_dp_shard(full, more // config.tp), more
        more *= 2


def _with_dp_shard(config: TrainConfig, dp_shard: int) -> TrainConfig:
    return dataclasses.replace(config, dp_shard=dp_shard)


# --- when a run starts ----------------------------------------------------------------------------


def resolve_micro_batch(config: TrainConfig, ranks: Ranks) -> TrainConfig:
    """The settings with a number in place of `micro_batch: auto`. A collective.

    It is the same on all ranks: the least of what their devices have room for. ValueError where
    not even one sample fits, and for micro-batches that the model does not allow.
    """
    if config.micro_batch != "auto":
        _refuse_micro_batches(config, step_shape(config, ranks.world, ranks.device.type))
        return config
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world))
    memory = free_memory(ranks.device, local)
    from clipmill.train.parallel import process_group

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


# --------------------------------------------------------------------------------------------------
# How fast a run is on a device: by its operations, or as earlier runs measured it.


PACKED_TOKENS = 20  # of a web caption, in the mean
# Settings that change the speed of a run on a device.
SPEED_SETTINGS = (
    "model", "model_changes", "context_length", "batch_size", "precision", "recompute", "captions",
    "attention", "compile", "dp_shard", "tp",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Samples a second of all ranks together, and where the number comes from."""

    samples_per_s: float
    source: str

    def hours(self, samples: int) -> float:
        """Hours to train on so many samples."""
        return samples / self.samples_per_s / 3600


def sample_flops(config: TrainConfig) -> float:
    """Operations that the result of one sample needs, forward and backward."""
    model = model_config(config)
    tokens = model.context_length
    if config.captions == "packed":
        tokens = min(tokens, PACKED_TOKENS)
    return training_flops(model, trained=trained_groups(config)).sample(tokens)


def computed_flops(config: TrainConfig, *, pieces: bool) -> float:
    """Operations that are computed for one sample, with those that are computed twice.

    Micro-batches take a second forward pass, a third of the operations; so do recomputed blocks.
    """
    again = 1.0 if pieces else 0.0
    every = recompute_interval(config.recompute)
    if every and config.recompute != "selective":
        again += 1 / every
    return sample_flops(config) * (1 + again / 3)


def estimated_speed(config: TrainConfig, ranks: int, device: Device, result: Fit) -> Speed:
    """The speed by operations: each rank reaches a share of its device's peak.

    The share is the one that was given, or that of published runs; communication between ranks is
    part of it. ValueError for a precision that the device lacks.
    """
    share, reason = utilisation(config, device)
    flops = computed_flops(config, pieces=result.micro_batch is not None)
    rate = ranks * device.peak_flops(config.precision) * share / flops
    cores = f", {device.cores:.3g} cores a rank" if device.kind == "cpu" else ""
    source = f"{share:.0%} of the peak of {device.name}{cores}{reason}"
    return Speed(samples_per_s=rate, source=source)


def utilisation(config: TrainConfig, device: Device) -> tuple[float, str]:
    """The share of the peak that training reaches, and where it comes from, for a sentence."""
    if device.utilisation is not None:
        return device.utilisation, ""
    if device.kind == "cpu":
        return CPU_UTILISATION, ", as ViT micro in fp32 (benchmarks/results/cpu_micro.json)"
    wanted = _whole_flops(model_config(config))
    shares = _published_shares(device)
    nearest = min(shares, key=lambda speed: abs(math.log(_flops_of(speed.model) / wanted)))
    same = sorted(share for speed, share in shares.items() if speed.model == nearest.model)
    sources = dict.fromkeys(s.source for s in shares if s.model == nearest.model)
    devices = dict.fromkeys(s.device for s in shares if s.model == nearest.model)
    spread = f", {same[0]:.0%} to {same[-1]:.0%}" if len(same) > 1 else ""
    where = f" on {', '.join(devices)}" if nearest.device not in _keys_of(device) else ""
    reason = f", the median of published runs of {nearest.model}{where}{spread}"
    return statistics.median(same), f"{reason}: {', '.join(sources)}"


def _published_shares(device: Device) -> dict[PublishedSpeed, float]:
    """The share of the peak of each published run: those on this device, else all."""
    keys = _keys_of(device)
    speeds = published_speeds()
    own = [speed for speed in speeds if speed.device in keys]
    shares = {}
    for speed in own or speeds:
        peak = own_sheets()[speed.device].peak_flops("bf16")
        assert peak is not None
        shares[speed] = speed.samples_per_s * _flops_of(speed.model) / peak
    return shares


def _keys_of(device: Device) -> list[str]:
    return [key for key, sheet in own_sheets().items() if sheet == device.sheet]


def _flops_of(model: str) -> float:
    return _whole_flops(MODELS[model])


def _whole_flops(model: ModelConfig | OpenClipConfig) -> float:
    """Operations of a sample with a caption of the whole context, as other trainers compute it."""
    return training_flops(model, whole=True).sample(model.context_length)


def measured_speed(
    config: TrainConfig, ranks: int, records: Iterable[Mapping[str, Any]]
) -> Speed | None:
    """The speed of finished runs with the same model, batch and layout; None where there is none.

    `records` are run.json documents. The mean of those with as many ranks counts.
    """
    wanted = {key: disk.to_plain(getattr(config, key)) for key in SPEED_SETTINGS}
    rates = []
    for record in records:
        saved = record["config"]
        same = all(saved.get(key) == value for key, value in wanted.items())
        if same and record["world"] == ranks and record["samples_per_s"] > 0:
            rates.append(float(record["samples_per_s"]))
    if not rates:
        return None
    runs = f"{len(rates)} finished run{'s' if len(rates) > 1 else ''}"
    return Speed(samples_per_s=math.fsum(rates) / len(rates), source=f"measured in {runs}")


def probed_speed(config: TrainConfig, threads: int, steps: int = 8) -> Speed:
    """The speed of some steps on this machine where nothing else runs: of a processor its time
    counts. Pixels and captions are drawn; nothing is read or decoded.
    """
    from clipmill.train.model.clip import CLIP  # with torch
    from clipmill.train.step.loss import contrastive

    gpu, before = torch.cuda.is_available(), torch.get_num_threads()
    sizes, batch = model_config(config), config.batch_size
    assert isinstance(sizes, ModelConfig)  # of a preset
    torch.set_num_threads(threads)
    with torch.device("cuda" if gpu else "cpu"):
        model = CLIP(sizes)
        images_BCHW = torch.rand(batch, 3, *sizes.height_width)
        tokens_BT = torch.ones(batch, sizes.context_length, dtype=torch.long)
    tokens_BT[:, -1] = sizes.vocab_size - 1
    optimizer = torch.optim.AdamW(model.parameters())
    started = 0.0
    for step in range(1 + steps):
        image_BE, text_BE = model.encode_image(images_BCHW), model.encode_text(tokens_BT)
        contrastive("clip", image_BE, text_BE, model.logit_scale.exp())[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        model.logit_scale.item()  # an accelerator has finished
        clock = time.perf_counter() if gpu else time.process_time() / threads
        started = started if step else clock
    torch.set_num_threads(before)
    rate = steps * batch / (clock - started)
    return Speed(samples_per_s=rate, source=f"{rate:,.0f} samples/s of {steps} steps, measured")
