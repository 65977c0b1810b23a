"""What Pillow reads from a header: types, sizes, orientations, EXIF, and what hostile bytes get."""

from __future__ import annotations

import json
import random
import struct
import time
import zlib
from typing import Any

import pytest
from PIL import Image, features

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.images import header
from clipmill.pipeline.images.decoders import DEADLINE_S
from clipmill.pipeline.images.header import RejectedImage
from clipmill.pipeline.images.transform import check_and_resize, limits_of
from tests.support.image_files import noise, saved

KINDS = ["JPEG", "PNG", "WEBP", "GIF", *(["AVIF"] if features.check("avif") else [])]
PNG = b"\x89PNG\r\n\x1a\n"
ORIENTATION = 0x0112
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def opened(body: bytes) -> Image.Image:
    with header.rejections():
        return header.opened(body, limits_of(Fetch()))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "GIF"])
def test_orientation(kind: str) -> None:
    for orientation in range(10):
        tags = Image.Exif()
        tags[ORIENTATION] = orientation
        image = opened(saved(noise(), kind, exif=tags))
        assert header.upright_size(image) == ((48, 80) if 5 <= orientation <= 8 else (80, 48))
        if kind != "AVIF":
            assert header.orientation(image) == (orientation if 1 <= orientation <= 8 else 1)


def test_orientation_by_xmp_and_by_imagemagick() -> None:
    assert header.orientation(opened(saved(noise(), "JPEG", xmp=XMP))) == 6
    tags = Image.Exif()
    tags[ORIENTATION] = 8
    assert header.orientation(opened(saved(noise(), "JPEG", xmp=XMP, exif=tags))) == 8
    plain = saved(noise())
    raw = b"\nexif\n      32\n" + tags.tobytes().hex().encode() + b"\n"
    for text, orientation in (
        (chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP), 6),
        (chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw)), 8),
        (chunk(b"tEXt", b"Raw profile type exif\0" + raw), 8),
    ):
        assert header.orientation(opened(plain[:33] + text + plain[33:])) == orientation


PLAIN: list[dict[str, Any]] = [
    {},
    {"progressive": True},
    {"comment": b"words", "dpi": (72, 72)},
    {"keep_rgb": True},
    {"restart_marker_blocks": 1, "subsampling": 2},
]
OTHERS: list[dict[str, Any]] = [{"exif": Image.Exif()}, {"xmp": XMP}, {"icc_profile": b"x" * 99}]
OTHERS[0]["exif"][ORIENTATION] = 6


def outcome(body: bytes, settings: Fetch) -> Any:
    try:
        return check_and_resize(body, settings)
    except RejectedImage as rejected:
        return rejected.reason, rejected.detail


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("options", [*PLAIN, *OTHERS])
def test_a_jpeg_ends_alike_whether_pillow_opens_it_or_not(
    options: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and with bytes of its header changed, left out or put in."""
    body, rng = saved(noise().convert(mode), "JPEG", **options), random.Random(0)
    bodies, end = [body], body.index(b"\xff\xda") + 12
    for _ in range(300):
        at, damaged = rng.randrange(2, end), bytearray(body)
        damaged[at : at + rng.choice((0, 1, 1, 1, 2))] = rng.randbytes(rng.choice((0, 1, 1, 1, 2)))
        bodies.append(bytes(damaged))
    settings = [Fetch(image_size=16), Fetch(extract_exif=True), Fetch(min_image_size=49)]
    asked = [(each, settings[number % 3]) for number, each in enumerate(bodies)]
    assert (header.read(body, limits_of(Fetch())).image is None) == (options in PLAIN)
    seen = [outcome(*each) for each in asked]
    monkeypatch.setattr(header, "_plain_jpeg", lambda body, limits: None)
    assert header.read(body, limits_of(Fetch())).image is not None
    assert seen == [outcome(*each) for each in asked]


def one_entry(kind: int, items: int, value: bytes, tag: int = ORIENTATION) -> bytes:
    """EXIF with one tag; `value` is its four bytes (or their offset)."""
    entry = struct.pack("<HHI", tag, kind, items) + value
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)


@pytest.mark.parametrize(
    "data",
    [
        b"Exif\0\0",
        b"Exif\0\0rubbish",
        b"Exif\0\0MM\0\x2a\xff\xff\xff\xff",  # the table lies behind the end
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
        one_entry(3, 1, b"\x63\0\0\0"),  # 99 is no orientation
        one_entry(2, 2, b"6\0\0\0"),  # as text
        one_entry(99, 1, b"\6\0\0\0"),  # an unknown type
        one_entry(3, 2**32 - 1, b"\6\0\0\0"),
        one_entry(4, 2, b"\xff\xff\xff\xff"),  # the value lies behind the end
    ],
)
def test_damaged_exif_has_no_orientation(data: bytes) -> None:
    with header.rejections():
        image = opened(saved(noise(), "JPEG", exif=data))
        assert header.orientation(image) == 1
        header.exif_text(image)
    assert check_and_resize(saved(noise(), "JPEG", exif=data), Fetch()).width == 80


def text_of(exif: Any) -> Any:
    with header.rejections():
        return json.loads(header.exif_text(opened(saved(noise(), "JPEG", exif=exif))) or "null")


def test_exif_has_the_known_tags_in_order_and_no_position() -> None:
    tags = Image.Exif()
    tags[0x010F], tags[0x0110], tags[0xFFF0] = "maker é\0".encode(), "m" * 300, "unknown"
    tags.get_ifd(0x8769)[0x920A] = 50.0  # FocalLength, in the table of the camera
    tags.get_ifd(0x8825)[1] = "N"
    assert list(text_of(tags).items()) == [("FocalLength", 50.0), ("Make", "maker é")]
    assert text_of(b"") is None
    many = Image.Exif()
    for tag in (0x010E, 0x010F, 0x0110, 0x0131, 0x013B, 0x8298):
        many[tag] = "\x01" * 250
    assert list(text_of(many)) == ["Artist", "Copyright", "ImageDescription", "Make", "Model"]


def test_a_fraction_of_nothing_and_a_table_that_names_itself_are_read() -> None:
    fraction = one_entry(5, 1, struct.pack("<I", 26), tag=0x011A)
    assert text_of(fraction + struct.pack("<II", 1, 3)) == {"XResolution": 0.333333}
    assert text_of(fraction + struct.pack("<II", 1, 0)) == {"XResolution": None}
    assert text_of(one_entry(4, 1, struct.pack("<I", 8), tag=0x8769)) is None
    everything = b"".join(struct.pack("<HHII", tag, 2, 60_000, 8) for tag in range(270, 5000))
    assert text_of(b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 4730) + everything) is None


def frame(width: int, height: int, marker: int = 0xC0, bits: int = 8) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">HBHHB", 11, bits, height, width, 1) + b"\1\x11\0"


SCAN = b"\xff\xda\0\x08\1\1\0\0\x3f\0"


def small_bombs() -> dict[str, bytes]:
    """Some bytes that ask for much."""
    gif = bytearray(saved(Image.new("P", (8, 8)), "GIF", comment=b"x" * 700))
    gif[6:10] = struct.pack("<HH", 30000, 30000)
    bombs = {
        "png": PNG
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", b""),
        "png, wide": PNG
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 1, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", b""),
        "jpeg": b"\xff\xd8" + frame(13300, 13300, 0xC2) + SCAN,
        "gif": bytes(gif),
    }
    beyond = bytearray(saved(noise().convert("P"), "GIF"))
    at = beyond.index(b",\0\0\0\0")
    beyond[at + 5 : at + 9] = struct.pack("<HH", 30000, 20000)
    bombs["gif, beyond its canvas"] = bytes(beyond)
    return bombs


@pytest.mark.parametrize("name", small_bombs())
def test_small_bombs_are_refused(name: str) -> None:
    with pytest.raises(RejectedImage, match="too_many_pixels"):
        opened(small_bombs()[name])


MUCH = 2**20
SLOW = {
    "segments": b"\xff\xd8" + b"\xff\xe0\0\2" * (MUCH // 4),
    "fill bytes": b"\xff\xd8" + b"\xff" * MUCH,
    "fill bytes that lead nowhere": b"\xff\xd8\xff" + b"\xff\xff\xff\0" * (MUCH // 4),
    "EXIF": b"\xff\xd8" + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65527)) * 15,
    "profiles": b"\xff\xd8" + (b"\xff\xe2\xff\xffICC_PROFILE\0" + bytes(65521)) * 15,
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
def test_a_hostile_header_costs_less_than_the_deadline_of_a_child(name: str) -> None:
    """At most 0.25 s for this megabyte."""
    started = time.process_time()
    with pytest.raises(RejectedImage):
        opened(SLOW[name])
    assert time.process_time() - started < DEADLINE_S


def test_only_rejected_image_is_raised() -> None:
    """500 damaged images of each type."""
    rng = random.Random(0)
    tags = Image.Exif()
    tags[ORIENTATION], tags[0x010F] = 6, "A maker"
    settings = Fetch(extract_exif=True)
    for kind in KINDS:
        body = saved(noise(), kind, **({} if kind == "GIF" else {"exif": tags}))
        for _ in range(500):
            damaged = bytearray(body)
            for _ in range(rng.randint(1, 6)):
                at = rng.randrange(min(len(damaged), 400))
                damaged[at : at + rng.choice((0, 1, 1, 4))] = rng.randbytes(
                    rng.choice((0, 1, 1, 4))
                )
            try:
                check_and_resize(bytes(damaged), settings)
            except RejectedImage as bad:
                assert bad.reason in (  # noqa: PT017
                    "decode_error", "not_an_image", "format", "too_many_pixels",
                )  # fmt: skip
