"""How fast a run is on a device: by its operations, or as earlier runs measured it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from train.capacity.devices import Device
from train.capacity.footprint import Fit
from train.config import TrainConfig, model_config, recompute_interval, trained_groups
from train.model import training_flops

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
    """The speed by operations: each rank reaches the device's share of its peak."""
    flops = computed_flops(config, pieces=result.micro_batch is not None)
    rate = ranks * device.flops_per_s(config.precision) / flops
    cores = f", {device.cores:.3g} cores a rank" if device.kind == "cpu" else ""
    source = f"{device.utilisation:.0%} of the peak of {device.name}{cores}"
    return Speed(samples_per_s=rate, source=source)


def measured_speed(
    config: TrainConfig, ranks: int, records: Iterable[Mapping[str, Any]]
) -> Speed | None:
    """The speed of finished runs with the same model, batch and layout; None where there is none.

    `records` are run.json documents. The mean of those with as many ranks counts.
    """
    from manifests import disk

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
