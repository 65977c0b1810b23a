"""Local files: written whole, synced with their folder, and never over a file unless asked."""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manifests.disk.hashes import file_sha256

# What os.link raises between two file systems, and on one without hard links.
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An OSError of the body that names no file names this one: write and fsync know none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; the entries of new ones are synced."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def partial_path(target: Path) -> Path:
    """Where a file is written before it gets its name. Machines that share a folder may have the
    same process ids.
    """
    return target.with_name(f".{target.name}.partial.{os.getpid()}-{secrets.token_hex(4)}")


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it. OSError where the file did not take all bytes."""
    with naming(path), open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    check_size(path, len(data))


def check_size(path: Path, expected: int) -> None:
    """OSError where a file that was written does not have all its bytes."""
    size = path.stat().st_size
    if size != expected:
        raise OSError(errno.EIO, f"{size} of {expected} bytes were written", str(path))


class CountedFile(io.RawIOBase):
    """A new file that is written once from its beginning, for writers that do not check it.

    OSError on closing where the disk did not take all bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0
        self._file = path.open("wb")  # closed by close()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with naming(self.path):
            written = self._file.write(data)
        self.position += written
        return written

    def tell(self) -> int:
        return self.position

    def close(self) -> None:
        """Close the file and compare its size."""
        if self.closed:
            return
        super().close()
        with naming(self.path):
            self._file.close()
        check_size(self.path, self.position)


def sync_folder(folder: Path) -> None:
    """A new name lasts over a power failure only when its folder is synced too."""
    with naming(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def replace_file(target: Path, data: bytes) -> None:
    """Write a file, in place of one that may be there."""
    make_folder(target.parent)
    partial = partial_path(target)
    try:
        write_synced(partial, data)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(target.parent)


def create_from(source: Path, target: Path) -> None:
    """Give a finished and synced file a name that is new; `source` keeps its own too.

    The same content under that name counts as success; FileExistsError with both hashes where it
    is another one. On a file system without hard links the check and the rename are two steps.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        there, new = file_sha256(target), file_sha256(source)
        if there != new:
            raise conflict(target, there, new) from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        partial = partial_path(target)
        try:
            copy_synced(source, partial)
            if error.errno == errno.EXDEV:
                create_from(partial, target)
            elif not target.exists():
                os.replace(partial, target)
            elif (there := file_sha256(target)) != (new := file_sha256(source)):
                raise conflict(target, there, new)
        finally:
            partial.unlink(missing_ok=True)
    sync_folder(target.parent)


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file and sync the copy. OSError where not all bytes arrived."""
    with naming(target):
        shutil.copyfile(source, target)
    sync_file(target)
    check_size(target, source.stat().st_size)


def sync_file(path: Path) -> None:
    """Wait until the bytes of a finished file are on the disk."""
    with naming(path), open(path, "rb") as f:
        os.fsync(f.fileno())


def conflict(path: str | Path, there: str, new: str) -> FileExistsError:
    """The error for a file that exists with another content."""
    message = f"it exists with another content: sha256 {there}, and {new} was to be written"
    return FileExistsError(errno.EEXIST, message, str(path))


def move_file(source: Path, target: Path) -> None:
    """Move a finished file to its place, in place of one that may be there. OSError where not all
    bytes arrived.
    """
    make_folder(target.parent)
    partial, size = partial_path(target), source.stat().st_size
    try:
        with naming(partial):
            shutil.move(source, partial)  # a copy where the two lie on different filesystems
        sync_file(partial)
        check_size(partial, size)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(target.parent)
