"""Type, size and orientation of an image, read from its header before anything is decoded."""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# --------------------------------------------------------------------------------------------------
# EXIF of an image: its orientation, and its tags as JSON text.
#
# This reader has a limit on everything, because a hostile table of tags may name the same 64 KB
# ten thousand times.


ORIENTATION = 0x0112
CAMERA_TABLE, GPS_TABLE = 0x8769, 0x8825  # tags whose value is the offset of another table
MOST_TAGS = 256  # per table
MOST_BYTES = 256  # of one value; a longer one (thumbnails, makers' notes) is left out
MOST_TEXT = 8192  # of the whole
# EXIF type -> format of struct; 2 and 7 are bytes, 5 and 10 are fractions.
TYPES = {
    1: "B",
    2: "s",
    3: "H",
    4: "I",
    5: "II",
    6: "b",
    7: "s",
    8: "h",
    9: "i",
    10: "ii",
    11: "f",
    12: "d",
}
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def exif_orientation(exif: bytes, xmp: bytes = b"") -> int:
    """1 to 8, from EXIF or else from XMP; 1 where there is none, or where it is damaged."""
    value = table(exif).get(ORIENTATION)
    if value is None and (match := XMP_ORIENTATION.search(xmp)):
        value = int(match[1])
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def table(exif: bytes, start: int | None = None) -> dict[int, Any]:
    """Tags of the first table, or of the one at offset `start`; {} where it is damaged.

    A value is an integer, a float, text or a list of numbers; a number that is not finite is None.
    """
    data = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None or len(data) < 8:
        return {}
    if start is None:
        start = struct.unpack_from(order + "I", data, 4)[0]
    tags: dict[int, Any] = {}
    if start + 2 > len(data):
        return tags
    count = min(struct.unpack_from(order + "H", data, start)[0], MOST_TAGS)
    for entry in range(start + 2, min(start + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, items = struct.unpack_from(order + "HHI", data, entry)
        size = items * struct.calcsize(order + TYPES.get(kind, ""))
        if not 0 < size <= MOST_BYTES:
            continue
        offset = entry + 8
        if size > 4:
            offset = struct.unpack_from(order + "I", data, entry + 8)[0]
        if offset + size <= len(data):
            tags[tag] = _value(data[offset : offset + size], kind, order, items)
    return tags


def _value(data: bytes, kind: int, order: str, items: int) -> Any:
    if kind == 2:
        return data.split(b"\0", 1)[0].decode("utf-8", "replace").strip()
    if kind == 7:
        return data.hex()
    numbers: list[Any] = list(struct.unpack(order + TYPES[kind] * items, data))
    if kind in (5, 10):
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        numbers = [round(upper / lower, 6) if lower else None for upper, lower in pairs]
    numbers = [None if isinstance(n, float) and not math.isfinite(n) else n for n in numbers]
    return numbers[0] if items == 1 else numbers


def as_text(exif: bytes) -> str | None:
    """The known tags by name as JSON, in the order of their names; None where there are none.

    GPS positions are always left out, and so are values of more than 256 bytes and the tags with
    which the text would have more than 8 KB.
    """
    from PIL.ExifTags import TAGS  # 3 ms, for the few recipes that ask

    first = table(exif)
    tags = dict(first)
    offset = tags.pop(CAMERA_TABLE, None)
    if isinstance(offset, int) and offset >= 0:
        tags |= table(exif, offset)
    tags.pop(CAMERA_TABLE, None)
    tags.pop(GPS_TABLE, None)
    named = {TAGS[tag]: value for tag, value in tags.items() if tag in TAGS}
    kept, size = {}, 0
    for name, value in sorted(named.items()):
        size += len(json.dumps({name: value}))
        if size <= MOST_TEXT:
            kept[name] = value
    return json.dumps(kept) if kept else None


# --------------------------------------------------------------------------------------------------
# Type, size and orientation of an image, read from its header without decoding anything.
#
# Pure Python with a limit on the number of steps, so that a hostile header costs little. Some
# damage that a decoder would refuse is refused here already.


Extension = Literal["jpg", "png", "webp", "gif", "avif"]
MOST_SCANS = 100  # of a progressive JPEG, as djpeg's -maxscans; 2,000 scans of 16 MP cost 2.6 s
# Segments, chunks or boxes: a photograph has about 20, a PNG of 20 MB in chunks of 8 KB 2,500.
MOST_STEPS = 4096
MOST_JUNK = 65536  # bytes between two segments of a JPEG
MOST_PROFILE = 4 * 2**20  # bytes; those of printers have up to 2 MB

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
# Start of frame of the JPEGs that libjpeg-turbo reads, and of lossless and hierarchical ones.
FRAMES = frozenset((0xC0, 0xC1, 0xC2, 0xC9, 0xCA))
OTHER_FRAMES = frozenset((0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF))
PROGRESSIVE = (0xC2, 0xCA)
STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
RAW_PROFILE = b"Raw profile type exif\0"
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
    min_image_size: int
    max_image_area: int
    max_aspect_ratio: float
    max_pixels: int
    extract_exif: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Width and height are those of the encoded pixels; `size` is that of the upright image."""

    kind: str  # JPEG, PNG, WEBP, GIF or AVIF
    width: int
    height: int
    orientation: int = 1
    exif: bytes = b""
    colours: int = 0  # of a JPEG: its components
    scans: int = 1  # of a JPEG: counted where a decoder would read them all
    profile: bytes = b""  # of a JPEG: its ICC profile

    @property
    def size(self) -> tuple[int, int]:
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def check(body: bytes, limits: Limits) -> Header:
    """The header of an image that may be decoded. RejectedImage for any other body."""
    header = read(body)
    check_size((header.width, header.height), limits)
    if header.scans > MOST_SCANS:
        raise RejectedImage("decode_error", f"more than {MOST_SCANS} scans")
    return header


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


def read(body: bytes) -> Header:
    """Type, size and orientation of an image. RejectedImage where its header is damaged."""
    readers = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "GIF": _gif, "AVIF": _avif}
    return readers[sniff(body)](body)


def _damaged(what: str) -> RejectedImage:
    return RejectedImage("decode_error", f"a damaged header: {what}")


# --- JPEG -----------------------------------------------------------------------------------------


def _jpeg(body: bytes) -> Header:
    """Reads the segments up to the first scan.

    Of two frames the last one counts, as in Pillow; libjpeg refuses such a file.
    """
    offset, frame, exif, xmp, icc = 2, (0, 0, 0, 0), b"", b"", []
    for _ in range(MOST_STEPS):
        match = MARKER.search(body, offset, offset + MOST_JUNK)
        if match is None:
            raise _damaged("no scan")
        marker, offset = match[1][0], match.end()
        if marker in STANDALONE:
            continue
        length = int.from_bytes(body[offset : offset + 2], "big")
        if length < 2 or marker == 0xD9:
            raise _damaged("no scan")
        if marker == 0xDA:
            break
        if marker in FRAMES:
            part = body[offset + 2 : offset + 8]
            if len(part) < 6 or part[0] != 8:
                raise _damaged("a JPEG of other than 8 bits")
            frame = (
                marker,
                int.from_bytes(part[3:5], "big"),
                int.from_bytes(part[1:3], "big"),
                part[5],
            )
        elif marker in OTHER_FRAMES:
            raise _damaged("a JPEG of a kind that decoders do not read")
        elif marker == 0xE1 and body.startswith(b"Exif\0\0", offset + 2):
            part = body[offset + 2 : offset + length]
            exif = exif + part[6:] if 0 < len(exif) < MOST_JUNK else exif or part
        elif marker == 0xE1 and body.startswith(b"http://ns.adobe.com/xap/1.0/\0", offset + 2):
            xmp = body[offset + 31 : offset + length]
        elif marker == 0xE2 and body.startswith(b"ICC_PROFILE\0", offset + 2):
            icc.append(body[offset + 14 : offset + length])
        offset += length
    else:
        raise _damaged(f"more than {MOST_STEPS} segments")
    kind, width, height, colours = frame
    if not kind:
        raise _damaged("a scan without a frame")
    # Where the first scan has all components, a decoder stops after it.
    several = kind in PROGRESSIVE or body[offset + 2 : offset + 3] != bytes([colours])
    orientation = exif_orientation(exif, xmp) if exif or xmp else 1
    return Header(
        kind="JPEG",
        width=width,
        height=height,
        orientation=orientation,
        exif=exif,
        colours=colours,
        scans=scans(body) if several else 1,
        profile=_joined(icc) if icc else b"",
    )


def _joined(parts: list[bytes]) -> bytes:
    """An ICC profile from its segments; empty where one is missing.

    The first two bytes of a segment are its number and the number of all segments.
    """
    parts = sorted(parts)
    if len(parts) > 255:
        return b""
    if any(part[:2] != bytes([i, len(parts)]) for i, part in enumerate(parts, 1)):
        return b""
    profile = b"".join(part[2:] for part in parts)
    return profile if len(profile) <= MOST_PROFILE else b""


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


# --- PNG, WebP, GIF -------------------------------------------------------------------------------


def _png(body: bytes) -> Header:
    if body[12:16] != b"IHDR" or len(body) < 33:
        raise _damaged("a PNG without a size")
    offset, exif, xmp = 33, b"", b""
    raw: bytes | None = None
    for _ in range(MOST_STEPS):
        name, length = (
            body[offset + 4 : offset + 8],
            int.from_bytes(body[offset : offset + 4], "big"),
        )
        if len(name) < 4 or name == b"IEND":
            break
        if name == b"eXIf":
            exif = body[offset + 8 : offset + 8 + length]
        elif name == b"iTXt" and body.startswith(b"XML:com.adobe.xmp\0", offset + 8):
            xmp = body[offset + 26 : offset + 8 + length]
        elif (
            name in (b"tEXt", b"zTXt") and raw is None and body.startswith(RAW_PROFILE, offset + 8)
        ):
            text = body[offset + 8 + len(RAW_PROFILE) : offset + 8 + length]
            raw = _raw_profile(text, packed=name == b"zTXt")
        offset += 12 + length
    width, height = int.from_bytes(body[16:20], "big"), int.from_bytes(body[20:24], "big")
    exif = exif or raw or b""
    orientation = exif_orientation(exif, xmp) if exif or xmp else 1
    return Header(kind="PNG", width=width, height=height, exif=exif, orientation=orientation)


def _raw_profile(data: bytes, *, packed: bool) -> bytes:
    """EXIF as ImageMagick writes it into a PNG: lines with name and length, then hex digits."""
    try:
        text = data[: 2 * MOST_JUNK]
        if packed:
            text = zlib.decompressobj().decompress(data[1:], 2 * MOST_JUNK)
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except (ValueError, zlib.error):
        return b""


def _webp(body: bytes) -> Header:
    """Canvas of a WebP by its first chunk: extended, lossless or lossy."""
    head, exif = body[12:30], b""
    if head.startswith(b"VP8X") and len(head) >= 18:
        size = 1 + int.from_bytes(head[12:15], "little"), 1 + int.from_bytes(head[15:18], "little")
        exif = _riff(body, b"EXIF") if head[8] & 8 else b""
    elif head.startswith(b"VP8L") and len(head) >= 13 and head[8] == 0x2F:
        bits = int.from_bytes(head[9:13], "little")
        size = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif head.startswith(b"VP8 ") and len(head) >= 18 and head[11:14] == b"\x9d\x01\x2a":
        size = (
            int.from_bytes(head[14:16], "little") & 0x3FFF,
            int.from_bytes(head[16:18], "little") & 0x3FFF,
        )
    else:
        raise _damaged("a WebP without a size")
    return Header(
        kind="WEBP",
        width=size[0],
        height=size[1],
        exif=exif,
        orientation=exif_orientation(exif),
    )


def _riff(body: bytes, wanted: bytes) -> bytes:
    """Data of the first chunk of that name; empty where there is none."""
    offset = 12
    for _ in range(MOST_STEPS):
        name, length = (
            body[offset : offset + 4],
            int.from_bytes(body[offset + 4 : offset + 8], "little"),
        )
        if name == wanted:
            return body[offset + 8 : offset + 8 + length]
        if len(name) < 4:
            break
        offset += 8 + length + length % 2
    return b""


def _gif(body: bytes) -> Header:
    """The canvas, or the first frame where that reaches beyond it."""
    if len(body) < 13:
        raise _damaged("a GIF without a size")
    width, height = int.from_bytes(body[6:8], "little"), int.from_bytes(body[8:10], "little")
    offset, inside = 13 + (3 << (body[10] & 7) + 1 if body[10] & 0x80 else 0), False
    for _ in range(MOST_STEPS):
        block = body[offset : offset + 1]
        if inside:  # an extension: blocks of up to 255 bytes, the last one empty
            inside, offset = block not in (b"", b"\0"), offset + 1 + (block[0] if block else 0)
        elif block == b"," and len(body) >= offset + 9:
            left, top, wide, high = (
                int.from_bytes(body[i : i + 2], "little") for i in range(offset + 1, offset + 9, 2)
            )
            return Header(kind="GIF", width=max(width, left + wide), height=max(height, top + high))
        elif block in (b"", b",", b";"):
            break
        else:  # other bytes are skipped, as Pillow does
            inside, offset = block == b"!", offset + (2 if block == b"!" else 1)
    raise _damaged("a GIF without a frame")


# --- AVIF -----------------------------------------------------------------------------------------


def _avif(body: bytes) -> Header:
    """Size of the primary item by its `ispe` box, orientation by its `irot` box."""
    meta = b""
    for name, start, end in _boxes(body, 0, len(body)):
        if name == b"meta":
            meta = body[start + 4 : end]
            break
    parts = {name: (start, end) for name, start, end in _boxes(meta, 0, len(meta))}
    lists = {name: (start, end) for name, start, end in _boxes(meta, *parts.get(b"iprp", (0, 0)))}
    property_boxes = _boxes(meta, *lists.get(b"ipco", (0, 0)))
    properties = [(name, meta[start:end]) for name, start, end in property_boxes]
    item = meta[slice(*parts.get(b"pitm", (0, 0)))]
    item_properties: Sequence[int] = range(len(properties))
    if item and b"ipma" in lists:
        number = int.from_bytes(item[4:6] if item[0] == 0 else item[4:8], "big")
        associated = _associations(meta[slice(*lists[b"ipma"])], number)
        known = [i for i in associated if i < len(properties)]
        item_properties = known or item_properties
    sizes, rotations = [], []
    for i in item_properties:
        name, data = properties[i]
        if name == b"ispe" and len(data) >= 12:
            sizes.append(data)
        if name == b"irot" and data:
            rotations.append(data[0] & 3)
    if not sizes:
        return _avif_sequence(body)
    width, height = int.from_bytes(sizes[0][4:8], "big"), int.from_bytes(sizes[0][8:12], "big")
    orientation = (1, 8, 3, 6)[rotations[0]] if rotations else 1
    return Header(kind="AVIF", width=width, height=height, orientation=orientation)


def _avif_sequence(body: bytes) -> Header:
    """Size of an image sequence without a still image: that of its first track's samples."""
    offset = body.find(b"stsd") + 16  # version, number of entries, length of the first
    size = body[offset + 28 : offset + 32]
    if offset < 20 or body[offset : offset + 4] != b"av01" or len(size) < 4:
        raise _damaged("an AVIF without a size")
    return Header(
        kind="AVIF", width=int.from_bytes(size[:2], "big"), height=int.from_bytes(size[2:], "big")
    )


def _boxes(data: bytes, offset: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name of each box between two offsets, and start and end of its content."""
    for _ in range(MOST_STEPS):
        length, name = (
            int.from_bytes(data[offset : offset + 4], "big"),
            data[offset + 4 : offset + 8],
        )
        if offset + 8 > end:
            return
        head = 8
        if length == 1:
            length, head = int.from_bytes(data[offset + 8 : offset + 16], "big"), 16
        stop = offset + length if length else end
        if length and length < head:
            return
        yield name, offset + head, min(stop, end)
        offset = stop


def _associations(data: bytes, item: int) -> list[int]:
    """Indices of the properties of an item, by an `ipma` box; there they count from 1."""
    if len(data) < 8:
        return []
    offset = 8
    width = 4 if data[0] else 2  # of an item's number
    size, mask = (2, 0x7FFF) if data[3] & 1 else (1, 0x7F)  # of a property's number
    for _ in range(min(int.from_bytes(data[4:8], "big"), MOST_STEPS)):
        number = int.from_bytes(data[offset : offset + width], "big")
        count = int.from_bytes(data[offset + width : offset + width + 1])
        offset += width + 1
        if number == item:
            indices = []
            for start in range(offset, offset + count * size, size):
                index = int.from_bytes(data[start : start + size], "big") & mask
                if index:
                    indices.append(index - 1)
            return indices
        offset += count * size
    return []


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
