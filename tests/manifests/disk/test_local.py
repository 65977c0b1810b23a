"""Local files: whole, synced, and created only where there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clipmill.manifests import disk
from clipmill.manifests.disk import files


def test_a_file_is_created_once(tmp_path: Path) -> None:
    staged, path = tmp_path / "staged", tmp_path / "new" / "x"
    staged.write_bytes(b"one")
    disk.create_file(staged, path)
    disk.create_file(staged, path)
    assert path.read_bytes() == staged.read_bytes() == b"one"
    staged.unlink()
    staged.write_bytes(b"two")
    with pytest.raises(FileExistsError, match=r"another content: sha256 7692c3ad\w*, and 3fc4ccf"):
        disk.create_file(staged, path)
    assert path.read_bytes() == b"one"
    assert os.listdir(path.parent) == ["x"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.ENOTSUP])
def test_without_hard_links_a_copy_is_created_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    link = os.link

    def fail(source: Path, target: Path) -> None:
        if number == errno.EXDEV and Path(source).parent == Path(target).parent:
            link(source, target)
            return
        raise OSError(number, "no link")

    monkeypatch.setattr(os, "link", fail)
    path = tmp_path / "pool" / "x"
    for name, data in (("a", b"one"), ("same", b"one"), ("b", b"two")):
        (tmp_path / name).write_bytes(data)
    disk.create_file(tmp_path / "a", path)
    disk.create_file(tmp_path / "same", path)
    with pytest.raises(FileExistsError, match="another content"):
        disk.create_file(tmp_path / "b", path)
    assert path.read_bytes() == b"one"
    assert os.listdir(path.parent) == ["x"]


def test_an_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x")
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"), disk.naming(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="'/other'"), disk.naming(path):
        raise OSError(errno.ENOSPC, "No space left on device", "/other")

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "x")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*x\.partial"):
        disk.write_bytes(path, b"1")
    assert os.listdir(tmp_path) == []


def test_a_file_that_did_not_take_all_bytes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def cut(handle: int) -> None:
        fsync(handle)
        if os.fstat(handle).st_size:
            os.ftruncate(handle, 2)

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(OSError, match="2 of 4 bytes were written"):
        disk.write_bytes(tmp_path / "x", b"1234")
    assert not (tmp_path / "x").exists()


def test_a_file_that_is_written_in_pieces_is_checked_when_it_is_closed(tmp_path: Path) -> None:
    with files.CountedFile(tmp_path / "whole") as file:
        assert [file.write(b"12"), file.write(b"345"), file.tell()] == [2, 3, 5]
    assert (tmp_path / "whole").read_bytes() == b"12345"
    file = files.CountedFile(tmp_path / "cut")
    file.write(b"12345")
    file.position += 1  # as if a write had been lost
    with pytest.raises(OSError, match=r"5 of 6 bytes were written: .*cut"):
        file.close()


def test_a_full_disk_is_said_of_a_file_that_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files.CountedFile(tmp_path / "full")
    write = file._file.write

    def cut(data: bytes) -> int:
        write(data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    file.write(b"12")
    monkeypatch.setattr(file, "_file", SimpleNamespace(write=cut, close=file._file.close))
    with pytest.raises(OSError, match=r"No space left on device: .*full"), file:
        file.write(b"34567")
    assert (tmp_path / "full").read_bytes() == b"12345"


def test_a_copy_to_another_file_system_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = tmp_path / "staged"
    staged.write_bytes(b"12345")
    monkeypatch.setattr(files.shutil, "move", lambda _, target: Path(target).write_bytes(b"123"))
    with pytest.raises(OSError, match="3 of 5 bytes were written"):
        disk.publish(staged, tmp_path / "new")
    assert os.listdir(tmp_path) == ["staged"]


def test_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_local_folder", synced.append)
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path / "a", tmp_path]
