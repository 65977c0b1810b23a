"""What a run needs of a device: memory and time."""

from __future__ import annotations

from train.capacity.devices import DEVICE_SHARE, GIB, Device, device_of, free_memory
from train.capacity.footprint import (
    Fit,
    fit,
    largest_micro_batch,
    refuse_unfit,
    remedies,
    resolve_micro_batch,
    step_shape,
    unfit_message,
)
from train.capacity.layouts import Advice, advise, parallel_name
from train.capacity.pool_size import PoolSize, pool_size
from train.capacity.requirements import Requirements, requirement_lines, requirements
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
    "Advice",
    "Device",
    "Fit",
    "PoolSize",
    "Requirements",
    "Speed",
    "advise",
    "computed_flops",
    "device_of",
    "estimated_speed",
    "fit",
    "free_memory",
    "largest_micro_batch",
    "measured_speed",
    "parallel_name",
    "pool_size",
    "refuse_unfit",
    "remedies",
    "requirement_lines",
    "requirements",
    "resolve_micro_batch",
    "sample_flops",
    "step_shape",
    "unfit_message",
    "utilisation",
]
