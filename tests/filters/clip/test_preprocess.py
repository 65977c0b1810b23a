"""The pixels of open_clip's validation transform, bit for bit, for images of every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from open_clip.transform import image_transform
from PIL import Image
from PIL import __version__ as PILLOW

from filters.clip.model import Preprocess

SHAPES = [(50, 40), (40, 50), (32, 32), (7, 5), (300, 33), (33, 300), (1, 1), (2, 90), (341, 256)]


def drawn(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interpolation": "bilinear"},
        {"resize_mode": "squash"},
        {"resize_mode": "longest", "fill_color": 7},
        {"image_size": (24, 40)},
        {"mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3)},
    ],
)
def test_every_bit_is_that_of_open_clips_transform(options: dict[str, Any]) -> None:
    transform = image_transform(**{"image_size": 32, **options}, is_train=False)
    preprocess = Preprocess(transform)
    images = [drawn(*shape) for shape in SHAPES]
    expected_BCHW = torch.stack([transform(image) for image in images])
    pixels = [preprocess.pixels(image) for image in images]
    assert all(each.dtype == np.uint8 for each in pixels)
    assert torch.equal(preprocess.normalised(pixels), expected_BCHW)


def test_a_transform_with_another_end_is_refused() -> None:
    transform = image_transform(32, is_train=False)
    transform.transforms.pop()
    with pytest.raises(ValueError, match="ends with MaybeConvertMode, MaybeToTensor; it must end"):
        Preprocess(transform)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_fast_resize_is_within_two_levels(interpolation: str) -> None:
    transform = image_transform(32, is_train=False, interpolation=interpolation)
    exact, fast = Preprocess(transform), Preprocess(transform, fast=True)
    differences = []
    # Before Pillow 13 a tall image was scaled across first, and differs by more.
    tall = [(33, 300), (90, 300)] if int(PILLOW.split(".")[0]) >= 13 else []
    for shape in [(50, 40), (40, 50), (32, 32), (300, 33), (64, 64), (20, 20), *tall]:
        signed = exact.pixels(drawn(*shape)).astype(int) - fast.pixels(drawn(*shape))
        differences.append(abs(signed))
    assert max(int(each.max()) for each in differences) <= 2
    assert np.mean([each.mean() for each in differences]) < 0.1


def test_the_fast_resize_is_refused_where_the_model_squashes() -> None:
    transform = image_transform(32, is_train=False, resize_mode="squash")
    with pytest.raises(ValueError, match="this one does Resize, MaybeConvertMode: leave resize"):
        Preprocess(transform, fast=True)
