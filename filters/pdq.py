"""The 256-bit perceptual hash PDQ of an image, and how much there is to compare in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from filters.base import Batch, Columns, Filter
from manifests.phash import PDQ_BYTES, pdq


@dataclass(kw_only=True)
class Pdq(Filter):
    """Columns: pdq, 32 bytes; pdq_quality, 0 to 100. The filter `duplicate` reads them.

    Copies that were resized or compressed again are within 31 bits. Below a quality of 50 an image
    is so plain that its bits are noise.
    """

    name: ClassVar[str] = "pdq"
    needs: ClassVar[frozenset[str]] = frozenset({"image"})
    adds: ClassVar[dict[str, pa.DataType]] = {
        "pdq": pa.binary(PDQ_BYTES),
        "pdq_quality": pa.int8(),
    }
    meanings: ClassVar[dict[str, str]] = {
        "pdq": "256-bit perceptual hash PDQ, 32 bytes; copies differ in at most 31 bits",
        "pdq_quality": "how varied the image is, 0 to 100; below 50 its hash is noise",
    }

    def score(self, batch: Batch) -> Columns:
        assert batch.images is not None
        hashes = [pdq(image) for image in batch.images]
        return {
            "pdq": [value for value, _ in hashes],
            "pdq_quality": [quality for _, quality in hashes],
        }
