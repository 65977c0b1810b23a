"""Options for images besides the size: filters, formats, kept bytes, boxes, EXIF, hashes."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from clipmill.manifests.columns import REASONS
from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images import transform
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import (
    as_it_is,
    boxes_of,
    check_and_resize,
    check_hash,
    content_hashes,
)
from tests.support.image_files import noise, saved
from tests.support.profiles import srgb_profile, swapped_profile
from tests.support.tables import table

BOXES = table("boxes")


def opened(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def fetch(**settings: Any) -> Fetch:
    return Fetch(**{"encode_format": "png", "encode_quality": 1, **settings})


# --- filters and formats --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pillow"),
    [
        ("nearest", Image.Resampling.NEAREST),
        ("linear", Image.Resampling.BILINEAR),
        ("bilinear", Image.Resampling.BILINEAR),
        ("cubic", Image.Resampling.BICUBIC),
        ("bicubic", Image.Resampling.BICUBIC),
        ("area", Image.Resampling.BOX),
        ("lanczos", Image.Resampling.LANCZOS),
        ("lanczos4", Image.Resampling.LANCZOS),
    ],
)
def test_interpolation(name: Any, pillow: Image.Resampling) -> None:
    """As Pillow's, on average to 0.3 levels: it rounds after columns, not after rows."""
    image = noise(20, 12).resize((80, 48), Image.Resampling.BICUBIC)
    levels, mean = (0, 0.0) if name == "nearest" else (3, 0.3)
    smaller = check_and_resize(saved(image), fetch(image_size=24, downscale_interpolation=name))
    larger = fetch(image_size=96, resize_only_if_bigger=False, upscale_interpolation=name)
    for result in (smaller, check_and_resize(saved(image), larger)):
        expected = np.asarray(image.resize((result.width, result.height), pillow)).astype(int)
        difference = np.abs(opened(result.data) - expected)
        assert difference.max() <= levels
        assert difference.mean() <= mean


def test_nearest_takes_pixels_of_the_whole_jpeg() -> None:
    body = saved(noise(640, 480), "JPEG", quality=95)
    result = check_and_resize(body, fetch(image_size=48, downscale_interpolation="nearest"))
    whole = Image.open(io.BytesIO(body)).resize((64, 48), Image.Resampling.NEAREST)
    assert np.array_equal(opened(result.data), np.asarray(whole))


@pytest.mark.parametrize("resized", [True, False])
@pytest.mark.parametrize(("kind", "quality"), [("jpg", 90), ("png", 0), ("png", 9), ("webp", 80)])
def test_encode_format(kind: Any, quality: int, resized: bool) -> None:
    settings = Fetch(encode_format=kind, encode_quality=quality, image_size=24 if resized else 256)
    result = check_and_resize(saved(noise(), "GIF"), settings)
    image = Image.open(io.BytesIO(result.data))
    assert result.extension == kind
    assert (image.format, image.mode) == (
        {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[kind],
        "RGB",
    )
    assert image.size == (result.width, result.height) == ((40, 24) if resized else (80, 48))
    assert check_and_resize(saved(noise(), "GIF"), settings) == result


def test_quality_decides_the_size() -> None:
    body = saved(noise(20, 12).resize((80, 48)))
    for kind, low, high in (("jpg", 30, 95), ("webp", 30, 95), ("png", 9, 0)):
        sizes = []
        for quality in (low, high):
            settings = fetch(encode_format=kind, encode_quality=quality, skip_reencode=False)
            sizes.append(len(check_and_resize(body, settings).data))
        assert sizes[0] < sizes[1], kind
    for kind, quality in (("jpg", 0), ("jpg", 101), ("webp", 0), ("png", 10), ("png", -1)):
        with pytest.raises(ValueError, match="encode_quality"):
            fetch(encode_format=kind, encode_quality=quality)


def test_a_stored_image_has_only_the_pixels_of_the_original() -> None:
    tags = Image.Exif()
    tags[0x010F] = "A maker"
    body = saved(noise(), exif=tags, icc_profile=srgb_profile())
    for kind in ("jpg", "png", "webp"):
        settings = Fetch(encode_format=kind, encode_quality=9, skip_reencode=False)
        result = Image.open(io.BytesIO(check_and_resize(body, settings).data))
        assert not {"exif", "icc_profile"} & result.info.keys()


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_bytes_are_kept_only_of_the_type_that_is_stored(kind: Any) -> None:
    settings = Fetch(encode_format=kind, encode_quality=9)
    for stored in ("JPEG", "PNG", "WEBP"):
        body = saved(noise(), stored)
        result = check_and_resize(body, settings)
        assert (result.data == body) == (
            stored == {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[kind]
        )
        assert result.extension == kind
        assert (
            check_and_resize(
                body, Fetch(encode_format=kind, encode_quality=9, skip_reencode=False)
            ).data
            != body
        )


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_bytes_are_not_kept_where_something_has_to_be_done(kind: str) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    clear = noise().convert("RGBA")
    clear.putalpha(Image.new("L", clear.size, 99))
    bodies = [
        saved(noise(), kind, exif=turned),
        saved(clear, kind),
        saved(noise(), kind, icc_profile=swapped_profile()),
    ]
    bodies.append(saved(noise(), kind, save_all=True, append_images=[noise(seed=1)]))
    if kind == "PNG":
        bodies.append(saved(noise().convert("P"), kind))
        bodies.append(saved(noise().convert("L"), kind))
    settings = Fetch(encode_format=kind.lower(), encode_quality=9)  # type: ignore[arg-type]
    for i, body in enumerate(bodies):
        assert check_and_resize(body, settings).data != body, i
    assert check_and_resize(saved(noise(), kind), settings, [(0, 0, 0.5, 0.5)]).data != saved(
        noise(), kind
    )


# --- bytes as they came ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "AVIF"])
def test_as_it_is(kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    settings = Fetch(disable_all_reencoding=True, image_size=16)
    body = saved(noise(), kind)
    result = as_it_is(body, settings)
    assert (result.data, result.extension) == (body, {"JPEG": "jpg"}.get(kind, kind.lower()))
    assert (result.width, result.height, result.original_width, result.original_height) == (
        80,
        48,
        80,
        48,
    )
    for limit, reason in (
        ({"max_pixels": 3839}, "too_many_pixels"),
        ({"max_image_area": 3839}, "too_many_pixels"),
        ({"min_image_size": 49}, "too_small"),
        ({"max_aspect_ratio": 1.6}, "aspect"),
    ):
        with pytest.raises(RejectedImage, match=reason):
            as_it_is(body, Fetch(disable_all_reencoding=True, **limit))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_as_it_is_knows_which_way_up(kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    for orientation in range(1, 9):
        tags = Image.Exif()
        tags[0x0112] = orientation
        result = as_it_is(saved(noise(), kind, exif=tags), Fetch(disable_all_reencoding=True))
        assert (result.width, result.height) == ((48, 80) if orientation >= 5 else (80, 48)), (
            orientation
        )


def test_as_it_is_refuses_other_files() -> None:
    for body in (b"<html>", b"", b"BM" + bytes(60), b"\xff\xd8\xff", b"GIF89a"):
        with pytest.raises(RejectedImage):
            as_it_is(body, Fetch(disable_all_reencoding=True))


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        transform.limits_of(Fetch(disable_all_reencoding=True, bbox_column="faces"))


# --- boxes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", BOXES, ids=[str(i) for i in range(len(BOXES))])
def test_boxes(case: dict[str, Any]) -> None:
    """A value of bbox_column, and the boxes that it means: null where it is refused."""
    settings = Fetch(bbox_column="faces")
    if case["boxes"] is None:
        with pytest.raises(RejectedImage) as caught:
            boxes_of({"faces": case["value"]}, settings)
        assert caught.value.reason == "bad_bbox"
        assert REASONS["bad_bbox"] == "refused"
    else:
        assert boxes_of({"faces": case["value"]}, settings) == tuple(map(tuple, case["boxes"]))


def test_boxes_that_nobody_asked_for_or_that_are_too_many() -> None:
    assert boxes_of({"faces": "rubbish"}, Fetch()) == ()
    assert (
        boxes_of(None, Fetch(bbox_column="faces")) == boxes_of({}, Fetch(bbox_column="faces")) == ()
    )
    with pytest.raises(RejectedImage, match="at most 1000"):
        boxes_of({"faces": [[0, 0, 1, 1]] * 1001}, Fetch(bbox_column="faces"))


def detail(seen: np.ndarray[Any, Any]) -> float:
    """How much neighbours differ: 85 in noise of one byte, 0 where nothing is to be seen."""
    return float(np.abs(np.diff(seen, axis=1)).mean())


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("mode", ["no", "keep_ratio", "center_crop"])
def test_what_lies_in_a_box_is_blurred_and_nothing_else(
    orientation: int, kind: str, mode: Any
) -> None:
    upright = noise(300, 200)
    back = {6: 8, 8: 6}.get(orientation, orientation)
    tags = Image.Exif()
    tags[0x0112] = orientation
    stored = upright if orientation == 1 else upright.transpose(transform.TRANSPOSE[back])
    settings = fetch(resize_mode=mode, image_size=100, downscale_interpolation="nearest")
    plain = opened(check_and_resize(saved(stored, kind, exif=tags), settings).data)
    result = opened(
        check_and_resize(saved(stored, kind, exif=tags), settings, [(0.5, 0.5, 0.8, 0.9)]).data
    )
    height, width = result.shape[:2]
    # The crop takes 25 of 150 columns on each side
    shift = (150 - width) / 2 / width if mode == "center_crop" else 0
    wide = 150 / 100 if mode == "center_crop" else 1
    left, right = round((0.5 * wide - shift) * width), round((0.8 * wide - shift) * width)
    inside = (slice(round(0.5 * height), round(0.9 * height)), slice(left, right))
    assert detail(plain[inside]) > 40
    assert detail(result[inside]) < 8
    away = (slice(0, round(0.25 * height)), slice(0, round(0.3 * width)))
    assert np.array_equal(result[away], plain[away])


def test_a_small_box_beside_a_large_one_is_blurred_too() -> None:
    settings = fetch()
    boxes = [(0.05, 0.05, 0.6, 0.9), (0.8, 0.8, 0.86, 0.88)]
    seen = opened(check_and_resize(saved(noise(250, 250)), settings, boxes).data)
    assert detail(seen[200:220, 200:215]) < 8
    assert detail(seen[20:60, 200:240]) > 60


def test_boxes_over_the_edge() -> None:
    seen = opened(
        check_and_resize(
            saved(noise(100, 100)), fetch(), [(-0.4, -0.4, 0.5, 1.4), (1.2, 0, 1.4, 1)]
        ).data
    )
    assert detail(seen[:, :45]) < 8
    assert detail(seen[:, 75:]) > 60


# --- EXIF and hashes ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_as_text(kind: str) -> None:
    tags = Image.Exif()
    tags[0x010F], tags[0x0112], tags[0x0132] = "A maker\0", 6, "2026:11:21 14:00:00"
    tags.get_ifd(0x8769).update({0x829A: 0.01, 0x9286: b"x" * 300, 0xA002: 4000})
    tags.get_ifd(0x8825).update({1: "N", 2: (52.0, 30.0, 0.5)})
    body = saved(noise(), kind, exif=tags)
    assert check_and_resize(body, Fetch()).exif is None
    for result in (
        check_and_resize(body, Fetch(extract_exif=True, image_size=16)),
        as_it_is(body, Fetch(extract_exif=True, disable_all_reencoding=True)),
    ):
        assert result.exif is not None
        assert json.loads(result.exif) == {
            "DateTime": "2026:11:21 14:00:00",
            "ExifImageWidth": 4000,
            "ExposureTime": 0.01,
            "Make": "A maker",
            "Orientation": 6,
        }
    assert check_and_resize(saved(noise(), kind), Fetch(extract_exif=True)).exif is None


@pytest.mark.parametrize("algorithm", ["md5", "sha256", "sha512"])
def test_hashes_of_the_bytes_as_they_came(algorithm: str) -> None:
    hashes = content_hashes(b"x", Fetch(compute_hash=algorithm))  # type: ignore[arg-type]
    assert hashes[algorithm] == hashlib.new(algorithm, b"x").hexdigest()
    assert hashes["sha256"] == hashlib.sha256(b"x").hexdigest()
    settings = Fetch(verify_hash=("seen", algorithm))
    right = hashlib.new(algorithm, b"x").hexdigest()
    check_hash(b"x", {"seen": right}, settings)
    check_hash(b"x", {"seen": f" {right.upper()}\n"}, settings)
    check_hash(b"x", {"seen": "other"}, Fetch())
    for wrong in (
        {"seen": hashlib.new(algorithm, b"y").hexdigest()},
        {"seen": right[:-1]},
        {"seen": None},
        {},
        None,
    ):
        with pytest.raises(RejectedImage) as caught:
            check_hash(b"x", wrong, settings)
        assert caught.value.reason == "hash_mismatch"


# --- profiles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_colours_are_turned_into_srgb(kind: str) -> None:
    red = Image.new("RGB", (64, 64), (200, 40, 60))
    options = (
        {"quality": 100, "subsampling": 0}
        if kind == "JPEG"
        else {"lossless": True}
        if kind == "WEBP"
        else {}
    )
    plain = opened(check_and_resize(saved(red, kind, **options), fetch()).data)[32, 32]
    assert np.abs(plain - (200, 40, 60)).max() <= 3
    same = opened(
        check_and_resize(saved(red, kind, icc_profile=srgb_profile(), **options), fetch()).data
    )[32, 32]
    assert np.array_equal(same, plain)
    for size in (256, 16):
        result = check_and_resize(
            saved(red, kind, icc_profile=swapped_profile(), **options), fetch(image_size=size)
        )
        assert np.abs(opened(result.data)[8, 8] - (40, 200, 60)).max() <= 4


def test_a_jpeg_is_kept_with_the_profile_of_srgb_and_with_a_damaged_one() -> None:
    for known in (srgb_profile(), b"rubbish", srgb_profile()[:200], swapped_profile()[:300]):
        body = saved(noise(), "JPEG", icc_profile=known)
        assert check_and_resize(body, Fetch()).data == body
    body = saved(noise(), "JPEG", icc_profile=swapped_profile())
    assert check_and_resize(body, Fetch()).data != body
    assert check_and_resize(body, Fetch(resize_mode="no", skip_reencode=False)).data != body
