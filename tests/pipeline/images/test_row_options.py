"""Options of a row: boxes to blur and the hash of the received bytes."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manifests.schema import Fetch
from pipeline.images.header import RejectedImage
from pipeline.images.transform import blurred, boxes_of, check_hash, content_hashes

BOXES = Fetch(bbox_column="boxes")
BODY = b"the received bytes"
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.mark.parametrize("value", [[[0.1, 0.2, 0.3, 0.4]], "[[0.1, 0.2, 0.3, 0.4]]"])
def test_boxes_are_a_list_or_json(value: Any) -> None:
    assert boxes_of({"boxes": value}, BOXES) == ((0.1, 0.2, 0.3, 0.4),)


@pytest.mark.parametrize("extra", [None, {}, {"boxes": None}, {"boxes": ""}, {"boxes": "[]"}])
def test_a_row_without_boxes_has_none(extra: dict[str, Any] | None) -> None:
    assert boxes_of(extra, BOXES) == ()
    assert boxes_of({"boxes": "no JSON"}, Fetch()) == ()  # the recipe names no column


@pytest.mark.parametrize(
    "value",
    [
        "no JSON", 7, {"left": 0.1}, [0.1, 0.2, 0.3, 0.4], [[0.1, 0.2, 0.3]], [["a", 0, 1, 1]],
        [[0.5, 0.1, 0.5, 0.2]], [[0.1, 0.4, 0.3, 0.2]], [[-0.6, 0, 1, 1]], [[10, 20, 90, 80]],
        [[0, 0, math.nan, 1]], "[" * 100_000, [[0, 0, 1, 1]] * 1001,
    ],
)  # fmt: skip
def test_bad_boxes_reject_the_image(value: Any) -> None:
    with pytest.raises(RejectedImage) as caught:
        boxes_of({"boxes": value}, BOXES)
    assert caught.value.reason == "bad_bbox"


def test_only_the_box_and_its_edge_are_blurred() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (100, 100, 3), dtype=np.uint8)
    result = np.asarray(blurred(Image.fromarray(noise), [(0.4, 0.4, 0.6, 0.6)]))
    assert np.array_equal(result[:30], noise[:30])
    assert np.array_equal(result[:, 70:], noise[:, 70:])
    assert result[42:58, 42:58].std() < noise[42:58, 42:58].std() / 3
    beyond = blurred(Image.fromarray(noise), [(-0.5, -0.5, 1.5, 1.5)])
    assert beyond.size == (100, 100)


def test_hashes_of_the_received_bytes() -> None:
    assert content_hashes(BODY, Fetch()) == {"sha256": hashlib.sha256(BODY).hexdigest()}
    assert content_hashes(BODY, Fetch(compute_hash="md5"))["md5"] == MD5


def test_the_hash_of_a_row_is_checked() -> None:
    settings = Fetch(verify_hash=("md5_column", "md5"))
    check_hash(BODY, {"md5_column": f" {MD5.upper()} "}, settings)
    check_hash(BODY, None, Fetch())  # the recipe verifies nothing
    for extra in (None, {}, {"md5_column": " "}, {"md5_column": 7}, {"md5_column": "0" * 32}):
        with pytest.raises(RejectedImage) as caught:
            check_hash(BODY, extra, settings)
        assert caught.value.reason == "hash_mismatch"
