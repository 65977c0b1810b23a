"""Text in images against captions: the arithmetic everywhere, the reader where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageDraw, ImageFont

from clipmill.filters.base import Batch
from clipmill.filters.text_overlap import TextOverlap, covered_share, overlap


@pytest.mark.parametrize(
    ("caption", "text", "share"),
    [
        ("Summer sale", "SUMMER SALE now", 1),
        ("Summer sale", "SUMMERSALE", 1),
        ("big summer sale", "summer", 6 / 13),
        ("a dog", "banana", 0),  # one letter is not found inside another word
        ("a dog", "A!", 1 / 4),
        ("on top", "salon", 0),
        ("", "sale", 0),
        ("...", "...", 0),
        ("sale", "", 0),
        ("夏季特卖", "夏季特卖 5折", 1),
    ],
)
def test_share_of_the_captions_letters(caption: str, text: str, share: float) -> None:
    assert overlap(caption, text) == pytest.approx(share)


def box(left: float, top: float, right: float, bottom: float) -> Any:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])


def test_boxes_that_overlap_or_stand_out_count_once() -> None:
    assert covered_share([], (10, 10)) == 0
    assert covered_share([box(0, 0, 4, 9)], (10, 10)) == pytest.approx(0.5)
    assert covered_share([box(0, 0, 4, 9), box(0, 0, 4, 9)], (10, 10)) == pytest.approx(0.5)
    assert covered_share([box(-50, -50, 50, 50)], (10, 10)) == 1


def test_columns_of_what_is_read() -> None:
    filter_ = TextOverlap()
    results = iter(
        [
            SimpleNamespace(txts=("BIG", "SALE"), boxes=np.array([box(0, 0, 9, 4)])),
            SimpleNamespace(txts=None, boxes=None),
        ]
    )
    seen = []

    def reader(array: Any, **options: bool) -> Any:
        seen.append((array[0, 0].tolist(), options))
        return next(results)

    filter_.reader = reader
    images = [Image.new("RGB", (10, 10), (1, 2, 3))] * 2
    scores = filter_.score(Batch(captions=["big sale", "x"], images=images, rows=pa.table({})))
    assert np.asarray(scores["text_overlap"]).tolist() == [1, 0]
    assert np.asarray(scores["text_overlap_area"]).tolist() == [0.5, 0]
    assert scores["text_overlap_text"] == ["BIG SALE", ""]
    assert seen[0] == ([3, 2, 1], {"use_det": True, "use_cls": False, "use_rec": True})


@pytest.mark.slow
@pytest.mark.skipif(find_spec("rapidocr") is None, reason="the extra ocr is not installed")
def test_painted_text_is_read() -> None:
    image = Image.new("RGB", (256, 256), (200, 220, 180))
    font = ImageFont.load_default(24)
    ImageDraw.Draw(image).text((10, 40), "BIG SUMMER SALE", fill=(0, 0, 0), font=font)
    filter_ = TextOverlap()
    assert len(filter_.identity()) == 64
    filter_.setup()
    images = [image, Image.new("RGB", (256, 256), (9, 9, 9))]
    scores = filter_.score(
        Batch(captions=["summer sale", "sale"], images=images, rows=pa.table({}))
    )
    assert np.asarray(scores["text_overlap"]).tolist() == [1, 0]
    areas = np.asarray(scores["text_overlap_area"])
    assert 0.05 < areas[0] < 0.3
    assert areas[1] == 0
