"""Local paths and URLs as text; the folder that a command writes to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def join(root: str | Path, *parts: str) -> str:
    """`root` with `parts` appended, for local paths and URLs alike."""
    return "/".join([str(root).rstrip("/"), *parts])


def is_url(path: str | Path) -> bool:
    """True for s3://…, memory://… and the like; False for local paths and file://…."""
    return "://" in str(path) and not str(path).startswith("file://")


def local_path(path: str | Path) -> Path:
    """A local path without its file:// prefix."""
    return Path(str(path).removeprefix("file://"))


def output_folder(out: str, option: str = "--out") -> str:
    """The absolute folder to write to; `option` is what the message names.

    ValueError where nothing can be written, which is tried in the nearest folder that exists, and
    where the folder would be lost: under `ray job submit` a relative one would lie in Ray's
    temporary copy of the checkout.
    """
    if is_url(out):
        return out
    if not Path(out).is_absolute() and "runtime_resources" in Path.cwd().parts:
        raise ValueError(
            f"{option} is {out!r}: under a submitted working directory a relative folder lies in "
            "Ray's temporary copy and is lost with the job; "
            "give an absolute path or set CLIPMILL_OUT"
        )
    folder = Path(os.path.abspath(local_path(out)))
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise ValueError(f"{option} is {out!r}, but {there} is a file; name a folder")
    # os.access says yes to root for /proc and for read-only mounts. The file has no name where the
    # file system can do that, so that a killed command leaves none.
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} is {out!r}, but nothing can be written to {there} ({error.strerror}); "
            "name another folder"
        ) from None
    return str(folder)
