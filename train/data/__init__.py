"""The rows of views, reading and loading."""

from __future__ import annotations

from train.data.damage import DamageCounts, DamagedSample, too_many_damaged
from train.data.loader import Batch, Loader, copy_tokens
from train.data.retry import ReadFailed, read_with_retries
from train.data.stage_times import StageTimes
from train.data.view_columns import (
    ShardColumns,
    ViewMasks,
    covers,
    load_aligned,
    open_masks,
    read_columns,
    read_view,
)

__all__ = [
    "Batch",
    "DamageCounts",
    "DamagedSample",
    "Loader",
    "ReadFailed",
    "ShardColumns",
    "StageTimes",
    "ViewMasks",
    "copy_tokens",
    "covers",
    "load_aligned",
    "open_masks",
    "read_columns",
    "read_view",
    "read_with_retries",
    "too_many_damaged",
]
