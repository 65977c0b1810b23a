"""A trained model that answers: back ends with one contract, and their latency."""

from __future__ import annotations

from train.inference.backends import Backend, Outputs, Setup, Unavailable
from train.inference.inputs import Inputs, synthetic_inputs
from train.inference.latency import (
    BACKENDS,
    LIMITS,
    REQUESTS,
    Schedule,
    Timing,
    measure_batch,
    reference,
    start,
)

__all__ = [
    "BACKENDS",
    "LIMITS",
    "REQUESTS",
    "Backend",
    "Inputs",
    "Outputs",
    "Schedule",
    "Setup",
    "Timing",
    "Unavailable",
    "measure_batch",
    "reference",
    "start",
    "synthetic_inputs",
]
