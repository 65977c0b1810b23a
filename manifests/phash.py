"""Perceptual hashes of an image: resized or recompressed copies have a near hash.

`phash` has 64 bits. The filter `picture` stores it as a column, and an evaluation compares its
images with that column. `pdq` has 256 bits and a quality; the filter `pdq` stores them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from PIL import Image

SIDE = 32  # pixels: the luma is resized to SIDE × SIDE
LOW_TERMS = 8  # per axis: the hash has one bit for each of the 8 × 8 lowest cosine terms

# Constants of PDQ as Facebook published it in 2019 ("The TMK+PDQF video-hashing algorithm and the
# PDQ image-hashing algorithm").
PDQ_SIDE = 64  # pixels per axis after the box filters
PDQ_TERMS = 16  # cosine terms per axis, without the constant one
PDQ_BYTES = PDQ_TERMS**2 // 8
PDQ_GRADIENT_UNIT = 90  # steps of one percent of the range that are one unit of quality
PDQ_QUALITY = 50  # published: a hash of a lower quality is not to be compared
PDQ_RADIUS = 31  # published: hashes within 31 of 256 bits are of copies

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]

# Rows are the eight lowest cosines over 32 samples (DCT-II without scaling).
_COSINES = np.cos(np.pi * (2 * np.arange(SIDE) + 1) * np.arange(LOW_TERMS)[:, None] / (2 * SIDE))
# Rows are the cosines 1 to 16 over 64 samples. Scaling does not change which exceed their median.
_PDQ_COSINES = np.cos(
    np.pi * (2 * np.arange(PDQ_SIDE) + 1) * np.arange(1, PDQ_TERMS + 1)[:, None] / (2 * PDQ_SIDE)
).astype(np.float32)


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


def pdq(image: Image.Image) -> tuple[bytes, int]:
    """(hash of 32 bytes, quality of 0 to 100) by the published description of PDQ.

    The luma is smoothed by two box filters per axis and sampled at 64 × 64; a bit says whether one
    of the cosine terms 1 to 16 per axis exceeds their median. The hexadecimal form of the bytes is
    PDQ's own. The quality is the sum of the steps between neighbouring samples; of a plain image
    the bits are noise and the quality is low.
    """
    luma_HW = np.asarray(image.convert("L"), np.float32)
    height, width = luma_HW.shape
    # Few weights are not 0: a sparse product takes a tenth of the time, and no threads of BLAS.
    small: FloatArray = (_smooth(width) @ (_smooth(height) @ luma_HW).T).T
    terms: FloatArray = _PDQ_COSINES @ small @ _PDQ_COSINES.T
    bits = (
        terms > np.partition(terms, terms.size // 2 - 1, axis=None)[terms.size // 2 - 1]
    ).ravel()
    return np.packbits(bits[::-1]).tobytes(), _pdq_quality(small)


def _pdq_quality(small: FloatArray) -> int:
    steps = 0
    for axis in (0, 1):
        percent = np.trunc(np.diff(small, axis=axis) * np.float32(100 / 255))
        steps += int(np.abs(percent).sum())
    return min(100, steps // PDQ_GRADIENT_UNIT)


@functools.lru_cache(maxsize=512)
def _smooth(length: int) -> Any:
    """(64, length) sparse weights of two box filters after one another, sampled at 64 positions.

    The window is 1/128 of the length, rounded up; at a border it has only the samples inside.
    """
    from scipy.sparse import csr_array

    window = -(-length // (2 * PDQ_SIDE))
    right = (window + 2) // 2 - 1
    left = window - 1 - right
    samples = np.arange(length)
    first, end = np.maximum(samples - left, 0), np.minimum(samples + right + 1, length)
    # Differences along the axis: +w where a window begins, -w behind its end.
    steps = np.zeros((PDQ_SIDE, length + 1))
    for row, centre in enumerate(((np.arange(PDQ_SIDE) + 0.5) * length / PDQ_SIDE).astype(int)):
        inner = slice(first[centre], end[centre])
        weights = 1 / (end[inner] - first[inner]) / (end[centre] - first[centre])
        np.add.at(steps[row], first[inner], weights)
        np.add.at(steps[row], end[inner], -weights)
    weights_of_all: FloatArray = np.cumsum(steps[:, :length], axis=1).astype(np.float32)
    weights_of_all[np.abs(weights_of_all) < 1e-9] = 0  # rounding of the sums
    return csr_array(weights_of_all)
