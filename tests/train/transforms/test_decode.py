"""Bytes of images to pixels, and the memory of a thread."""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import pytest
from PIL import Image

from train import transforms as decode_module
from train.transforms import ThreadBuffer, decode_image, reduction


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    coarse = np.random.default_rng(seed).integers(
        0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8
    )
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, kind, **options)
    return sink.getvalue()


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pillow":
        monkeypatch.setattr(decode_module, "fast_jpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    return str(request.param)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_jpeg_gives_the_pixels_that_pillow_gives(decoder: str, subsampling: int) -> None:
    data = encoded(Image.fromarray(pixels(61, 83)), "JPEG", quality=90, subsampling=subsampling)
    decoded = decode_image(data)
    assert decoded.shape == (61, 83, 3)
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("min_size", [0, 16])
def test_pixels_in_a_buffer_are_the_same(decoder: str, min_size: int) -> None:
    buffer = ThreadBuffer()
    for height, width in [(16, 16), (33, 47), (131, 64), (64, 129), (255, 257), (40, 300)]:
        for subsampling in (0, 2):
            image = Image.fromarray(pixels(height, width))
            data = encoded(image, "JPEG", quality=90, subsampling=subsampling)
            expected = decode_image(data, min_size)
            assert np.array_equal(decode_image(data, min_size, buffer), expected)
    with pytest.raises(ValueError, match=r"JPEG|readable"):
        decode_image(data[:100], min_size, buffer)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_other_jpegs_become_rgb(decoder: str, mode: str, progressive: bool) -> None:
    picture = Image.fromarray(pixels(40, 40)).convert(mode)
    decoded = decode_image(encoded(picture, "JPEG", quality=95, progressive=progressive))
    assert decoded.shape == (40, 40, 3)
    assert np.abs(decoded.astype(int) - np.asarray(picture.convert("RGB"))).mean() < 4


def test_png_and_webp_are_read_and_transparency_becomes_white(decoder: str) -> None:
    plain = Image.fromarray(pixels(20, 30))
    assert np.array_equal(decode_image(encoded(plain, "PNG")), np.asarray(plain))
    assert np.array_equal(decode_image(encoded(plain, "WEBP", lossless=True)), np.asarray(plain))
    clear = plain.copy()
    clear.putalpha(Image.new("L", plain.size, 0))
    assert (decode_image(encoded(clear, "PNG")) == 255).all()
    palette = encoded(plain.convert("P"), "PNG", transparency=0)
    assert decode_image(palette).shape == (20, 30, 3)


def test_sixteen_bits_of_grey_are_scaled() -> None:
    grey = Image.fromarray(np.full((8, 8), 40_000, np.uint16))
    assert (decode_image(encoded(grey, "PNG")) == 40_000 >> 8).all()


@pytest.mark.parametrize(
    ("size", "min_size", "factor"),
    [
        ((480, 640), 224, 2),
        ((480, 640), 241, 1),
        ((481, 1000), 241, 2),
        ((100, 100), 224, 1),
        ((4000, 4000), 224, 8),
        ((900, 2000), 224, 4),
        ((900, 2000), 0, 1),
    ],
)
def test_a_large_jpeg_may_come_smaller_but_not_below_what_is_asked(
    decoder: str, size: tuple[int, int], min_size: int, factor: int
) -> None:
    assert reduction(*size, min_size) == factor
    if max(size) <= 1000:
        decoded = decode_image(encoded(Image.fromarray(pixels(*size)), "JPEG"), min_size)
        assert decoded.shape == (-(-size[0] // factor), -(-size[1] // factor), 3)


@pytest.mark.parametrize("size", [(480, 640), (481, 643), (250, 1001)])
@pytest.mark.parametrize("min_size", [30, 60, 120, 240])
def test_both_decoders_give_the_same_pixels_at_every_scale(
    size: tuple[int, int], min_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    data = encoded(Image.fromarray(pixels(*size)), "JPEG", quality=88)
    fast = decode_image(data, min_size)
    monkeypatch.setattr(decode_module, "fast_jpeg", lambda: None)
    assert np.array_equal(fast, decode_image(data, min_size))


GOOD = encoded(Image.fromarray(pixels(64, 64)), "JPEG", quality=90)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        GOOD[: len(GOOD) // 2],
        GOOD[:20],
        b"<html>404</html>",
        b"\0" * 3000,
        encoded(Image.fromarray(pixels(64, 64)), "PNG")[:500],
        encoded(Image.new("L", (9, 9)), "GIF"),
    ],
)
def test_damaged_bytes_and_other_formats_are_refused(decoder: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_image(data)


def test_a_thousand_damaged_pictures_are_pixels_or_a_value_error(decoder: str) -> None:
    random = np.random.default_rng(0)
    kinds = [encoded(Image.fromarray(pixels(40, 40)), kind) for kind in ("JPEG", "PNG", "WEBP")]
    refused = 0
    for k in range(999):
        data = bytearray(kinds[k % 3])
        for at in random.integers(4, len(data), 6):
            data[at] = random.integers(256)
        try:
            assert decode_image(bytes(data), 32).shape[2] == 3
        except ValueError:
            refused += 1
    assert refused > 300


def test_threads_do_not_share_memory() -> None:
    buffer, taken = ThreadBuffer(), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: taken.append(buffer.take(100)))
        thread.start()
        thread.join()
    taken.append(buffer.take(100))
    for k, array in enumerate(taken):
        assert not any(np.shares_memory(array, other) for other in taken[k + 1 :])
