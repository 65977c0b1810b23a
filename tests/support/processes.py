"""Processes of a test, found by a mark in their environment, so that no others are touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

MARK = "CLIPMILL_TEST_MARK"


def marked(mark: str, *words: str) -> list[int]:
    """Ids of processes with the mark in their environment and all words in their command line."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and all(word in line for word in words):
            ids.append(int(folder.name))
    return sorted(ids)


def wait_for(mark: str, *words: str, count: int = 1, seconds: float = 900) -> list[int]:
    """The processes, once there are `count`; AssertionError after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if len(ids := marked(mark, *words)) == count:
            return ids
        time.sleep(0.05)
    raise AssertionError(f"not {count} processes with {words}: {marked(mark)}")


def parent_of(process: int) -> int:
    """The id of a process's parent."""
    text = Path(f"/proc/{process}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def is_alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def new_mark() -> str:
    """A mark that no other test has."""
    return f"{os.getpid()}-{time.monotonic_ns()}"
