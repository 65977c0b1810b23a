"""Commands in children of one process that has imported everything: some milliseconds each.

`with CommandServer() as server: server.run(function, …)`. The functions are those of a module; they
run in a child of the server, which has no threads.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.support import file_calls
from tests.support.file_calls import HANG_S, Watched

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "clipmill.commands.build",
    "clipmill.commands.pool",
    "clipmill.commands.audit",
    "clipmill.train.parallel.checkpoint",
    "PIL.JpegImagePlugin",
    "tests.support.chaos_pools",
    "tests.support.chaos_runs",
)
START = """
import sys
from multiprocessing.connection import Connection
from tests.support import forked_commands
forked_commands.serve(Connection(int(sys.argv[1])))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a child did."""

    value: Any  # what the function returned; None where it did not
    watched: Watched
    output: str  # the end of what it printed


class CommandServer:
    """A process that forks a child for each call."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def __enter__(self) -> CommandServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        try:
            self._process.wait(900)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The value of a call. AssertionError with its output where it fails or hangs."""
        ended = self._ask(function, args, None)
        assert ended.watched.outcome == "exit 0", f"{ended.watched.outcome}: {ended.output}"
        return ended.value

    def watch(
        self, folder: Path, n: int, how: str, function: Callable[..., Any], *args: Any
    ) -> Ended:
        """A call whose n-th change of a file below `folder` ends in `how`."""
        return self._ask(function, args, (str(folder), n, how))

    def try_to(self, function: Callable[..., Any], *args: Any) -> Ended:
        """What became of a call that somebody else may kill."""
        return self._ask(function, args, None)

    def _ask(self, function: Callable[..., Any], args: tuple[Any, ...], point: Any) -> Ended:
        self._connection.send((function.__module__, function.__qualname__, args, point))
        assert self._connection.poll(2 * HANG_S), "the server does not answer"
        ended = self._connection.recv()
        assert isinstance(ended, Ended)
        return ended


def serve(connection: Connection) -> None:
    """Answer until the connection is closed."""
    for name in IMPORTED:
        importlib.import_module(name)
    while True:
        try:
            module, name, args, point = connection.recv()
        except EOFError:
            return
        function = getattr(importlib.import_module(module), name)
        with tempfile.TemporaryDirectory(prefix="clipmill-forked-") as folder:
            ended = _call(function, args, point, Path(folder))
        try:
            connection.send(ended)
        except BrokenPipeError:  # the test was stopped
            return


def _call(function: Callable[..., Any], args: Any, point: Any, folder: Path) -> Ended:
    log, result = folder / "log", folder / "result"

    def body() -> None:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        try:
            value = function(*args)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        result.write_bytes(pickle.dumps(value))

    watched = file_calls.watch(body, *point) if point else _run(body)
    output = log.read_text(errors="replace") if log.exists() else ""
    value = pickle.loads(result.read_bytes()) if result.exists() else None
    return Ended(value, watched, output[-4000:])


def _run(body: Callable[[], None]) -> Watched:
    """Run a function in a child that nobody watches."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    ends = time.monotonic() + HANG_S
    handle = os.pidfd_open(process)
    try:
        ended = file_calls.wait_for_end(handle, ends)
    finally:
        os.close(handle)
    if not ended:
        os.kill(process, 9)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return Watched(outcome=f"exit {code}" if ended else "hangs")
