"""What the content of a file is: all of its bytes, and never its name, size or times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from clipmill.manifests import content
from clipmill.manifests.content import (
    content_digest,
    file_content,
    file_stamp,
    has_stamp,
    is_unchanged,
)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are settled at once."""
    monkeypatch.setattr(content, "SETTLED_NS", -1_000_000_000)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for what is remembered, and nothing from other tests in memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content._settled_digest.cache_clear()
    return tmp_path / "cache"


@pytest.mark.parametrize("size", [1, 10_000, (3 << 20) + 7])
def test_one_byte_anywhere_is_another_content(size: int, tmp_path: Path, settled: None) -> None:
    path, data = tmp_path / "x", bytearray(size)
    path.write_bytes(data)
    before, times = file_content(str(path)), os.stat(path)
    for place in {0, size // 3, size - 1}:
        data[place] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as rsync -t leaves it
        assert not is_unchanged(str(path), before)
        data[place] ^= 1
    path.write_bytes(data)
    assert is_unchanged(str(path), before)
    path.rename(tmp_path / "y")
    assert is_unchanged(str(tmp_path / "y"), before), "a name is no content"


def test_a_file_that_changed_just_now_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    stamp = file_stamp(str(path))
    assert "mtime_ns" not in stamp
    assert not has_stamp(str(path), stamp), "another write may come within the same tick"
    assert is_unchanged(str(path), file_content(str(path)))


def test_a_large_file_is_read_once(
    tmp_path: Path, cache: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "REMEMBERED", 3)
    path = tmp_path / "x"
    path.write_bytes(b"large")
    digest = content_digest(str(path))
    content._settled_digest.cache_clear()  # as another process begins
    monkeypatch.setattr(content, "_digest_of_file", lambda local: pytest.fail("it was read again"))
    assert content_digest(str(path)) == digest
    monkeypatch.undo()
    for kept in (cache / "clipmill" / "content").iterdir():
        kept.write_text("cut")
    content._settled_digest.cache_clear()
    assert content_digest(str(path)) == digest, "what is damaged there is read from the file"


def test_without_a_home_the_file_is_read(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "REMEMBERED", 3)
    (tmp_path / "a file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    path = tmp_path / "x"
    path.write_bytes(b"large")
    assert len(content_digest(str(path))) == 32


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"ETag": '"1"', "size": 3}, {"ETag": '"2"', "size": 3}, False),
        ({"ETag": '"1"', "size": 3}, {"ETag": '"1"', "size": 4}, False),
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


def test_a_remote_file_without_a_mark_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/marked", b"one")
    monkeypatch.setattr(type(store), "info", lambda self, path, **_: {"size": 3, "name": path})
    before = content_digest("memory://marked")
    store.store["/marked"].seek(0)
    store.store["/marked"].write(b"two")
    assert content_digest("memory://marked") != before
