"""The rows of views, reading and loading."""

from __future__ import annotations

from train.data.damage import DamageCounts, DamagedSample, too_many_damaged
from train.data.loader import Batch, Loader
from train.data.retry import ReadFailed
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
    "ViewMasks",
    "covers",
    "load_aligned",
    "open_masks",
    "read_columns",
    "read_view",
    "too_many_damaged",
]
