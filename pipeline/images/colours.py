"""Colours of an image, from those of its ICC profile to sRGB."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

# Colours by which a profile is compared with sRGB.
PROBE = np.array(
    [[[r, g, b] for r in (0, 85, 170, 255) for g in (0, 128, 255) for b in (0, 128, 255)]], np.uint8
)


@functools.lru_cache(maxsize=16)  # the same few profiles come again and again
def to_srgb(profile: bytes, mode: str) -> ImageCmsTransform | None:
    """The transform from a profile's colours (of mode RGB or CMYK) to sRGB.

    None where it would change nothing, where the profile is damaged, and where its colours are not
    those of `mode`.
    """
    from PIL import ImageCms  # 5 ms, needed only for images with a profile

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != mode:
            return None
        if "srgb" in (source.profile.profile_description or "").lower():
            return None
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        if mode == "RGB" and _is_srgb(transform):
            return None
    except (OSError, ValueError, TypeError, ImageCms.PyCMSError):
        return None
    return transform


def _is_srgb(transform: ImageCmsTransform) -> bool:
    """Whether no colour moves by more than two levels of 255."""
    converted = np.asarray(apply_transform(Image.fromarray(PROBE), transform)).astype(int)
    return bool(np.abs(converted - PROBE).max() < 3)


def apply_transform(image: Image.Image, transform: ImageCmsTransform) -> Image.Image:
    """The image in the colours of the transform's output; `image` itself stays as it is."""
    converted = transform.apply(image)
    assert converted is not None
    return converted
