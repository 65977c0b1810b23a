"""Files in and out: what is written is whole, and behaves the same locally and by URL."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from manifests import disk
from manifests.schema import Blend


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


def test_hashes_are_pinned() -> None:
    assert disk.uid_of("http://a/b.jpg", "a cat") == "f89428b805e63d706f158e1dc5842bb0"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == "94a786c3662b"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == disk.content_hash({"a": (1, 2), "b": 1})
    assert len(disk.uid_of("u", "c")) == 32
    assert disk.uid_of("ab", "c") != disk.uid_of("a", "bc")


def test_a_relative_folder_under_a_submitted_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runtime_resources" / "working_dir_files"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="lost with the job; give an absolute path"):
        disk.output_folder("out")
    assert disk.output_folder("/abs/out") == "/abs/out"
    assert disk.output_folder("s3://bucket/out") == "s3://bucket/out"
    monkeypatch.chdir(tmp_path)
    assert disk.output_folder("out") == str(tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--to is '/proc/a/b', but nothing .* to /proc \(No such"):
        disk.output_folder("/proc/a/b", "--to")  # os.access says that root may write there
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"--out is .*/file/x', but .*/file is a file"):
        disk.output_folder(str(tmp_path / "file" / "x"))
    assert disk.output_folder(str(tmp_path / "new" / "er")) == str(tmp_path / "new" / "er")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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


def test_text_from_the_web_never_fails_a_document(tmp_path: Path) -> None:
    document = {"content_type": "text/html; caf\udce9", "title\ud800": ["x\udfff"]}
    disk.write_json(tmp_path / "d.json", document)
    assert disk.read_json(tmp_path / "d.json") == {
        "content_type": "text/html; café",
        "title\ufffd": ["x\ufffd"],
    }
    disk.write_parquet(tmp_path / "t.parquet", pa.table({"a": [1]}), {"text": "\ud800"})
    assert disk.read_parquet(tmp_path / "t.parquet").num_rows == 1


def test_hashes_take_any_text() -> None:
    assert disk.uid_of("http://a/\udce9", "\ud800") != disk.uid_of("http://a/\ufffd", "\ufffd")
    assert disk.content_hash(["\ud800"]) != disk.content_hash(["\ufffd"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "Blend is 5; it must be a mapping"),
        ({"name": "b", "pools": {"w": "x"}}, "Blend has no value for 'views'"),
        ({"name": "b", "poools": {}, "views": {}}, "did you mean 'pools'?"),
    ],
)
def test_a_document_that_is_no_dataclass(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        disk.from_plain(Blend, value)
