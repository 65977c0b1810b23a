"""What a row asks of its image: boxes to blur, and a hash that the received bytes must have."""

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
    """What is to be blurred, by the row's bbox_column; none where that is missing or empty.

    RejectedImage("bad_bbox") for anything but a list of up to 1,000 [left, top, right, bottom] as shares of the upright
    picture. A detector's box may reach over the edge by half a picture; what has larger numbers is in pixels.
    """
    value = (extra or {}).get(settings.bbox_column) if settings.bbox_column is not None else None
    if value is None or value == "":
        return ()
    try:
        found = json.loads(value) if isinstance(value, str) else value
        boxes = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in found or ())
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
                "bad_bbox", f"not left, top, right, bottom as shares of the picture: {list(box)}"
            )
    if len(boxes) > MOST_BOXES:
        raise RejectedImage("bad_bbox", f"{len(boxes)} boxes; at most {MOST_BOXES} are read")
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


def content_hashes(body: bytes, settings: Fetch) -> dict[str, str]:
    """sha256 of the bytes as they were received, and compute_hash where that is another."""
    return {
        name: hashlib.new(name, body).hexdigest()
        for name in dict.fromkeys(("sha256", settings.compute_hash))
    }


def check_hash(body: bytes, extra: Mapping[str, Any] | None, settings: Fetch) -> None:
    """RejectedImage("hash_mismatch") where the bytes are not those that the row's verify_hash column promises.

    A row without a hash is refused too: whoever asks for verified pictures must not get one that nobody could verify.
    """
    if settings.verify_hash is None:
        return
    column, algorithm = settings.verify_hash
    value = (extra or {}).get(column)
    if not isinstance(value, str) or not value.strip():
        raise RejectedImage("hash_mismatch", f"the row has no {algorithm} in its column {column}")
    if (found := hashlib.new(algorithm, body).hexdigest()) != value.strip().lower():
        raise RejectedImage(
            "hash_mismatch", f"{algorithm} is {found}, not {value.strip().lower()[:128]}"
        )
