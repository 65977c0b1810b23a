"""One process at a time for a folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from clipmill.manifests import disk

# What a file system answers that has no locks, such as Lustre that is mounted without `flock`.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
logger = logging.getLogger(__name__)


class FolderInUse(ValueError):
    """Another process holds the lock of a folder: the same command succeeds once it has ended."""


@contextlib.contextmanager
def locked_folder(
    path: str, user: str, option: str = "--out", wait_s: float = 0.0
) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; `user` is the command that holds it,
    `option` the one that names the folder.

    The kernel gives the lock back when the process ends, however it ends, so a file that was left
    behind locks nothing. On a file system of several machines (NFS; Lustre with `flock`) the lock
    is one for all of them, where that file system passes locks on. A URL is not locked: object
    stores have no locks. A file system without locks logs a warning. FolderInUse, with the process
    that holds it, where another one still does after `wait_s` seconds. A folder that was made for
    the lock and is empty at the end is removed.
    """
    if disk.is_url(path):
        yield
        return
    file = disk.local_path(path)
    made: list[Path] = []
    until = time.monotonic() + wait_s
    while True:
        made = [folder for folder in file.parents if not folder.exists()] or made
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a+") as handle:
            if not _lock(handle, file.parent):
                if time.monotonic() < until:
                    time.sleep(0.1)
                    continue
                handle.seek(0)
                holder = handle.read().strip() or "another process"
                raise FolderInUse(
                    f"{file.parent} is in use by {holder}; wait until it has ended, or choose "
                    f"another {option}"
                )
            if not _is_same(handle, file):  # the process that held it has removed it
                continue
            handle.truncate(0)
            handle.write(f"{user}, process {os.getpid()} on {socket.gethostname()}\n")
            handle.flush()
            try:
                yield
            finally:
                handle.truncate(0)
                _remove_empty(file, made)
            return


def _is_same(handle: TextIO, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(file))
    except FileNotFoundError:
        return False


def _remove_empty(file: Path, made: list[Path]) -> None:
    """Remove a lock file from a folder that was made for it and has nothing else, and the folder;
    a command that is refused leaves nothing.
    """
    if not made or os.listdir(file.parent) != [file.name]:
        return
    file.unlink()
    with contextlib.suppress(OSError):  # another process has put something there
        for folder in made:
            folder.rmdir()


def _lock(handle: TextIO, folder: Path) -> bool:
    """Take the lock of an open file; False where another process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        logger.warning(
            "%s is on a file system without locks (%s): start one command at a time for it",
            folder,
            error.strerror,
        )
    return True
