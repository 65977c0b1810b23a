"""Bytes of an image to a checked, upright, resized image, in child processes that may die."""

from __future__ import annotations

from pipeline.images.decoders import Decoders
from pipeline.images.header import RejectedImage, check
from pipeline.images.row_options import boxes_of, check_hash, content_hashes
from pipeline.images.transform import DecodedImage, as_it_is, check_and_resize, limits_of

__all__ = [
    "DecodedImage",
    "Decoders",
    "RejectedImage",
    "as_it_is",
    "boxes_of",
    "check",
    "check_and_resize",
    "check_hash",
    "content_hashes",
    "limits_of",
]
