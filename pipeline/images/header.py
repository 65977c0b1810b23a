"""Type, size, orientation and EXIF of an image before it is decoded; its bytes without metadata.

The type is decided by the first bytes, and only Pillow's reader of that type sees the rest: it
reads the header when it opens an image, and decodes later. A body from the network is opened in a
child process (decoders.py), where a reader that takes too long or too much costs one image.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from PIL import ExifTags, Image, features

Extension = Literal["jpg", "png", "webp", "gif", "avif"]
MOST_SCANS = 100  # of a progressive JPEG, as djpeg's -maxscans; 2,000 scans of 16 MP cost 2.6 s
# Segments or chunks: a photograph has about 20, a PNG of 20 MB in chunks of 8 KB 2,500.
MOST_STEPS = 4096
MOST_PROFILE = 4 * 2**20  # bytes; those of printers have up to 2 MB
MOST_EXIF = 2 * 65536  # bytes, two segments of a JPEG: each tag may name all of them
MOST_ITEMS = 256  # bytes or numbers of a tag; a longer one (thumbnails, notes) is left out
MOST_TEXT = 8192  # of all tags as JSON

MAGIC = (
    (re.compile(rb"\xff\xd8\xff"), "JPEG"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "WEBP"),
    (re.compile(rb"GIF8[79]a"), "GIF"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "AVIF"),
)
# Images of types that are not read: TIFF, BMP, ICO, PSD, JPEG 2000, JPEG XL, HEIC, EPS, SVG, PNM,
# DDS and others.
OTHER_MAGIC = re.compile(
    rb"II[*+]\0|MM\0[*+]|BM|\0\0[\1\2]\0|8BPS|\0\0\0\x0cj[PX]|\xff\x4f\xff\x51|\0\0\0\x0cJXL|\xff\x0a|....ftyp(he|mi|ms)"
    rb"|%!PS|\xc5\xd0\xd3\xc6|P[1-7]\s|DDS |\x01\xda|icns|BLP[12]|qoif|\x8aMNG"
    rb"|\s*(<\?xml[^>]*>\s*)?(<!--((?!-->).)*-->\s*)*<svg",
    re.DOTALL,
)
EXTENSIONS: dict[str, Extension] = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "AVIF": "avif",
}
STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
MARKER = re.compile(rb"\xff([^\xff\x00])")
# The end of a scan: inside one, FF is followed by 0 or a restart number.
SCAN_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class RejectedImage(Exception):
    """The image is not stored. `reason`: one of columns.DECODE_REASONS, or hash_mismatch."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of a recipe's `fetch` that concern an image."""

    image_size: int
    resize_mode: str
    resize_only_if_bigger: bool
    upscale_interpolation: str
    downscale_interpolation: str
    encode_format: str
    encode_quality: int
    skip_reencode: bool
    disable_all_reencoding: bool
    min_image_size: int
    max_image_area: int
    max_aspect_ratio: float
    max_pixels: int
    extract_exif: bool


def check_size(size: tuple[int, int], limits: Limits) -> None:
    """RejectedImage for a size outside the limits."""
    short, long = min(size), max(size)
    if short < 1:
        raise RejectedImage("decode_error", "a side of 0 pixels")
    most_pixels = min(limits.max_pixels, limits.max_image_area or limits.max_pixels)
    if short * long > most_pixels:
        raise RejectedImage("too_many_pixels", f"{size[0]}x{size[1]} is more than {most_pixels}")
    if short < limits.min_image_size:
        raise RejectedImage(
            "too_small", f"{size[0]}x{size[1]}; the shorter side must be {limits.min_image_size}"
        )
    if limits.max_aspect_ratio and long / short > limits.max_aspect_ratio:
        raise RejectedImage(
            "aspect", f"{size[0]}x{size[1]} is longer than {limits.max_aspect_ratio:g} to 1"
        )


def sniff(body: bytes) -> str:
    """JPEG, PNG, WEBP, GIF or AVIF, by the first bytes.

    RejectedImage: "format" for other known types of images, "not_an_image" for everything else.
    """
    for magic, kind in MAGIC:
        if magic.match(body):
            return kind
    if OTHER_MAGIC.match(body[:2048]):
        raise RejectedImage("format", "an image, but not JPEG, PNG, WEBP, GIF or AVIF")
    raise RejectedImage("not_an_image", f"begins with {body[:8].hex(' ')}")


@contextlib.contextmanager
def rejections() -> Iterator[list[warnings.WarningMessage]]:
    """Makes a RejectedImage of every error that hostile bytes cause; gives the list of warnings."""
    try:
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            yield caught_warnings
    except RejectedImage:
        raise
    except Image.DecompressionBombError as error:  # Pillow opens no image above 179 MP
        raise RejectedImage("too_many_pixels", "more than Pillow opens") from error
    except MemoryError as error:
        raise RejectedImage("decode_error", "needs more memory than a decoder has") from error
    except Exception as error:  # decoders raise many types for hostile bytes
        message = re.sub(r"<[^>]*>| at 0x[0-9a-f]+", "", " ".join(str(error).split()))
        raise RejectedImage("decode_error", f"{type(error).__name__}: {message}"[:200]) from error


def opened(body: bytes, limits: Limits) -> Image.Image:
    """An image that may be decoded, of which only the header was read.

    RejectedImage, or one of the errors that `rejections` catches, for any other body.
    """
    kind = sniff(body)
    if kind == "AVIF" and not features.check("avif"):
        raise RejectedImage("format", "AVIF, which this Pillow cannot read")
    image = Image.open(io.BytesIO(body), formats=[kind])
    check_size(image.size, limits)
    if kind == "JPEG" and scans(body) > MOST_SCANS:
        raise RejectedImage("decode_error", f"more than {MOST_SCANS} scans")
    if len(image.info.get("exif", b"")) > MOST_EXIF:
        del image.info["exif"]
    return image


def orientation(image: Image.Image) -> int:
    """1 to 8, from EXIF or else from XMP; 1 where there is none, or where it is damaged.

    A PNG without EXIF before its pixels is decoded for it.
    """
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF raises many types; the image itself may be fine
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of an image after its orientation was applied."""
    return image.size[::-1] if orientation(image) >= 5 else image.size


def profile_of(image: Image.Image) -> bytes:
    """The ICC profile of an image; empty where it has none, or one that is too long."""
    profile = image.info.get("icc_profile")
    return profile if isinstance(profile, bytes) and len(profile) <= MOST_PROFILE else b""


def exif_text(image: Image.Image) -> str | None:
    """The known tags by name as JSON, in the order of their names; None where there are none.

    GPS positions are always left out, and so are values of more than 256 bytes and the tags with
    which the text would have more than 8 KB.
    """
    try:
        exif = image.getexif()
        tags = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
    except Exception:  # damaged EXIF raises many types
        return None
    for table in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
        tags.pop(table, None)
    named = {ExifTags.TAGS[tag]: value for tag, value in tags.items() if tag in ExifTags.TAGS}
    kept, size = {}, 0
    for name, value in sorted(named.items()):
        if isinstance(value, (bytes, str, tuple)) and len(value) > MOST_ITEMS:
            continue
        plain = _plain(value)
        size += len(json.dumps({name: plain}))
        if size <= MOST_TEXT:
            kept[name] = plain
    return json.dumps(kept) if kept else None


def _plain(value: Any) -> Any:
    """A value of Pillow's EXIF for JSON; None for a number that is not finite."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):  # Pillow reads Latin-1, cameras and programs write UTF-8
        text = value.encode("latin-1", "replace").decode("utf-8", "replace")
        return text.split("\0", 1)[0].strip()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, int):
        return value
    number = float(value)  # a fraction too, which is NaN where its denominator is 0
    return round(number, 6) if math.isfinite(number) else None


def scans(body: bytes) -> int:
    """Number of scans of a JPEG, by its markers, up to MOST_SCANS + 1.

    Markers inside segments (thumbnails) and behind the end of the image are not counted.
    """
    if body.count(b"\xff\xda") <= MOST_SCANS:
        return body.count(b"\xff\xda")
    offset, count = 2, 0
    while count <= MOST_SCANS:
        match = SCAN_MARKER.search(body, offset)
        if match is None or match[0] == b"\xff\xd9":
            break
        count += match[0] == b"\xff\xda"
        offset = match.end() + int.from_bytes(body[match.end() : match.end() + 2], "big")
    return count


# --------------------------------------------------------------------------------------------------
# Removes from a JPEG, PNG or WebP what its pixels do not need.
#
# EXIF with GPS, XMP, comments, thumbnails and bytes behind the end are removed. JFIF, Adobe's
# colour transform, the ICC profile, tables and scans stay, because decoders need them. Nothing is
# decoded: segments and chunks are copied or left out.


# A stored image has at most this many bytes: more than its pixels are worth is padding. A JPEG of
# noise at quality 100 without chroma subsampling has 4 bytes per pixel, raw RGB has 3.
BYTES_PER_PIXEL = 6
SPARE_BYTES = 65536
JFIF_BYTES = 14  # of the segment's data, without a thumbnail
PNG_CHUNKS = frozenset(
    (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT")
)
WEBP_CHUNKS = frozenset((b"VP8X", b"ICCP", b"ALPH", b"VP8 ", b"VP8L"))
WEBP_METADATA_FLAGS = 0x0C  # EXIF and XMP, in the first byte of VP8X


def without_metadata(body: bytes, image: Image.Image) -> bytes | None:
    """The same pixels in fewer bytes. None where the file is malformed or padded."""
    assert image.format is not None
    profile = profile_of(image)
    stripped = STRIP[image.format](body, bool(profile))
    limit = BYTES_PER_PIXEL * image.width * image.height + len(profile) + SPARE_BYTES
    return stripped if stripped is not None and len(stripped) <= limit else None


def _strip_jpeg(body: bytes, keep_profile: bool) -> bytes | None:
    """Segments up to the first end-of-image marker; what lies between two segments is left out."""
    parts = [b"\xff\xd8"]
    offset = 2
    for _ in range(MOST_STEPS):
        match = MARKER.search(body, offset)
        if match is None:
            return None
        marker, offset = match[1][0], match.end()
        if marker == 0xD9:
            return b"".join([*parts, b"\xff\xd9"])
        if marker in STANDALONE:
            continue
        length = int.from_bytes(body[offset : offset + 2], "big")
        data = body[offset + 2 : offset + length]
        if length < 2 or len(data) != length - 2:
            return None
        offset += length
        if (kept := _jpeg_segment(marker, data, keep_profile)) is not None:
            parts.append(b"\xff" + bytes([marker]) + (len(kept) + 2).to_bytes(2, "big") + kept)
        if marker == 0xDA:
            end = SCAN_MARKER.search(body, offset)
            if end is None:
                return None
            parts.append(body[offset : end.start()])
            offset = end.start()
    return None


def _jpeg_segment(marker: int, data: bytes, keep_profile: bool) -> bytes | None:
    """What is kept of a segment; None where nothing is."""
    if marker == 0xE0 and data.startswith(b"JFIF\0") and len(data) >= JFIF_BYTES:
        return data[: JFIF_BYTES - 2] + b"\0\0"  # a thumbnail of 0 by 0 pixels
    if marker == 0xE2 and data.startswith(b"ICC_PROFILE\0") and keep_profile:
        return data
    if marker == 0xEE and data.startswith(b"Adobe"):
        return data[:12]
    is_application_data = 0xE0 <= marker <= 0xEF
    is_comment = marker == 0xFE
    return None if is_application_data or is_comment else data


def _strip_png(body: bytes, keep_profile: bool) -> bytes | None:
    """Chunks up to IEND."""
    parts = [body[:8]]
    offset = 8
    for _ in range(MOST_STEPS):
        length, name = (
            int.from_bytes(body[offset : offset + 4], "big"),
            body[offset + 4 : offset + 8],
        )
        end = offset + 12 + length
        if len(name) < 4 or end > len(body):
            return None
        if name in PNG_CHUNKS:
            parts.append(body[offset:end])
        if name == b"IEND":
            return b"".join(parts)
        offset = end
    return None


def _strip_webp(body: bytes, keep_profile: bool) -> bytes | None:
    """Chunks up to the end that the RIFF header names, which is written anew."""
    riff_end = 8 + int.from_bytes(body[4:8], "little")
    if riff_end > len(body):
        return None
    parts: list[bytes] = []
    offset = 12
    for _ in range(MOST_STEPS):
        if offset + 8 > riff_end:
            content = b"WEBP" + b"".join(parts)
            return b"RIFF" + len(content).to_bytes(4, "little") + content
        name, length = (
            body[offset : offset + 4],
            int.from_bytes(body[offset + 4 : offset + 8], "little"),
        )
        end = offset + 8 + length + length % 2
        if end > riff_end:
            return None
        if name == b"VP8X" and length >= 10:
            flags = body[offset + 8] & ~WEBP_METADATA_FLAGS
            parts.append(body[offset : offset + 8] + bytes([flags]) + body[offset + 9 : end])
        elif name in WEBP_CHUNKS:
            parts.append(body[offset:end])
        offset = end
    return None


STRIP: dict[str, Callable[[bytes, bool], bytes | None]] = {
    "JPEG": _strip_jpeg,
    "PNG": _strip_png,
    "WEBP": _strip_webp,
}
