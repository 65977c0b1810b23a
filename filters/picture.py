"""What the pixels of an image tell: how bright, how varied, how busy it is, and which images are
alike; with `detail`, whether it is sharp, plain or animated."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from clipmill.filters.base import LATER, Batch, Columns, Filter, described
from clipmill.manifests.hashes import PDQ_BYTES, pdq, phash

# --------------------------------------------------------------------------------------------------
# The 256-bit perceptual hash PDQ of an image, and how much there is to compare in it.


@dataclass(kw_only=True)
class Pdq(Filter):
    """Columns: pdq, 32 bytes; pdq_quality, 0 to 100. The filter `duplicate` reads them.

    Copies that were resized or compressed again are within 31 bits. Below a quality of 50 an image
    is so plain that its bits are noise.
    """

    name = "pdq"
    needs = frozenset({"image"})
    adds, meanings = described(
        pdq=(pa.binary(PDQ_BYTES), "256-bit perceptual hash PDQ; copies differ in at most 31 bits"),
        pdq_quality=(pa.int8(), "how varied the image is, 0 to 100; below 50 its hash is noise"),
    )

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        hashes = [pdq(image) for image in batch.images]
        return {
            "pdq": [value for value, _ in hashes],
            "pdq_quality": [quality for _, quality in hashes],
        }


SIDE = 256  # longer side at which larger images are measured, so that pools can be compared
EDGE = 25  # of 255: a luma step between neighbouring pixels above it is an edge

NEAR = 2  # of 255: luma steps from the median that count as the same tone
FRAMES = "n_frames"  # key of Image.info under which the scorer says how many frames a file has
# Attribute of an image that was just decoded: its array, so that a filter's `prepare` need not copy
# the pixels out of the image. It is gone before `score`, as a filter may draw into an image.
PIXELS = "decoded_pixels"

DETAIL = ("picture_sharpness", "picture_uniform", "picture_frames")
_LEVELS = np.arange(256) / 255


@dataclass(kw_only=True)
class Picture(Filter):
    """Columns, over luma (ITU-R 601) in [0, 1].

    brightness: mean. contrast: standard deviation. entropy: of the 256-bin histogram, bits in [0,
    8]; a drawing or a blank is below 4. edges: share of neighbouring pixels that differ by more
    than a tenth. colour: mean distance between the largest and the smallest channel, 0 for grey
    images. phash: 64-bit perceptual hash as int64; the Hamming distance of two is `bit_count(xor(a,
    b))` in SQL, and copies that were resized or compressed again are within about 6.

    detail: three columns more. picture_sharpness: variance of the Laplacian (4 neighbours, luma 0
    to 255); blurred images are low. picture_uniform: share of pixels within 2 of 255 of the median
    luma, near 1 for a blank. picture_frames: frames of the stored file, above 1 if it is animated;
    a fetch that re-encodes images keeps only the first one.
    """

    name = "picture"
    needs = frozenset({"image"})
    adds, meanings = described(
        brightness=(pa.float32(), "mean luma, 0 to 1"),
        contrast=(pa.float32(), "standard deviation of the luma, 0 to 0.5"),
        entropy=(pa.float32(), "bits of the luma histogram, 0 to 8; below 4 for drawings"),
        edges=(pa.float32(), "share of neighbouring pixels that differ by more than a tenth"),
        colour=(pa.float32(), "mean distance of the largest and smallest channel, 0 for grey"),
        phash=(pa.int64(), "64-bit perceptual hash; bit_count(xor(a, b)) is the distance of two"),
        picture_sharpness=(pa.float32(), "variance of the luma's Laplacian, low where blurred"),
        picture_uniform=(pa.float32(), "share of pixels of nearly the median luma; blanks have 1"),
        picture_frames=(pa.int32(), "frames of the stored file, above 1 if it is animated"),
    )
    detail: bool = field(default=False, metadata=LATER)

    def columns(self) -> dict[str, pa.DataType]:
        columns = dict(self.adds)
        if not self.detail:
            for name in DETAIL:
                del columns[name]
        return columns

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        measured = [measure(image, detail=self.detail) for image in batch.images]
        return {name: [values[name] for values in measured] for name in self.columns()}


def measure(image: Image.Image, *, detail: bool = False) -> dict[str, float | int]:
    """The columns of one RGB image."""
    small = image
    if max(image.size) > SIDE:
        small = image.copy()
        small.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    red, green, blue = (np.asarray(channel) for channel in small.split())
    largest = np.maximum(np.maximum(red, green), blue)
    smallest = np.minimum(np.minimum(red, green), blue)
    luma_HW = np.asarray(small.convert("L"))
    histogram = np.bincount(luma_HW.ravel(), minlength=256) / luma_HW.size
    mean = float(histogram @ _LEVELS)
    used = histogram[histogram > 0]
    signed_HW = luma_HW.astype(np.int16)
    steps = [np.abs(np.diff(signed_HW, axis=axis)) > EDGE for axis in (0, 1)]
    edges = sum(int(step.sum()) for step in steps)
    neighbours = sum(step.size for step in steps)
    values: dict[str, float | int] = {
        "brightness": mean,
        "contrast": float(np.sqrt(histogram @ (_LEVELS - mean) ** 2)),
        "entropy": abs(float(-(used * np.log2(used)).sum())),
        "edges": edges / max(1, neighbours),
        "colour": float((largest - smallest).mean()) / 255,
        "phash": phash(image),
    }
    if detail:
        median = int(np.searchsorted(np.cumsum(histogram), 0.5))
        values["picture_sharpness"] = laplacian_variance(signed_HW)
        values["picture_uniform"] = float(
            histogram[max(0, median - NEAR) : median + NEAR + 1].sum()
        )
        values["picture_frames"] = int(image.info.get(FRAMES, 1))
    return values


def laplacian_variance(luma_HW: NDArray[np.int16]) -> float:
    """Variance of the sum of the four neighbours less four times the pixel, over all pixels that
    have them; 0 for an image without such a pixel."""
    if min(luma_HW.shape) < 3:
        return 0.0
    middle = luma_HW[1:-1, 1:-1]
    vertical = luma_HW[:-2, 1:-1] + luma_HW[2:, 1:-1]
    horizontal = luma_HW[1:-1, :-2] + luma_HW[1:-1, 2:]
    return float(np.var(vertical + horizontal - 4 * middle))
