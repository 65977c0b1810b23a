"""How near a stored picture is to the best that could have been stored, for
benchmarks/fetching/fetch.py.

The reference is a full decode by Pillow, averaged over exact areas in floating point and rounded to
8 bits, never encoded. What is compared with it are the stored JPEGs, so the loss of encoding is in
every figure alike; the row `reference, encoded` says how much of it that is (Pillow, quality 95,
4:2:0).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

CEILING = "reference, encoded"
ORIENTATION = 0x0112


def compare(
    pictures: Iterable[tuple[Path, Mapping[str, bytes]]], count: int, image_size: int
) -> dict[str, Any]:
    """Mean and 5th percentile of the PSNR in dB by program, over the first `count` pictures that
    were made smaller.

    Left out: pictures that were small already, rotated ones (one program turns them upright), and
    other modes than RGB.
    """
    psnr: dict[str, list[float]] = {CEILING: []}
    left_out, seen = 0, set()
    for path, stored in pictures:
        if path in seen:
            continue
        seen.add(path)
        with Image.open(path) as opened:
            if (
                min(opened.size) <= image_size
                or opened.mode != "RGB"
                or opened.getexif().get(ORIENTATION, 1) != 1
            ):
                left_out += 1
                continue
            whole = np.asarray(opened)
        references: dict[tuple[int, ...], npt.NDArray[np.uint8]] = {}
        for who, data in stored.items():
            pixels = decoded(data)
            if pixels.shape not in references:  # programs may round a side differently
                references[pixels.shape] = area(whole, *pixels.shape[:2])
            psnr.setdefault(who, []).append(psnr_db(pixels, references[pixels.shape]))
        psnr[CEILING].append(_ceiling(next(iter(references.values()))))
        if len(psnr[CEILING]) == count:
            break
    return {
        "pictures": len(psnr[CEILING]),
        "left_out": left_out,
        "psnr_db": {
            who: {"mean": float(np.mean(values)), "p5": float(np.percentile(values, 5))}
            for who, values in psnr.items()
            if values
        },
    }


def decoded(data: bytes) -> npt.NDArray[np.uint8]:
    """HWC RGB of a JPEG, in full."""
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened.convert("RGB"))


def area(image_HWC: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """The mean over each target pixel's exact area."""
    before = image_HWC.astype(np.float32)
    rows = (_weights(before.shape[0], height) @ before.reshape(before.shape[0], -1)).reshape(
        height, -1, 3
    )
    return np.matmul(_weights(before.shape[1], width), rows).round().astype(np.uint8)


def _weights(before: int, after: int) -> npt.NDArray[np.float32]:
    """Share of each of `before` pixels in each of `after`."""
    step = before / after
    low = (np.arange(after) * step)[:, None]
    at = np.arange(before)[None, :]
    shares = np.clip(np.minimum(low + step, at + 1) - np.maximum(low, at), 0, None) / step
    return shares.astype(np.float32)


def psnr_db(one: npt.NDArray[np.uint8], two: npt.NDArray[np.uint8]) -> float:
    """Peak signal to noise ratio over all channels; 100 where nothing differs."""
    error = np.mean((one.astype(np.float64) - two.astype(np.float64)) ** 2)
    return float(10 * np.log10(255**2 / error)) if error else 100.0


def _ceiling(reference: npt.NDArray[np.uint8]) -> float:
    sink = io.BytesIO()
    Image.fromarray(reference).save(sink, "JPEG", quality=95, subsampling="4:2:0")
    return psnr_db(decoded(sink.getvalue()), reference)
