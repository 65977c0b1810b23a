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
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from PIL import ExifTags, Image, features

Extension = Literal["jpg", "png", "webp", "gif", "avif"]
MOST_SCANS = 100  # of a progressive JPEG, as djpeg's -maxscans; 2,000 scans of 16 MP cost 2.6 s
# Segments or chunks: a photograph has about 20, a PNG of 20 MB in chunks of 8 KB 2,500.
MOST_STEPS = 4096
MOST_BRANDS = 64
MOST_PROFILE = 4 * 2**20  # bytes; those of printers have up to 2 MB
MOST_EXIF = 2 * 65536  # bytes, two segments of a JPEG: each tag may name all of them
MOST_ITEMS = 256  # bytes or numbers of a tag; a longer one (thumbnails, notes) is left out
MOST_TEXT = 8192  # of all tags as JSON

MAGIC = (
    (re.compile(rb"\xff\xd8\xff"), "JPEG"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "WEBP"),
    (re.compile(rb"GIF8[79]a"), "GIF"),
)
# Images of types that are not read; the name of a group is that of the type.
OTHER_MAGIC = re.compile(
    rb"(?P<TIFF>(II|MM\0)[*+])|(?P<BMP>BM)|(?P<ICO>\0\0[\x01\x02]\0)|(?P<PSD>8BPS)|(?P<DDS>DDS )"
    rb"|(?P<JPEG_2000>\0\0\0\x0cj[PX]|\xff\x4f\xff\x51)|(?P<JPEG_XL>\0\0\0\x0cJXL|\xff\x0a)"
    rb"|(?P<JPEG_XR>II\xbc\x01)|(?P<EPS>%!PS|\xc5\xd0\xd3\xc6)|(?P<PNM>P[1-7]\s)|(?P<SGI>\x01\xda)"
    rb"|(?P<ICNS>icns)|(?P<BLP>BLP[12])|(?P<QOI>qoif)|(?P<MNG>\x8aMNG)|(?P<XCF>gimp xcf)"
    rb"|(?P<OpenEXR>v/1\x01)|(?P<RAW>FUJIFILMCCD-RAW|IIRO|IIU\0)"
    rb"|(?P<SVG>(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?((<!--((?!-->).)*-->"
    rb"|<!(?i:doctype)[^\[>]*+(\[[^\]]*\]\s*)?>)\s*)*<(\w+:)?svg[\s/>])",
    re.DOTALL,
)
# Brands of ISO files (ISO/IEC 14496-12, 4.3) that are images.
AVIF_BRANDS = b"avif", b"avis"
BRANDS = (
    ("AVIF", AVIF_BRANDS),
    ("HEIC", (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")),
    ("HEIF", (b"mif1", b"msf1", b"mif2", b"miaf")),
    ("RAW", (b"crx ",)),
)
# What Git has in the place of a large file that was not fetched.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
EXTENSIONS: dict[str, Extension] = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "AVIF": "avif",
}
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF markers
PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
MARKER = re.compile(rb"\xff([^\xff\x00])")
# Of a plain JPEG: a segment's FF, marker and length; the frames, and height and width in one; the
# bytes of a quantization table; the least bytes of other segments: Huffman tables, restart
# interval, comment, JFIF, Adobe, and the application data that Pillow does not read.
SEGMENT, SIZE = struct.Struct(">BBH"), struct.Struct(">HH")
PLAIN_FRAMES, TABLE_BYTES = frozenset((0xC0, 0xC1, 0xC2)), 65
PLAIN_SEGMENTS = {0xC4: 0, 0xDD: 0, 0xFE: 0, 0xE0: 14, 0xEE: 12}
PLAIN_SEGMENTS |= dict.fromkeys((*range(0xE3, 0xED), 0xEF), 0)
MOST_PLAIN_SEGMENTS = 64
MOST_PLAIN_PIXELS = 2**25  # Pillow warns of large images
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What an image says of itself before it is decoded."""

    kind: str  # of its format, Pillow's name
    mode: str  # of its pixels, Pillow's name
    size: tuple[int, int]  # width and height as they are encoded
    orientation: int = 1
    profile: bytes = b""
    image: Image.Image | None = None  # None where Pillow had nothing to read

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height after the orientation is applied."""
        return self.size[::-1] if self.orientation >= 5 else self.size


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
    kind, other = _kind_by_brands(body), OTHER_MAGIC.match(body[:4096])
    if kind == "AVIF":
        return kind
    if kind := kind or (other.lastgroup or "" if other else ""):
        raise RejectedImage("format", f"{kind.replace('_', ' ')}, not JPEG, PNG, WEBP, GIF or AVIF")
    if body.startswith(LFS_POINTER):
        raise RejectedImage("not_an_image", "a Git LFS pointer and not the file: run git lfs pull")
    raise RejectedImage("not_an_image", f"begins with {body[:8].hex(' ')}")


def _kind_by_brands(body: bytes) -> str:
    """The kind of an image whose first box names its major brand and compatible ones; else ""."""
    if body[4:8] != b"ftyp":
        return ""
    end = min(int.from_bytes(body[:4], "big"), MOST_BRANDS * 4, len(body))
    brands = {body[8:12], *(body[start : start + 4] for start in range(16, end, 4))}
    return next((kind for kind, names in BRANDS if not brands.isdisjoint(names)), "")


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
        words = f"{type(error).__name__}: {message or 'the decoder gives no cause'}"
        raise RejectedImage("decode_error", words[:200]) from error


def read(body: bytes, limits: Limits) -> Header:
    """The header of an image that may be decoded, by Pillow unless it is a plain JPEG.

    RejectedImage, or one of the errors that `rejections` catches, for any other body.
    """
    if (plain := _plain_jpeg(body, limits)) is not None:
        return plain
    image = opened(body, limits)
    assert image.format is not None
    return Header(
        kind=image.format,
        mode=image.mode,
        size=image.size,
        orientation=orientation(image),
        profile=profile_of(image),
        image=image,
    )


def _plain_jpeg(body: bytes, limits: Limits) -> Header | None:
    """The header of a JPEG in which Pillow would find no more than size and mode: segments without
    a gap between them, no EXIF, XMP, ICC profile or further image. None for any other body.
    """
    header, has_scans, components, offset = None, False, b"", 2
    for _ in range(MOST_PLAIN_SEGMENTS if body.startswith(b"\xff\xd8") else 0):
        if offset + SEGMENT.size > len(body):
            break
        mark, marker, length = SEGMENT.unpack_from(body, offset)
        data = body[offset + SEGMENT.size : offset + 2 + length]
        if mark != 0xFF or length < 2 or len(data) != length - 2:
            break
        if marker == 0xDA and header is not None:
            check_size(header.size, limits)
            if has_scans or len(data) != 2 * len(components) + 4 or data[0] != len(components):
                check_scans(body)
            return header
        if marker in PLAIN_FRAMES:
            if header is not None or len(data) not in (9, 15) or len(data) != 6 + 3 * data[5]:
                break
            (height, width), components = SIZE.unpack_from(data, 1), data[6::3]
            if data[0] != 8 or not 0 < width * height <= MOST_PLAIN_PIXELS:
                break
            has_scans = marker in PROGRESSIVE or len(set(components)) < len(components)
            header = Header(kind="JPEG", mode="L" if data[5] == 1 else "RGB", size=(width, height))
        elif marker == 0xDB:
            if len(data) % TABLE_BYTES or any(name > 3 for name in data[::TABLE_BYTES]):
                break
        elif len(data) < PLAIN_SEGMENTS.get(marker, length):
            break
        offset += 2 + length
    return None


def opened(body: bytes, limits: Limits) -> Image.Image:
    """An image that may be decoded, of which only the header was read; of a PNG every checksum.

    RejectedImage, or one of the errors that `rejections` catches, for any other body.
    """
    kind = sniff(body)
    if kind == "AVIF" and not features.check("avif"):
        raise RejectedImage("format", "AVIF, which this Pillow cannot read")
    info = dict[Any, Any]()
    if kind == "PNG":
        body, info = _needed_of_png(body)
    elif kind == "AVIF" and body[8:12] not in AVIF_BRANDS:
        body = body[:8] + AVIF_BRANDS[0] + body[12:]  # Pillow asks the major brand
    image = Image.open(io.BytesIO(body), formats=[kind])
    image.info |= info
    check_size(image.size, limits)
    if kind == "JPEG":
        check_scans(body)
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


def check_scans(body: bytes) -> None:
    """RejectedImage for a JPEG of more than MOST_SCANS scans, and for one whose scans do not bring
    all bits of all coefficients: a progressive one that was cut off between two scans, with an end
    marker, is decoded without a warning.

    Markers inside segments (thumbnails) and behind the end of the image are not counted.
    """
    missing: dict[int, list[int]] = {}  # component -> bits of its 64 coefficients
    count, progressive = 0, False
    for marker, data in _segments(body):
        if marker in FRAMES and len(data) > 5:
            progressive = marker in PROGRESSIVE
            missing = {component: [1] * 64 for component in data[6::3]}
        elif marker == 0xDA and data:
            count += 1
            if count > MOST_SCANS:
                raise RejectedImage("decode_error", f"more than {MOST_SCANS} scans")
            *components, first, last, bits = data[1 : 2 * data[0] + 1 : 2] + data[-3:]
            if not progressive and len(components) == len(missing):
                return  # no decoder reads further
            if not progressive:
                first, last, bits = 0, 63, 0
            for component in components:
                if component in missing and first <= last < 64:
                    missing[component][first : last + 1] = [bits & 15] * (last + 1 - first)
            is_whole = not any(map(any, missing.values()))
            if is_whole and body.count(b"\xff\xda") <= MOST_SCANS:
                return
    if any(map(any, missing.values())):
        raise RejectedImage("decode_error", "a JPEG without some of its scans")


def _segments(body: bytes) -> Iterator[tuple[int, bytes]]:
    """(marker, data) of the segments of a JPEG, up to its end marker, which has no data; the data
    of a scan follow its segment as those of marker 0. A segment that is cut off ends them.
    """
    offset = 2
    while match := MARKER.search(body, offset):
        marker, offset = match[1][0], match.end()
        if marker in STANDALONE:
            continue
        length = int.from_bytes(body[offset : offset + 2], "big")
        data = b"" if marker == 0xD9 else body[offset + 2 : offset + length]
        if marker != 0xD9 and (length < 2 or len(data) != length - 2):
            return
        yield marker, data
        if marker == 0xD9:
            return
        offset += length
        if marker == 0xDA:
            end = SCAN_MARKER.search(body, offset)
            stop = end.start() if end else len(body)
            yield 0, body[offset:stop]
            offset = stop


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
PNG_CRITICAL = frozenset((b"IHDR", b"PLTE", b"IDAT", b"IEND"))
PNG_READ = PNG_CRITICAL | {b"tRNS", b"acTL", b"fcTL", b"fdAT"}  # what pixels depend on
# Texts that may have an orientation: XMP that is not packed, and EXIF as ImageMagick writes it.
RAW_EXIF = b"Raw profile type exif\0"
TEXTS_READ = b"XML:com.adobe.xmp\0\0", RAW_EXIF
MOST_PNG_TEXT = 2**20  # bytes
# Warnings of libjpeg (jerror.h): the count of bytes in front of a marker; damage of pixels.
EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
GARBLED = re.compile(r"premature end of data|bad Huffman|bad arithmetic|instead of RST|progression")
WARNING = re.compile(r"Corrupt JPEG|Premature end|Inconsistent|Warning|Unknown Adobe|Invalid SOS")
WEBP_CHUNKS = frozenset((b"VP8X", b"ICCP", b"ALPH", b"VP8 ", b"VP8L"))
WEBP_METADATA_FLAGS = 0x0C  # EXIF and XMP, in the first byte of VP8X


def without_metadata(body: bytes, head: Header) -> bytes | None:
    """The same pixels in fewer bytes. None where the file is malformed or padded."""
    stripped = STRIP[head.kind](body, bool(head.profile))
    width, height = head.size
    limit = BYTES_PER_PIXEL * width * height + len(head.profile) + SPARE_BYTES
    return stripped if stripped is not None and len(stripped) <= limit else None


def _strip_jpeg(body: bytes, keep_profile: bool, warning: str | None = None) -> bytes | None:
    """Segments up to the first end-of-image marker; what lies between two segments is left out.

    warning: what libjpeg said; then the cause of it is mended too, where it is no pixel: an end
    marker that is missing, padding behind a scan, a version or parameters that it does not know.
    """
    parts = [b"\xff\xd8"]
    extraneous = EXTRANEOUS.search(warning or "")
    before = int(extraneous[2], 16) if extraneous else -1
    is_scan = sequential = False
    for marker, data in islice(_segments(body), MOST_STEPS):
        if is_scan and extraneous and marker == before:
            parts[-1] = _without_padding(parts[-1], int(extraneous[1]))
        is_scan = marker == 0
        if marker == 0xD9:
            return b"".join([*parts, b"\xff\xd9"])
        if is_scan:
            parts.append(data)
            continue
        if warning is not None:
            sequential = marker in FRAMES - PROGRESSIVE if marker in FRAMES else sequential
            if marker == 0xDA and sequential:
                data = data[:-3] + b"\0\x3f\0"
            elif marker == 0xE0 and data.startswith(b"JFIF\0"):
                data = data[:5] + b"\1" + data[6:]
            elif marker == 0xEE and data[11:12] > b"\2":
                data = data[:11] + b"\1"  # as libjpeg takes it
        if (kept := _jpeg_segment(marker, data, keep_profile)) is not None:
            parts.append(b"\xff" + bytes([marker]) + (len(kept) + 2).to_bytes(2, "big") + kept)
    return None if warning is None else b"".join([*parts, b"\xff\xd9"])


def _without_padding(scan: bytes, length: int) -> bytes:
    """The data of a scan without the bytes behind its pixels: one, or many of a filler."""
    is_padding = length == 1 or not scan[-length:].strip(b"\0\xff\t\n\r ")
    return scan[:-length] if is_padding else scan


def mended_jpeg(body: bytes, warning: str) -> bytes:
    """A JPEG without the cause of a warning of libjpeg, where that is no pixel. RejectedImage where
    the warning says that pixels are missing or garbled."""
    mended = None if GARBLED.search(warning) else _strip_jpeg(body, False, warning)
    if mended is None or mended == body:
        raise RejectedImage("decode_error", warning[:200])
    return mended


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


def _png_chunks(body: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start, end) of the chunks of a PNG up to IEND, with their headers and checksums. An
    ancillary chunk with a wrong checksum is passed over, as by libpng.

    RejectedImage for a critical chunk with a wrong checksum, or that the file ends in.
    """
    offset = 8
    while len(name := body[offset + 4 : offset + 8]) == 4:
        start, offset = offset, offset + 12 + int.from_bytes(body[offset : offset + 4], "big")
        is_whole = offset <= len(body) and zlib.crc32(
            memoryview(body)[start + 4 : offset - 4]
        ) == int.from_bytes(body[offset - 4 : offset], "big")
        if is_whole:
            yield name, start, offset
        elif name in PNG_CRITICAL:
            problem = "has a wrong checksum" if offset <= len(body) else "is cut off"
            raise RejectedImage("decode_error", f"the chunk {name.decode()} of the PNG {problem}")
        if name == b"IEND":
            return


def _needed_of_png(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """A PNG with the chunks that its pixels need, and what Pillow's `info` should have of others.

    Pillow itself refuses an image for a text or profile of more than 1 MB, or for any ancillary
    chunk that is damaged. RejectedImage as `_png_chunks`, and where the palette is missing.
    """
    parts, names, info = [body[:8]], set[bytes](), dict[str, Any]()
    least = {0: 2, 2: 6}.get(body[25], 1) if len(body) > 25 else 1
    for name, start, end in _png_chunks(body):
        data = body[start + 8 : end - 4] if name not in PNG_CRITICAL else b""
        if name == b"iCCP":
            info["icc_profile"] = _unpacked(data.partition(b"\0")[2][1:], MOST_PROFILE)
        elif name == b"eXIf":
            info["exif"] = b"Exif\0\0" + data
        elif data.startswith(TEXTS_READ):
            packed = data[len(RAW_EXIF) + 1 :] if name == b"zTXt" else None
            if len(data) <= MOST_PNG_TEXT and (packed is None or _unpacked(packed, MOST_PNG_TEXT)):
                parts.append(body[start:end])
        elif name in PNG_READ and (name != b"tRNS" or len(data) >= least):
            names.add(name)
            parts.append(body[start:end])
    if body[25:26] == b"\3" and b"PLTE" not in names:
        raise RejectedImage("decode_error", "a PNG with colours of a palette, and no palette")
    return b"".join(parts), info


def _unpacked(data: bytes, limit: int) -> bytes:
    """The bytes behind a zlib stream; b"" where it is damaged, or has more than the limit."""
    unpacked = b""
    with contextlib.suppress(zlib.error):
        unpacked = zlib.decompressobj().decompress(data, limit + 1)
    return unpacked if len(unpacked) <= limit else b""


def check_rows(body: bytes, image: Image.Image) -> None:
    """RejectedImage for a PNG that was decoded and whose data end before its last row.

    Pillow leaves such rows 0, so that only images whose last row is 0 are unpacked once more, and
    interlaced ones.
    """
    width, height, last = image.width, image.height, image.height - 1
    if not body[28] and image.crop((0, last, width, height)).getbbox() is not None:
        return
    # Of an interlaced PNG too, which has more bytes.
    missing = height * (1 + -(-width * body[24] * {2: 3, 4: 2, 6: 4}.get(body[25], 1) // 8))
    data = b"".join(
        body[start + 8 : end - 4] for name, start, end in _png_chunks(body) if name == b"IDAT"
    )
    stream = zlib.decompressobj()
    while missing > 0 and (part := stream.decompress(data, 2**20)):
        missing, data = missing - len(part), stream.unconsumed_tail
    if missing > 0:
        raise RejectedImage("decode_error", f"the data of the PNG end {missing} bytes too early")


def _strip_png(body: bytes, keep_profile: bool) -> bytes | None:
    """Chunks up to IEND."""
    parts = [body[:8]]
    with contextlib.suppress(RejectedImage):
        for name, start, end in islice(_png_chunks(body), MOST_STEPS):
            if name in PNG_CHUNKS and (name != b"iCCP" or keep_profile):
                parts.append(body[start:end])
            if name == b"IEND":
                return b"".join(parts)
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
