"""Products of matrices give the bytes of Pillow's resize, for images of every size and content."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from filters.clip import preprocess
from filters.clip.preprocess import (
    LARGEST_WINDOW,
    Pixels,
    is_usable,
    matches_pillow,
    pillow_weights,
    resized_crop,
    scaled_size,
)


def image_of(width: int, height: int, kind: int, seed: int) -> Image.Image:
    """Noise, black and white noise (it clips, and has many values at a half), or a smooth image."""
    random = np.random.default_rng(seed)
    if kind == 0:
        return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
    if kind == 1:
        return Image.fromarray(random.integers(0, 2, (height, width, 3), np.uint8) * np.uint8(255))
    small = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def by_pillow(image: Image.Image, side: int, interpolation: str) -> Pixels:
    """The centre square of the image with a shorter side of `side`."""
    width, height = scaled_size(*image.size, side)
    left, top = round((width - side) / 2), round((height - side) / 2)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling[interpolation.upper()])
    return np.asarray(image.crop((left, top, left + side, top + side)))


def by_products(image: Image.Image, side: int, interpolation: str) -> Pixels | None:
    width, height = scaled_size(*image.size, side)
    corner = (round((width - side) / 2), round((height - side) / 2))
    return resized_crop(np.asarray(image), (width, height), corner, side, interpolation)


def sizes() -> list[tuple[int, int, int]]:
    """(width, height, side): those of pools first, then any that is at most twice as tall."""
    random = np.random.default_rng(5)
    chosen = [(256, 341, 224), (341, 256, 224), (256, 256, 224), (512, 384, 336), (224, 448, 224)]
    chosen += [(1, 1, 7), (1, 2, 32), (3, 1, 224), (2000, 31, 64), (900, 1800, 224)]
    for largest in (40, 300, 700):
        for _ in range(25):
            width, height = sorted(random.integers(1, largest, 2).tolist())
            if random.random() < 0.5 or height > 2 * width:
                width, height = height, width
            chosen.append((width, height, int(random.choice([7, 32, 64, 224, 336]))))
    return chosen


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_every_byte_is_pillows(interpolation: str) -> None:
    assert matches_pillow(interpolation)
    for number, (width, height, side) in enumerate(sizes()):
        image = image_of(width, height, number % 3, number)
        given = by_products(image, side, interpolation)
        assert given is not None
        expected = by_pillow(image, side, interpolation)
        assert np.array_equal(given, expected), (width, height, side)


def test_threads_do_not_share_memory() -> None:
    images = [image_of(256 + i, 300, 0, i) for i in range(12)]
    expected = [by_pillow(image, 224, "bicubic") for image in images]
    with ThreadPoolExecutor(6) as threads:
        for _ in range(3):
            results = threads.map(lambda image: by_products(image, 224, "bicubic"), images)
            assert all(map(np.array_equal, results, expected))


def test_weights_are_multiples_and_add_up_to_one() -> None:
    low, high, weights = pillow_weights(341, 298, 37, 224, "bicubic")
    assert (weights * 2**22 == np.round(weights * 2**22)).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=weights.shape[1] * 2**-23)
    assert ((high - low) <= weights.shape[1]).all()
    assert high.max() <= 341


def test_other_images_are_left_to_pillow() -> None:
    assert is_usable(300, 600, "bicubic")
    assert not is_usable(300, 601, "bicubic")  # Pillow 13 begins with the columns
    assert not is_usable(300, 300, "lanczos")
    side = LARGEST_WINDOW + 300
    assert by_products(image_of(side, side, 2, 0), 224, "bicubic") is None


def test_a_pillow_with_other_weights_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights_of = pillow_weights

    def other(*arguments: Any) -> Any:
        low, high, weights = weights_of(*arguments)
        return low, high, weights * (1 + 2**-7)

    monkeypatch.setattr(preprocess, "pillow_weights", other)
    for function in (preprocess.axis_plan, matches_pillow):
        function.cache_clear()
    try:
        assert not is_usable(256, 341, "bicubic")
        assert "another bicubic resize than expected" in caplog.text
    finally:
        for function in (preprocess.axis_plan, matches_pillow):
            function.cache_clear()
