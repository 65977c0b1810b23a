from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from filters.near_hashes import content_hash, read_images


def image_bytes(shade: int, kind: str = "PNG") -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(sink, kind)
    return sink.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_images_of_folders_tars_and_tables_have_names(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.PNG").write_bytes(image_bytes(10))
    (tmp_path / "notes.txt").write_text("no image")
    write_tar(tmp_path / "shard.tar", {"0.jpg": image_bytes(20, "JPEG"), "0.txt": b"caption"})
    pq.write_table(
        pa.table({"label": [1, 2], "image": [{"bytes": image_bytes(30), "path": "x"}, None]}),
        tmp_path / "test.parquet",
    )
    images = dict(read_images(str(tmp_path)))
    assert list(images) == ["cats/a.PNG", "shard.tar/0.jpg", "test.parquet#0"]
    assert images["test.parquet#0"].getpixel((0, 0)) == (30, 0, 0)
    assert [name for name, _ in read_images(str(tmp_path / "cats" / "a.PNG"))] == ["a.PNG"]


def test_an_image_that_cannot_be_decoded_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "good.png").write_bytes(image_bytes(1))
    with caplog.at_level(logging.WARNING):
        assert [name for name, _ in read_images(str(tmp_path))] == ["good.png"]
    assert "broken.jpg" in caplog.text
    assert "empty.png" in caplog.text


def test_the_hash_is_of_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_bytes(1))
    first = content_hash(str(tmp_path))
    assert content_hash(str(tmp_path)) == first
    (tmp_path / "a.png").write_bytes(image_bytes(2) + b"more")
    assert content_hash(str(tmp_path)) != first


def test_what_has_no_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no pool and has no images"):
        list(read_images(str(tmp_path)))
    pq.write_table(pa.table({"label": [1]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="no column of images"):
        list(read_images(str(tmp_path)))
