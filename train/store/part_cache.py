"""Parts of remote tars in a folder on this machine, shared by its ranks and by later runs.

A part is a file that appears under its name as a whole (written beside it, then renamed), so ranks
need no lock: two that want the same part at once both fetch it, and the second rename changes
nothing. Its name is a hash of what it must hold; its head has the length and the CRC-32 of its
content, which are compared when a process opens it. A file that does not fit is removed and fetched
again. Where the disk takes no more, the cache is off for the rest of the run, with one warning.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from manifests import disk

HEAD = struct.Struct("<8sIQ")  # magic, CRC-32 and length of the content
MAGIC = b"clipmil1"
ENDING = ".part"
OPEN_PARTS = 256  # files of a process
# A process looks at the sizes of all parts after it has written so much of the limit: ranks of a
# node that do so at once go above the limit by this share each.
SHARE_BETWEEN_SCANS = 1 / 64
KEPT_SHARE = 0.9  # of the limit, after parts were removed
UNFINISHED_S = 3600.0  # a file that is still unfinished after so long was left by a killed process
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
logger = logging.getLogger(__name__)


class Part:
    """An open part. It closes with its last reference: a part that another process removes can
    still be read."""

    __slots__ = ("_handle", "file", "length")

    def __init__(self, path: Path, verified: int | None = None) -> None:
        """verified: inode of a file whose checksum need not be compared again. ValueError for a
        damaged file, FileNotFoundError where there is none.
        """
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        head = os.pread(self._handle, HEAD.size, 0)
        if len(head) != HEAD.size:
            raise ValueError("its head is not complete")
        magic, checksum, self.length = HEAD.unpack(head)
        status = os.fstat(self._handle)
        self.file, size = status.st_ino, status.st_size - HEAD.size
        if magic != MAGIC or size != self.length:
            raise ValueError(f"it has {size} bytes of content and should have {self.length}")
        if self.file != verified and zlib.crc32(self.read(0, self.length)) != checksum:
            raise ValueError("its checksum is another one")

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the content, fewer at its end."""
        return os.pread(self._handle, length, HEAD.size + start)


class PartCache:
    """`open(name)` gives a part that is there, `add(name, data)` writes one.

    limit: bytes that all parts together may have. The parts whose last use is longest ago are
    removed first. ValueError where nothing can be written to the folder.
    """

    def __init__(self, folder: str, limit: int) -> None:
        if disk.is_url(folder):
            raise ValueError(f"the cache folder {folder!r} is a URL; name a folder of a local disk")
        self.folder = Path(disk.output_folder(folder, "read_cache"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.limit = limit
        self.is_on = True
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Part] = OrderedDict()
        self._verified: dict[str, int] = {}  # inode of the file whose checksum was compared
        self._written = 0  # since the last scan
        self.remove_old()  # the limit may have been higher

    def has(self, name: str) -> bool:
        """Whether a part is there; it may be damaged."""
        with self._lock:
            if name in self._open:
                return True
        return self._path(name).exists()

    def open(self, name: str) -> Part | None:
        """A part, or None where it is not there or is damaged."""
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
                return self._open[name]
        path = self._path(name)
        try:
            part = Part(path, self._verified.get(name))
            os.utime(path)  # the time of its last use
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("%s is damaged and is fetched again: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with self._lock:
            self._open[name] = part
            self._verified[name] = part.file
            while len(self._open) > OPEN_PARTS:
                self._open.popitem(last=False)
        return part

    def fetch(self, name: str, read: Callable[[], bytes]) -> Part | None:
        """A part that is there, or else is made of what `read()` gives. None where the disk takes
        no more."""
        part = self.open(name)
        if part is None and self.is_on:
            self.add(name, read())
            part = self.open(name)
        return part

    def add(self, name: str, data: bytes) -> None:
        """Write a part. A full disk turns the cache off."""
        path = self._path(name)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as f:
                f.write(HEAD.pack(MAGIC, zlib.crc32(data), len(data)))
                f.write(data)
            partial.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self._turn_off(error)
            return
        with self._lock:
            self._written += len(data)
            is_due = self._written >= self.limit * SHARE_BETWEEN_SCANS
            self._written = 0 if is_due else self._written
        if is_due:
            self.remove_old()

    def remove_old(self) -> None:
        """Remove the parts that were used longest ago, where all together exceed the limit."""
        parts: list[tuple[float, int, str]] = []
        try:
            for folder in self.folder.iterdir():
                with contextlib.suppress(NotADirectoryError, FileNotFoundError):
                    parts += _parts_in(folder)
        except OSError as error:
            self._turn_off(error)
            return
        total = sum(size for _, size, _ in parts)
        if total <= self.limit:
            return
        for _, size, path in sorted(parts):
            with contextlib.suppress(FileNotFoundError):  # another rank removed it
                os.unlink(path)
            total -= size
            if total <= KEPT_SHARE * self.limit:
                return

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{ENDING}"

    def _turn_off(self, error: OSError) -> None:
        with self._lock:
            was_on, self.is_on = self.is_on, False
        if was_on:
            reason = "the disk is full" if error.errno in FULL_DISK else str(error)
            logger.warning(
                "the cache in %s takes no more (%s): images are read from their store",
                self.folder,
                reason,
            )


def _parts_in(folder: Path) -> list[tuple[float, int, str]]:
    """(time of the last use, bytes, path) of the parts in a folder; what killed processes left is
    removed."""
    parts = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
                if entry.name.endswith(ENDING):
                    parts.append((status.st_mtime, status.st_size, entry.path))
                elif entry.name.startswith(".") and time.time() - status.st_mtime > UNFINISHED_S:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue
    return parts
