"""Files in and out: what is written is whole, and behaves the same locally and by URL."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clipmill.manifests import disk


@pytest.mark.parametrize("root", ["local", "memory://pool"])
def test_files_behave_the_same_locally_and_by_url(tmp_path: Path, root: str) -> None:
    pool = str(tmp_path) if root == "local" else root
    path = disk.join(pool, "shards", "00000.bin")
    disk.write_bytes(path, b"0123456789")
    assert disk.read_bytes(path) == b"0123456789"
    assert disk.read_bytes(path, 3, 4) == b"3456"
    assert disk.list_names(disk.join(pool, "shards"), ".bin") == ["00000.bin"]
    assert disk.list_names(disk.join(pool, "nothing")) == []
    table = pa.table({"uid": ["a", "b"]})
    disk.write_parquet(disk.join(pool, "t.parquet"), table, {"count": 2})
    assert disk.read_parquet(disk.join(pool, "t.parquet")).equals(table)
    assert disk.read_metadata(disk.join(pool, "t.parquet")) == {"count": 2}
    disk.remove(path)
    disk.remove(path)
    assert not disk.exists(path)


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_staged_file_is_published_whole_and_read_in_part(tmp_path: Path, scheme: str) -> None:
    staged, path = tmp_path / "staged.parquet", f"{scheme}{tmp_path}/pool/x.parquet"
    schema = disk.with_metadata(pa.schema([("shard", pa.int32())]), {"rows": 4})
    with pq.ParquetWriter(staged, schema) as writer:
        for shard in (0, 1):
            writer.write_table(pa.table({"shard": pa.array([shard] * 2, pa.int32())}).cast(schema))
    disk.publish(staged, path)
    assert disk.read_metadata(path) == {"rows": 4}
    assert disk.read_parquet(path, ["shard"], where=[("shard", "=", 1)])["shard"].to_pylist() == [
        1,
        1,
    ]
    assert disk.list_names(f"{scheme}{tmp_path}/pool") == ["x.parquet"]
    with pytest.raises(FileNotFoundError):
        disk.publish(tmp_path / "none", path)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    disk.write_json(path, {"n": 1})

    def fail(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        disk.write_json(path, {"n": 2})
    assert disk.read_json(path) == {"n": 1}
    assert disk.list_names(tmp_path) == ["record.json"]


class CachingFileSystem(MemoryFileSystem):
    """A filesystem whose instances remember listings, as s3fs does."""

    protocol = "caching"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("caching://").strip("/")

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True)
        entries = self.dircache.get(path) or super().ls(path, detail=True)
        return entries if detail else [entry["name"] for entry in entries]


def test_a_listing_shows_what_other_processes_wrote() -> None:
    fsspec.register_implementation("caching", CachingFileSystem, clobber=True)
    disk.write_bytes("caching://pool/a", b"1")
    assert disk.list_names("caching://pool") == ["a"]
    CachingFileSystem(other_process=True).pipe_file("/pool/b", b"2")
    assert disk.list_names("caching://pool") == ["a", "b"]
    assert disk.exists("caching://pool/b")


@pytest.mark.parametrize("scheme", ["", "memory://hashes"])
def test_the_hash_of_a_file_is_of_its_present_bytes(tmp_path: Path, scheme: str) -> None:
    path = disk.join(scheme or str(tmp_path), "weights")
    disk.write_bytes(path, b"one")
    first = disk.sha256_of(path)
    assert first == disk.sha256_of(path) == hashlib.sha256(b"one").hexdigest()
    disk.write_bytes(path, b"two")  # of the same length
    assert disk.sha256_of(path) == hashlib.sha256(b"two").hexdigest()
    disk.remove(path)
    with pytest.raises(FileNotFoundError):
        disk.sha256_of(path)
