"""Tars of a view's own are read where they are of the view as it is, and of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.layout import PoolLayout
from manifests.records import ViewCopyDocument, ViewDocument, read_document
from train.data.view_rows import open_copy, open_view

Make = Callable[..., str]


def document_of(pool: str) -> ViewDocument:
    return read_document(PoolLayout(pool).view_json("all"), ViewDocument)


def write_copy(pool: str, rows: pa.Table, view_hash: str | None = None) -> None:
    """A copy of shard 0: 4 bytes an image."""
    layout = PoolLayout(pool)
    disk.write_bytes(layout.view_copy_tar("all", 0), b"0000111122223333")
    disk.write_parquet(layout.view_copy_sidecar("all", 0), rows)
    document = ViewCopyDocument(
        view_hash=view_hash or disk.content_hash(document_of(pool)), shards=1, rows=4, bytes=16
    )
    disk.write_json(layout.view_copy_json("all"), document, sealed=True)


def rows_of(keys: list[str]) -> pa.Table:
    count = len(keys)
    return pa.table(
        {
            "key": keys,
            "image_offset": pa.array([4 * r for r in range(count)], pa.int64()),
            "image_length": pa.array([4] * count, pa.int64()),
        }
    )


@pytest.fixture
def pool(make_pool: Make, tmp_path: Path) -> str:
    return make_pool(tmp_path / "pool", 8, 1, keep=0.5)


KEYS = ["000000001", "000000003", "000000005", "000000007"]


def test_the_images_come_from_the_copy(pool: str) -> None:
    assert open_copy(pool, document_of(pool)) is None
    before = open_view(pool, "all")
    write_copy(pool, rows_of(KEYS))
    view = open_view(pool, "all")
    assert view.shard(0).keys.to_pylist() == before.shard(0).keys.to_pylist() == KEYS
    assert [view.read_image(0, row) for row in range(4)] == [b"0000", b"1111", b"2222", b"3333"]
    assert (view.shard(0).tokens == before.shard(0).tokens).all()
    view = open_view(pool, "all")
    view.use_copy(False)
    assert view.read_image(0, 2) == before.read_image(0, 2)


def test_a_copy_of_an_earlier_view_is_not_read(pool: str, caplog: pytest.LogCaptureFixture) -> None:
    write_copy(pool, rows_of(KEYS), "0" * 16)
    assert open_copy(pool, document_of(pool)) is None
    assert "are of an earlier view all and are not read" in caplog.text
    assert open_view(pool, "all").read_image(0, 0).startswith(b"\xff\xd8")


def test_a_copy_of_other_rows_or_without_a_file_is_refused(pool: str) -> None:
    write_copy(pool, rows_of(KEYS[:3]))
    with pytest.raises(ValueError, match=r"has other rows than the view keeps; remove .*all\.json"):
        open_view(pool, "all").shard(0)
    disk.remove(PoolLayout(pool).view_copy_sidecar("all", 0))
    message = r"00000\.parquet is missing; remove .* run clipmill filter materialise .* all"
    with pytest.raises(ValueError, match=message):
        open_view(pool, "all").shard(0)
