"""Bytes of an image to the pixels that a model takes."""

from __future__ import annotations

from train.pixels import augment
from train.pixels.augment import crop_numbers, normalise, random_crop_into, smallest_side
from train.pixels.decode import decode_image, fast_jpeg
from train.pixels.scratch import ThreadBuffer

__all__ = [
    "ThreadBuffer",
    "augment",
    "crop_numbers",
    "decode_image",
    "fast_jpeg",
    "normalise",
    "random_crop_into",
    "smallest_side",
]
