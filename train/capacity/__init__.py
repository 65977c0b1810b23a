"""What a run needs of a device: memory and time."""

from __future__ import annotations

from train.capacity.devices import DEVICE_SHARE, GIB, Device, device_of, free_memory
from train.capacity.footprint import (
    Fit,
    fit,
    refuse_unfit,
    remedies,
    resolve_micro_batch,
    step_shape,
    unfit_message,
)
from train.capacity.throughput import (
    Speed,
    computed_flops,
    estimated_speed,
    measured_speed,
    sample_flops,
    utilisation,
)

__all__ = [
    "DEVICE_SHARE",
    "GIB",
    "Device",
    "Fit",
    "Speed",
    "computed_flops",
    "device_of",
    "estimated_speed",
    "fit",
    "free_memory",
    "measured_speed",
    "refuse_unfit",
    "remedies",
    "resolve_micro_batch",
    "sample_flops",
    "step_shape",
    "unfit_message",
    "utilisation",
]
