"""One image in, an upright RGB JPEG out, or a reason: sizes, modes, hostile bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from clipmill.manifests.columns import DECODE_REASONS
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images import header, transform
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import DecodedImage, check_and_resize

# Corners: top left, right, bottom left, right
COLOURS = [(220, 30, 40), (30, 200, 50), (40, 60, 210), (230, 210, 40)]


def drawn(width: int = 80, height: int = 48) -> Image.Image:
    """Four corners of four colours: what is turned or cut is seen."""
    image = Image.new("RGB", (width, height), COLOURS[0])
    image.paste(COLOURS[1], (width // 2, 0, width, height))
    image.paste(COLOURS[2], (0, height // 2, width // 2, height))
    image.paste(COLOURS[3], (width // 2, height // 2, width, height))
    return image


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(
        sink, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}), **options
    )
    return sink.getvalue()


def pixels_of(result: DecodedImage) -> np.ndarray[Any, Any]:
    image = Image.open(io.BytesIO(result.data))
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (result.width, result.height))
    return np.asarray(image).astype(int)


def corners(result: DecodedImage) -> list[int]:
    """Which of COLOURS lies in each corner, 4 pixels from the edges."""
    seen = pixels_of(result)
    spots = [seen[4, 4], seen[4, -5], seen[-5, 4], seen[-5, -5]]
    return [int(np.abs(np.array(COLOURS) - spot).sum(axis=1).argmin()) for spot in spots]


def bad(body: bytes, **settings: Any) -> str:
    with pytest.raises(RejectedImage) as caught:
        check_and_resize(body, Fetch(**settings))
    assert caught.value.reason in DECODE_REASONS
    return caught.value.reason


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "bigger_only", "original", "size"),
    [
        ("no", True, (80, 48), (80, 48)),
        ("border", True, (80, 48), (32, 32)),
        ("keep_ratio", True, (80, 48), (53, 32)),
        ("keep_ratio_largest", True, (80, 48), (32, 19)),
        ("center_crop", True, (80, 48), (32, 32)),
        ("border", True, (30, 20), (30, 20)),
        ("keep_ratio", True, (60, 32), (60, 32)),
        ("keep_ratio_largest", True, (32, 20), (32, 20)),
        ("center_crop", True, (60, 20), (60, 20)),
        ("border", False, (16, 8), (32, 32)),
        ("keep_ratio", False, (16, 8), (64, 32)),
        ("keep_ratio_largest", False, (16, 8), (32, 16)),
        ("center_crop", False, (16, 8), (32, 32)),
        ("keep_ratio", True, (641, 479), (43, 32)),
        ("keep_ratio_largest", True, (2000, 10), (32, 1)),  # never 0
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_resize_modes(
    mode: Any, bigger_only: bool, original: tuple[int, int], size: tuple[int, int], kind: str
) -> None:
    settings = Fetch(resize_mode=mode, resize_only_if_bigger=bigger_only, image_size=32)
    result = check_and_resize(saved(drawn(*original), kind), settings)
    assert (result.width, result.height) == size
    assert (result.original_width, result.original_height) == original
    assert result.extension == "jpg"
    pixels_of(result)


def test_border_is_white_and_centred_and_a_crop_takes_the_middle() -> None:
    body = saved(Image.new("RGB", (80, 48), (200, 0, 0)), "PNG")
    framed = pixels_of(check_and_resize(body, Fetch(resize_mode="border", image_size=32)))
    assert framed[:4].min() > 240
    assert framed[-4:].min() > 240
    assert np.abs(framed[12:20] - (200, 0, 0)).max() < 12
    wide = Image.new("RGB", (192, 64), (255, 255, 255))
    wide.paste((0, 0, 200), (64, 0, 128, 64))
    cut = pixels_of(
        check_and_resize(saved(wide, "PNG"), Fetch(resize_mode="center_crop", image_size=32))
    )
    assert np.abs(cut[:, 2:-2] - (0, 0, 200)).max() < 40
    assert corners(
        check_and_resize(saved(drawn()), Fetch(resize_mode="center_crop", image_size=32))
    ) == [0, 1, 2, 3]


def test_scaled_decoding_agrees_with_averaging_the_whole_image() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (15, 20), dtype=np.uint8)
    body = saved(
        Image.fromarray(noise).resize((1000, 750), Image.Resampling.BICUBIC).convert("RGB")
    )
    pixels = pixels_of(check_and_resize(body, Fetch(image_size=64, encode_quality=100)))
    whole = Image.open(io.BytesIO(body)).resize((85, 64), Image.Resampling.BOX)
    assert np.abs(pixels - np.asarray(whole).astype(int)).mean() < 4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_pixels": 80 * 48 - 1}, "too_many_pixels"),
        ({"max_image_area": 80 * 48 - 1}, "too_many_pixels"),
        ({"min_image_size": 49}, "too_small"),
        ({"max_aspect_ratio": 1.6}, "aspect"),
        ({"resize_only_if_bigger": False, "image_size": 5000}, "too_many_pixels"),  # after resizing
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_limits(settings: dict[str, object], reason: str, kind: str) -> None:
    assert bad(saved(drawn(), kind), **settings) == reason


def test_limits_are_inclusive() -> None:
    settings = Fetch(max_image_area=80 * 48, min_image_size=48, max_aspect_ratio=80 / 48)
    assert check_and_resize(saved(drawn()), settings).width == 80


def test_bytes_are_kept_when_nothing_changes() -> None:
    body = saved(drawn())
    assert check_and_resize(body, Fetch()).data == body
    assert check_and_resize(body, Fetch(image_size=40)).data != body
    turned = Image.Exif()
    turned[0x0112] = 6
    for changed in (
        saved(drawn(), exif=turned),
        saved(drawn().convert("L")),
        saved(drawn(), "PNG"),
    ):
        assert check_and_resize(changed, Fetch()).data[:2] == b"\xff\xd8"
        assert check_and_resize(changed, Fetch()).data != changed
    assert check_and_resize(body, Fetch(encode_quality=10)).data == body


# --- kinds of images ------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_orientation_is_applied_and_dropped(orientation: int, kind: str) -> None:
    upright = drawn(96, 64)
    back = {5: 5, 6: 8, 7: 7, 8: 6}.get(orientation, orientation)  # the turn that the tag undoes
    stored = upright if orientation == 1 else upright.transpose(transform.TRANSPOSE[back])
    tags = Image.Exif()
    tags[0x0112] = orientation
    result = check_and_resize(saved(stored, kind, exif=tags), Fetch(image_size=24))
    assert (result.original_width, result.original_height) == (96, 64)
    assert (result.width, result.height) == (36, 24)
    assert corners(result) == [0, 1, 2, 3]
    assert Image.open(io.BytesIO(result.data)).getexif().get(0x0112, 1) == 1


def test_the_first_of_several_images_in_a_jpeg() -> None:
    frames = [Image.new("RGB", (40, 40), colour) for colour in COLOURS]
    several = saved(frames[0], "MPO", save_all=True, append_images=frames[1:])
    result = check_and_resize(several, Fetch())
    assert corners(result) == [0] * 4
    assert len(result.data) < len(several)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["TIFF", "BMP", "ICO", "PPM", "JPEG2000", "SGI", "ICNS", "DDS", "EPS"]
)
def test_other_formats_are_not_opened(kind: str) -> None:
    if kind == "JPEG2000" and not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    assert bad(saved(drawn(64, 64), kind)) == "format"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "format"),
        (b"<?xml version='1.0'?>\n<!-- made by hand -->\n<svg/>", "format"),
        (b"8BPS\0\1" + bytes(64), "format"),
        (b"\0\0\0\x1cftypheic" + bytes(64), "format"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "format"),
        (b"<!doctype html><title>404</title>", "not_an_image"),
        (b"%PDF-1.7", "not_an_image"),
        (b'{"error": "no"}', "not_an_image"),
        (b"\0", "not_an_image"),
        (b"\xff\xd8\xff", "decode_error"),
        (b"\xff\xd8\xff\xe0rubbish" * 50, "decode_error"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "decode_error"),
        (b"GIF89a", "decode_error"),
        (b"GIF89a\0\0\0\0\0\0\0;", "decode_error"),
        (b"RIFF\x10\0\0\0WEBPVP8 \0\0\0\0", "decode_error"),
        (b"\0\0\0\x1cftypavif" + bytes(64), "decode_error"),
    ],
)
def test_rubbish(body: bytes, reason: str) -> None:
    assert bad(body) == reason


def test_details_repeat_from_run_to_run() -> None:
    for body in (b"GIF89a", b"\xff\xd8\xff", saved(drawn(), "PNG")[:60]):
        details = set()
        for _ in range(2):
            with pytest.raises(RejectedImage) as caught:
                check_and_resize(body, Fetch())
            details.add(caught.value.detail)
        assert len(details) == 1
        assert "0x" not in details.pop()


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose first scan is there `count` times."""
    body = saved(Image.new("RGB", (16, 16), (9, 99, 200)), progressive=True)
    start = body.index(b"\xff\xda")
    end = (
        body.index(b"\xff\xc4", start)
        if b"\xff\xc4" in body[start:]
        else body.index(b"\xff\xda", start + 2)
    )
    return body[:end] + body[start:end] * count + body[end:]


def test_scans_are_counted_by_their_markers() -> None:
    plain = saved(drawn(), progressive=True)
    assert check_and_resize(plain, Fetch()).width == 80
    with pytest.raises(RejectedImage, match=f"more than {header.MOST_SCANS} scans"):
        check_and_resize(many_scans(150), Fetch())
    comment = saved(drawn(), comment=b"\xff\xda" * 300)  # not scans, and not after the end either
    assert check_and_resize(comment, Fetch()).data == saved(drawn())
    assert check_and_resize(plain + b"\xff\xda\0\0" * 300, Fetch()).width == 80
