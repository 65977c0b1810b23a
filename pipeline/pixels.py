"""Bytes of one picture to a checked, upright, resized JPEG. Pure; picture.py runs it where a crash does no harm.

Nothing here or in picture.py imports the manifests (they import pyarrow): a decoding child is ready in about 0.2 s.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import simplejpeg
from PIL import Image, features

if TYPE_CHECKING:
    from manifests.schema import Fetch

MOST_SCANS = 100  # of a progressive JPEG, as djpeg's -maxscans; 2,000 scans of 16 MP cost 2.6 s
SPARE = 1.5  # a JPEG is decoded at 1.5 times its target or more, then averaged down: 2.3 times faster at 0.75 MP

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
    rb"|\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<svg",
    re.DOTALL,
)
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION = 0x0112  # tag of EXIF


class BadPicture(Exception):
    """This picture is not stored; `reason` is one of manifests.columns.DECODE_REASONS."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as it is stored. Sizes in pixels, as it is seen (after orientation)."""

    data: bytes
    extension: Literal["jpg"] = "jpg"
    width: int
    height: int
    original_width: int
    original_height: int
    exif: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What of a recipe's `fetch` concerns a picture."""

    image_size: int
    resize_mode: str
    resize_only_if_bigger: bool
    encode_quality: int
    min_image_size: int
    max_aspect_ratio: float
    max_pixels: int


def limits_of(settings: Fetch) -> Limits:
    """ValueError for a quality that JPEG does not have."""
    limits = Limits(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(Limits)})
    if not 1 <= limits.encode_quality <= 100:
        raise ValueError(f"fetch.encode_quality is {limits.encode_quality}; it must lie in 1..100")
    return limits


# --- one picture ---------------------------------------------------------------------------------------------------


def check_and_resize(body: bytes, settings: Fetch) -> Picture:
    """The picture in `body` as it will be stored. BadPicture with a reason; nothing else escapes a hostile one.

    Kept as it came: an upright RGB JPEG that needs no resizing and gives nobody who opens it a warning. All else turns
    into an RGB JPEG: the first frame, orientation applied, 16 bits scaled to 8, transparency on white. Colour profiles
    are not applied.
    """
    return contained(body, limits_of(settings))


def contained(body: bytes, limits: Limits) -> Picture:
    """`check_and_resize` for a child, which knows no manifests."""
    with warnings.catch_warnings(record=True) as flaws:
        warnings.simplefilter("always")
        try:
            return _work(body, limits, flaws)
        except BadPicture:
            raise
        except Image.DecompressionBombError as error:  # above 179 MP Pillow itself does not open it
            raise BadPicture("too_many_pixels", "more than Pillow opens") from error
        except MemoryError as error:
            raise BadPicture("decode_error", "needs more memory than a decoder has") from error
        except Exception as error:  # whatever a decoder makes of hostile bytes
            said = re.sub(r"<[^>]*>| at 0x[0-9a-f]+", "", " ".join(str(error).split()))
            raise BadPicture("decode_error", f"{type(error).__name__}: {said}"[:200]) from error


def sniff(body: bytes) -> str:
    """JPEG, PNG, WEBP, GIF or AVIF, by the first bytes. BadPicture("format") for other pictures, else not_an_image."""
    for magic, kind in MAGIC:
        if magic.match(body):
            if kind == "AVIF" and not features.check("avif"):
                raise BadPicture("format", "AVIF, which this Pillow cannot read")
            return kind
    if OTHER_MAGIC.match(body[:2048]):
        raise BadPicture("format", "a picture, but not JPEG, PNG, WEBP, GIF or AVIF")
    raise BadPicture("not_an_image", f"begins with {body[:8].hex(' ')}")


def scans(body: bytes) -> int:
    """Number of scans of a JPEG, by its markers; what lies in segments or behind the end is not counted."""
    at, count = 2, 0
    marker = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # inside a scan, FF is followed by 0 or a restart number
    while (found := marker.search(body, at)) is not None and found[0] != b"\xff\xd9":
        count += found[0] == b"\xff\xda"
        at = found.end() + int.from_bytes(body[found.end() : found.end() + 2], "big")
    return count


def webp_size(body: bytes) -> tuple[int, int]:
    """Canvas of a WebP by its first chunk: extended, lossless or lossy. BadPicture where that is damaged."""
    head = body[12:30]
    if head.startswith(b"VP8X") and len(head) >= 18:
        return 1 + int.from_bytes(head[12:15], "little"), 1 + int.from_bytes(head[15:18], "little")
    if head.startswith(b"VP8L") and len(head) >= 13 and head[8] == 0x2F:
        bits = int.from_bytes(head[9:13], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if head.startswith(b"VP8 ") and len(head) >= 18 and head[11:14] == b"\x9d\x01\x2a":
        return int.from_bytes(head[14:16], "little") & 0x3FFF, int.from_bytes(head[16:18], "little") & 0x3FFF
    raise BadPicture("decode_error", "a WebP without a size")


def target_size(width: int, height: int, limits: Limits) -> tuple[int, int] | None:
    """Width and height that img2dataset's modes scale to, before a crop or a border; None where nothing is scaled."""
    if limits.resize_mode == "no":
        return None
    side = (min if limits.resize_mode in ("keep_ratio", "center_crop") else max)(width, height)
    if limits.resize_only_if_bigger and side <= limits.image_size:
        return None
    scale = limits.image_size / side
    return max(1, round(width * scale)), max(1, round(height * scale))


def _work(body: bytes, limits: Limits, flaws: list[warnings.WarningMessage]) -> Picture:
    kind = sniff(body)
    if kind == "WEBP":
        _check_size(webp_size(body), limits)  # Pillow makes the canvas when it opens one
    if kind == "JPEG" and body.count(b"\xff\xda") > MOST_SCANS and (count := scans(body)) > MOST_SCANS:
        raise BadPicture("decode_error", f"{count} scans; at most {MOST_SCANS} are read")
    with Image.open(io.BytesIO(body), formats=[kind]) as opened:  # reads the header, decodes nothing
        _check_size(opened.size, limits)
        orientation = _orientation(opened)
        width, height = opened.size[::-1] if orientation >= 5 else opened.size
        target = target_size(width, height, limits)
        if target is not None and target[0] * target[1] > limits.max_pixels:
            raise BadPicture("too_many_pixels", f"{target[0]}x{target[1]} after resizing")
        pixels = _jpeg(body, opened, target, orientation) if kind == "JPEG" else None
        plain = opened.format == "JPEG" and opened.mode == "RGB" and orientation == 1 and not flaws
        if pixels is not None and target is None and plain:
            data, size = body, (width, height)
        else:
            image = Image.fromarray(pixels) if pixels is not None else _rgb(opened)
            image = _finish(image, target, (width, height), orientation, limits)
            data, size = _encode(image, limits.encode_quality), image.size
    return Picture(data=data, width=size[0], height=size[1], original_width=width, original_height=height)


def _check_size(size: tuple[int, int], limits: Limits) -> None:
    short, long = min(size), max(size)
    if short < 1:
        raise BadPicture("decode_error", "a side of 0 pixels")
    if short * long > limits.max_pixels:
        raise BadPicture("too_many_pixels", f"{size[0]}x{size[1]} is more than {limits.max_pixels}")
    if short < limits.min_image_size:
        raise BadPicture("too_small", f"{size[0]}x{size[1]}; the shorter side must be {limits.min_image_size}")
    if limits.max_aspect_ratio and long / short > limits.max_aspect_ratio:
        raise BadPicture("aspect", f"{size[0]}x{size[1]} is longer than {limits.max_aspect_ratio:g} to 1")


def _orientation(image: Image.Image) -> int:
    """1 to 8; 1 where there is none, or where the EXIF data is damaged."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # EXIF is bytes from a stranger too; a damaged one does not make the picture worthless
        return 1
    return value if value in TRANSPOSE else 1


def _jpeg(
    body: bytes, opened: Image.Image, target: tuple[int, int] | None, orientation: int
) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """HWC RGB of a JPEG, scaled while it is decoded; None for CMYK and where libjpeg warns: Pillow decides there."""
    if opened.mode not in ("L", "RGB"):
        return None
    least: dict[str, Any] = {}
    if target is not None:
        wide, high = target[::-1] if orientation >= 5 else target
        least = {"min_width": round(SPARE * wide), "min_height": round(SPARE * high), "min_factor": SPARE}
    try:
        pixels: np.ndarray[Any, np.dtype[np.uint8]] = simplejpeg.decode_jpeg(body, colorspace="RGB", **least)
    except ValueError:
        return None
    return pixels


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB."""
    image.load()
    if image.mode.startswith("I"):  # 16-bit grey: 65535 is 257 times 255
        levels = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _finish(
    image: Image.Image, target: tuple[int, int] | None, original: tuple[int, int], orientation: int, limits: Limits
) -> Image.Image:
    """Scale, turn upright, then crop or add the border."""
    if target is not None:
        wanted = target[::-1] if orientation >= 5 else target
        down = target[0] < original[0] or target[1] < original[1]
        if image.size != wanted:  # BOX is the average over the area, OpenCV's INTER_AREA
            image = image.resize(wanted, Image.Resampling.BOX if down else Image.Resampling.LANCZOS)
    if orientation != 1:
        image = image.transpose(TRANSPOSE[orientation])
    if target is None:
        return image
    side = limits.image_size
    if limits.resize_mode == "center_crop":
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image.crop((left, top, left + side, top + side))
    if limits.resize_mode == "border":
        framed = Image.new("RGB", (side, side), "white")
        framed.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return framed
    return image


def _encode(image: Image.Image, quality: int) -> bytes:
    pixels = np.ascontiguousarray(np.asarray(image))
    data: bytes = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420")
    return data
