"""An image as the pixels that a CLIP's own validation transform gives, in fewer steps.

open_clip's transform ends with ToTensor and Normalize, which make three copies of an image in
float32. `Preprocess.pixels` stops before them, at uint8, and `Preprocess.normalised` does both in
one pass over a batch. Values are the same to the last bit.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from PIL import Image
from PIL import __version__ as PILLOW

from filters.picture import PIXELS

# --------------------------------------------------------------------------------------------------
# Pillow's bicubic and bilinear resize as matrix products: the same bytes in half the time.
#
# Pillow sums uint8 pixels times weights of 22 bits after the point, in integers, along each row
# and then along each column, and rounds after each of the two passes. Here a pass is a product of
# float64 matrices. Every partial sum is a multiple of 2^-22 below 2^12, which float64 holds
# exactly, so that neither the order of the sums nor the kernels of a BLAS change a bit.


Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PRECISION_BITS = 22  # of a weight, as in Pillow
SUPPORTS = {"bilinear": 1.0, "bicubic": 2.0}  # source pixels to each side of the centre
LARGEST_WINDOW = 2048  # source pixels along an axis; beyond it Pillow is about as fast
STRIP_VALUES = 1 << 17  # of the first pass, 1 MiB: they stay in the cache
BLOCK_SIZES = range(4, 25)
CHECKED_SIZES = [(341, 256), (256, 341), (300, 290), (90, 64)]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """The weights of one axis in B blocks of O neighbouring outputs.

    Block b reads the I source pixels from `start + b * step` on. `start` may be negative, and the
    last block may reach beyond the image: those weights are 0.
    """

    start: int
    step: int
    weights_BOI: Floats
    weights_BIO: Floats

    @property
    def window(self) -> int:
        """Source pixels that the blocks read."""
        blocks, _, inputs = self.weights_BOI.shape
        window: int = (blocks - 1) * self.step + inputs
        return window


def is_usable(width: int, height: int, interpolation: str) -> bool:
    """Whether `resized_crop` gives the bytes of the installed Pillow for an image of this size.

    Pillow 13 begins with the columns where an image is much taller than wide; those images are
    left to it.
    """
    return interpolation in SUPPORTS and height <= 2 * width and matches_pillow(interpolation)


@functools.cache
def matches_pillow(interpolation: str) -> bool:
    """Whether a few images have the bytes that the installed Pillow gives them."""
    random = np.random.default_rng(0)
    for width, height in CHECKED_SIZES:
        image = Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
        scaled = (224 * width // min(image.size), 224 * height // min(image.size))
        expected = image.resize(scaled, Image.Resampling[interpolation.upper()])
        expected = expected.crop((0, 0, 224, 224))
        given = resized_crop(np.asarray(image), scaled, (0, 0), 224, interpolation)
        if given is None or not np.array_equal(given, np.asarray(expected)):
            logger.warning(
                "Pillow %s has another %s resize than expected; it is used as it is, "
                "which takes longer",
                PILLOW,
                interpolation,
            )
            return False
    return True


def resized_crop(
    pixels_HWC: Pixels,
    scaled: tuple[int, int],
    corner: tuple[int, int],
    side: int,
    interpolation: str,
) -> Pixels | None:
    """(side, side, 3): the square at `corner` (left, top) of an RGB image that is scaled to
    `scaled` (width, height).

    None for an image of which the square covers more than LARGEST_WINDOW pixels along an axis.
    """
    full_height, full_width = pixels_HWC.shape[:2]
    across = axis_plan(full_width, scaled[0], corner[0], side, interpolation)
    down = axis_plan(full_height, scaled[1], corner[1], side, interpolation)
    if max(across.window, down.window) > LARGEST_WINDOW:
        return None
    rows = _scaled_rows(pixels_HWC, across, down)
    _, channels, width = rows.shape
    blocks, outputs, inputs = down.weights_BOI.shape
    stride = 8 * channels * width
    windows_BIX = as_strided(
        rows, (blocks, inputs, channels * width), (down.step * stride, stride, 8)
    )
    sums_BOX = _buffer("columns", blocks, outputs, channels * width)
    np.matmul(down.weights_BOI, windows_BIX, out=sums_BOX)
    sums_HCW = sums_BOX.reshape(-1, channels, width)[:side, :, :side]
    np.add(sums_HCW, 0.5, out=sums_HCW)
    np.clip(sums_HCW, 0, 255.5, out=sums_HCW)
    pixels_HCW: Pixels = sums_HCW.astype(np.uint8)  # rounds down
    return pixels_HCW.transpose(0, 2, 1)


def _scaled_rows(pixels_HWC: Pixels, across: AxisPlan, down: AxisPlan) -> Floats:
    """(window of `down`, 3, outputs of `across`): the rows that the second pass reads, scaled and
    rounded. Rows outside the image are 0."""
    height, width, channels = pixels_HWC.shape
    blocks, inputs, outputs = across.weights_BIO.shape
    rows = _buffer("rows", down.window, channels, blocks * outputs)
    strip = max(8, STRIP_VALUES // (channels * across.window))
    source = _buffer("source", strip, channels, across.window)
    top, bottom = max(0, down.start), min(height, down.start + down.window)
    left, right = max(0, across.start), min(width, across.start + across.window)
    rows[: top - down.start] = 0
    rows[bottom - down.start :] = 0
    source[:, :, : left - across.start] = 0
    source[:, :, right - across.start :] = 0
    inside = source[:, :, left - across.start : right - across.start]
    for first in range(top, bottom, strip):
        count = min(strip, bottom - first)
        np.copyto(inside[:count], pixels_HWC[first : first + count, left:right].transpose(0, 2, 1))
        lines = channels * count
        windows_BLI = as_strided(
            source, (blocks, lines, inputs), (8 * across.step, 8 * across.window, 8)
        )
        sums = rows[first - down.start : first - down.start + count]
        sums_BLO = as_strided(
            sums, (blocks, lines, outputs), (8 * outputs, 8 * blocks * outputs, 8)
        )
        np.matmul(windows_BLI, across.weights_BIO, out=sums_BLO)
        np.add(sums, 0.5, out=sums)
        np.floor(sums, out=sums)
        np.clip(sums, 0, 255, out=sums)
    return rows


# --- the weights ----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)  # 30 KiB each where 256 pixels become 224
def axis_plan(full: int, size: int, first: int, count: int, interpolation: str) -> AxisPlan:
    """The plan for outputs `first` to `first + count` of `full` pixels that become `size`.

    Blocks have about the size at which they need the fewest products: a step of whole pixels
    follows the scale best at some of them (7 outputs for 8 pixels, where 256 become 224). The size
    changes no bit of the result.
    """
    low, high, weights = pillow_weights(full, size, first, count, interpolation)
    candidates = []
    for outputs, step in _promising_blocks(full / size, count, weights.shape[1]):
        block = np.arange(-(-count // outputs))
        begin = low[block * outputs]
        end = high[np.minimum((block + 1) * outputs, count) - 1]
        start = int((begin - block * step).min())
        inputs = int((end - block * step).max()) - start
        candidates.append((len(block) * outputs * (inputs + 3), outputs, step, start, inputs))
    _, outputs, step, start, inputs = min(candidates)
    block = np.arange(count) // outputs
    offset = low - start - block * step
    weights_BOI = np.zeros((int(block[-1]) + 1, outputs, inputs))
    used = low[:, None] + np.arange(weights.shape[1]) < high[:, None]
    row, tap = np.nonzero(used)
    weights_BOI[block[row], row % outputs, offset[row] + tap] = weights[used]
    return AxisPlan(start, step, weights_BOI, np.ascontiguousarray(weights_BOI.transpose(0, 2, 1)))


def _promising_blocks(scale: float, count: int, taps: int) -> list[tuple[int, int]]:
    """(outputs, step) of the three block sizes that should need the fewest products: to look at
    all exactly would take longer than to resize an image."""
    estimates = []
    for outputs in BLOCK_SIZES:
        blocks = -(-count // outputs)
        for step in (math.floor(outputs * scale), math.ceil(outputs * scale)):
            drift = abs(outputs * scale - step) * (blocks - 1)
            inputs = outputs * scale + taps + drift
            estimates.append((blocks * outputs * (inputs + 3), outputs, step))
    return [(outputs, step) for _, outputs, step in sorted(set(estimates))[:3]]


def pillow_weights(
    full: int, size: int, first: int, count: int, interpolation: str
) -> tuple[Integers, Integers, Floats]:
    """(first source pixel, one past the last, weights) of outputs `first` to `first + count`.

    weights: (count, taps), multiples of 2^-22, 0 after the last source pixel. Operations and their
    order are those of Pillow, so that every weight is.
    """
    scale = full / size
    filter_scale = max(scale, 1.0)  # antialias
    support = SUPPORTS[interpolation] * filter_scale
    centre = (np.arange(first, first + count) + 0.5) * scale
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), full)
    source = low[:, None] + np.arange(int((high - low).max()))
    distance = np.abs((source - centre[:, None] + 0.5) * (1.0 / filter_scale))
    weights = _bicubic(distance) if interpolation == "bicubic" else np.maximum(1.0 - distance, 0.0)
    weights[source >= high[:, None]] = 0.0
    total = np.zeros(count)
    for tap in range(weights.shape[1]):
        total += weights[:, tap]
    weights /= total[:, None]
    unit = 1 << PRECISION_BITS
    rounded: Floats = np.trunc(weights * unit + np.where(weights < 0, -0.5, 0.5)) / unit
    return low, high, rounded


def _bicubic(distance: Floats) -> Floats:
    a, x = -0.5, distance
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    weights: Floats = np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
    return weights


# --- memory ---------------------------------------------------------------------------------------

_local = threading.local()


def _buffer(name: str, *shape: int) -> Floats:
    """Memory of this thread, which keeps it: new pages for every image would double the time."""
    count = int(np.prod(shape))
    buffer: Floats | None = getattr(_local, name, None)
    if buffer is None or buffer.size < count:
        buffer = np.zeros(count)  # finite, as 0 times NaN is NaN
        setattr(_local, name, buffer)
    return buffer[:count].reshape(shape)


# The last steps of open_clip's validation transforms, whatever precedes them.
FLOAT_STEPS = ["MaybeToTensor", "Normalize"]
# The steps before them in a transform that scales the shorter side and crops the centre: those of
# every CLIP but SigLIP and a few others, which squash or pad.
CROPPED_STEPS = ["Resize", "CenterCrop", "MaybeConvertMode"]


class Preprocess:
    """A validation transform of open_clip, cut into a part that gives uint8 and a part that gives
    float32."""

    def __init__(self, transform: Any, *, fast: bool = False) -> None:
        """transform: torchvision's Compose of open_clip's image_transform(is_train=False).

        fast: resize by torch's uint8 kernel instead of Pillow. It rounds the weights of a filter to
        16 bits where Pillow has 22, so that 1 of 300 values differs, by a level or two.

        ValueError for a transform that does not end with ToTensor and Normalize, and for `fast`
        where it does not scale the shorter side and crop the centre.
        """
        *self.pixel_steps, to_tensor, normalize = transform.transforms
        names = [type(to_tensor).__name__, type(normalize).__name__]
        if names != FLOAT_STEPS:
            raise ValueError(
                f"a CLIP's validation transform ends with {', '.join(names)}; "
                f"it must end with {', '.join(FLOAT_STEPS)}"
            )
        self.mean, self.std = normalize.mean, normalize.std
        names = [type(step).__name__ for step in self.pixel_steps]
        self.cropped: tuple[int, str] | None = None  # side and interpolation
        if names == CROPPED_STEPS and isinstance(self.pixel_steps[0].size, int):
            resize = self.pixel_steps[0]
            self.cropped = (resize.size, resize.interpolation.value)
        self.fast = fast
        if fast and self.cropped is None:
            raise ValueError(
                f"resize: fast is for models that scale the shorter side and crop the centre; "
                f"this one does {', '.join(names)}: leave resize out"
            )

    def pixels(self, image: Image.Image) -> Pixels:
        """(H, W, 3) of an RGB image, resized and cropped."""
        if self.cropped is None:
            for step in self.pixel_steps:
                image = step(image)
            return np.asarray(image)
        side, interpolation = self.cropped
        width, height = scaled_size(image.width, image.height, side)
        # As torchvision's CenterCrop rounds.
        left, top = round((width - side) / 2), round((height - side) / 2)
        if self.fast:
            scaled_HWC = _resized_by_torch(_array_of(image), width, height, interpolation)
            return scaled_HWC[top : top + side, left : left + side]
        if image.size == (width, height):
            return np.asarray(image)[top : top + side, left : left + side]
        if is_usable(image.width, image.height, interpolation):
            full_HWC = _array_of(image)
            pixels = resized_crop(full_HWC, (width, height), (left, top), side, interpolation)
            if pixels is not None:
                return pixels
        resample = Image.Resampling[interpolation.upper()]
        if width > side:  # a wide image: the second pass need not see what is cropped
            image = image.resize((width, image.height), resample)
            image = image.crop((left, 0, left + side, image.height))
            width, left = side, 0
        image = image.resize((width, height), resample)
        return np.asarray(image.crop((left, top, left + side, top + side)))

    def normalised(self, pixels: Sequence[Pixels]) -> Any:
        """(B, 3, H, W) float32 tensor: scaled to [0, 1], less the mean, divided by the standard
        deviation.

        An image is finished before the next one is begun, so that it stays in the cache.
        """
        import torch

        mean_C11 = np.array(self.mean, np.float32).reshape(-1, 1, 1)
        std_C11 = np.array(self.std, np.float32).reshape(-1, 1, 1)
        height, width, channels = pixels[0].shape
        batch_BCHW = torch.empty(len(pixels), channels, height, width)
        for image_CHW, pixels_HWC in zip(batch_BCHW.numpy(), pixels, strict=True):
            np.copyto(image_CHW, pixels_HWC.transpose(2, 0, 1))
            np.divide(image_CHW, 255, out=image_CHW)
            np.subtract(image_CHW, mean_C11, out=image_CHW)
            np.divide(image_CHW, std_C11, out=image_CHW)
        return batch_BCHW


def _array_of(image: Image.Image) -> Pixels:
    """(H, W, 3) of an RGB image: the array that it was decoded to, where it is still at hand."""
    decoded: Pixels | None = getattr(image, PIXELS, None)
    return np.asarray(image) if decoded is None else decoded


def scaled_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height with a shorter side of `side`, rounded down as torchvision's Resize does."""
    if width <= height:
        return side, int(side * height / width)
    return int(side * width / height), side


def _resized_by_torch(pixels_HWC: Pixels, width: int, height: int, interpolation: str) -> Pixels:
    import torch
    import torch.nn.functional as F

    if pixels_HWC.shape[:2] == (height, width):
        return pixels_HWC
    # Pillow gives a read-only array, which torch does not take.
    image_1CHW = torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)[None]
    sizes = [(height, width)]
    full_height, full_width = pixels_HWC.shape[:2]
    # Pillow from version 13 begins with the vertical pass where the height shrinks much more. Each
    # pass rounds to 8 bits, so that the order of the two is visible.
    if full_height - height > 2 * max(0, full_width - width):
        sizes.insert(0, (height, full_width))
    for size in sizes:
        image_1CHW = F.interpolate(image_1CHW, size=size, mode=interpolation, antialias=True)
    scaled_HWC: Pixels = image_1CHW[0].permute(1, 2, 0).numpy()
    return scaled_HWC
