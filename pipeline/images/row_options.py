"""Options that a row has for its image: boxes to blur, and a hash of the received bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageChops, ImageFilter

from pipeline.images.header import RejectedImage

if TYPE_CHECKING:
    from manifests.schema import Fetch

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


def check_hash(body: bytes, extra: Mapping[str, Any] | None, settings: Fetch) -> None:
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
