"""Bytes of a stored image to RGB pixels: simplejpeg where it is installed, else Pillow.

simplejpeg is about twice as fast. Both use libjpeg-turbo and give the same pixels, also of images
that are scaled down while they are decoded: only 1/2, 1/4 and 1/8 are used, which both have.
simplejpeg refuses damaged JPEG data of which Pillow only warns.
"""

from __future__ import annotations

import functools
import importlib
from io import BytesIO
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from train.pixels.scratch import ThreadBuffer

Pixels = NDArray[np.uint8]
FORMATS = ("JPEG", "PNG", "WEBP")
JPEG_START = b"\xff\xd8\xff"


def decode_image(data: bytes, min_size: int = 0, buffer: ThreadBuffer | None = None) -> Pixels:
    """(height, width, 3) RGB pixels of a JPEG, PNG or WebP image.

    With a `buffer` the pixels may lie in it: they are valid until this thread decodes again.

    With `min_size`, a JPEG may come at 1/2, 1/4 or 1/8 of its size as long as both sides stay at
    least `min_size` pixels. Transparent pixels are put on white. ValueError for damaged bytes and
    other formats.
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
        return _by_pillow(data, min_size)
    except UnidentifiedImageError:  # its message has the address of the buffer
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


def _by_pillow(data: bytes, min_size: int) -> Pixels:
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
