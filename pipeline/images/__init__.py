"""Bytes of an image to a checked, upright, resized image, in child processes that may die."""

from __future__ import annotations

from pipeline.images import transform
from pipeline.images.decoders import BadPicture, Decoders, Picture
from pipeline.images.header import check
from pipeline.images.transform import check_and_resize, limits_of

__all__ = [
    "BadPicture",
    "Decoders",
    "Picture",
    "check",
    "check_and_resize",
    "limits_of",
    "transform",
]
