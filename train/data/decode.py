"""Bytes of a stored picture -> pixels. simplejpeg where it is installed (about twice as fast), else Pillow.

Both sit on libjpeg-turbo and give the same pixels, also of pictures that are scaled down while they are decoded: only
1/2, 1/4 and 1/8 are used, which both have. Damaged JPEG data that Pillow only warns of is refused by simplejpeg.
"""

from __future__ import annotations

import functools
import importlib
from io import BytesIO
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
FORMATS = ("JPEG", "PNG", "WEBP")
JPEG_START = b"\xff\xd8\xff"


def decode_image(data: bytes, min_size: int = 0) -> Pixels:
    """(height, width, 3) RGB pixels of a JPEG, PNG or WebP picture.

    With `min_size`, a JPEG may come at 1/2, 1/4 or 1/8 of its size as long as both sides stay at least `min_size`
    pixels. Transparency is put on white. ValueError where the bytes are damaged or no such picture.
    """
    fast = fast_jpeg() if data.startswith(JPEG_START) else None
    if fast is not None:
        height, width, colours, _ = fast.decode_jpeg_header(data)
        if colours not in (
            "CMYK",
            "YCCK",
        ):  # printers' colours: Pillow knows how to turn them into RGB
            factor = reduction(height, width, min_size)
            if factor == 1:
                pixels: Pixels = fast.decode_jpeg(data)
            else:
                pixels = fast.decode_jpeg(
                    data, min_height=-(-height // factor), min_width=-(-width // factor)
                )
            return pixels
    try:
        return _by_pillow(data, min_size)
    except Exception as error:  # Pillow's readers raise anything on hostile bytes: SyntaxError, struct.error, EOFError
        raise ValueError(f"not a readable picture: {error}") from error


def reduction(height: int, width: int, min_size: int) -> int:
    """The largest of 8, 4, 2 and 1 by which both sides may shrink and stay at least `min_size` pixels."""
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
    with Image.open(BytesIO(data), formats=FORMATS) as picture:
        factor = reduction(picture.height, picture.width, min_size)
        if picture.format == "JPEG" and factor > 1:
            picture.draft(picture.mode, (picture.width // factor, picture.height // factor))
        if picture.mode.startswith("I;16"):  # 16 bits of grey
            return np.asarray(
                (np.asarray(picture) >> 8).astype(np.uint8)[..., None].repeat(3, axis=2)
            )
        if picture.has_transparency_data:
            rgba = picture.convert("RGBA")
            white = Image.new("RGBA", rgba.size, "white")
            return np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))
        return np.asarray(picture.convert("RGB"))
