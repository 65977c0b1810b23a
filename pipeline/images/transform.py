"""Bytes of one image to a checked, upright, resized image."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from cykooz_resizer import CropBox, FilterType, ImageData, PixelType, ResizeAlg, ResizeOptions
from cykooz_resizer import Resizer as Kernels
from PIL import Image, ImageChops, ImageFilter

from clipmill.manifests.arrays import Pixels
from clipmill.pipeline.images import header
from clipmill.pipeline.images.header import Extension, Header, Limits, RejectedImage

if TYPE_CHECKING:
    from PIL.ImageCms import ImageCmsTransform

    from clipmill.manifests.schema import Fetch

# --------------------------------------------------------------------------------------------------
# Colours of an image, from those of its ICC profile to sRGB.


# Colours by which a profile is compared with sRGB.
PROBE = np.array(
    [[[r, g, b] for r in (0, 85, 170, 255) for g in (0, 128, 255) for b in (0, 128, 255)]], np.uint8
)


@functools.lru_cache(maxsize=16)  # the same few profiles come again and again
def to_srgb(profile: bytes, mode: str) -> ImageCmsTransform | None:
    """The transform from a profile's colours (of mode RGB or CMYK) to sRGB.

    None where it would change nothing, where the profile is damaged, and where its colours are not
    those of `mode`.
    """
    from PIL import ImageCms  # 5 ms, needed only for images with a profile

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
    converted = np.asarray(apply_transform(Image.fromarray(PROBE), transform)).astype(int)
    return bool(np.abs(converted - PROBE).max() < 3)


def apply_transform(image: Image.Image, transform: ImageCmsTransform) -> Image.Image:
    """The image in the colours of the transform's output; `image` itself stays as it is."""
    converted = transform.apply(image)
    assert converted is not None
    return converted


# --------------------------------------------------------------------------------------------------
# Resizing of RGB images in integer arithmetic.
#
# cykooz_resizer has it with SIMD: a fifth of Pillow's time. Its results are the same bytes with
# AVX2, with SSE4.1 and without either (tests/pipeline/images/test_resizing.py), so that a shard
# has the same bytes on every machine.


Size = tuple[int, int]  # width, height
# Factors up to which one filter is as near to the mean over areas as four passes, or within 0.4 dB
# after JPEG at less than half of the time.
LARGEST_LINEAR, LARGEST_ONE_PASS = 1.3, 1.6
FILTERS = {
    "linear": FilterType.bilinear,
    "bilinear": FilterType.bilinear,
    "cubic": FilterType.catmull_rom,
    "bicubic": FilterType.catmull_rom,
    "lanczos": FilterType.lanczos3,
    "lanczos4": FilterType.lanczos3,
}


def resized(
    image: Image.Image | Pixels,
    wanted: Size,
    covered: tuple[float, float],
    interpolation: str,
    *,
    is_sharp: bool = False,
) -> Pixels:
    """An RGB image at another size: (height, width, 3), uint8.

    `covered`: the part of the image, from its upper left corner, that becomes the result; a scaled
    JPEG may have a share of a column and of a row too much. `interpolation`: area, nearest or a key
    of FILTERS; all but nearest are averages over the source pixels of a target pixel (antialias).
    `is_sharp`: the image was made smaller before without blur, as by a scaled JPEG decoder.

    area is the mean over the area of each target pixel. Where whole pixels are averaged that is a
    box filter, and so it is where the image is enlarged. Where they are not, that filter would take
    each pixel whole or not at all. One smooth filter is near the mean up to LARGEST_ONE_PASS; above
    it, and where `is_sharp`, the image is made at twice the wanted size with linear interpolation
    (cubic, where `is_sharp`), and two and two pixels are averaged. benchmarks/fetching/sizes.py
    measures how near, by size.
    """
    if interpolation == "nearest":
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        box = (0, 0, *covered)
        return np.asarray(image.resize(wanted, Image.Resampling.NEAREST, box=box))
    if isinstance(image, Image.Image):
        width, height = image.size
    else:
        height, width = image.shape[:2]
    data = ImageData(width, height, PixelType.U8x3, image.tobytes())
    factor = max(covered[0] / wanted[0], covered[1] / wanted[1])
    if interpolation != "area":
        data = _convolved(data, wanted, covered, FILTERS[interpolation])
    elif _is_box(covered, wanted):
        data = _convolved(data, wanted, covered, FilterType.box)
    elif factor <= LARGEST_ONE_PASS and not is_sharp:
        smooth = FilterType.bilinear if factor <= LARGEST_LINEAR else FilterType.mitchell
        data = _convolved(data, wanted, covered, smooth)
    else:
        smooth = FilterType.catmull_rom if is_sharp else FilterType.bilinear
        # Rows first: a pass over rows is three times faster, and leaves fewer of them.
        size = width, wanted[1]
        data = _convolved(data, (width, 2 * wanted[1]), (width, covered[1]), smooth)
        data = _convolved(data, size, (width, 2 * wanted[1]), FilterType.box)
        data = _convolved(data, (2 * wanted[0], wanted[1]), (covered[0], wanted[1]), smooth)
        data = _convolved(data, wanted, (2 * wanted[0], wanted[1]), FilterType.box)
    return np.frombuffer(data.get_buffer(), np.uint8).reshape(wanted[1], wanted[0], 3)


def _is_box(covered: tuple[float, float], wanted: Size) -> bool:
    is_whole = covered[0] % wanted[0] == 0 and covered[1] % wanted[1] == 0
    return is_whole or wanted[0] > covered[0]


def _convolved(
    image: ImageData, wanted: Size, covered: tuple[float, float], filter_type: FilterType
) -> ImageData:
    options = ResizeOptions(
        resize_alg=ResizeAlg.convolution(filter_type),
        use_alpha=False,
        crop_box=CropBox(0, 0, *covered),
    )
    target = ImageData(*wanted, PixelType.U8x3)
    Kernels().resize(image, target, options)  # it keeps a buffer as large as the image
    return target


# --------------------------------------------------------------------------------------------------
# Bytes of one image to a checked, upright, resized image.
#
# The functions are pure; decoders.py runs them in child processes, where a crash does no harm. No
# module that a child loads imports manifests, which imports pyarrow: a child is ready in about
# 0.2 s.


Raster = Image.Image | Pixels  # RGB, of 8 bits a channel

# A JPEG is decoded at 1.5 times its target or more, then averaged: 2.3 times faster at 0.75 MP.
OVERSAMPLING = 1.5
MOST_WARNINGS = 4  # of libjpeg for one image, of things that are no pixels
LONGEST_SIDE = {"jpg": 65500, "png": 2**31 - 1, "webp": 16383}  # pixels, of libjpeg and libwebp
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
    """An image as it is stored. Sizes are in pixels of the upright image."""

    data: bytes
    extension: Extension = "jpg"
    width: int
    height: int
    original_width: int
    original_height: int
    exif: str | None = None
    # Perceptual hashes of the whole upright image and of what is stored; () where not asked for.
    hashes: tuple[int, ...] = ()


def limits_of(settings: Fetch) -> Limits:
    """The settings for one image. ValueError for settings that contradict each other."""
    if settings.bbox_column is not None and settings.disable_all_reencoding:
        raise ValueError(
            "fetch.bbox_column blurs images, disable_all_reencoding forbids that: "
            "leave one of them out"
        )
    return Limits(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(Limits)})


# --- one image ------------------------------------------------------------------------------------


def check_and_resize(body: bytes, settings: Fetch, boxes: Sequence[Box] = ()) -> DecodedImage:
    """The image in `body` as it will be stored. Hostile bytes raise only RejectedImage.

    With skip_reencode, the pixels of an image stay as they are encoded if it is upright RGB of the
    type that is stored, needs no resizing and opens without a warning; metadata and what follows
    the image are removed. Any other image is encoded again as RGB: the first
    frame, orientation applied, 16 bits scaled to 8, transparency on white, colours in sRGB, `boxes`
    blurred.
    """
    return contained(body, limits_of(settings), boxes)


def contained(
    body: bytes, limits: Limits, boxes: Sequence[Box] = (), hashed: bool = False
) -> DecodedImage:
    """`check_and_resize` for a child, or `as_it_is` where the limits say so.

    hashed: with perceptual hashes. An image that is stored as it is has none where it is damaged.
    """
    with header.rejections() as caught_warnings:
        if not limits.disable_all_reencoding:
            return _decode_and_resize(body, limits, boxes, caught_warnings, hashed)
        stored = _as_it_is(body, limits)
        if hashed:
            with contextlib.suppress(RejectedImage), header.rejections():
                decoded = _decode_and_resize(body, limits, boxes, caught_warnings, hashed)
                stored = dataclasses.replace(stored, hashes=decoded.hashes)
        return stored


def as_it_is(body: bytes, settings: Fetch) -> DecodedImage:
    """For disable_all_reencoding: exactly the received bytes, after their header was checked.

    Nothing is removed: metadata, orientation and colour profile stay, an image is stored too whose
    pixels only a decoder would find damaged, and so are GIF and AVIF, which the trainer does not
    read.
    """
    with header.rejections():
        return _as_it_is(body, limits_of(settings))


def _as_it_is(body: bytes, limits: Limits) -> DecodedImage:
    with header.opened(body, limits) as image:
        width, height = header.upright_size(image)
        return DecodedImage(
            data=body,
            extension=header.EXTENSIONS[header.sniff(body)],
            width=width,
            height=height,
            original_width=width,
            original_height=height,
            exif=header.exif_text(image) if limits.extract_exif else None,
        )


def target_size(width: int, height: int, limits: Limits) -> Size | None:
    """Width and height to scale to, before a crop or a border; None where nothing is scaled.

    Modes as in img2dataset. RejectedImage("too_many_pixels") for a size above max_pixels.
    """
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


def _decode_and_resize(
    body: bytes,
    limits: Limits,
    boxes: Sequence[Box],
    caught_warnings: list[warnings.WarningMessage],
    hashed: bool,
) -> DecodedImage:
    data: bytes | None = None
    hashes: list[int] | None = [] if hashed else None
    head = header.read(body, limits)
    text = header.exif_text(head.image) if limits.extract_exif and head.image else None
    orientation, profile, size = head.orientation, head.profile, head.upright_size
    target = target_size(*size, limits)
    _check_stored_size(target or size, target is not None, limits)
    keep = target is None and not boxes and orientation == 1 and _may_stay(head, body, limits)
    image: Raster | None = None
    if head.kind in ("JPEG", "MPO"):
        image, mended = _scaled_jpeg(body, head, target, limits)
        keep = keep and image is not None and mended is body  # libjpeg has not warned
    if image is None:
        image = _rgb(head.image or header.opened(body, limits), profile, target, body, limits)
    _add_hash(hashes, image, orientation)
    if keep and not caught_warnings and not (profile and to_srgb(profile, "RGB")):
        data = header.without_metadata(body, head)
    if data is None:
        image = _finish(image, target, size, orientation, profile, boxes, limits)
        data = _encode(image, limits)
    _add_hash(hashes, image, 1)
    stored_width, stored_height = _size(image)
    return DecodedImage(
        data=data,
        extension=ENCODED[limits.encode_format],
        width=stored_width,
        height=stored_height,
        original_width=size[0],
        original_height=size[1],
        exif=text,
        hashes=tuple(hashes or ()),
    )


def _size(image: Raster) -> Size:
    """Width and height."""
    if isinstance(image, Image.Image):
        return image.size
    height, width = image.shape[:2]
    return width, height


def _as_image(image: Raster) -> Image.Image:
    return image if isinstance(image, Image.Image) else Image.fromarray(image)


def _add_hash(hashes: list[int] | None, raster: Raster, orientation: int) -> None:
    """Append the perceptual hash of an image, turned upright, where hashes are asked for."""
    if hashes is None:
        return
    from clipmill.manifests.hashes import (  # only where it is needed: a child starts faster
        SIDE,
        phash,
    )

    image = _as_image(raster)
    if orientation != 1:  # of a small copy: the hash sees no more of it
        image = image.reduce(max(1, min(image.size) // (8 * SIDE)))
        image = image.transpose(TRANSPOSE[orientation])
    hashes.append(phash(image))


def _may_stay(head: Header, body: bytes, limits: Limits) -> bool:
    """Whether it has one RGB frame of 8 bits, of the type that is stored."""
    image = head.image
    return (
        limits.skip_reencode
        and head.kind in header.STRIP
        and header.EXTENSIONS[head.kind] == limits.encode_format
        and head.mode == "RGB"
        and (image is None or not image.has_transparency_data)
        and getattr(image, "n_frames", 1) == 1
        and (head.kind != "PNG" or body[24] <= 8)
    )


def _check_stored_size(size: Size, is_scaled: bool, limits: Limits) -> None:
    """RejectedImage("too_many_pixels") where what is stored has a longer side than its type can."""
    if is_scaled and limits.resize_mode in ("center_crop", "border"):
        size = limits.image_size, limits.image_size
    longest = LONGEST_SIDE[limits.encode_format]
    if max(size) > longest:
        stored = f"{size[0]}x{size[1]}{' after resizing' if is_scaled else ''}"
        raise RejectedImage(
            "too_many_pixels", f"{stored}; a side of a {limits.encode_format} has at most {longest}"
        )


def _scaled_jpeg(
    body: bytes, head: Header, target: Size | None, limits: Limits
) -> tuple[Pixels | None, bytes]:
    """RGB of a JPEG, uint8 (height, width, 3), scaled while it is decoded, and the bytes that were
    decoded: not `body` where libjpeg warned of something that is no pixel.

    None for CMYK, which is checked only, and where libjpeg cannot decode it: then Pillow decodes
    it, or says why not. RejectedImage where libjpeg warns that pixels are missing or garbled.
    """
    options: dict[str, Any] = {"colorspace": "RGB"}
    if head.mode not in ("L", "RGB"):
        options = {"colorspace": "CMYK", "min_width": 1, "min_height": 1, "min_factor": 8.0}
    elif target is not None and limits.downscale_interpolation != "nearest":
        minimum_width, minimum_height = target[::-1] if head.orientation >= 5 else target
        options |= {
            "min_width": round(OVERSAMPLING * minimum_width),
            "min_height": round(OVERSAMPLING * minimum_height),
            "min_factor": OVERSAMPLING,
            # Colours are averaged anyhow: 0.15 dB more, in less time.
            "fastupsample": minimum_width < head.size[0],
        }
    warned: list[str] = []  # libjpeg tells the first of its warnings
    while True:
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(body, **options)
            break
        except ValueError as error:
            warning = str(error)
            if not header.WARNING.match(warning):
                return None, body
            if warning in warned or len(warned) == MOST_WARNINGS:
                raise RejectedImage("decode_error", warning[:200]) from None
            warned.append(warning)
            body = header.mended_jpeg(body, warning)
    # libjpeg scales by eighths
    width, height = head.size
    sizes = {(-(-height * k // 8), -(-width * k // 8)) for k in range(1, 9)}
    is_rgb = options["colorspace"] == "RGB" and pixels.shape[:2] in sizes
    return pixels if is_rgb else None, body


def _rgb(
    image: Image.Image, profile: bytes, target: Size | None, body: bytes, limits: Limits
) -> Image.Image:
    """An image of any mode as 8-bit RGB; CMYK by its profile, where it has one."""
    if image.mode == "CMYK" and profile and (transform := to_srgb(profile, "CMYK")):
        if target is not None and image.format in ("JPEG", "MPO"):
            side = round(OVERSAMPLING * max(target)), round(OVERSAMPLING * max(target))
            image.draft(None, side)
        return apply_transform(image, transform)
    tiles: Any = getattr(image, "tile", None) if image.format == "GIF" else None
    drawn = tiles[0][1] if tiles else None
    image.load()
    if drawn and drawn != (0, 0, *image.size):  # around it a GIF shows what is behind it
        behind = Image.new("RGB", image.size, "white")
        behind.paste(_opaque(image).crop(drawn), drawn[:2])
        return behind
    if image.format == "PNG":
        header.check_rows(body, image)
        if body[24] == 16 and "transparency" in image.info:
            return _without_colour(image, body, limits)
    if image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    return _opaque(image)


def _opaque(image: Image.Image) -> Image.Image:
    """As RGB, on white where it is transparent."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Pixels:
    """16-bit grey as 8 bits, uint8 (height, width): 65535 is 257 times 255."""
    levels = np.asarray(image).astype(np.int64).clip(0, 65535)
    return ((levels + 128) // 257).astype(np.uint8)


def _without_colour(image: Image.Image, body: bytes, limits: Limits) -> Image.Image:
    """A 16-bit PNG without alpha as RGB, with white where its pixels have the transparent colour.

    Pillow keeps the upper 8 of the 16 bits of RGB; a second reading gives the lower ones.
    """
    colour = image.info["transparency"]
    if image.mode == "RGB":
        pixels = np.array(image)
        with header.opened(body, limits) as low:
            tiles: Any = low  # of an ImageFile
            tiles.tile = [tile._replace(args="RGB;16L") for tile in tiles.tile]
            levels = pixels.astype(np.int64) * 256 + np.asarray(low)
        is_transparent = (levels == colour).all(axis=2)
    else:
        is_transparent = np.asarray(image) == colour
        pixels = np.repeat(_eight_bits(image)[:, :, None], 3, axis=2)
    pixels[is_transparent] = 255
    return Image.fromarray(pixels)


def _finish(
    raster: Raster,
    target: Size | None,
    original: Size,
    orientation: int,
    profile: bytes,
    boxes: Sequence[Box],
    limits: Limits,
) -> Raster:
    """Scale, colours to sRGB, turn upright, blur, then crop or add the border."""
    if target is not None:
        down = target[0] < original[0] or target[1] < original[1]
        name = limits.downscale_interpolation if down else limits.upscale_interpolation
        sideways = orientation >= 5
        if sideways:
            raster = _scaled(raster, target[::-1], original[::-1], name)
        else:
            raster = _scaled(raster, target, original, name)
    if profile and (transform := to_srgb(profile, "RGB")):
        raster = apply_transform(_as_image(raster), transform)
    if orientation != 1:
        raster = _as_image(raster).transpose(TRANSPOSE[orientation])
    if boxes:
        raster = blurred(_as_image(raster), boxes)
    if target is None or limits.resize_mode not in ("center_crop", "border"):
        return raster
    image, side = _as_image(raster), limits.image_size
    if limits.resize_mode == "center_crop":
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image.crop((left, top, left + side, top + side))
    bordered = Image.new("RGB", (side, side), "white")
    bordered.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return bordered


def _scaled(image: Raster, wanted: Size, original: Size, interpolation: str) -> Raster:
    """`image` resized to `wanted`; it was decoded from the `original` size, perhaps at k/8 of it.

    A JPEG decoded at k/8 has ⌈width · k/8⌉ columns, of which the image covers width · k/8.
    """
    size = _size(image)
    if size == wanted:
        return image
    if size == original:
        return resized(image, wanted, size, interpolation)
    eighths = min(size[0] * 8 // original[0], size[1] * 8 // original[1])
    covered = original[0] * eighths / 8, original[1] * eighths / 8
    return resized(image, wanted, covered, interpolation, is_sharp=True)


def _encode(raster: Raster, limits: Limits) -> bytes:
    if limits.encode_format == "jpg":
        data: bytes = simplejpeg.encode_jpeg(
            np.asarray(raster),
            quality=limits.encode_quality,
            colorspace="RGB",
            colorsubsampling="420",
        )
        return data
    sink, image = io.BytesIO(), _as_image(raster)
    image.info.clear()  # profile and EXIF of the original, which hold no more
    if limits.encode_format == "png":
        image.save(sink, "PNG", compress_level=limits.encode_quality)
    else:
        image.save(sink, "WEBP", quality=limits.encode_quality)
    return sink.getvalue()


# --------------------------------------------------------------------------------------------------
# Options that a row has for its image: boxes to blur, and a hash of the received bytes.


Box = tuple[float, float, float, float]  # left, top, right, bottom as shares of the upright image
MOST_BOXES = 1000
# Shares of a box's larger side; the largest box decides the blur.
BOX_MARGIN, BOX_FEATHER, BOX_BLUR = 0.1, 0.05, 0.1


def boxes_of(extra: Mapping[str, Any] | None, settings: Fetch) -> tuple[Box, ...]:
    """The boxes to blur, from the row's bbox_column; () where that is missing or empty.

    RejectedImage("bad_bbox") for anything but a list of up to 1,000 [left, top, right, bottom] as
    shares of the upright image. A detector's box may reach beyond the edge by half an image; larger
    numbers would be pixels.
    """
    value = (extra or {}).get(settings.bbox_column) if settings.bbox_column is not None else None
    if value is None or value == "":
        return ()
    try:
        rows = json.loads(value) if isinstance(value, str) else value
        boxes = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in rows or ())
    except (ValueError, TypeError, RecursionError):
        raise RejectedImage(
            "bad_bbox", f"not a list of [left, top, right, bottom]: {str(value)[:80]}"
        ) from None
    for box in boxes[: MOST_BOXES + 1]:
        if (
            not all(math.isfinite(x) and -0.5 <= x <= 1.5 for x in box)
            or box[0] >= box[2]
            or box[1] >= box[3]
        ):
            raise RejectedImage(
                "bad_bbox", f"not left, top, right, bottom as shares of the image: {list(box)}"
            )
    if len(boxes) > MOST_BOXES:
        raise RejectedImage("bad_bbox", f"{len(boxes)} boxes; at most {MOST_BOXES} are read")
    return boxes


def blurred(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """The image with the content of the boxes blurred; the soft edges lie outside the boxes.

    The blur is a tenth of the largest box wide, as in img2dataset. Each box has a mask of its own
    size, so that a small face beside a large one is hidden equally well.
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


def content_hashes(body: bytes, settings: Fetch) -> dict[str, str]:
    """Hashes of the received bytes: sha256, and compute_hash where that is another algorithm."""
    hashes = {"sha256": hashlib.sha256(body).hexdigest()}
    name = settings.compute_hash
    if name not in hashes:
        hashes[name] = hashlib.new(name, body).hexdigest()
    return hashes


def check_hash(body: bytes, extra: Mapping[str, object] | None, settings: Fetch) -> None:
    """RejectedImage("hash_mismatch") where the bytes differ from the hash in verify_hash's column.

    A row without a hash is refused too: a pool of verified images must not have an unverified one.
    """
    if settings.verify_hash is None:
        return
    column, algorithm = settings.verify_hash
    value = (extra or {}).get(column)
    if not isinstance(value, str) or not value.strip():
        raise RejectedImage("hash_mismatch", f"the row has no {algorithm} in its column {column}")
    expected = value.strip().lower()
    actual = hashlib.new(algorithm, body).hexdigest()
    if actual != expected:
        raise RejectedImage("hash_mismatch", f"{algorithm} is {actual}, not {expected[:128]}")
