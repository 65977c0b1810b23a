"""What a picture says of itself in its first bytes: type, size, which way up. Nothing is decoded or allocated.

Pure Python over at most some hundred small steps, so that a hostile header costs microseconds; what a decoder would
refuse anyway is refused here where it is seen.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.images import exif as exif_tags

Extension = Literal["jpg", "png", "webp", "gif", "avif"]
MOST_SCANS = 100  # of a progressive JPEG, as djpeg's -maxscans; 2,000 scans of 16 MP cost 2.6 s
MOST_STEPS = 4096  # segments, chunks or boxes: a photograph has about 20, a PNG of 20 MB in chunks of 8 KB 2,500
MOST_JUNK = 65536  # bytes between two segments of a JPEG
MOST_PROFILE = 4 * 2**20  # bytes; those of printers have up to 2 MB

MAGIC = (
    (re.compile(rb"\xff\xd8\xff"), "JPEG"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "WEBP"),
    (re.compile(rb"GIF8[79]a"), "GIF"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "AVIF"),
)
# Pictures all the same, but not ones that we open: TIFF, BMP, ICO, PSD, JPEG 2000, JPEG XL, HEIC, EPS, SVG, PNM, DDS …
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
FRAMES = frozenset(
    (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
)  # start of frame of the JPEGs that libjpeg-turbo reads
OTHER_FRAMES = frozenset(
    (0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF)
)  # lossless and hierarchical
PROGRESSIVE = (0xC2, 0xCA)
STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
RAW_PROFILE = b"Raw profile type exif\0"
MARKER = re.compile(rb"\xff([^\xff\x00])")
SCAN_MARKER = re.compile(
    rb"\xff[^\x00\xd0-\xd7\xff]"
)  # inside a scan, FF is followed by 0 or a restart number


class RejectedImage(Exception):
    """This picture is not stored; `reason` is one of manifests.columns.DECODE_REASONS, or hash_mismatch."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What of a recipe's `fetch` concerns a picture."""

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
    """Width and height are those of the stored pixels; `size` is as the picture is seen."""

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
    """The header of a picture that may be decoded. RejectedImage for one that may not, or that is none."""
    found = read(body)
    check_size((found.width, found.height), limits)
    if found.scans > MOST_SCANS:
        raise RejectedImage("decode_error", f"more than {MOST_SCANS} scans")
    return found


def check_size(size: tuple[int, int], limits: Limits) -> None:
    """RejectedImage for a size outside the limits."""
    short, long = min(size), max(size)
    if short < 1:
        raise RejectedImage("decode_error", "a side of 0 pixels")
    most = min(limits.max_pixels, limits.max_image_area or limits.max_pixels)
    if short * long > most:
        raise RejectedImage("too_many_pixels", f"{size[0]}x{size[1]} is more than {most}")
    if short < limits.min_image_size:
        raise RejectedImage(
            "too_small", f"{size[0]}x{size[1]}; the shorter side must be {limits.min_image_size}"
        )
    if limits.max_aspect_ratio and long / short > limits.max_aspect_ratio:
        raise RejectedImage(
            "aspect", f"{size[0]}x{size[1]} is longer than {limits.max_aspect_ratio:g} to 1"
        )


def sniff(body: bytes) -> str:
    """JPEG, PNG, WEBP, GIF or AVIF, by the first bytes. RejectedImage("format") for other pictures, else not_an_image."""
    for magic, kind in MAGIC:
        if magic.match(body):
            return kind
    if OTHER_MAGIC.match(body[:2048]):
        raise RejectedImage("format", "a picture, but not JPEG, PNG, WEBP, GIF or AVIF")
    raise RejectedImage("not_an_image", f"begins with {body[:8].hex(' ')}")


def read(body: bytes) -> Header:
    """Type, size and orientation of a picture. RejectedImage where its header is damaged."""
    return {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "GIF": _gif, "AVIF": _avif}[sniff(body)](
        body
    )


def _damaged(what: str) -> RejectedImage:
    return RejectedImage("decode_error", f"a damaged header: {what}")


# --- JPEG ----------------------------------------------------------------------------------------------------------


def _jpeg(body: bytes) -> Header:
    """Segments up to the first scan. The last frame counts where there are two, as in Pillow; libjpeg refuses them."""
    at, frame, exif, xmp, icc = 2, (0, 0, 0, 0), b"", b"", []
    for _ in range(MOST_STEPS):
        found = MARKER.search(body, at, at + MOST_JUNK)
        if found is None:
            raise _damaged("no scan")
        marker, at = found[1][0], found.end()
        if marker in STANDALONE:
            continue
        length = int.from_bytes(body[at : at + 2], "big")
        if length < 2 or marker == 0xD9:
            raise _damaged("no scan")
        if marker == 0xDA:
            break
        if marker in FRAMES:
            part = body[at + 2 : at + 8]
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
        elif marker == 0xE1 and body.startswith(b"Exif\0\0", at + 2):
            part = body[at + 2 : at + length]
            exif = exif + part[6:] if 0 < len(exif) < MOST_JUNK else exif or part
        elif marker == 0xE1 and body.startswith(b"http://ns.adobe.com/xap/1.0/\0", at + 2):
            xmp = body[at + 31 : at + length]
        elif marker == 0xE2 and body.startswith(b"ICC_PROFILE\0", at + 2):
            icc.append(body[at + 14 : at + length])
        at += length
    else:
        raise _damaged(f"more than {MOST_STEPS} segments")
    kind, width, height, colours = frame
    if not kind:
        raise _damaged("a scan without a frame")
    several = kind in PROGRESSIVE or body[at + 2 : at + 3] != bytes(
        [colours]
    )  # else a decoder stops after the first
    up = exif_tags.orientation(exif, xmp) if exif or xmp else 1
    return Header(
        kind="JPEG",
        width=width,
        height=height,
        orientation=up,
        exif=exif,
        colours=colours,
        scans=scans(body) if several else 1,
        profile=_joined(icc) if icc else b"",
    )


def _joined(parts: list[bytes]) -> bytes:
    """A profile from its segments, which have their number and how many there are in front; empty where one is lost."""
    parts = sorted(parts)
    if (
        any(part[:2] != bytes([i, len(parts)]) for i, part in enumerate(parts[:255], 1))
        or len(parts) > 255
    ):
        return b""
    profile = b"".join(part[2:] for part in parts)
    return profile if len(profile) <= MOST_PROFILE else b""


def scans(body: bytes) -> int:
    """Number of scans of a JPEG, by its markers, up to one more than are read; what lies in segments or behind the end
    is not counted."""
    if body.count(b"\xff\xda") <= MOST_SCANS:
        return body.count(b"\xff\xda")
    at, count = 2, 0
    while (
        count <= MOST_SCANS
        and (found := SCAN_MARKER.search(body, at)) is not None
        and found[0] != b"\xff\xd9"
    ):
        count += found[0] == b"\xff\xda"
        at = found.end() + int.from_bytes(body[found.end() : found.end() + 2], "big")
    return count


# --- PNG, WebP, GIF ------------------------------------------------------------------------------------------------


def _png(body: bytes) -> Header:
    if body[12:16] != b"IHDR" or len(body) < 33:
        raise _damaged("a PNG without a size")
    at, exif, xmp = 33, b"", b""
    raw: bytes | None = None
    for _ in range(MOST_STEPS):
        name, length = body[at + 4 : at + 8], int.from_bytes(body[at : at + 4], "big")
        if len(name) < 4 or name == b"IEND":
            break
        if name == b"eXIf":
            exif = body[at + 8 : at + 8 + length]
        elif name == b"iTXt" and body.startswith(b"XML:com.adobe.xmp\0", at + 8):
            xmp = body[at + 26 : at + 8 + length]
        elif name in (b"tEXt", b"zTXt") and raw is None and body.startswith(RAW_PROFILE, at + 8):
            raw = _raw_profile(
                body[at + 8 + len(RAW_PROFILE) : at + 8 + length], packed=name == b"zTXt"
            )
        at += 12 + length
    width, height, exif = (
        int.from_bytes(body[16:20], "big"),
        int.from_bytes(body[20:24], "big"),
        exif or raw or b"",
    )
    up = exif_tags.orientation(exif, xmp) if exif or xmp else 1
    return Header(kind="PNG", width=width, height=height, exif=exif, orientation=up)


def _raw_profile(data: bytes, *, packed: bool) -> bytes:
    """EXIF as ImageMagick writes it into a PNG: name and length on lines of their own, then hexadecimal digits."""
    try:
        text = (
            zlib.decompressobj().decompress(data[1:], 2 * MOST_JUNK)
            if packed
            else data[: 2 * MOST_JUNK]
        )
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
        orientation=exif_tags.orientation(exif),
    )


def _riff(body: bytes, wanted: bytes) -> bytes:
    at = 12
    for _ in range(MOST_STEPS):
        name, length = body[at : at + 4], int.from_bytes(body[at + 4 : at + 8], "little")
        if name == wanted:
            return body[at + 8 : at + 8 + length]
        if len(name) < 4:
            break
        at += 8 + length + length % 2
    return b""


def _gif(body: bytes) -> Header:
    """The canvas, or the first frame where that reaches beyond it."""
    if len(body) < 13:
        raise _damaged("a GIF without a size")
    width, height = int.from_bytes(body[6:8], "little"), int.from_bytes(body[8:10], "little")
    at, inside = 13 + (3 << (body[10] & 7) + 1 if body[10] & 0x80 else 0), False
    for _ in range(MOST_STEPS):
        block = body[at : at + 1]
        if inside:  # of an extension: blocks of up to 255 bytes, the last one empty
            inside, at = block not in (b"", b"\0"), at + 1 + (block[0] if block else 0)
        elif block == b"," and len(body) >= at + 9:
            left, top, wide, high = (
                int.from_bytes(body[i : i + 2], "little") for i in range(at + 1, at + 9, 2)
            )
            return Header(kind="GIF", width=max(width, left + wide), height=max(height, top + high))
        elif block in (b"", b",", b";"):
            break
        else:  # what is no block is passed over, as Pillow does
            inside, at = block == b"!", at + (2 if block == b"!" else 1)
    raise _damaged("a GIF without a picture")


# --- AVIF ----------------------------------------------------------------------------------------------------------


def _avif(body: bytes) -> Header:
    """Size of the primary item: its `ispe`, and `irot` where it is turned."""
    meta = next(
        (body[at + 4 : end] for name, at, end in _boxes(body, 0, len(body)) if name == b"meta"), b""
    )
    parts = {name: (at, end) for name, at, end in _boxes(meta, 0, len(meta))}
    lists = {name: (at, end) for name, at, end in _boxes(meta, *parts.get(b"iprp", (0, 0)))}
    properties = [
        (name, meta[at:end]) for name, at, end in _boxes(meta, *lists.get(b"ipco", (0, 0)))
    ]
    item = meta[slice(*parts.get(b"pitm", (0, 0)))]
    own: Sequence[int] = range(len(properties))
    if item and b"ipma" in lists:
        number = int.from_bytes(item[4:6] if item[0] == 0 else item[4:8], "big")
        own = [
            i for i in _associations(meta[slice(*lists[b"ipma"])], number) if i < len(properties)
        ] or own
    sizes = [
        properties[i][1] for i in own if properties[i][0] == b"ispe" and len(properties[i][1]) >= 12
    ]
    if not sizes:
        return _avif_film(body)
    turns = [
        properties[i][1][0] & 3 for i in own if properties[i][0] == b"irot" and properties[i][1]
    ]
    width, height = int.from_bytes(sizes[0][4:8], "big"), int.from_bytes(sizes[0][8:12], "big")
    return Header(
        kind="AVIF", width=width, height=height, orientation=(1, 8, 3, 6)[turns[0]] if turns else 1
    )


def _avif_film(body: bytes) -> Header:
    """Size of a sequence without a picture of its own: that of its first track's samples."""
    at = body.find(b"stsd") + 16  # version, number of entries, length of the first
    size = body[at + 28 : at + 32]
    if at < 20 or body[at : at + 4] != b"av01" or len(size) < 4:
        raise _damaged("an AVIF without a size")
    return Header(
        kind="AVIF", width=int.from_bytes(size[:2], "big"), height=int.from_bytes(size[2:], "big")
    )


def _boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of what each box between two places holds."""
    for _ in range(MOST_STEPS):
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if at + 8 > end:
            return
        head = 8
        if length == 1:
            length, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        stop = at + length if length else end
        if length and length < head:
            return
        yield name, at + head, min(stop, end)
        at = stop


def _associations(data: bytes, item: int) -> list[int]:
    """Numbers, from 0, of the properties of an item, by an `ipma` box."""
    if len(data) < 8:
        return []
    wide, at = data[3] & 1, 8
    width = 4 if data[0] else 2
    for _ in range(min(int.from_bytes(data[4:8], "big"), MOST_STEPS)):
        number, count = (
            int.from_bytes(data[at : at + width], "big"),
            int.from_bytes(data[at + width : at + width + 1]),
        )
        at += width + 1
        size = 2 if wide else 1
        if number == item:
            places = [
                int.from_bytes(data[i : i + size], "big")
                for i in range(at, at + count * size, size)
            ]
            return [i - 1 for i in (place & (0x7FFF if wide else 0x7F) for place in places) if i]
        at += count * size
    return []
