"""Values that follow from the pixels, and a hash that survives a copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageDraw, ImageFilter

from clipmill.filters import make
from clipmill.filters.base import Batch, set_id
from clipmill.filters.picture import FRAMES, Picture, laplacian_variance, measure
from clipmill.manifests.hashes import pdq, phash
from clipmill.manifests.schema import FilterSpec
from tests.support.late import fft


def drawing(seed: int, size: int = 200) -> Image.Image:
    """Some ellipses on a gradient."""
    random = np.random.default_rng(seed)
    ramp = np.linspace(0, random.integers(60, 255), size).astype(np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp[:, None, None], (size, size, 3)).copy())
    for _ in range(8):
        x, y, w, h = (int(v) for v in random.integers(10, size // 2, 4))
        ImageDraw.Draw(image).ellipse(
            (x, y, x + w, y + h), fill=tuple(int(v) for v in random.integers(0, 255, 3))
        )
    return image


def test_a_blank_and_a_chequerboard() -> None:
    blank = measure(Image.new("RGB", (40, 30), (255, 0, 0)))
    assert blank["brightness"] == pytest.approx(76 / 255)  # 0.299 of 255, as Pillow rounds it
    assert (blank["contrast"], blank["entropy"], blank["edges"], blank["colour"]) == (0, 0, 0, 1)
    squares = np.indices((64, 64)).sum(0) % 2 * 255
    board = measure(Image.fromarray(np.repeat(squares[..., None], 3, 2).astype(np.uint8)))
    assert board["brightness"] == board["contrast"] == 0.5
    assert (board["entropy"], board["edges"], board["colour"]) == (1, 1, 0)


def test_the_hash_is_the_one_that_its_definition_gives() -> None:
    image = drawing(2)
    luma = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), np.float64)
    low = fft.dct(fft.dct(luma, axis=0), axis=1)[:8, :8]
    bits = "".join("1" if value > np.median(low) else "0" for value in low.ravel())
    assert phash(image) % 2**64 == int(bits, 2)


def test_the_laplacian_is_that_of_the_definition() -> None:
    luma = np.random.default_rng(0).integers(0, 256, (17, 23)).astype(np.int16)
    values = []
    for y in range(1, 16):
        for x in range(1, 22):
            around = luma[y - 1, x] + luma[y + 1, x] + luma[y, x - 1] + luma[y, x + 1]
            values.append(int(around) - 4 * int(luma[y, x]))
    assert laplacian_variance(luma) == pytest.approx(np.var(values))
    assert laplacian_variance(luma[:2]) == 0


def test_a_blurred_and_a_plain_image_and_an_animation() -> None:
    image = drawing(5)
    sharp, blurred = (
        measure(each, detail=True) for each in (image, image.filter(ImageFilter.GaussianBlur(3)))
    )
    assert blurred["picture_sharpness"] < sharp["picture_sharpness"] / 10
    blank = Image.new("RGB", (50, 50), (7, 7, 7))
    blank.putpixel((3, 3), (255, 255, 255))
    assert measure(blank, detail=True)["picture_uniform"] == pytest.approx(1 - 1 / 2500)
    assert measure(blank, detail=True)["picture_frames"] == 1
    blank.info[FRAMES] = 5
    assert measure(blank, detail=True)["picture_frames"] == 5


def test_detail_adds_columns_and_changes_the_id() -> None:
    plain, detailed = Picture(), Picture(detail=True)
    assert set(detailed.columns()) - set(plain.columns()) == {
        "picture_sharpness", "picture_uniform", "picture_frames",
    }  # fmt: skip
    assert set_id(plain) != set_id(detailed)
    batch = Batch(captions=[""], images=[drawing(3)], rows=pa.table({}))
    assert plain.score(batch).keys() == plain.columns().keys()
    assert detailed.score(batch).keys() == detailed.columns().keys()


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
