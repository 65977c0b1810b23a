"""Bytes of one picture to a checked, upright, resized picture. Pure; picture.py runs it where a crash does no harm.

Nothing here, in header.py or in picture.py imports the manifests (they import pyarrow): a decoding child is ready in
about 0.2 s.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from PIL import Image, ImageChops, ImageFilter, features

from pipeline.images import exif, header
from pipeline.images.header import BadPicture, Extension, Header, Limits, sniff

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

    from manifests.schema import Fetch

__all__ = ["BadPicture", "Box", "Limits", "Picture", "as_it_is", "boxes_of", "check_and_resize", "contained", "hashes",
           "limits_of", "sniff", "target_size", "verified"]  # fmt: skip

Box = tuple[
    float, float, float, float
]  # left, top, right, bottom as shares of the picture as it is seen
Size = tuple[int, int]

SPARE = 1.5  # a JPEG is decoded at 1.5 times its target or more, then averaged down: 2.3 times faster at 0.75 MP
MOST_BOXES = 1000
BOX_MARGIN, BOX_FEATHER, BOX_BLUR = (
    0.1,
    0.05,
    0.1,
)  # of a box's larger side; the largest box decides the blur
PROBE = np.array(
    [[[r, g, b] for r in (0, 85, 170, 255) for g in (0, 128, 255) for b in (0, 128, 255)]], np.uint8
)
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
class Picture:
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


def check_and_resize(body: bytes, settings: Fetch, boxes: Sequence[Box] = ()) -> Picture:
    """The picture in `body` as it will be stored. BadPicture with a reason; nothing else escapes a hostile one.

    Kept as it came (with skip_reencode): an upright RGB picture of the type that is stored, which needs no resizing and
    gives nobody who opens it a warning. All else is encoded anew as RGB: the first frame, orientation applied, 16 bits
    scaled to 8, transparency on white, colours in sRGB, what lies in `boxes` blurred.
    """
    return contained(body, limits_of(settings), boxes)


def contained(body: bytes, limits: Limits, boxes: Sequence[Box] = ()) -> Picture:
    """`check_and_resize` for a child, which knows no manifests."""
    with warnings.catch_warnings(record=True) as flaws:
        warnings.simplefilter("always")
        try:
            return _work(body, limits, boxes, flaws)
        except BadPicture:
            raise
        except Image.DecompressionBombError as error:  # above 179 MP Pillow itself does not open it
            raise BadPicture("too_many_pixels", "more than Pillow opens") from error
        except MemoryError as error:
            raise BadPicture("decode_error", "needs more memory than a decoder has") from error
        except Exception as error:  # whatever a decoder makes of hostile bytes
            said = re.sub(r"<[^>]*>| at 0x[0-9a-f]+", "", " ".join(str(error).split()))
            raise BadPicture("decode_error", f"{type(error).__name__}: {said}"[:200]) from error


def as_it_is(body: bytes, settings: Fetch) -> Picture:
    """For disable_all_reencoding: the bytes as they came, named by what they are, after their header was checked.

    Nothing is decoded: a picture that is cut off or damaged behind its header is stored too, orientation and colour
    profile stay as they are, and GIF and AVIF are not refused, which the trainer does not read.
    """
    found = header.check(body, limits_of(settings))
    width, height = found.size
    text = exif.as_text(found.exif) if settings.extract_exif else None
    return Picture(
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
        raise BadPicture("too_many_pixels", f"{target[0]}x{target[1]} after resizing")
    return target


def _work(
    body: bytes, limits: Limits, boxes: Sequence[Box], flaws: list[warnings.WarningMessage]
) -> Picture:
    found = header.check(body, limits)
    text = exif.as_text(found.exif) if limits.extract_exif else None
    width, height = found.size
    target = target_size(width, height, limits)
    pixels = _jpeg(body, found, target, limits) if found.kind == "JPEG" else None
    if pixels is None:
        image, size, kept = _by_pillow(body, found.kind, limits, boxes, flaws)
    else:
        image, size = Image.fromarray(pixels), found.size
        kept = target is None and _keeps(body, found, limits, boxes, flaws)
        if not kept:
            image = _finish(image, target, size, found.orientation, found.profile, boxes, limits)
    return Picture(
        data=body if kept else _encode(image, limits),
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
        raise BadPicture("format", "AVIF, which this Pillow cannot read")
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
        return _applied(image, transform)
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
        image = _applied(image, transform)
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


# --- colours -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)  # the same few profiles come again and again
def to_srgb(profile: bytes, mode: str) -> ImageCmsTransform | None:
    """What turns colours of a profile into sRGB; None where that changes nothing, and where the profile is damaged or
    of other colours than `mode`."""
    from PIL import ImageCms  # 5 ms, which only pictures with a profile need

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != mode:
            return None
        if "srgb" in (source.profile.profile_description or "").lower():
            return None
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        if mode == "RGB" and _is_srgb(transform):
            return None
    except (OSError, ValueError, TypeError, ImageCms.PyCMSError):
        return None
    return transform


def _is_srgb(transform: ImageCmsTransform) -> bool:
    """Whether no colour moves by more than two levels of 255."""
    seen = np.asarray(_applied(Image.fromarray(PROBE), transform)).astype(int)
    return bool(np.abs(seen - PROBE).max() < 3)


def _applied(image: Image.Image, transform: ImageCmsTransform) -> Image.Image:
    found = transform.apply(image)
    assert found is not None
    return found


# --- what a row says of its picture --------------------------------------------------------------------------------


def boxes_of(extra: Mapping[str, Any] | None, settings: Fetch) -> tuple[Box, ...]:
    """What is to be blurred, by the row's bbox_column; none where that is missing or empty.

    BadPicture("bad_bbox") for anything but a list of up to 1,000 [left, top, right, bottom] as shares of the upright
    picture. A detector's box may reach over the edge by half a picture; what has larger numbers is in pixels.
    """
    value = (extra or {}).get(settings.bbox_column) if settings.bbox_column is not None else None
    if value is None or value == "":
        return ()
    try:
        found = json.loads(value) if isinstance(value, str) else value
        boxes = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in found or ())
    except (ValueError, TypeError, RecursionError):
        raise BadPicture(
            "bad_bbox", f"not a list of [left, top, right, bottom]: {str(value)[:80]}"
        ) from None
    for box in boxes[: MOST_BOXES + 1]:
        if (
            not all(math.isfinite(x) and -0.5 <= x <= 1.5 for x in box)
            or box[0] >= box[2]
            or box[1] >= box[3]
        ):
            raise BadPicture(
                "bad_bbox", f"not left, top, right, bottom as shares of the picture: {list(box)}"
            )
    if len(boxes) > MOST_BOXES:
        raise BadPicture("bad_bbox", f"{len(boxes)} boxes; at most {MOST_BOXES} are read")
    return boxes


def blurred(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """What lies in the boxes without its detail, with soft edges outside of them.

    The blur is as wide as a tenth of the largest box, as in img2dataset. Each box has a mask of its own size, so that a
    small face beside a large one is hidden as well as that.
    """
    mask, largest = Image.new("L", image.size), 0.0
    for left, top, right, bottom in boxes:
        x, y, right, bottom = (
            left * image.width,
            top * image.height,
            right * image.width,
            bottom * image.height,
        )
        side = max(right - x, bottom - y)
        largest = max(largest, side)
        margin, soft = BOX_MARGIN * side, max(1, round(3 * BOX_FEATHER * side))
        inner = (
            math.floor(x - margin),
            math.floor(y - margin),
            math.ceil(right + margin),
            math.ceil(bottom + margin),
        )
        outer = inner[0] - soft, inner[1] - soft, inner[2] + soft, inner[3] + soft
        patch = Image.new("L", (outer[2] - outer[0], outer[3] - outer[1]))
        patch.paste(255, (soft, soft, patch.width - soft, patch.height - soft))
        patch = patch.filter(ImageFilter.GaussianBlur(BOX_FEATHER * side))
        mask.paste(ImageChops.lighter(patch, mask.crop(outer)), outer[:2])
    return Image.composite(image.filter(ImageFilter.GaussianBlur(BOX_BLUR * largest)), image, mask)


def hashes(body: bytes, settings: Fetch) -> dict[str, str]:
    """sha256 of the bytes as they were received, and compute_hash where that is another."""
    return {
        name: hashlib.new(name, body).hexdigest()
        for name in dict.fromkeys(("sha256", settings.compute_hash))
    }


def verified(body: bytes, extra: Mapping[str, Any] | None, settings: Fetch) -> None:
    """BadPicture("hash_mismatch") where the bytes are not those that the row's verify_hash column promises.

    A row without a hash is refused too: whoever asks for verified pictures must not get one that nobody could verify.
    """
    if settings.verify_hash is None:
        return
    column, algorithm = settings.verify_hash
    value = (extra or {}).get(column)
    if not isinstance(value, str) or not value.strip():
        raise BadPicture("hash_mismatch", f"the row has no {algorithm} in its column {column}")
    if (found := hashlib.new(algorithm, body).hexdigest()) != value.strip().lower():
        raise BadPicture(
            "hash_mismatch", f"{algorithm} is {found}, not {value.strip().lower()[:128]}"
        )
