from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from train.transforms import (
    NUMBERS,
    centre_crop,
    crop_box,
    crop_numbers,
    normalise,
    random_crop_into,
    smallest_side,
)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def pixels(height: int, width: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def random_crop(picture: Pixels, size: int, numbers: list[float]) -> Pixels:
    cropped = np.empty((size, size, 3), np.uint8)
    random_crop_into(cropped, picture, numbers)
    return cropped


def numbers_of(seed: int, step: int = 0, crop_min: float = 0.9) -> list[float]:
    numbers: list[float] = crop_numbers(seed, step, np.arange(1), crop_min)[0].tolist()
    assert len(numbers) == NUMBERS
    return numbers


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**64), st.floats(0.05, 1))
def test_a_crop_lies_inside_its_picture(
    height: int, width: int, seed: int, crop_min: float
) -> None:
    left, top, right, bottom = crop_box(height, width, numbers_of(seed, crop_min=crop_min))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


@given(st.integers(30, 400), st.integers(30, 400), st.integers(0, 2**64))
def test_a_picture_decoded_at_the_smallest_side_still_fills_a_crop(
    height: int, width: int, seed: int
) -> None:
    size = 24
    scale = max(1.0, smallest_side(size, 0.9) / min(height, width))
    left, top, right, bottom = crop_box(
        round(height * scale), round(width * scale), numbers_of(seed)
    )
    assert min(right - left, bottom - top) >= size - 1  # of rounding to whole pixels


@pytest.mark.parametrize("size", [(200, 200), (200, 320), (300, 110)])
def test_crops_have_the_distribution_of_torchvisions(size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    torch.manual_seed(0)
    image = torch.empty(3, *size)
    theirs = [
        transforms.RandomResizedCrop.get_params(image, scale=[0.9, 1.0], ratio=[3 / 4, 4 / 3])
        for _ in range(3000)
    ]
    ours = [crop_box(*size, row) for row in crop_numbers(0, 0, np.arange(3000), 0.9).tolist()]
    pairs = [
        ([w for _, _, _, w in theirs], [right - left for left, _, right, _ in ours]),
        ([h for _, _, h, _ in theirs], [bottom - top for _, top, _, bottom in ours]),
        ([x for _, x, _, _ in theirs], [left for left, _, _, _ in ours]),
        ([y for y, _, _, _ in theirs], [top for _, top, _, _ in ours]),
    ]
    for a, b in pairs:
        spread = statistics.stdev(a)
        assert abs(statistics.mean(a) - statistics.mean(b)) <= 0.1 * spread
        assert abs(statistics.stdev(b) - spread) <= 0.1 * spread


def test_the_numbers_of_a_crop_belong_to_its_place_in_the_run() -> None:
    whole = crop_numbers(3, 17, np.arange(64), 0.9)
    assert np.array_equal(whole[20:30], crop_numbers(3, 17, np.arange(20, 30), 0.9))
    for other in (crop_numbers(4, 17, np.arange(64), 0.9), crop_numbers(3, 18, np.arange(64), 0.9)):
        assert not np.any(whole == other)


def photograph(height: int, width: int) -> Pixels:
    """Smooth in large parts, sharp at some edges, and clipped at both ends, as photographs are."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / 9 + k) + np.cos(y / (5 + k)) + (x > 2 * y) for k in range(3)]
    return np.clip(110 + 80 * np.stack(waves, axis=-1), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", [(240, 320), (320, 240), (90, 400), (180, 180), (700, 500)])
def test_torch_resizes_a_crop_as_pillow_does(size: tuple[int, int]) -> None:
    picture = photograph(*size)
    drawn = numbers_of(1)
    cropped = random_crop(picture, 224, drawn).astype(int)
    box = Image.fromarray(picture).crop(crop_box(*size, drawn))
    difference = np.abs(cropped - np.asarray(box.resize((224, 224), Image.Resampling.BICUBIC)))
    assert (difference > 1).mean() < 0.005  # the passes are rounded in another order
    assert difference.mean() < 0.2


def test_a_crop_of_the_right_size_is_copied_and_not_resampled() -> None:
    picture = pixels(60, 60)
    numbers = [1.0] * NUMBERS
    numbers[0] = numbers[1] = 32 / 60
    numbers[-2:] = 0.5, 0.5
    left, top, right, bottom = crop_box(60, 60, numbers)
    assert (right - left, bottom - top) == (32, 32)
    assert np.array_equal(random_crop(picture, 32, numbers), picture[top:bottom, left:right])


@pytest.mark.parametrize(
    "size", [(224, 224), (300, 400), (401, 299), (33, 97), (100, 31), (480, 224)]
)
@pytest.mark.parametrize("target", [32, 224])
def test_the_centre_crop_is_open_clips_evaluation_picture(
    size: tuple[int, int], target: int
) -> None:
    open_clip = pytest.importorskip("open_clip")
    picture = pixels(*size)
    expected = open_clip.image_transform(target, is_train=False)(Image.fromarray(picture))
    cropped = centre_crop(picture, target)
    assert cropped.shape == (target, target, 3)
    ours = normalise(torch.from_numpy(cropped.copy())[None])[0]
    assert (ours - expected).abs().max() < 1e-5  # a level is 0.014
