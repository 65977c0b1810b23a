"""The order of training, the rows of views, decoding and loading."""

from __future__ import annotations

from train.data import augment
from train.data.augment import normalise
from train.data.decode import decode_image, fast_jpeg
from train.data.loader import Batch, Loader
from train.data.order import Repeats
from train.data.view_rows import tar_path

__all__ = [
    "Batch",
    "Loader",
    "Repeats",
    "augment",
    "decode_image",
    "fast_jpeg",
    "normalise",
    "tar_path",
]
