"""One training run: its identity, its state, its steps and its log."""

from __future__ import annotations

from train.running import loop
from train.running.identity import (
    complete_settings,
    deciding_settings,
    differences,
    view_hashes,
)
from train.running.logbook import peak_memory
from train.running.loop import Records, Resume, train
from train.running.mix import (
    RunLoader,
    blend_of,
    count_rows,
    is_pool,
    open_loader,
    plan_lines,
    read_blend,
    stream_of,
)
from train.running.nonfinite import NonFinite
from train.running.train_state import SaveTimer, StopRequest, TrainState, prepare
from train.running.train_step import LaunchedStep, StepNumbers, StepRunner

__all__ = [
    "LaunchedStep",
    "NonFinite",
    "Records",
    "Resume",
    "RunLoader",
    "SaveTimer",
    "StepNumbers",
    "StepRunner",
    "StopRequest",
    "TrainState",
    "blend_of",
    "complete_settings",
    "count_rows",
    "deciding_settings",
    "differences",
    "is_pool",
    "loop",
    "open_loader",
    "peak_memory",
    "plan_lines",
    "prepare",
    "read_blend",
    "stream_of",
    "train",
    "view_hashes",
]
