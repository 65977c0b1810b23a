"""Removes from a JPEG, PNG or WebP what its pixels do not need.

EXIF with GPS, XMP, comments, thumbnails and bytes behind the end are removed. JFIF, Adobe's colour
transform, the ICC profile, tables and scans stay, because decoders need them. Nothing is decoded:
segments and chunks are copied or left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pipeline.images.header import MOST_STEPS, SCAN_MARKER, STANDALONE, Header

# A stored image has at most this many bytes: more than its pixels are worth is padding. A JPEG of
# noise at quality 100 without chroma subsampling has 4 bytes per pixel, raw RGB has 3.
BYTES_PER_PIXEL = 6
SPARE_BYTES = 65536
MARKER = re.compile(rb"\xff([^\xff\x00])")
JFIF_BYTES = 14  # of the segment's data, without a thumbnail
PNG_CHUNKS = frozenset(
    (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT")
)
WEBP_CHUNKS = frozenset((b"VP8X", b"ICCP", b"ALPH", b"VP8 ", b"VP8L"))
WEBP_METADATA_FLAGS = 0x0C  # EXIF and XMP, in the first byte of VP8X


def without_metadata(body: bytes, image_header: Header) -> bytes | None:
    """The same pixels in fewer bytes. None where the file is malformed or padded."""
    strip = STRIP[image_header.kind]
    stripped = strip(body, bool(image_header.profile))
    pixels = image_header.width * image_header.height
    limit = BYTES_PER_PIXEL * pixels + len(image_header.profile) + SPARE_BYTES
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
