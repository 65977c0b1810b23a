"""Images and their files for tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int = 80, height: int = 48, seed: int = 0) -> Image.Image:
    """An RGB image of random pixels."""
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    )


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The file of an image; `options` are those of Pillow's writer."""
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()
