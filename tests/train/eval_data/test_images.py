from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from manifests.schema import TaskSpec
from tests.support.task_data import images_of
from train.eval_data import images
from train.eval_data.images import (
    batch_rows,
    decoded_batches,
    image_hashes,
    image_suffix,
    map_images,
)
from train.eval_data.samples import Samples


def decoded(samples: Samples, size: tuple[int, int]) -> np.ndarray:
    batches = batch_rows(len(samples.files))
    return np.concatenate(
        [batch.image_BHWC for batch in decoded_batches(samples.images, size, batches)]
    )


def test_images_are_decoded_once(coloured: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    first = decoded(coloured, (32, 32))
    assert first.shape == (18, 32, 32, 3)
    monkeypatch.setattr(images, "decode_image", lambda data: pytest.fail("decoded again"))
    np.testing.assert_array_equal(first, decoded(coloured, (32, 32)))


def test_what_does_not_fit_is_decoded_again(
    coloured: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CACHE_BYTES", 100)
    monkeypatch.setattr(images, "BATCH_SIZE", 7)
    before = len(images._kept)
    for _ in range(2):
        batches = list(decoded_batches(coloured.images, (16, 16), batch_rows(18)))
        assert [len(batch.image_BHWC) for batch in batches] == [7, 7, 4]
    assert len(images._kept) == before


def test_at_most_two_batches_are_decoded_at_a_time(
    coloured: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BATCH_SIZE", 3)
    monkeypatch.setattr(images, "CACHE_BYTES", 0)
    decode, calls = images.decode_image, []
    monkeypatch.setattr(images, "decode_image", lambda data: calls.append(1) or decode(data))
    for number, _ in enumerate(decoded_batches(coloured.images, (8, 8), batch_rows(18)), 1):
        assert len(calls) <= 3 * (number + 1)


def test_some_batches_are_the_same_as_in_all(
    coloured: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BATCH_SIZE", 5)
    rows = batch_rows(18)
    assert [(each.start, each.stop) for each in rows] == [(0, 5), (5, 10), (10, 15), (15, 18)]
    whole = list(decoded_batches(coloured.images, (9, 9), rows))
    for own in (rows[0::2], rows[1::2], rows[3:4], []):
        for batch in decoded_batches(coloured.images, (9, 9), own):
            np.testing.assert_array_equal(batch.image_BHWC, whole[batch.rows.start // 5].image_BHWC)


def test_hashes_are_of_the_bytes(coloured: Samples) -> None:
    expected = [hashlib.sha256(data).hexdigest() for data in images_of(coloured)]
    assert list(image_hashes(coloured.images)) == expected
    (batch,) = decoded_batches(coloured.images, (8, 8), batch_rows(18))
    assert [digest.tobytes().hex() for digest in batch.sha256_BX] == expected


def test_an_image_that_cannot_be_read_is_named(colours: TaskSpec, coloured: Samples) -> None:
    (Path(colours.data) / "green" / "0.jpg").write_bytes(b"\xff\xd8\xff no picture")
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded as an image"):
        decoded(coloured, (10, 10))
    (Path(colours.data) / "green" / "0.jpg").unlink()
    with pytest.raises(ValueError, match=r"green/0\.jpg cannot be decoded .*No such file"):
        map_images(coloured.images, len)


def test_the_suffix_is_of_the_bytes(coloured: Samples) -> None:
    assert [image_suffix(data) for data in images_of(coloured)[:2]] == ["jpg", "png"]
    with pytest.raises(ValueError, match="neither JPEG nor PNG nor WebP"):
        image_suffix(b"GIF89a")
