"""The 64-bit perceptual hash of an image: resized or recompressed copies have a near hash.

The filter `picture` stores it as a column, and an evaluation compares its images with that column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

SIDE = 32  # pixels: the luma is resized to SIDE × SIDE
LOW_TERMS = 8  # per axis: the hash has one bit for each of the 8 × 8 lowest cosine terms

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]

# Rows are the eight lowest cosines over 32 samples (DCT-II without scaling).
_COSINES = np.cos(np.pi * (2 * np.arange(SIDE) + 1) * np.arange(LOW_TERMS)[:, None] / (2 * SIDE))


def phash(image: Image.Image) -> int:
    """64-bit hash: which of the 8 × 8 lowest cosine terms of the 32 × 32 luma exceed their median.

    Row by row, the first bit highest. Returned as a signed number, because int64 is the 64-bit
    column type that Parquet and SQL share.
    """
    resized = image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    luma = np.asarray(resized, np.float64)
    low: FloatArray = _COSINES @ luma @ _COSINES.T
    bits = (low > np.median(low)).ravel()
    return int(np.packbits(bits).view(">i8")[0])
