"""What the pixels alone say of a picture: how bright, how varied, how busy, and which pictures are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image

from filters.base import Batch, Columns
from manifests.phash import phash

SIDE = 256  # larger pictures are measured at this long side, so that values of different pools can be compared
EDGE = 25  # luma step between neighbouring pixels above which there is an edge, of 255

_LEVELS = np.arange(256) / 255


@dataclass(kw_only=True)
class Picture:
    """Columns, over luma (ITU-R 601) in [0, 1]:

    brightness: mean. contrast: standard deviation. entropy: of the 256-bin histogram, bits in [0, 8]; a drawing or a
    blank is below 4. edges: share of neighbouring pixels that differ by more than a tenth. colour: mean distance
    between the largest and the smallest channel, 0 for grey pictures. phash: 64-bit perceptual hash as int64; the
    Hamming distance of two is `bit_count(xor(a, b))` in SQL, and copies that were resized or compressed again are
    within about 6.
    """

    name: ClassVar[str] = "picture"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"image"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "brightness": pa.float32(),
        "contrast": pa.float32(),
        "entropy": pa.float32(),
        "edges": pa.float32(),
        "colour": pa.float32(),
        "phash": pa.int64(),
    }
    device: ClassVar[str] = "cpu"

    def identity(self) -> str:
        return ""

    def check(self) -> None:
        return None

    def setup(self) -> None:
        return None

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        rows = [measure(image) for image in batch.images]
        return {name: [row[name] for row in rows] for name in self.adds}


def measure(image: Image.Image) -> dict[str, float | int]:
    """The columns of one RGB picture."""
    small = image
    if max(image.size) > SIDE:
        small = image.copy()
        small.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    red, green, blue = (np.asarray(channel) for channel in small.split())
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    luma_HW = np.asarray(small.convert("L"))
    share = np.bincount(luma_HW.ravel(), minlength=256) / luma_HW.size
    mean = float(share @ _LEVELS)
    signed_HW = luma_HW.astype(np.int16)
    steps = [np.abs(np.diff(signed_HW, axis=axis)) > EDGE for axis in (0, 1)]
    some = share[share > 0]
    return {
        "brightness": mean,
        "contrast": float(np.sqrt(share @ (_LEVELS - mean) ** 2)),
        "entropy": abs(float(-(some * np.log2(some)).sum())),
        "edges": sum(int(step.sum()) for step in steps) / max(1, sum(step.size for step in steps)),
        "colour": float(spread.mean()) / 255,
        "phash": phash(image),
    }
