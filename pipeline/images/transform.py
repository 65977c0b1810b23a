"""Bytes of one image to a checked, upright, resized image. Pure; decoders.py runs it where a crash does no harm.

No module that a decoding child loads imports the manifests, which import pyarrow: a child is ready in about 0.2 s.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from PIL import Image, features

from pipeline.images import exif, header
from pipeline.images.colours import apply_transform, to_srgb
from pipeline.images.header import Extension, Header, Limits, RejectedImage
from pipeline.images.lossless import without_metadata
from pipeline.images.row_options import Box, blurred

if TYPE_CHECKING:
    from manifests.schema import Fetch

Size = tuple[int, int]

SPARE = 1.5  # a JPEG is decoded at 1.5 times its target or more, then averaged down: 2.3 times faster at 0.75 MP
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "linear": Image.Resampling.BILINEAR,
    "bilinear": Image.Resampling.BILINEAR,
    "cubic": Image.Resampling.BICUBIC,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.HAMMING,  # see `_scaled`
    "lanczos": Image.Resampling.LANCZOS,
    "lanczos4": Image.Resampling.LANCZOS,
}
ENCODED: dict[str, Extension] = {"jpg": "jpg", "png": "png", "webp": "webp"}
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedImage:
    """A picture as it is stored. Sizes in pixels, as it is seen (after orientation)."""

    data: bytes
    extension: Extension = "jpg"
    width: int
    height: int
    original_width: int
    original_height: int
    exif: str | None = None


def limits_of(settings: Fetch) -> Limits:
    """ValueError for settings that contradict each other."""
    if settings.bbox_column is not None and settings.disable_all_reencoding:
        raise ValueError(
            "fetch.bbox_column blurs pictures, disable_all_reencoding forbids that: leave one of them out"
        )
    return Limits(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(Limits)})


# --- one picture ---------------------------------------------------------------------------------------------------


def check_and_resize(body: bytes, settings: Fetch, boxes: Sequence[Box] = ()) -> DecodedImage:
    """The image in `body` as it will be stored. RejectedImage with a reason; hostile bytes raise nothing else.

    With skip_reencode, the pixels of an image stay as they are encoded if it is upright RGB of the type that is
    stored, needs no resizing and opens without a warning; metadata and what follows the image are removed (see
    lossless.py). Any other image is encoded again as RGB: the first frame, orientation applied, 16 bits scaled to 8,
    transparency on white, colours in sRGB, `boxes` blurred.
    """
    return contained(body, limits_of(settings), boxes)


def contained(body: bytes, limits: Limits, boxes: Sequence[Box] = ()) -> DecodedImage:
    """`check_and_resize` for a child, which knows no manifests."""
    with warnings.catch_warnings(record=True) as flaws:
        warnings.simplefilter("always")
        try:
            return _work(body, limits, boxes, flaws)
        except RejectedImage:
            raise
        except Image.DecompressionBombError as error:  # above 179 MP Pillow itself does not open it
            raise RejectedImage("too_many_pixels", "more than Pillow opens") from error
        except MemoryError as error:
            raise RejectedImage("decode_error", "needs more memory than a decoder has") from error
        except Exception as error:  # whatever a decoder makes of hostile bytes
            said = re.sub(r"<[^>]*>| at 0x[0-9a-f]+", "", " ".join(str(error).split()))
            raise RejectedImage("decode_error", f"{type(error).__name__}: {said}"[:200]) from error


def as_it_is(body: bytes, settings: Fetch) -> DecodedImage:
    """For disable_all_reencoding: exactly the received bytes, after their header was checked.

    Nothing is decoded and nothing removed: metadata, orientation and colour profile stay, an image that is damaged
    after its header is stored too, and so are GIF and AVIF, which the trainer does not read.
    """
    found = header.check(body, limits_of(settings))
    width, height = found.size
    text = exif.as_text(found.exif) if settings.extract_exif else None
    return DecodedImage(
        data=body,
        extension=header.EXTENSIONS[found.kind],
        width=width,
        height=height,
        original_width=width,
        original_height=height,
        exif=text,
    )


def target_size(width: int, height: int, limits: Limits) -> Size | None:
    """Width and height that img2dataset's modes scale to, before a crop or a border; None where nothing is scaled."""
    if limits.resize_mode == "no":
        return None
    side = (min if limits.resize_mode in ("keep_ratio", "center_crop") else max)(width, height)
    if limits.resize_only_if_bigger and side <= limits.image_size:
        return None
    scale = limits.image_size / side
    target = max(1, round(width * scale)), max(1, round(height * scale))
    if target[0] * target[1] > limits.max_pixels:
        raise RejectedImage("too_many_pixels", f"{target[0]}x{target[1]} after resizing")
    return target


def _work(
    body: bytes, limits: Limits, boxes: Sequence[Box], flaws: list[warnings.WarningMessage]
) -> DecodedImage:
    found = header.check(body, limits)
    text = exif.as_text(found.exif) if limits.extract_exif else None
    width, height = found.size
    target = target_size(width, height, limits)
    pixels = _jpeg(body, found, target, limits) if found.kind == "JPEG" else None
    if pixels is None:
        image, size, keep = _by_pillow(body, found.kind, limits, boxes, flaws)
        data = without_metadata(body, found) if keep else None
    else:
        image, size = Image.fromarray(pixels), found.size
        keep = target is None and _keeps(body, found, limits, boxes, flaws)
        data = without_metadata(body, found) if keep else None
        if data is None:
            image = _finish(image, target, size, found.orientation, found.profile, boxes, limits)
    return DecodedImage(
        data=_encode(image, limits) if data is None else data,
        extension=ENCODED[limits.encode_format],
        width=image.width,
        height=image.height,
        original_width=size[0],
        original_height=size[1],
        exif=text,
    )


def _keeps(
    body: bytes,
    found: Header,
    limits: Limits,
    boxes: Sequence[Box],
    flaws: list[warnings.WarningMessage],
) -> bool:
    """Whether a JPEG that is not resized can stay as it is: nothing is to be done, and Pillow opens it gladly."""
    if not limits.skip_reencode or limits.encode_format != "jpg" or boxes or found.colours != 3:
        return False
    if found.orientation != 1 or (found.profile and to_srgb(found.profile, "RGB")):
        return False
    with Image.open(io.BytesIO(body), formats=["JPEG"]) as opened:
        return opened.format == "JPEG" and _orientation(opened) == 1 and not flaws


def _jpeg(
    body: bytes, found: Header, target: Size | None, limits: Limits
) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """HWC RGB of a JPEG, scaled while it is decoded; None for CMYK and where libjpeg warns: Pillow decides there."""
    if found.colours not in (1, 3):
        return None
    least: dict[str, Any] = {}
    if target is not None and limits.downscale_interpolation != "nearest":
        wide, high = target[::-1] if found.orientation >= 5 else target
        least = {
            "min_width": round(SPARE * wide),
            "min_height": round(SPARE * high),
            "min_factor": SPARE,
        }
    try:
        pixels: np.ndarray[Any, np.dtype[np.uint8]] = simplejpeg.decode_jpeg(
            body, colorspace="RGB", **least
        )
    except ValueError:
        return None
    sizes = {
        (-(-found.height * k // 8), -(-found.width * k // 8)) for k in range(1, 9)
    }  # libjpeg scales by eighths
    return pixels if pixels.shape[:2] in sizes else None


def _by_pillow(
    body: bytes,
    kind: str,
    limits: Limits,
    boxes: Sequence[Box],
    flaws: list[warnings.WarningMessage],
) -> tuple[Image.Image, Size, bool]:
    """Any other picture: finished pixels, the original size, and whether the bytes can stay as they are."""
    if kind == "AVIF" and not features.check("avif"):
        raise RejectedImage("format", "AVIF, which this Pillow cannot read")
    with Image.open(
        io.BytesIO(body), formats=[kind]
    ) as opened:  # reads the header, decodes nothing
        header.check_size(opened.size, limits)
        orientation = _orientation(opened)
        width, height = opened.size[::-1] if orientation >= 5 else opened.size
        target = target_size(width, height, limits)
        profile = opened.info.get("icc_profile")
        profile = (
            profile if isinstance(profile, bytes) and len(profile) <= header.MOST_PROFILE else b""
        )
        kept = (
            limits.skip_reencode
            and header.EXTENSIONS[kind] == limits.encode_format
            and target is None
        )
        kept = kept and not boxes and orientation == 1 and _is_plain(opened, body)
        image = _rgb(opened, profile, target)
        kept = kept and not flaws and not (profile and to_srgb(profile, "RGB"))
        image = _finish(image, target, (width, height), orientation, profile, boxes, limits)
    return image, (width, height), kept


def _is_plain(opened: Image.Image, body: bytes) -> bool:
    """Whether it is one RGB picture of 8 bits; a JPEG that got here is not."""
    if opened.format not in ("PNG", "WEBP") or opened.mode != "RGB" or opened.has_transparency_data:
        return False
    return getattr(opened, "n_frames", 1) == 1 and (opened.format != "PNG" or body[24] <= 8)


def _orientation(image: Image.Image) -> int:
    """1 to 8; 1 where there is none, or where the EXIF data is damaged."""
    try:
        value = image.getexif().get(exif.ORIENTATION, 1)
    except (
        Exception
    ):  # EXIF is bytes from a stranger too; a damaged one does not make the picture worthless
        return 1
    return value if value in TRANSPOSE else 1


def _rgb(image: Image.Image, profile: bytes, target: Size | None) -> Image.Image:
    """Any mode as 8-bit RGB; printers' colours by their profile, where they have one."""
    if image.mode == "CMYK" and profile and (transform := to_srgb(profile, "CMYK")):
        if target is not None and image.format in ("JPEG", "MPO"):
            side = round(SPARE * max(target)), round(SPARE * max(target))
            image.draft(None, side)
        return apply_transform(image, transform)
    image.load()
    if image.mode.startswith("I"):  # 16-bit grey: 65535 is 257 times 255
        levels = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((levels + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _finish(
    image: Image.Image,
    target: Size | None,
    original: Size,
    orientation: int,
    profile: bytes,
    boxes: Sequence[Box],
    limits: Limits,
) -> Image.Image:
    """Scale, colours to sRGB, turn upright, blur, then crop or add the border."""
    if target is not None:
        down = target[0] < original[0] or target[1] < original[1]
        name = limits.downscale_interpolation if down else limits.upscale_interpolation
        turned = orientation >= 5
        image = _scaled(
            image, target[::-1] if turned else target, original[::-1] if turned else original, name
        )
    if profile and (transform := to_srgb(profile, "RGB")):
        image = apply_transform(image, transform)
    if orientation != 1:
        image = image.transpose(TRANSPOSE[orientation])
    if boxes:
        image = blurred(image, boxes)
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


def _scaled(image: Image.Image, wanted: Size, original: Size, interpolation: str) -> Image.Image:
    """`image` in another size, where it shows a picture of the `original` size, perhaps decoded at k/8 of it.

    A JPEG decoded at k/8 has ⌈width · k/8⌉ columns, of which the picture covers width · k/8. The average over the area
    (OpenCV's INTER_AREA) is Pillow's BOX where whole pixels are averaged. Where they are not, BOX takes each one whole
    or not at all, and HAMMING is nearer: 41 dB against an exact average where BOX has 37, before and after JPEG.
    """
    if image.size == wanted:
        return image
    eighths = min(image.width * 8 // original[0], image.height * 8 // original[1])
    covered = (
        (original[0] * eighths / 8, original[1] * eighths / 8)
        if image.size != original
        else image.size
    )
    whole = (covered[0] % wanted[0] == 0 and covered[1] % wanted[1] == 0) or wanted[0] > covered[0]
    chosen = Image.Resampling.BOX if interpolation == "area" and whole else FILTERS[interpolation]
    return image.resize(wanted, chosen, box=(0, 0, *covered))


def _encode(image: Image.Image, limits: Limits) -> bytes:
    if limits.encode_format == "jpg":
        data: bytes = simplejpeg.encode_jpeg(
            np.asarray(image),
            quality=limits.encode_quality,
            colorspace="RGB",
            colorsubsampling="420",
        )
        return data
    sink = io.BytesIO()
    image.info.clear()  # profile and EXIF of the original, which hold no more
    if limits.encode_format == "png":
        image.save(sink, "PNG", compress_level=limits.encode_quality)
    else:
        image.save(sink, "WEBP", quality=limits.encode_quality)
    return sink.getvalue()
