"""Resizing of RGB images in integer arithmetic.

cykooz_resizer has it with SIMD: a fifth of Pillow's time. Its results are the same bytes with AVX2,
with SSE4.1 and without either (tests/pipeline/images/test_resizing.py), so that a shard has the
same bytes on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cykooz_resizer import CropBox, FilterType, ImageData, PixelType, ResizeAlg, ResizeOptions
from cykooz_resizer import Resizer as Kernels
from PIL import Image

Size = tuple[int, int]  # width, height
Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # RGB, (height, width, 3)
FILTERS = {
    "linear": FilterType.bilinear,
    "bilinear": FilterType.bilinear,
    "cubic": FilterType.catmull_rom,
    "bicubic": FilterType.catmull_rom,
    "lanczos": FilterType.lanczos3,
    "lanczos4": FilterType.lanczos3,
}


def resized(
    image: Image.Image | Pixels,
    wanted: Size,
    covered: tuple[float, float],
    interpolation: str,
    *,
    is_sharp: bool = False,
) -> Pixels:
    """An RGB image at another size: (height, width, 3), uint8.

    `covered`: the part of the image, from its upper left corner, that becomes the result; a scaled
    JPEG may have a share of a column and of a row too much. `interpolation`: area, nearest or a key
    of FILTERS; all but nearest are averages over the source pixels of a target pixel (antialias).
    `is_sharp`: the image was made smaller before without blur, as by a scaled JPEG decoder.

    area is the mean over the area of each target pixel. Where whole pixels are averaged that is a
    box filter, and so it is where the image is enlarged. Where they are not, that filter would take
    each pixel whole or not at all: 37.8 dB after JPEG against exact areas. Twice the wanted size
    with linear interpolation (cubic, where `is_sharp`), and the mean of two, has 41.8 dB, where
    Pillow's HAMMING filter has 41.6 (photographs of 400 x 533 to 256).
    """
    if interpolation == "nearest":
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        box = (0, 0, *covered)
        return np.asarray(image.resize(wanted, Image.Resampling.NEAREST, box=box))
    if isinstance(image, Image.Image):
        width, height = image.size
    else:
        height, width = image.shape[:2]
    data = ImageData(width, height, PixelType.U8x3, image.tobytes())
    if interpolation != "area":
        data = _convolved(data, wanted, covered, FILTERS[interpolation])
    elif _is_box(covered, wanted):
        data = _convolved(data, wanted, covered, FilterType.box)
    else:
        smooth = FilterType.catmull_rom if is_sharp else FilterType.bilinear
        # Rows first: a pass over rows is three times faster, and leaves fewer of them.
        size = width, wanted[1]
        data = _convolved(data, (width, 2 * wanted[1]), (width, covered[1]), smooth)
        data = _convolved(data, size, (width, 2 * wanted[1]), FilterType.box)
        data = _convolved(data, (2 * wanted[0], wanted[1]), (covered[0], wanted[1]), smooth)
        data = _convolved(data, wanted, (2 * wanted[0], wanted[1]), FilterType.box)
    return np.frombuffer(data.get_buffer(), np.uint8).reshape(wanted[1], wanted[0], 3)


def _is_box(covered: tuple[float, float], wanted: Size) -> bool:
    is_whole = covered[0] % wanted[0] == 0 and covered[1] % wanted[1] == 0
    return is_whole or wanted[0] > covered[0]


def _convolved(
    image: ImageData, wanted: Size, covered: tuple[float, float], filter_type: FilterType
) -> ImageData:
    options = ResizeOptions(
        resize_alg=ResizeAlg.convolution(filter_type),
        use_alpha=False,
        crop_box=CropBox(0, 0, *covered),
    )
    target = ImageData(*wanted, PixelType.U8x3)
    Kernels().resize(image, target, options)  # it keeps a buffer as large as the image
    return target
