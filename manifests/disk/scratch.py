"""Folders for temporary files that do not stay behind a process that was killed."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW_S = 60.0  # a folder this young may be one whose process is about to lock it

_cleaned: set[tuple[Path, str]] = set()


@contextmanager
def scratch_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """A new folder `parent`/`prefix`..., removed at the end.

    parent: without it, the folder for temporary files of this machine. Folders of the same prefix
    there whose processes are gone are removed first, once in a process. A process holds a lock on
    its folder, which the system releases however the process ends.
    """
    home = Path(tempfile.gettempdir() if parent is None else parent)
    if (home, prefix) not in _cleaned:
        _cleaned.add((home, prefix))
        remove_abandoned(home, prefix)
    folder = home / f"{prefix}{secrets.token_hex(8)}"
    folder.mkdir(0o700 if parent is None else 0o777)  # all users write to the first
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: the folder is never taken for left
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned(home: Path, prefix: str) -> list[Path]:
    """Remove the folders of this prefix that no process has locked; those that were removed."""
    removed = []
    with suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # of another user, or removed in the meantime
                    if _remove_if_abandoned(entry):
                        removed.append(home / entry.name)
    return removed


def _remove_if_abandoned(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < NEW_S:
        return False
    lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
    return not os.path.exists(entry.path)
