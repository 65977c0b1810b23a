from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manifests.schema import TaskSpec
from train.eval_data import images
from train.eval_data.images import (
    batch_rows,
    decoded_batches,
    map_images,
)
from train.eval_data.samples import Samples


def decoded(samples: Samples, size: int) -> np.ndarray:
    batches = batch_rows(len(samples.files))
    return np.concatenate(
        [batch.image_BHWC for batch in decoded_batches(samples.images, size, batches)]
    )


def test_images_are_decoded_once(coloured: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    first = decoded(coloured, 32)
    assert first.shape == (18, 32, 32, 3)
    monkeypatch.setattr(images, "decode_image", lambda data: pytest.fail("decoded again"))
    np.testing.assert_array_equal(first, decoded(coloured, 32))


def test_what_does_not_fit_is_decoded_again(
    coloured: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CACHE_BYTES", 100)
    monkeypatch.setattr(images, "BATCH_SIZE", 7)
    before = len(images._kept)
    for _ in range(2):
        batches = list(decoded_batches(coloured.images, 16, batch_rows(18)))
        assert [len(batch.image_BHWC) for batch in batches] == [7, 7, 4]
    assert len(images._kept) == before


def test_an_image_that_cannot_be_read_is_named(colours: TaskSpec, coloured: Samples) -> None:
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded as an image"):
        decoded(coloured, 10)
    (Path(colours.data) / "green" / "0.jpg").unlink()
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded .*No such file"):
        map_images(coloured.images, len)
