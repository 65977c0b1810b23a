"""How the sources of a blend share a run: weights, stages, limits, rows that are kept apart."""

from __future__ import annotations

from train.mixing.distinct import put_apart
from train.mixing.schedule import NO_LIMIT, Schedule, Stage
from train.mixing.wheel import (
    PERIOD,
    SourceRows,
    most_in_a_batch,
    numbered_slots,
    wheel_sequence,
    wheel_slots,
)

__all__ = [
    "NO_LIMIT",
    "PERIOD",
    "Schedule",
    "SourceRows",
    "Stage",
    "most_in_a_batch",
    "numbered_slots",
    "put_apart",
    "wheel_sequence",
    "wheel_slots",
]
