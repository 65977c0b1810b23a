"""Bytes of images to pixels, and pixels to crops."""

from __future__ import annotations

import io
import statistics
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clipmill.manifests.preprocess import Preprocess
from clipmill.train import transforms as decode_module
from clipmill.train.transforms import (
    NUMBERS,
    ThreadBuffer,
    crop_box,
    crop_numbers,
    decode_image,
    normalise,
    random_crop_into,
    reduction,
    smallest_side,
)


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def random_crop(picture, size, numbers):
    cropped = np.empty((size, size, 3), np.uint8)
    random_crop_into(cropped, picture, numbers)
    return cropped


def numbers_of(seed, step=0, crop_min=0.9):
    numbers: list[float] = crop_numbers(seed, step, np.arange(1), crop_min)[0].tolist()
    assert len(numbers) == NUMBERS
    return numbers


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**64), st.floats(0.05, 1))
def test_a_crop_lies_inside_its_picture(height, width, seed, crop_min):
    left, top, right, bottom = crop_box(height, width, numbers_of(seed, crop_min=crop_min))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


@given(st.integers(30, 400), st.integers(30, 400), st.integers(0, 2**64))
def test_a_picture_decoded_at_the_smallest_side_still_fills_a_crop(height, width, seed):
    size = 24
    scale = max(1.0, smallest_side(size, 0.9) / min(height, width))
    left, top, right, bottom = crop_box(
        round(height * scale), round(width * scale), numbers_of(seed)
    )
    assert min(right - left, bottom - top) >= size - 1  # of rounding to whole noise


@pytest.mark.parametrize("size", [(200, 200), (200, 320), (300, 110)])
def test_crops_have_the_distribution_of_torchvisions(size):
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


def test_the_numbers_of_a_crop_belong_to_its_place_in_the_run():
    whole = crop_numbers(3, 17, np.arange(64), 0.9)
    assert np.array_equal(whole[20:30], crop_numbers(3, 17, np.arange(20, 30), 0.9))
    for other in (crop_numbers(4, 17, np.arange(64), 0.9), crop_numbers(3, 18, np.arange(64), 0.9)):
        assert not np.any(whole == other)


def photograph(height, width):
    """Smooth in large parts, sharp at some edges, and clipped at both ends, as photographs are."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / 9 + k) + np.cos(y / (5 + k)) + (x > 2 * y) for k in range(3)]
    return np.clip(110 + 80 * np.stack(waves, axis=-1), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", [(240, 320), (320, 240), (90, 400), (180, 180), (700, 500)])
def test_torch_resizes_a_crop_as_pillow_does(size):
    picture = photograph(*size)
    drawn = numbers_of(1)
    cropped = random_crop(picture, 224, drawn).astype(int)
    box = Image.fromarray(picture).crop(crop_box(*size, drawn))
    difference = np.abs(cropped - np.asarray(box.resize((224, 224), Image.Resampling.BICUBIC)))
    assert (difference > 1).mean() < 0.005  # the passes are rounded in another order
    assert difference.mean() < 0.2


def test_a_crop_of_the_right_size_is_copied_and_not_resampled():
    picture = noise(60, 60)
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
def test_the_centre_crop_is_open_clips_evaluation_picture(size, target):
    open_clip = pytest.importorskip("open_clip")
    picture = noise(*size)
    expected = open_clip.image_transform(target, is_train=False)(Image.fromarray(picture))
    cropped = Preprocess().pixels(Image.fromarray(picture), (target, target))
    assert cropped.shape == (target, target, 3)
    ours = normalise(torch.from_numpy(cropped.copy())[None])[0]
    assert (ours - expected).abs().max() < 1e-5  # a level is 0.014


# --------------------------------------------------------------------------------------------------


def pixels(height, width, seed=0):
    coarse = np.random.default_rng(seed).integers(
        0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8
    )
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(picture, kind, **options):
    sink = io.BytesIO()
    picture.save(sink, kind, **options)
    return sink.getvalue()


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(decode_module, "fast_jpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    return str(request.param)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_jpeg_gives_the_pixels_that_pillow_gives(decoder, subsampling):
    data = encoded(Image.fromarray(pixels(61, 83)), "JPEG", quality=90, subsampling=subsampling)
    decoded = decode_image(data)
    assert decoded.shape == (61, 83, 3)
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("min_size", [0, 16])
def test_pixels_in_a_buffer_are_the_same(decoder, min_size):
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
def test_other_jpegs_become_rgb(decoder, mode, progressive):
    picture = Image.fromarray(pixels(40, 40)).convert(mode)
    decoded = decode_image(encoded(picture, "JPEG", quality=95, progressive=progressive))
    assert decoded.shape == (40, 40, 3)
    assert np.abs(decoded.astype(int) - np.asarray(picture.convert("RGB"))).mean() < 4


def test_png_and_webp_are_read_and_transparency_becomes_white(decoder):
    plain = Image.fromarray(pixels(20, 30))
    assert np.array_equal(decode_image(encoded(plain, "PNG")), np.asarray(plain))
    assert np.array_equal(decode_image(encoded(plain, "WEBP", lossless=True)), np.asarray(plain))
    clear = plain.copy()
    clear.putalpha(Image.new("L", plain.size, 0))
    assert (decode_image(encoded(clear, "PNG")) == 255).all()
    palette = encoded(plain.convert("P"), "PNG", transparency=0)
    assert decode_image(palette).shape == (20, 30, 3)


def test_sixteen_bits_of_grey_are_scaled():
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
def test_a_large_jpeg_may_come_smaller_but_not_below_what_is_asked(decoder, size, min_size, factor):
    assert reduction(*size, min_size) == factor
    if max(size) <= 1000:
        decoded = decode_image(encoded(Image.fromarray(pixels(*size)), "JPEG"), min_size)
        assert decoded.shape == (-(-size[0] // factor), -(-size[1] // factor), 3)


@pytest.mark.parametrize("size", [(480, 640), (481, 643), (250, 1001)])
@pytest.mark.parametrize("min_size", [30, 60, 120, 240])
def test_both_decoders_give_the_same_pixels_at_every_scale(size, min_size, monkeypatch):
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
def test_damaged_bytes_and_other_formats_are_refused(decoder, data):
    with pytest.raises(ValueError, match=r"\w"):
        decode_image(data)


def test_a_thousand_damaged_pictures_are_pixels_or_a_value_error(decoder):
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


def test_threads_do_not_share_memory():
    buffer, taken = ThreadBuffer(), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: taken.append(buffer.take(100)))
        thread.start()
        thread.join()
    taken.append(buffer.take(100))
    for k, array in enumerate(taken):
        assert not any(np.shares_memory(array, other) for other in taken[k + 1 :])
