from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from clipmill.filters import picture
from clipmill.manifests.hashes import PDQ_QUALITY, PDQ_RADIUS, pdq, phash
from tests.support.late import fft


def photograph(seed: int) -> Image.Image:
    """A smooth random image, 120 × 90 pixels."""
    coarse = np.random.default_rng(seed).integers(0, 255, (9, 12, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((120, 90), Image.Resampling.BICUBIC)


def test_the_filter_stores_the_same_hash() -> None:
    image = photograph(3)
    assert picture.measure(image)["phash"] == phash(image)
    assert phash(image) == -4674651529647384766  # of the first version: columns on disk hold it


# --- PDQ ------------------------------------------------------------------------------------------


def pdq_distance(first: bytes, second: bytes) -> int:
    return (int.from_bytes(first, "big") ^ int.from_bytes(second, "big")).bit_count()


def slow_pdq(image: Image.Image) -> tuple[str, int]:
    """PDQ step by step, as its description has them."""
    luma = np.asarray(image.convert("L"), np.float64)
    for axis in (0, 1):
        luma = np.moveaxis(luma, axis, 0)
        window = -(-len(luma) // 128)
        right = (window + 2) // 2 - 1
        for _ in range(2):
            rows = []
            for row in range(len(luma)):
                inside = luma[max(0, row - (window - 1 - right)) : row + right + 1]
                rows.append(inside.mean(axis=0))
            luma = np.array(rows)
        luma = luma[[int((k + 0.5) * len(luma) / 64) for k in range(64)]]
        luma = np.moveaxis(luma, 0, axis)
    steps = sum(abs(int(100 * d / 255)) for axis in (0, 1) for d in np.diff(luma, axis=axis).flat)
    terms = fft.dct(fft.dct(luma, axis=0), axis=1)[1:17, 1:17]
    number = 0
    for place, value in enumerate(terms.ravel()):
        number |= int(value > np.sort(terms, axis=None)[127]) << place
    return f"{number:064x}", min(100, steps // 90)


@pytest.mark.parametrize("size", [(120, 90), (64, 64), (300, 517), (5, 200)])
def test_pdq_is_what_its_description_gives(size: tuple[int, int]) -> None:
    image = photograph(4).resize(size)
    value, quality = pdq(image)
    expected, expected_quality = slow_pdq(image)
    assert pdq_distance(value, bytes.fromhex(expected)) <= 2  # 32-bit against 64-bit arithmetic
    assert abs(quality - expected_quality) <= 1


def test_pdq_of_a_known_image_stays() -> None:
    value, quality = pdq(photograph(3))
    assert (
        value.hex() == "9b74789952c064bd8f0b6cde875764bf78a813a170f49342ad3f87668f59a502"
    )  # columns on disk hold it
    assert quality == 100


@pytest.mark.parametrize("seed", range(3))
def test_pdq_of_a_copy_is_near_and_of_another_image_far(seed: int) -> None:
    sink = io.BytesIO()
    photograph(seed).resize((100, 75)).save(sink, "JPEG", quality=75)
    copy = Image.open(sink)
    assert pdq_distance(pdq(photograph(seed))[0], pdq(copy)[0]) <= PDQ_RADIUS
    assert pdq_distance(pdq(photograph(seed))[0], pdq(photograph(seed + 100))[0]) > 80


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (2000, 3)])
def test_pdq_of_plain_and_tiny_images_has_a_low_quality(size: tuple[int, int]) -> None:
    value, quality = pdq(Image.new("RGB", size, (0, 0, 0)))
    assert (value, quality) == (bytes(32), 0)
    gradient = Image.fromarray(np.arange(256, dtype=np.uint8)[None].repeat(64, 0))
    assert pdq(gradient)[1] < PDQ_QUALITY
