"""One training run: its identity, its state, its steps and its log."""

from __future__ import annotations

from train.running import loop
from train.running.identity import (
    complete_settings,
    deciding_settings,
    differences,
    view_hashes,
)
from train.running.loop import Resume, train
from train.running.mix import (
    blend_of,
    count_rows,
    is_pool,
    open_loader,
    plan_lines,
    read_blend,
    stream_of,
)
from train.running.nonfinite import NonFinite

__all__ = [
    "NonFinite",
    "Resume",
    "blend_of",
    "complete_settings",
    "count_rows",
    "deciding_settings",
    "differences",
    "is_pool",
    "loop",
    "open_loader",
    "plan_lines",
    "read_blend",
    "stream_of",
    "train",
    "view_hashes",
]
