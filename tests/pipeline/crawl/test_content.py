"""Changed source files of equal size are noticed; copies of a file pass."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from manifests.schema import Source
from pipeline.crawl import sources
from pipeline.crawl.crawler import crawl
from pipeline.crawl.sources import file_content, is_unchanged


def test_a_changed_file_of_equal_size_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("url,caption\nhttp://p.test/1,a\n")
    source, pool = Source(kind="table", paths=(str(path),)), str(tmp_path / "pool")
    totals = crawl(source, pool, "inline")
    assert crawl(source, pool, "inline") == totals
    shutil.copy(path, tmp_path / "copy")  # the same content at another time
    os.replace(tmp_path / "copy", path)
    assert crawl(source, pool, "inline") == totals
    path.write_text("url,caption\nhttp://p.test/1,b\n")
    with pytest.raises(
        ValueError, match=r"t\.csv has changed since .*/pool/pairs was made of it: b"
    ):
        crawl(source, pool, "inline")


def test_a_part_is_read_again_where_its_file_changed_before_all_were_read(tmp_path: Path) -> None:
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("url,caption\nhttp://p.test/1,a\n")
    two.write_text("url,captions\nhttp://p.test/2,a\n")
    source = Source(kind="table", paths=(str(one), str(two)))
    pool = str(tmp_path / "pool")
    assert list(crawl(source, pool, "inline")["failed"]) == [str(two)]
    one.write_text("url,caption\nhttp://p.test/1,b\n")
    two.write_text("url,caption \nhttp://p.test/2,a\n")
    two.write_text("url,caption\nhttp://p.test/2,a\n")
    crawl(source, pool, "inline")
    from manifests import disk

    assert disk.read_parquet(f"{pool}/pairs/part-00000.parquet")["caption"].to_pylist() == ["b"]


@pytest.mark.parametrize("changed", [0, 5_000, 9_999])
def test_a_large_file_is_hashed_in_spaced_chunks(
    changed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CHUNK", 100)
    monkeypatch.setattr(sources, "WHOLE", 1000)
    data = bytearray(10_000)
    path = tmp_path / "x"
    path.write_bytes(data)
    before = file_content(str(path))
    chunks = [range(start, start + 100) for start in range(0, 10_000, 9_900 // 9)]
    assert len(chunks) == 10
    data[changed] = 1
    path.write_bytes(data)
    os.utime(path, ns=(0, 0))
    assert is_unchanged(str(path), before) == (not any(changed in chunk for chunk in chunks))


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"ETag": '"1"', "size": 3}, {"ETag": '"2"', "size": 3}, False),
        ({"ETag": '"1"', "LastModified": "a"}, {"ETag": '"1"', "LastModified": "b"}, True),
        ({"mtime": 1, "size": 3}, {"mtime": 2, "size": 3}, False),
        ({"size": 3}, {"size": 4}, False),
        ({"size": 3}, {}, True),
        ({}, {"size": 3}, True),
    ],
)
def test_a_remote_file_is_what_its_store_says(
    before: dict[str, Any], now: dict[str, Any], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fsspec.filesystem("memory")
    info = before
    monkeypatch.setattr(type(store), "info", lambda self, path: info)
    old = file_content("memory://x")
    info = now
    assert is_unchanged("memory://x", old) == same


def test_a_store_that_does_not_answer_is_no_reason_to_refuse_a_pool() -> None:
    assert file_content("memory://nothing/here") == {}
    assert is_unchanged("memory://nothing/here", {"size": 3})
