"""The order of training, the rows of views, decoding and loading."""

from __future__ import annotations

from train.data import augment
from train.data.augment import normalise
from train.data.damage import DamageCounts, DamagedSample, too_many_damaged
from train.data.decode import decode_image, fast_jpeg
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
    "augment",
    "covers",
    "decode_image",
    "fast_jpeg",
    "load_aligned",
    "normalise",
    "open_masks",
    "read_columns",
    "read_view",
    "too_many_damaged",
]
