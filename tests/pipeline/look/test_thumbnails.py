from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from manifests.commits import read_commits
from pipeline.look.page import NoImage, are_current, data_uris, image_bytes, thumbnail
from pipeline.look.survey import Survey, survey_pool
from tests.support import looked, small_pool


def large(width: int = 400, height: int = 200) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(sink, "PNG")
    return sink.getvalue()


def test_a_thumbnail_is_small_and_has_no_metadata() -> None:
    with Image.open(io.BytesIO(thumbnail(large()))) as image:
        assert image.size == (96, 48)
        assert image.format == "JPEG"
        assert not image.getexif()


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff nothing", large()[:60], b"<svg/>"])
def test_what_is_no_image_is_an_error_of_its_own(data: bytes) -> None:
    with pytest.raises(NoImage):
        thumbnail(data)


def test_images_are_those_of_the_rows(survey: Survey) -> None:
    assert image_bytes(survey.rows, 3) == small_pool.jpeg(3)
    uris = data_uris(survey.rows, [3, 2, 3, 0], 10**6)
    assert list(uris) == [3, 2, 0]
    assert uris[2] == "", "the damaged image"
    data = base64.b64decode(uris[3].removeprefix("data:image/jpeg;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (24, 16)
    with pytest.raises(NoImage, match="not stored"):
        image_bytes(survey.rows, 4)


def test_the_bytes_of_all_images_are_bounded(survey: Survey) -> None:
    rows = [row for row in range(60) if survey.rows.stored[row] and row != 2]
    sizes = [len(uri) for uri in data_uris(survey.rows, rows, 10**6).values()]
    most = sum(sizes[:5])
    assert list(data_uris(survey.rows, rows, most)) == rows[:5]
    assert data_uris(survey.rows, rows, 10) == {}


def test_a_replaced_shard_is_not_current(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    rows = survey_pool(pool).rows
    assert are_current(rows, [0])
    record = Path(read_commits(pool).sidecar(0)).with_name("00000_stats.json")
    assert are_current(rows, [0, 1, 1])
    assert not are_current(rows, [1, 7])
    record.unlink()
    assert not are_current(rows, [0])
