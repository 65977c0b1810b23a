"""Bytes of a stored image to the pixels that training takes: decode, random crop, normalise.

Those of evaluation are `clipmill.manifests.preprocess`'s.

It reads and writes no file.

Invariants:

* Both decoders give the same pixels (tests/train/test_transforms.py).
* A crop is a function of its numbers, and these of seed, step and position
  (tests/train/test_transforms.py).
* A buffer of a thread is never another thread's (tests/train/test_transforms.py).

To extend: a change of the pixels bumps PIXELS_VERSION.
"""

from __future__ import annotations

import functools
import importlib
import math
import threading
from collections.abc import Sequence
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

from clipmill.manifests.arrays import Bytes, FloatArray, Integers, Pixels
from clipmill.manifests.late import torch
from clipmill.manifests.preprocess import IMAGE_MEAN, IMAGE_STD
from clipmill.train.rng import derive_key, uniforms

if TYPE_CHECKING:
    from torch import Tensor

# --------------------------------------------------------------------------------------------------
# Memory of a thread that is used again. Pages that are new for every image would cost as much
# time as resizing it.


class ThreadBuffer(threading.local):
    """Bytes of one thread; every thread that uses it has its own."""

    def __init__(self) -> None:
        self._array: Bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """(size,) bytes, not initialised. The next call in this thread gives the same memory."""
        if len(self._array) < size:
            self._array = np.empty(size, np.uint8)
        return self._array[:size]


# --------------------------------------------------------------------------------------------------
# Pixels to a square of the model's size: a random crop for training, else the centre; normalised.
#
# The crop has open_clip's distribution: torchvision's RandomResizedCrop with a share of the area
# in [crop_min, 1] and an aspect between 3/4 and 4/3, bicubic. Its random numbers are a function
# of the sample's position in the run.
#
# For training the crop is resized by torch, in 8-bit integers like Pillow's, in about a sixth of
# its time. The two round in another order: of photographs at most one pixel in ten differs,
# nearly always by one level. The evaluation image is resized by Pillow, as in open_clip. Two
# kinds of images differ there too, by `decode_image`: transparent pixels lie on white, where
# open_clip drops the transparency, and 16 bits of grey are scaled to 8, where it cuts at 255.


PIXELS_VERSION = 2  # of the pixels that a crop gives; 1: resized by Pillow
TRIES = 10  # shapes that are tried before the crop falls back to the centre, as in torchvision
NUMBERS = 2 * TRIES + 2  # of one crop: width and height of each shape, then its position
CROP = 4  # the purpose of these random numbers (order.py has 1 to 3)
LOG_ASPECT = math.log(4 / 3)
BOX = ThreadBuffer()  # the pixels of a crop before it is resized


def crop_numbers(seed: int, step: int, rows: Integers, crop_min: float) -> FloatArray:
    """(len(rows), NUMBERS) for the crops of the samples at `rows` of the global batch of `step`.

    First TRIES pairs of width and height, relative to the root of the image's area; then two
    numbers in [0, 1) for the position.
    """
    numbers = uniforms(derive_key(seed, CROP, step), rows, NUMBERS)
    share, aspect = numbers[:, 0:-2:2], numbers[:, 1:-2:2]
    side = np.sqrt(crop_min + share * (1 - crop_min))
    root = np.exp((aspect - 0.5) * LOG_ASPECT)  # of the aspect
    numbers[:, 0:-2:2], numbers[:, 1:-2:2] = side * root, side / root
    return numbers


def crop_box(height: int, width: int, numbers: Sequence[float]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) in pixels of a random crop, from a row of `crop_numbers`."""
    root = math.sqrt(height * width)
    for k in range(0, 2 * TRIES, 2):
        w, h = round(root * numbers[k]), round(root * numbers[k + 1])
        if 0 < w <= width and 0 < h <= height:
            left, top = int(numbers[-2] * (width - w + 1)), int(numbers[-1] * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def smallest_side(size: int, crop_min: float) -> int:
    """The smallest decoded side from which a random crop still has `size` pixels."""
    return math.ceil(size / math.sqrt(crop_min * 3 / 4))


def random_crop_into(into_HWC: Pixels, pixels_HWC: Pixels, numbers: Sequence[float]) -> None:
    """Write the crop of a row of `crop_numbers`, resized (bicubic) to the size of `into_HWC`.

    `into_HWC` is contiguous.
    """
    height, width, _ = pixels_HWC.shape
    left, top, right, bottom = crop_box(height, width, numbers)
    box_HWC = pixels_HWC[top:bottom, left:right]
    if box_HWC.shape == into_HWC.shape:
        into_HWC[:] = box_HWC
        return
    # Rows that follow one another, and channels last in both: else torch takes a slower way.
    crop_HWC = BOX.take(box_HWC.size).reshape(box_HWC.shape)
    crop_HWC[:] = box_HWC
    planes_BCHW = torch.from_numpy(crop_HWC[None]).permute(0, 3, 1, 2)
    into_BCHW = torch.from_numpy(into_HWC[None]).permute(0, 3, 1, 2)
    # What torch.nn.functional.interpolate calls, with a place for its result.
    torch.ops.aten._upsample_bicubic2d_aa.out(
        planes_BCHW, list(into_BCHW.shape[2:]), False, None, None, out=into_BCHW
    )


@functools.cache
def _levels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """On the device, copied once: a GPU would wait for the copy in every step."""
    return torch.tensor(values, device=device)


def normalise(
    image_BHWC: Tensor, mean: Sequence[float] = IMAGE_MEAN, std: Sequence[float] = IMAGE_STD
) -> Tensor:
    """uint8 RGB to (B, C, H, W) float32 with a model's mean and deviation, on the same device."""
    pixels = image_BHWC.float()
    mean_C = _levels(tuple(mean), pixels.device) * 255
    std_C = _levels(tuple(std), pixels.device) * 255
    return ((pixels - mean_C) / std_C).permute(0, 3, 1, 2)


# --------------------------------------------------------------------------------------------------
# Bytes of a stored image to RGB pixels: simplejpeg where it is installed, else Pillow.
#
# simplejpeg is about twice as fast. Both use libjpeg-turbo and give the same pixels, also of
# images that are scaled down while they are decoded: only 1/2, 1/4 and 1/8 are used, which both
# have. simplejpeg refuses damaged JPEG data of which Pillow only warns.


FORMATS = ("JPEG", "PNG", "WEBP")
JPEG_START = b"\xff\xd8\xff"
# The first bytes of images that are not read.
OTHER_FORMATS = {b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}


def decode_image(data: bytes, min_size: int = 0, buffer: ThreadBuffer | None = None) -> Pixels:
    """(height, width, 3) RGB pixels of a JPEG, PNG or WebP image.

    With a `buffer` the pixels may lie in it: they are valid until this thread decodes again.

    With `min_size`, a JPEG may come at 1/2, 1/4 or 1/8 of its size as long as both sides stay at
    least `min_size` pixels. Transparent pixels are put on white, 16 bits of grey are scaled to 8.
    ValueError for damaged bytes and other formats.
    """
    fast = fast_jpeg() if data.startswith(JPEG_START) else None
    if fast is not None:
        height, width, colours, _ = fast.decode_jpeg_header(data)
        # Pillow converts CMYK and YCCK to RGB, simplejpeg does not.
        if colours not in ("CMYK", "YCCK"):
            factor = reduction(height, width, min_size)
            h, w = -(-height // factor), -(-width // factor)
            scale = {"min_height": h, "min_width": w} if factor > 1 else {}
            memory = None if buffer is None else buffer.take(h * w * 3)
            pixels: Pixels = fast.decode_jpeg(data, buffer=memory, **scale)
            return pixels
    try:
        return decode_by_pillow(data, min_size)
    except UnidentifiedImageError:  # its message has the address of the buffer
        for start, name in OTHER_FORMATS.items():
            if data.startswith(start):
                raise ValueError(f"it is a {name} image; convert it to PNG") from None
        raise ValueError(
            f"not a readable image: the header is damaged or of none of {', '.join(FORMATS)}"
        ) from None
    except Exception as error:
        # Pillow's readers raise anything on hostile bytes: SyntaxError, struct.error, EOFError.
        raise ValueError(f"not a readable image: {error}") from error


def reduction(height: int, width: int, min_size: int) -> int:
    """The largest of 8, 4, 2 and 1 that leaves both sides at least `min_size` pixels."""
    if min_size < 1:
        return 1
    return next((k for k in (8, 4, 2) if -(-min(height, width) // k) >= min_size), 1)


@functools.cache
def fast_jpeg() -> ModuleType | None:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def decode_by_pillow(data: bytes, min_size: int = 0) -> Pixels:
    """`decode_image` by Pillow alone, which passes over more damage; it may raise anything."""
    with Image.open(BytesIO(data), formats=FORMATS) as image:
        factor = reduction(image.height, image.width, min_size)
        if image.format == "JPEG" and factor > 1:
            image.draft(image.mode, (image.width // factor, image.height // factor))
        if image.mode.startswith("I;16"):  # 16 bits of grey
            return np.asarray(
                (np.asarray(image) >> 8).astype(np.uint8)[..., None].repeat(3, axis=2)
            )
        if image.has_transparency_data:
            rgba = image.convert("RGBA")
            white = Image.new("RGBA", rgba.size, "white")
            return np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))
        return np.asarray(image.convert("RGB"))
