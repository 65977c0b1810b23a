"""The transform from the colours of an ICC profile to sRGB."""

from __future__ import annotations

import pytest
from PIL import Image, ImageCms

from clipmill.pipeline.images.transform import apply_transform, to_srgb
from tests.support.profiles import srgb_profile, swapped_profile


def test_other_primaries_are_converted_and_the_image_stays() -> None:
    transform = to_srgb(swapped_profile(), "RGB")
    assert transform is not None
    image = Image.new("RGB", (2, 2), (200, 40, 60))
    converted = apply_transform(image, transform).getpixel((0, 0))
    assert isinstance(converted, tuple)
    for value, expected in zip(converted, (40, 200, 60), strict=True):
        assert abs(value - expected) <= 4
    assert image.getpixel((0, 0)) == (200, 40, 60)


def test_srgb_needs_no_transform_whatever_its_name() -> None:
    assert to_srgb(srgb_profile(), "RGB") is None
    renamed = srgb_profile().replace("sRGB".encode("utf-16-be"), "none".encode("utf-16-be"))
    assert b"sRGB" not in renamed.replace(srgb_profile()[:128], b"")
    assert to_srgb(renamed, "RGB") is None


@pytest.mark.parametrize("profile", [b"", b"junk" * 64, srgb_profile()[:200]])
def test_a_damaged_profile_changes_nothing(profile: bytes) -> None:
    assert to_srgb(profile, "RGB") is None


def test_a_profile_of_other_colours_than_the_image_changes_nothing() -> None:
    assert to_srgb(swapped_profile(), "CMYK") is None
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    assert to_srgb(lab, "RGB") is None
