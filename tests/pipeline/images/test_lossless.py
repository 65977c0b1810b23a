"""A kept image has its pixels and no metadata, comments or tail; a padded one is encoded again."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images.header import (
    BYTES_PER_PIXEL,
    SPARE_BYTES,
    RejectedImage,
    read,
    without_metadata,
)
from clipmill.pipeline.images.transform import DecodedImage, check_and_resize, limits_of

SECRET = b"4 Privet Drive"
TAIL = b"PK\x03\x04" + SECRET * 100
KINDS = [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp")]


def noise(width: int = 80, height: int = 48) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def saved(kind: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    noise().save(sink, kind, **options)
    return sink.getvalue()


def exif_with_position() -> Image.Exif:
    exif = Image.Exif()
    exif[0x010F] = SECRET.decode()  # Make
    exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 30.0, 0.5)})
    return exif


def with_metadata(kind: str) -> bytes:
    """An image with EXIF, XMP, comments and a tail that all hold SECRET."""
    options: dict[str, Any] = {"exif": exif_with_position(), "xmp": SECRET}
    if kind == "JPEG":
        options |= {"comment": SECRET}
    if kind == "PNG":
        text = PngInfo()
        text.add_text("Comment", SECRET.decode())
        text.add_text("Author", SECRET.decode(), zip=True)
        text.add_itxt("Title", SECRET.decode())
        del options["xmp"]
        options |= {"pnginfo": text}
    return saved(kind, **options) + TAIL


def kept(body: bytes, extension: str) -> DecodedImage:
    settings = Fetch(resize_mode="no", skip_reencode=True, encode_format=extension,
                     encode_quality=1 if extension == "png" else 95)  # type: ignore[arg-type]  # fmt: skip
    return check_and_resize(body, settings)


def pixels(data: bytes) -> bytes:
    return Image.open(io.BytesIO(data)).convert("RGB").tobytes()


@pytest.mark.parametrize(("kind", "extension"), KINDS)
def test_no_metadata_and_no_tail_is_stored(kind: str, extension: str) -> None:
    body = with_metadata(kind)
    assert SECRET in body
    data = kept(body, extension).data
    assert pixels(data) == pixels(body), "it was not encoded again"
    assert SECRET not in data
    with Image.open(io.BytesIO(data)) as opened:
        assert not dict(opened.getexif())
        assert not {"exif", "xmp", "comment", "Comment", "Author", "Title"} & set(opened.info)
    clean = saved(kind)
    assert len(data) <= len(clean) + 18  # the VP8X chunk of a WebP
    assert kept(clean, extension).data == clean, "nothing to remove"


def test_what_decoders_need_stays() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = kept(saved("JPEG", icc_profile=profile, progressive=True), "jpg").data
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.info["icc_profile"] == profile
        assert opened.info["progressive"]
    adobe = b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00\x01"
    body = saved("JPEG")
    marked = body[:2] + adobe + body[2:]
    assert adobe in kept(marked, "jpg").data


def test_an_adobe_segment_and_a_jfif_thumbnail_hold_nothing_more() -> None:
    body = saved("JPEG")
    adobe = b"Adobe\x00d\x00\x00\x00\x00\x01" + SECRET
    jfif = b"JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x02\x02" + SECRET[:12]
    segments = b"".join(
        bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data
        for marker, data in ((0xE0, jfif), (0xEE, adobe), (0xE7, SECRET), (0xFE, SECRET))
    )
    assert body[2:4] == b"\xff\xe0"
    own = 2 + int.from_bytes(body[4:6], "big")
    data = kept(body[:2] + segments + body[2 + own :], "jpg").data
    assert SECRET[:12] not in data
    assert pixels(data) == pixels(body)


def test_metadata_between_the_scans_of_a_progressive_jpeg_goes_too() -> None:
    body = saved("JPEG", progressive=True)
    second = body.index(b"\xff\xda", body.index(b"\xff\xda") + 2)
    marked = (
        body[:second] + b"\xff\xfe" + struct.pack(">H", 2 + len(SECRET)) + SECRET + body[second:]
    )
    # The second scan is preceded by its tables: the comment lies before them or the scan.
    data = kept(marked, "jpg").data
    assert SECRET not in data
    assert pixels(data) == pixels(body)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@pytest.mark.parametrize(("kind", "extension"), KINDS)
def test_padding_inside_the_image_is_encoded_again(kind: str, extension: str) -> None:
    """A table or a data chunk of many megabytes is no metadata by its name."""
    body, padding = saved(kind), SECRET * 5000
    limit = 80 * 48 * BYTES_PER_PIXEL + SPARE_BYTES
    if kind == "JPEG":
        table = body[body.index(b"\xff\xdb") :][: 2 + 67]
        padded = body[:2] + table * (limit // len(table) + 1) + body[2:]
    elif kind == "PNG":
        padded = body[:-12] + chunk(b"IDAT", padding * 2) + body[-12:]
    else:
        size = struct.pack("<I", len(body) - 8 + 8 + len(padding) * 2)
        padded = (
            body[:4] + size + body[8:] + b"ICCP" + struct.pack("<I", len(padding) * 2) + padding * 2
        )
    assert len(padded) > limit
    assert without_metadata(padded, read(padded, limits_of(Fetch()))) is None
    try:
        data = kept(padded, extension).data
    except RejectedImage as error:
        assert error.reason == "decode_error"  # noqa: PT017
    else:
        assert len(data) < limit
        assert SECRET not in data


@pytest.mark.parametrize(("kind", "extension"), KINDS)
def test_a_damaged_file_raises_nothing_and_is_never_longer(kind: str, extension: str) -> None:
    body, rng = with_metadata(kind), random.Random(0)
    head = read(body, limits_of(Fetch()))
    for cut in range(0, len(body), 97):
        stripped = without_metadata(body[:cut], head)
        assert stripped is None or len(stripped) <= cut
    for _ in range(300):
        damaged = bytearray(body)
        for _ in range(5):
            damaged[rng.randrange(12, len(body))] = rng.randrange(256)
        stripped = without_metadata(bytes(damaged), head)
        assert stripped is None or len(stripped) <= len(body)
