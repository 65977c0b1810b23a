from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from filters import picture
from manifests.phash import phash


def photograph(seed: int) -> Image.Image:
    """A smooth random image, 120 × 90 pixels."""
    coarse = np.random.default_rng(seed).integers(0, 255, (9, 12, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((120, 90), Image.Resampling.BICUBIC)


def distance(first: int, second: int) -> int:
    return ((first ^ second) % 2**64).bit_count()


def test_the_filter_stores_the_same_hash() -> None:
    image = photograph(3)
    assert picture.measure(image)["phash"] == phash(image)
    assert phash(image) == -4674651529647384766  # of the first version: columns on disk hold it


@pytest.mark.parametrize("seed", range(5))
def test_a_compressed_copy_has_a_near_hash_and_another_image_has_not(seed: int) -> None:
    sink = io.BytesIO()
    photograph(seed).resize((80, 60)).save(sink, "JPEG", quality=75)
    copy = Image.open(sink)
    assert distance(phash(photograph(seed)), phash(copy)) <= 6
    assert distance(phash(photograph(seed)), phash(photograph(seed + 100))) > 12


def test_something_that_is_no_image_is_refused() -> None:
    with pytest.raises(AttributeError):
        phash(np.zeros((4, 4)))  # type: ignore[arg-type]
