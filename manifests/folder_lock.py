"""One process at a time for a folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from manifests import disk


@contextlib.contextmanager
def locked_folder(path: str, user: str, option: str = "--out") -> Iterator[None]:
    """Hold the lock file `path` while the block runs; `user` is the command that holds it,
    `option` the one that names the folder.

    The kernel gives the lock back when the process ends, however it ends, so a file that was left
    behind locks nothing. A URL is not locked: object stores have no locks. ValueError, with the
    process that holds it, where another one does.
    """
    if disk.is_url(path):
        yield
        return
    file = disk.local_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            raise ValueError(
                f"{file.parent} is in use by {holder}; wait until it has ended, or choose "
                f"another {option}"
            ) from None
        handle.truncate(0)
        handle.write(f"{user}, process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        yield
        handle.truncate(0)
