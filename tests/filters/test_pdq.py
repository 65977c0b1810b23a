from __future__ import annotations

import numpy as np
import pyarrow as pa
from PIL import Image

from filters import make
from filters.base import Batch
from manifests.hashes import pdq
from manifests.schema import FilterSpec


def test_a_batch_has_a_hash_and_a_quality_per_image() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    images = [Image.new("RGB", (30, 30)), Image.fromarray(noise)]
    filter_ = make(FilterSpec(name="pdq"))
    columns = filter_.score(Batch(captions=["", ""], images=images, rows=pa.table({})))
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in filter_.adds.items()})
    assert [(row["pdq"], row["pdq_quality"]) for row in table.to_pylist()] == [
        pdq(image) for image in images
    ]
    assert table["pdq_quality"].to_pylist() == [0, 100]
