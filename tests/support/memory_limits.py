"""A memory limit of a whole process tree: a control group of Linux, where one may be made."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A group of processes that has so much memory together. The kernel kills one beyond that."""

    folder: Path

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line that runs `words` in the group."""
        enter = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return ["sh", "-c", enter, "sh", *words]

    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        for name in ("memory.oom_control", "memory.events"):
            path = self.folder / name
            if path.exists():
                for line in path.read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        raise AssertionError("the group does not count its kills")


def _own_folder() -> tuple[Path, str] | None:
    """Where groups of memory can be made, and the file of the limit."""
    if (ROOT / "memory" / "memory.limit_in_bytes").exists():  # version 1
        return ROOT / "memory", "memory.limit_in_bytes"
    subtree = ROOT / "cgroup.subtree_control"
    if subtree.exists() and "memory" in subtree.read_text().split():
        return ROOT, "memory.max"
    return None


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup | None]:
    """A new group with a limit in bytes; None where this process may not make one."""
    where = _own_folder()
    if where is None:
        yield None
        return
    folder = where[0] / f"clipmill-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
        (folder / where[1]).write_text(str(limit))
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield MemoryGroup(folder)
    finally:
        until = time.monotonic() + 900
        while folder.exists():
            with contextlib.suppress(OSError):  # EBUSY until its last process has ended
                folder.rmdir()
                break
            assert time.monotonic() < until, (folder / "cgroup.procs").read_text()
            time.sleep(0.1)
