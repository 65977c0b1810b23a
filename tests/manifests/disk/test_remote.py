"""Objects of a store: conditional puts, what an uncertain put is followed by, faults on the way."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clipmill.manifests import disk
from clipmill.manifests.disk import files


class FaultyFileSystem(MemoryFileSystem):
    """A store in memory with a fault at the n-th operation, with or without conditional puts."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: ClassVar[Callable[[str], Exception | None]] = lambda _: None
    conditional: ClassVar[bool] = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("faulty://").strip("/")

    def _step(self, action: Callable[[], Any]) -> Any:
        if error := FaultyFileSystem.fault("before"):
            raise error
        result = action()
        if error := FaultyFileSystem.fault("after"):
            raise error
        return result

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        mode = mode if self.conditional else "overwrite"
        self._step(lambda: super(FaultyFileSystem, self).pipe_file(path, value, mode=mode))

    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes(), mode)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        data: bytes = self._step(lambda: super(FaultyFileSystem, self).cat_file(path, start, end))
        return data


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> type[FaultyFileSystem]:
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.store.clear()
    monkeypatch.setattr(FaultyFileSystem, "fault", lambda _: None)
    monkeypatch.setattr(files, "_conditional", {})
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    return FaultyFileSystem


@pytest.mark.parametrize("conditional", [True, False])
def test_an_object_is_created_once(
    store: type[FaultyFileSystem], monkeypatch: pytest.MonkeyPatch, conditional: bool,
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(store, "conditional", conditional)
    disk.create_bytes("faulty://pool/a", b"one")
    disk.create_bytes("faulty://pool/a", b"one")
    (tmp_path / "x").write_bytes(b"two")
    with pytest.raises(FileExistsError, match=r"another content: sha256 7692c3ad\w*, and 3fc4ccf"):
        disk.create_file(tmp_path / "x", "faulty://pool/a")
    assert disk.read_bytes("faulty://pool/a") == b"one"
    assert disk.list_names("faulty://pool") == ["a"]
    assert list(store.store) == ["/pool/a"]  # nothing of the probe is left
    assert caplog.text.count("has no conditional puts") == (0 if conditional else 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [TimeoutError(), OSError(errno.EBUSY, "SlowDown")])
def test_a_fault_at_every_operation_leaves_one_whole_object(
    store: type[FaultyFileSystem], monkeypatch: pytest.MonkeyPatch, when: str, error: Exception
) -> None:
    for n in itertools.count(1):
        store.store.clear()
        files._conditional.clear()
        calls = itertools.count(1)
        reached = []

        def fault(moment: str, n: int = n, calls: Any = calls, reached: Any = reached) -> Any:
            if moment != when or next(calls) != n:
                return None
            reached.append(n)
            return error

        monkeypatch.setattr(store, "fault", fault)
        disk.create_bytes("faulty://pool/a", b"one")
        disk.replace_bytes("faulty://pool/a", b"two", b"one")
        disk.write_bytes("faulty://pool/b", b"three")
        assert disk.read_bytes("faulty://pool/a") == b"two"
        assert disk.read_bytes("faulty://pool/b") == b"three"
        assert sorted(store.store) == ["/pool/a", "/pool/b"]
        if not reached:
            break
    assert n > 6


def test_a_refusal_where_nothing_is_there_is_asked_again(
    store: type[FaultyFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [FileExistsError("412")] * 2
    disk.create_bytes("faulty://pool/before", b"x")  # after the probe

    put = files._put

    def refusing(*args: Any, **options: Any) -> None:
        if options.get("mode") == "create" and refusals:
            raise refusals.pop()
        put(*args, **options)

    monkeypatch.setattr(files, "_put", refusing)
    disk.create_bytes("faulty://pool/a", b"one")
    assert disk.read_bytes("faulty://pool/a") == b"one"
    refusals += [FileExistsError("412")] * 3
    with pytest.raises(
        OSError, match="refuses the object, though none is there: 'faulty://pool/b'"
    ):
        disk.create_bytes("faulty://pool/b", b"one")


def test_an_object_that_was_cut_is_noticed_before_anything_names_it(
    store: type[FaultyFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = files._put
    monkeypatch.setattr(files, "_put", lambda fs, name, data, **o: put(fs, name, data[:2], **o))
    with pytest.raises(OSError, match="the store has 2 bytes of 5"):
        disk.create_bytes("faulty://pool/a", b"12345")
    monkeypatch.setattr(files, "_put", lambda fs, name, data, **o: put(fs, name, b"x" * 5, **o))
    with pytest.raises(OSError, match="the store has 5 bytes of 5, or other ones"):
        disk.create_bytes("faulty://pool/b", b"12345")


def test_a_replacement_of_something_else_is_refused(store: type[FaultyFileSystem]) -> None:
    disk.write_bytes("faulty://pool/a", b"one")
    with pytest.raises(FileExistsError, match="another content"):
        disk.replace_bytes("faulty://pool/a", b"three", b"two")
    with pytest.raises(FileExistsError, match="sha256 of nothing"):
        disk.replace_bytes("faulty://pool/none", b"three", b"two")
    assert disk.read_bytes("faulty://pool/a") == b"one"


def test_a_protocol_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(ValueError, match=r"gs://b/x cannot be opened: .* the package gcsfs"):
        disk.read_bytes("gs://b/x")


def test_the_etag_of_parts_is_that_of_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PART", 4)
    (tmp_path / "x").write_bytes(b"0123456789")
    assert files._etag(b"0123456", 7) == "124bd1296bec0d9d93c7b52a71ad8d5b"
    assert files._etag(b"0123456789", 10) == files._etag(tmp_path / "x", 10)
    assert files._etag(b"0123456789", 10) == "61e3716e3a7767581863b67c4e785584-3"
    assert files._etag(b"", 0) == "d41d8cd98f00b204e9800998ecf8427e"


def test_a_store_has_as_many_connections_as_a_trainer_has_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3fs = pytest.importorskip("s3fs")
    created: dict[str, object] = {}
    monkeypatch.setattr(
        s3fs.S3FileSystem, "__init__", lambda self, **options: created.update(options)
    )
    monkeypatch.setattr(s3fs.S3FileSystem, "cachable", False)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 2.0}})
    monkeypatch.setattr(files, "_answered", {"s3://bucket"})
    files.filesystem("s3://bucket/key")
    assert created["config_kwargs"] == {"max_pool_connections": 64, "read_timeout": 2.0}
