"""How fast a run is on a device: by its operations, or as earlier runs measured it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from manifests import disk
from train.capacity.devices import CPU_UTILISATION, Device
from train.capacity.footprint import Fit
from train.config import TrainConfig, model_config, recompute_interval, trained_groups
from train.hardware import PublishedSpeed, own_sheets, published_speeds
from train.model import MODELS, ModelConfig, training_flops

# Mean tokens of a caption where captions are not padded. Web captions have about 20.
CAPTION_TOKENS = {"packed": 20, "groups": 30}
# Settings that change the speed of a run on a device.
SPEED_SETTINGS = (
    "model", "model_changes", "context_length", "batch_size", "precision", "recompute", "captions",
    "attention", "compile", "dp_shard", "tp", "optimizer",
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
    tokens = CAPTION_TOKENS.get(config.captions, model.context_length)
    return training_flops(model, trained=trained_groups(config)).sample(
        min(tokens, model.context_length)
    )


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


def _whole_flops(model: ModelConfig) -> float:
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
    return Speed(samples_per_s=sum(rates) / len(rates), source=f"measured in {runs}")
