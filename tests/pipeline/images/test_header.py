"""Sizes from the header: the same as a decoder's, in little time, and never from missing bytes."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import time
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from manifests.schema import Fetch
from pipeline.images import header
from pipeline.images.header import RejectedImage
from pipeline.images.transform import limits_of

KINDS = ["JPEG", "PNG", "WEBP", "GIF", *(["AVIF"] if features.check("avif") else [])]
PNG = b"\x89PNG\r\n\x1a\n"


def noise(width: int = 80, height: int = 48) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    )


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@pytest.mark.parametrize("size", [(1, 1), (80, 48), (255, 256), (700, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_size_and_type(kind: str, size: tuple[int, int]) -> None:
    image_header = header.read(saved(noise(*size), kind))
    assert (image_header.kind, image_header.orientation) == (kind, 1)
    assert (image_header.width, image_header.height) == size


@pytest.mark.skipif("AVIF" not in KINDS, reason="this Pillow has no AVIF")
def test_an_avif_sequence_with_and_without_a_still_image() -> None:
    body = saved(noise(), "AVIF", save_all=True, append_images=[noise()])
    assert body[8:12] == b"avis"
    assert header.read(body).size == (80, 48)
    assert header.read(body.replace(b"meta", b"free", 1)).size == (80, 48)
    with pytest.raises(RejectedImage, match="without a size"):
        header.read(body.replace(b"meta", b"free", 1).replace(b"av01", b"hvc1"))


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_three_kinds_of_webp(mode: str, lossless: bool) -> None:
    body = saved(noise().convert(mode), "WEBP", lossless=lossless)
    assert (header.read(body).width, header.read(body).height) == (80, 48)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "GIF"])
@pytest.mark.parametrize("orientation", range(10))
def test_orientation(kind: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[header.ORIENTATION] = orientation
    image_header = header.read(saved(noise(), kind, exif=tags))
    turned = 5 <= orientation <= 8
    assert image_header.size == ((48, 80) if turned else (80, 48))
    if kind != "AVIF":
        assert image_header.orientation == (orientation if 1 <= orientation <= 8 else 1)


def test_orientation_by_xmp_and_by_imagemagick() -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert header.read(saved(noise(), xmp=xmp)).orientation == 6
    plain = saved(noise(), "PNG")
    text = chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)
    assert header.read(plain[:33] + text + plain[33:]).orientation == 6
    tags = Image.Exif()
    tags[header.ORIENTATION] = 8
    raw = b"\nexif\n      32\n" + tags.tobytes().hex().encode() + b"\n"
    packed = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw))
    assert header.read(plain[:33] + packed + plain[33:]).orientation == 8
    assert (
        header.read(
            plain[:33] + chunk(b"tEXt", b"Raw profile type exif\0" + raw) + plain[33:]
        ).orientation
        == 8
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        b"MM\0\x2a\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff",
        b"II*\0\x08\0\0\0\1\0\x12\1\3\0\xff\xff\xff\xff\6\0\0\0",  # 2**32 - 1 orientations
        b"II*\0\x08\0\0\0\1\0\x12\1\2\0\1\0\0\0\6\0\0\0",  # as text
        b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x63\0\0\0",  # 99
        b"II*\0\x08\0\0\0\1\0\x12\1\x63\0\1\0\0\0\6\0\0\0",  # of a type that there is not
    ],
)
def test_damaged_exif(data: bytes) -> None:
    assert header.exif_orientation(data) == 1
    header.as_text(data)


def test_a_table_that_names_itself_and_one_that_is_endless() -> None:
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)
    assert header.as_text(b"II*\0\x08\0\0\0\1\0" + entry) is None
    many = b"".join(struct.pack("<HHII", 0x010F, 2, 200, 8) for _ in range(5000))
    text = header.as_text(b"II*\0\x08\0\0\0\x88\x13" + many)
    assert text is not None
    assert len(text) < header.MOST_TEXT


def test_numbers_that_are_none() -> None:
    rational = (
        b"II*\0\x08\0\0\0\1\0"
        + struct.pack("<HHII", 0x011A, 5, 1, 26)
        + bytes(4)
        + struct.pack("<II", 1, 0)
    )
    assert header.table(rational) == {0x011A: None}


def test_a_profile_comes_together_from_its_segments() -> None:
    profile = random.Random(0).randbytes(150_000)
    body = saved(noise(), icc_profile=profile)
    assert header.read(body).profile == profile
    lost = body.index(b"ICC_PROFILE\0\x02")
    assert (
        header.read(
            body[: lost - 4] + body[lost - 4 :].replace(b"ICC_PROFILE\0\x02", b"OTHER______\0\x02")
        ).profile
        == b""
    )


def test_a_gif_whose_first_frame_reaches_beyond_its_canvas() -> None:
    body = bytearray(saved(noise().convert("P"), "GIF", comment=b"x" * 700))
    at = body.index(b",\0\0\0\0")
    body[at + 5 : at + 9] = struct.pack("<HH", 30000, 20000)
    assert header.read(bytes(body)).size == (30000, 20000)


def frame(width: int, height: int, marker: int = 0xC0, bits: int = 8) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">HBHHB", 11, bits, height, width, 1) + b"\1\x11\0"


SCAN = b"\xff\xda\0\x08\1\1\0\0\x3f\0"


@pytest.mark.parametrize(
    ("body", "size"),
    [
        (b"\xff\xd8" + frame(9, 7) + SCAN, (9, 7)),
        (b"\xff\xd8" + b"\xff" * 99 + frame(9, 7) + b"\xff\xfe\0\2" + SCAN, (9, 7)),
        (b"\xff\xd8\xff\xe0\0\2" + b"junk" * 99 + frame(9, 7) + SCAN, (9, 7)),
        # A frame header inside a comment
        (b"\xff\xd8\xff\xfe\0\x40" + frame(5, 5) + bytes(49) + frame(9, 7) + SCAN, (9, 7)),
        (b"\xff\xd8\xff\xe0\0\1" + frame(9, 7) + SCAN, None),
        (b"\xff\xd8" + frame(9, 7) + b"\xff\xd9", None),
        (b"\xff\xd8" + frame(9, 7), None),
        (b"\xff\xd8" + SCAN, None),
        (b"\xff\xd8" + frame(9, 7, 0xC3) + SCAN, None),  # lossless
        (b"\xff\xd8" + frame(9, 7, 0xC1, 12) + SCAN, None),
        (b"\xff\xd8" + frame(9, 7)[:7], None),
    ],
)
def test_segments_of_a_jpeg(body: bytes, size: tuple[int, int] | None) -> None:
    if size is None:
        with pytest.raises(RejectedImage, match="decode_error"):
            header.read(body)
    else:
        assert header.read(body).size == size


def small_bombs() -> dict[str, bytes]:
    """Some bytes that ask for much."""
    canvas = struct.pack("<I", 16382)[:3] + struct.pack("<I", 10899)[:3]
    webp = b"VP8X" + struct.pack("<I", 10) + bytes(4) + canvas
    lossless = b"VP8L" + struct.pack("<I", 5) + b"\x2f" + struct.pack("<I", 16382 | 10899 << 14)
    gif = bytearray(saved(Image.new("P", (8, 8)), "GIF"))
    gif[6:10] = struct.pack("<HH", 30000, 30000)
    bombs = {
        "webp": b"RIFF" + struct.pack("<I", len(webp) + 4) + b"WEBP" + webp,
        "webp, lossless": b"RIFF" + struct.pack("<I", len(lossless) + 4) + b"WEBP" + lossless,
        "png": PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 8, 3, 0, 0, 0)),
        "png, wide": PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 1, 1, 0, 0, 0, 0)),
        "jpeg": b"\xff\xd8" + frame(13300, 13300, 0xC2) + SCAN,
        "gif": bytes(gif),
    }
    if features.check("avif"):
        avif = saved(noise(64, 64), "AVIF")
        at = avif.index(b"ispe") + 8
        bombs["avif"] = avif[:at] + struct.pack(">II", 30000, 30000) + avif[at + 8 :]
    return bombs


@pytest.mark.parametrize("name", small_bombs())
def test_small_bombs_are_refused(name: str) -> None:
    with pytest.raises(RejectedImage, match="too_many_pixels"):
        header.check(small_bombs()[name], limits_of(Fetch()))


MUCH = 4 * 2**20
SLOW = {
    "segments": b"\xff\xd8" + b"\xff\xe0\0\2" * (MUCH // 4),
    "fill bytes": b"\xff\xd8" + b"\xff" * MUCH,
    "fill bytes that lead nowhere": b"\xff\xd8\xff" + b"\xff\xff\xff\0" * (MUCH // 4),
    "EXIF": b"\xff\xd8" + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65527)) * 60,
    "profiles": b"\xff\xd8" + (b"\xff\xe2\xff\xffICC_PROFILE\0" + bytes(65521)) * 60,
    "scans": b"\xff\xd8" + frame(16, 16, 0xC2) + b"\xff\xda\0\2" * (MUCH // 4),
    "chunks": PNG + b"\0\0\0\rIHDR" + bytes(17) + b"\0\0\0\0tEXt\0\0\0\0" * (MUCH // 12),
    "packed profiles": PNG + b"\0\0\0\rIHDR" + bytes(17)
    + chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(bytes(10**7))) * 400,
    "extensions": b"GIF89a" + bytes(7) + b"!\xfe" + b"\1\1" * (MUCH // 2),
    "no blocks": b"GIF89a" + bytes(MUCH),
    "boxes": b"\0\0\0\x20ftypavif" + bytes(20) + struct.pack(">I", MUCH) + b"meta\0\0\0\0"
    + b"\0\0\0\x08free" * (MUCH // 8),
    "chunks of a WebP": b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x08" + bytes(9)
    + b"abcd\0\0\0\0" * (MUCH // 8),
    "comments of an SVG": b"<!---->" * 300,
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_a_hostile_header_costs_little(name: str) -> None:
    """About a millisecond each, 5 for the scans; 0.25 s is left to a busy machine."""
    started = time.process_time()
    with contextlib.suppress(RejectedImage):
        header.check(SLOW[name], limits_of(Fetch()))
    assert time.process_time() - started < 0.25


def test_only_rejected_image_is_raised() -> None:
    """1,000 damaged headers of each type."""
    rng = random.Random(0)
    tags = Image.Exif()
    tags[header.ORIENTATION], tags[0x010F] = 6, "A maker"
    for kind in KINDS:
        body = saved(noise(), kind, **({} if kind == "GIF" else {"exif": tags}))
        for _ in range(1000):
            damaged = bytearray(body)
            for _ in range(rng.randint(1, 6)):
                at = rng.randrange(min(len(damaged), 400))
                damaged[at : at + rng.choice((0, 1, 1, 4))] = rng.randbytes(
                    rng.choice((0, 1, 1, 4))
                )
            try:
                header.as_text(header.read(bytes(damaged)).exif)
            except RejectedImage as bad:
                assert bad.reason in ("decode_error", "not_an_image", "format")  # noqa: PT017
