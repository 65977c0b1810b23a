"""Chunks of stored rows, and images that cannot be decoded."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
from PIL import Image

from clipmill.filters.picture import FRAMES, PIXELS, measure
from clipmill.manifests.layout import CommitRecord, PoolLayout
from clipmill.pipeline.scoring import worker
from tests.support.sidecars import read_sidecar
from tests.support.small_pool import Row, make_pool, rows


def chunks(table: pa.Table, stored: Sequence[int]) -> list[list[int]]:
    return [chunk.tolist() for chunk in worker.chunks_of(table, stored)]


def test_a_chunk_has_few_large_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adopted tars may have images of any size; 512 of them may be in memory."""
    table = pa.table(
        {
            "width": [100, 100, 4000, 5000, 100, None, None],
            "height": [100, 100, 4000, 5000, 100, None, 50],
            "image_length": [1, 1, 1, 1, 1, 10_000_000, 1],
        }
    )
    assert chunks(table, range(7)) == [[0, 1, 2, 3, 4], [5], [6]]
    monkeypatch.setattr(worker, "CHUNK_AREA", 20_000)
    assert chunks(table, range(7)) == [[0, 1], [2], [3], [4], [5], [6]]
    assert chunks(table, [1, 4, 6]) == [[1, 4], [6]]
    assert chunks(table, []) == []


def opened(pool: str) -> tuple[PoolLayout, pa.Table, CommitRecord]:
    layout = PoolLayout(pool)
    return layout, read_sidecar(pool, 0), CommitRecord.read(layout.commit_record(0))


def test_stored_rows_come_with_their_images(tmp_path: Path) -> None:
    given = rows(7)
    given[1] = Row(caption="x", image=b"no picture")
    layout, table, record = opened(make_pool(tmp_path, given))
    assert worker.stored_positions(table).tolist() == [0, 1, 2, 3, 5, 6]
    ((positions, images),) = worker.chunks(layout, table, record)
    assert positions.tolist() == [0, 1, 2, 3, 5, 6]
    assert [image is None for image in images] == [False, True, False, False, False, False]


def jpeg(mode: str = "RGB", **options: Any) -> bytes:
    drawn = np.random.default_rng(0).integers(0, 256, (9, 7, len(mode)), np.uint8)
    smooth = Image.fromarray(drawn.squeeze(), mode).resize((70, 90))
    buffer = io.BytesIO()
    smooth.save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:'mode' parameter")
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGB", {"progressive": True, "quality": 30}),
        ("RGB", {"subsampling": 0}),
        ("RGB", {"keep_rgb": True}),
        ("L", {}),
        ("CMYK", {}),
    ],
)
def test_a_jpeg_has_the_pixels_that_pillow_gives(mode: str, options: dict[str, Any]) -> None:
    data = jpeg(mode, **options)
    image = worker.decode(data, "row 0")
    assert image is not None
    assert image.mode == "RGB"
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(np.asarray(image), np.asarray(expected))


def test_a_jpeg_that_only_pillow_reads_is_read_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg()
    padded = data[:-2] + bytes(200) + data[-2:]  # Pillow skips it, simplejpeg does not
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(padded)
    image = worker.decode(padded, "row 0")
    assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(data))))
    assert worker.decode(data[: len(data) // 2], "row 0") is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses twice as many
    assert worker.decode(data, "row 0") is None


@pytest.mark.parametrize(("kind", "frames"), [("GIF", 3), ("PNG", 3), ("WEBP", 1)])
def test_an_animation_says_how_many_frames_it_has(kind: str, frames: int) -> None:
    images = [Image.new("RGB", (9, 9), (shade, 0, 0)) for shade in (0, 100, 200)]
    buffer = io.BytesIO()
    images[0].save(buffer, kind, save_all=True, append_images=images[1:frames])
    image = worker.decode(buffer.getvalue(), "row 0")
    assert image is not None
    assert image.info.get(FRAMES, 1) == frames
    assert measure(image, detail=True)["picture_frames"] == frames


def test_images_are_prepared_where_they_are_decoded(tmp_path: Path) -> None:
    """With the decoded array, which is for `prepare` only: a filter may draw into an image."""
    given = rows(5)
    given[1] = Row(caption="x", image=b"no picture")
    layout, table, record = opened(make_pool(tmp_path, given))
    prepared: list[tuple[Image.Image, int]] = []

    def prepare(image: Image.Image) -> None:
        assert np.array_equal(getattr(image, PIXELS), np.asarray(image))
        prepared.append((image, threading.get_ident()))

    ((_, images),) = worker.chunks(layout, table, record, [prepare])
    assert {id(image) for image, _ in prepared} == {id(image) for image in images if image}
    assert len(prepared) == 3
    assert all(thread != threading.get_ident() for _, thread in prepared)
    assert not any(hasattr(image, PIXELS) for image in images)


def test_a_tar_of_another_content_is_refused(tmp_path: Path) -> None:
    layout, table, record = opened(make_pool(tmp_path, rows(3)))
    tar = Path(layout.shard_tar(0))
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(ValueError, match=r"shard 00000 is damaged: .*clipmill audit repair "):
        next(worker.chunks(layout, table, record))


def test_a_shard_without_a_stored_row_has_no_chunk(tmp_path: Path) -> None:
    given = [Row(caption="x", reason="dns"), Row(caption="y", reason="dns")]
    layout, table, record = opened(make_pool(tmp_path, given))
    assert list(worker.chunks(layout, table, record)) == []
