"""Storage and download time of a pool of image-text pairs, by the image size.

The bytes of an image are those that photographs had when they were stored
(benchmarks/results/image_bytes.json): JPEGs of quality 95 whose shorter side has the image size.
Other pools differ with their images: the result names what was measured. Captions, addresses and
columns are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests import disk

MEASURED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "image_bytes.json"
SMALLEST, LARGEST = 32, 4096  # image sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """What a pool of so many pairs takes."""

    pairs: int
    image_size: int
    bytes_per_pair: float
    stored_bytes: float
    downloaded_bytes: float
    download_days: float | None  # None without a bandwidth
    source: str


def pool_size(
    pairs: int, image_size: int, mbit_per_s: float | None = None, path: Path = MEASURED
) -> PoolSize:
    """The storage of a pool, and the time that its images take to arrive.

    Bytes grow linearly with the pixels, between and beyond the image sizes that were measured.
    ValueError for numbers that no pool has.
    """
    if pairs < 1:
        raise ValueError(f"pairs is {pairs}; it must be at least 1")
    if not SMALLEST <= image_size <= LARGEST:
        raise ValueError(
            f"image size is {image_size}; it must lie in [{SMALLEST}, {LARGEST}] pixels"
        )
    if mbit_per_s is not None and not 0 < mbit_per_s < math.inf:
        raise ValueError(f"bandwidth is {mbit_per_s}; it must be above 0 Mbit/s")
    result = disk.read_json(path)
    stored = _bytes_at(result, image_size)
    downloaded = pairs * float(result["downloaded_bytes"])
    days = None
    if mbit_per_s is not None:
        days = downloaded * 8 / (mbit_per_s * 1e6) / 86400
    inside = image_size in {int(size) for size in result["stored_bytes"]}
    words = "measured" if inside else "by the line through the sizes measured"
    return PoolSize(
        pairs=pairs,
        image_size=image_size,
        bytes_per_pair=stored,
        stored_bytes=pairs * stored,
        downloaded_bytes=downloaded,
        download_days=days,
        source=f"{words} with {result['title']}",
    )


def _bytes_at(result: Any, image_size: int) -> float:
    """The bytes of an image: the least-squares line of the bytes over the pixels."""
    sizes = {int(size): float(each["mean"]) for size, each in result["stored_bytes"].items()}
    if image_size in sizes:
        return sizes[image_size]
    pixels = [size * size for size in sizes]
    mean_x, mean_y = sum(pixels) / len(pixels), sum(sizes.values()) / len(sizes)
    products = [(x - mean_x) * (y - mean_y) for x, y in zip(pixels, sizes.values(), strict=True)]
    slope = sum(products) / sum((x - mean_x) ** 2 for x in pixels)
    return max(1.0, mean_y + slope * (image_size * image_size - mean_x))
