"""Processes that are killed, or get an error, at the n-th operation on a file.

They are forked from a server without threads that has imported everything: a few milliseconds each.
An operation is a write to a file, an fsync, link, rename, unlink or mkdir.
"""

from __future__ import annotations

import builtins
import errno
import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "tests.support.five_rows"])
OPERATIONS = ("fsync", "link", "replace", "rename", "unlink", "mkdir")
# short_write: a write takes half of its bytes and says so. lost_write: it says it took all.
FAULTS = ("EIO", "ENOSPC", "short_write", "lost_write")
KILLS = ("kill_before", "kill_after")
_open = builtins.open
_real = {name: getattr(os, name) for name in OPERATIONS}


class Operations:
    """Counts the operations of a process and makes the n-th one end in `how`."""

    def __init__(self, n: int, how: str) -> None:
        self.n, self.how, self.count = n, how, 0

    def step(self, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.count += 1
        if self.count != self.n:
            return real(*args, **options)
        if self.how in ("EIO", "ENOSPC"):
            number = getattr(errno, self.how)
            if args and isinstance(args[0], (str, Path)):  # as the operating system does
                raise OSError(number, os.strerror(number), str(args[0]))
            raise OSError(number, os.strerror(number))
        if self.how == "kill_before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return real(*args, **options)
        finally:
            if self.how == "kill_after":
                os.kill(os.getpid(), signal.SIGKILL)


class WatchedFile(io.FileIO):
    """A file whose writes are operations."""

    operations: Operations

    def write(self, data: Any) -> int:
        return int(self.operations.step(self._write, data))

    def _write(self, data: Any) -> int:
        operations = self.operations
        if operations.count == operations.n and operations.how in ("short_write", "lost_write"):
            half = max(1, len(data) // 2)
            super().write(bytes(data[:half]))
            return half if operations.how == "short_write" else len(data)
        return super().write(data)


@contextmanager
def watched(operations: Operations) -> Iterator[None]:
    """Count what this process does to files."""

    def counted(name: str) -> Callable[..., Any]:
        return lambda *args, **options: operations.step(_real[name], *args, **options)

    def open_file(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode != "wb" or str(path).endswith(".lock"):
            return _open(path, mode, *args, **options)
        file = WatchedFile(path, "w")
        file.operations = operations
        return io.BufferedWriter(file)

    for name in OPERATIONS:
        setattr(os, name, counted(name))
    builtins.open = open_file  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in OPERATIONS:
            setattr(os, name, _real[name])
        builtins.open = _open


def start_child(function: Callable[..., Any], *args: Any) -> Any:
    """A process that calls a function of a module. The server finds the modules that it imports in
    advance by PYTHONPATH only.
    """
    process = PROCESSES.Process(target=function, args=args)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        process.start()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return process


def run_in_child(
    n: int, how: str, folder: Path, function: Callable[..., Any], *args: Any
) -> tuple[str, int]:
    """What became of a call in a process: `done`, `killed` or its error, and how many operations
    it made.
    """
    report = folder / f"report-{how}-{n}"
    process = start_child(_call, n, how, str(report), function, args)
    process.join(60)
    assert process.exitcode is not None, f"operation {n} ({how}): it hangs"
    if process.exitcode == -signal.SIGKILL:
        return "killed", n
    assert process.exitcode == 0, f"operation {n} ({how}): exit code {process.exitcode}"
    count, _, outcome = report.read_text().partition(" ")
    return outcome, int(count)


def _call(
    n: int, how: str, report: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    operations = Operations(n, how)
    outcome = "done"
    try:
        with watched(operations):
            function(*args)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    with _open(report, "w") as f:
        f.write(f"{operations.count} {outcome}")
