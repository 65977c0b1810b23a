"""Resizing: exact averages, the same bytes whatever the processor has, odd sizes."""

from __future__ import annotations

from typing import Any

import cykooz_resizer
import numpy as np
import pytest
from PIL import Image

from benchmarks.fetching.fidelity import area, psnr_db
from clipmill.manifests.arrays import Pixels
from clipmill.pipeline.images import transform
from clipmill.pipeline.images.transform import FILTERS, resized

INTERPOLATIONS = ["area", "nearest", *FILTERS]


def noise(width: int, height: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(width: int, height: int) -> Pixels:
    image = Image.fromarray(noise(width // 4, height // 4))
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


class Without(cykooz_resizer.Resizer):  # type: ignore[misc]
    """A resizer of a processor that has no more than `extensions`."""

    extensions = cykooz_resizer.CpuExtensions.none

    def __init__(self) -> None:
        super().__init__()
        self.cpu_extensions = self.extensions


class OnlySse(Without):
    extensions = cykooz_resizer.CpuExtensions.sse4_1


def cases() -> list[tuple[Pixels, tuple[int, int], tuple[float, float], bool]]:
    """(image, wanted size, covered size, is_sharp) of many sizes, odd ones first."""
    rng = np.random.default_rng(7)
    sizes = [(1, 1, 7, 5), (7, 5, 1, 1), (400, 533, 256, 341), (563, 750, 256, 341), (301, 3, 1, 2)]
    sizes += [tuple(rng.integers(1, 90, 4).tolist()) for _ in range(40)]
    chosen = []
    for number, (width, height, wide, high) in enumerate(sizes):
        covered = (width - 0.375, height - 0.625) if min(width, height) > 1 else (width, height)
        part = covered if number % 2 else (width, height)
        chosen.append((noise(width, height, number), (wide, high), part, number % 3 == 0))
    return chosen


@pytest.mark.parametrize("kernels", [Without, OnlySse])
def test_every_processor_gives_the_same_bytes(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {Without: "none", OnlySse: "sse4_1"}
    try:
        assert kernels().cpu_extensions.name == names[kernels]
    except ValueError:
        pytest.skip("this processor has no SSE4.1")
    for image, wanted, covered, is_sharp in cases():
        for name in INTERPOLATIONS:
            usual = resized(image, wanted, covered, name, is_sharp=is_sharp)
            with monkeypatch.context() as patch:
                patch.setattr(transform, "Kernels", kernels)
                other = resized(image, wanted, covered, name, is_sharp=is_sharp)
            assert usual.shape == (wanted[1], wanted[0], 3)
            assert usual.tobytes() == other.tobytes(), (name, image.shape, wanted, covered)


def test_golden_bytes() -> None:
    """A new value is a new version of shards: see SHARD_VERSION."""
    import hashlib

    content = hashlib.sha256()
    for image, wanted, covered, is_sharp in cases():
        # Lanczos has the sine of the C library, which may differ in the last bit.
        for name in ("area", "nearest", "linear", "cubic"):
            content.update(resized(image, wanted, covered, name, is_sharp=is_sharp).tobytes())
    assert content.hexdigest() == GOLDEN


@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_one_colour_stays_as_it_is(name: str) -> None:
    for size in ((3, 2), (31, 17), (200, 90)):
        for level in (0, 1, 127, 254, 255):
            image = np.full((41, 53, 3), level, np.uint8)
            assert (resized(image, size, (53, 40.5), name) == level).all()


@pytest.mark.parametrize(("wide", "high"), [(256, 341), (364, 485), (140, 187), (46, 61)])
def test_area_is_the_mean_over_exact_areas(wide: int, high: int) -> None:
    image = smooth(400, 532)
    exact = area(image, high, wide)
    ours = psnr_db(resized(image, (wide, high), (400, 532), "area"), exact)
    pillow = Image.fromarray(image).resize((wide, high), Image.Resampling.HAMMING)
    assert ours > 38
    assert ours > psnr_db(np.asarray(pillow), exact) - 2


def test_whole_pixels_are_averaged_exactly() -> None:
    image = noise(60, 40)
    expected = area(image, 20, 20).astype(int)
    assert np.abs(resized(image, (20, 20), (60, 40), "area").astype(int) - expected).max() <= 1
    enlarged = resized(image, (120, 80), (60, 40), "area")
    assert np.array_equal(enlarged, image.repeat(2, axis=0).repeat(2, axis=1))


def test_an_image_of_pillow_and_an_array_are_the_same() -> None:
    image = noise(60, 40)
    for name in INTERPOLATIONS:
        from_array = resized(image, (23, 17), (59.5, 39.5), name)
        assert np.array_equal(
            from_array, resized(Image.fromarray(image), (23, 17), (59.5, 39.5), name)
        )


def test_an_unknown_filter_is_an_error() -> None:
    with pytest.raises(KeyError, match="cubick"):
        resized(noise(6, 4), (3, 2), (6, 4), "cubick")


GOLDEN = "d96a855a8c7f36fa1f27968ef7a1bf0fe43785df46d7332a2d515cc4b9574c84"
