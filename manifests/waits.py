"""Waits that do not end: what each thread does and since when, whether a process shows a sign of
life, and for how long it has shown none.

A trainer and a build use it: a line after a minute, further ones after twice as long each, an end
after a limit. It imports the standard library and `console` only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import NoReturn

from clipmill import OWN
from clipmill.manifests import console
from clipmill.manifests.text import printable

LOOK_S = 1.0
# Of the time between two looks this counts as waited: a process that was stopped and goes on has
# not waited.
MOST_S = 10.0
LINE_S = 60.0  # until the first line
LIMIT_S = 1800.0
# A process that in WINDOW_S uses less CPU than this and moves fewer bytes shows no sign of life. A
# worker of Ray that does nothing and is asked every 5 s uses 0.6 s.
WINDOW_S = 60.0
CPU_S = 3.0
MOVED_BYTES = 2**20
TCP_BYTES = struct.Struct("120x2Q")  # of Linux's tcp_info: bytes_acked, bytes_received
logger = logging.getLogger(__name__)

# --------------------------------------------------------------------------------------------------
# What the threads of this process do.


_now: dict[int, tuple[float, str]] = {}  # thread -> since when, what
_begun = _ended = 0


class doing:
    """`with doing("image 7 in web.tar"):` names what this thread does. It takes 2 µs."""

    __slots__ = ("_outer", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        global _begun
        _begun += 1
        thread = threading.get_ident()
        self._outer = _now.get(thread)
        _now[thread] = (time.monotonic(), self._what)

    def __exit__(self, *_: object) -> None:
        global _ended
        _ended += 1  # threads may lose one: only whether it changes is asked
        if self._outer is None:
            del _now[threading.get_ident()]
        else:
            _now[threading.get_ident()] = self._outer


def begun_and_ended() -> tuple[int, int]:
    """Two numbers that grow when something begins, or ends, that has a name."""
    return _begun, _ended


def longest() -> str | None:
    """What two threads do that have done it longest, and where; None where nothing is named."""
    under_way = sorted((since, thread, what) for thread, (since, what) in _now.copy().items())
    texts = [f"{what} ({where(thread)})" for _, thread, what in under_way[:2]]
    return "; ".join(texts) or None


def where(thread: int | None = None) -> str:
    """The line of ours that a thread runs, by default the main one: `store.py:153 in _get`."""
    frame = sys._current_frames().get(thread or threading.main_thread().ident or 0)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(OWN) and "site-packages" not in path[len(OWN) :]:
            return f"{os.path.basename(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "outside of clipmill"


# --------------------------------------------------------------------------------------------------
# Signs of life, and for how long there was none.


class Life:
    """Whether this process and its children compute, read or write."""

    def __init__(self) -> None:
        self._mark = 0
        self._since, self._before = time.monotonic(), (0.0, 0, 0.0, 0)

    def look(self) -> int:
        """A number that grows with each sign of life."""
        own = time.process_time(), _bytes_of_files()
        window_is_over = time.monotonic() - self._since >= WINDOW_S
        # The others cost a millisecond.
        others = (_cpu_of_children(), _bytes_of_sockets()) if window_is_over else self._before[2:]
        now = (*own, *others)
        changes = [abs(new - old) for new, old in zip(now, self._before, strict=True)]
        is_alive = changes[0] + changes[2] >= CPU_S or changes[1] + changes[3] >= MOVED_BYTES
        self._mark += is_alive
        if is_alive or window_is_over:
            self._since, self._before = time.monotonic(), now
        return self._mark


def _bytes_of_files() -> int:
    """Bytes that this process has read from files and pipes and written to them."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io") as f:
        return sum(int(line.split()[1]) for line in f.readlines()[:2])
    return 0


def _bytes_of_sockets() -> int:
    """Bytes that came or went through the TCP connections that are open."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, struct.error):
            # Only sockets: to close a copy of a file's handle would give back its locks.
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as s:
                    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += sum(TCP_BYTES.unpack_from(info))
    return total


def _cpu_of_children() -> float:
    """Seconds of CPU of the processes that this one has started, and of theirs."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as f:
            fields = f.read().rpartition(")")[2].split()  # from the state on
            parents[int(name)] = int(fields[1])
            ticks[int(name)] = int(fields[11]) + int(fields[12])
    ours, count = {os.getpid()}, 0
    while len(ours) > count:
        count = len(ours)
        ours |= {child for child, parent in parents.items() if parent in ours}
    return sum(ticks.get(child, 0) for child in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


class Stillness:
    """For how many seconds a sign of progress has not changed."""

    def __init__(
        self,
        limit_s: float,
        most_s: float = MOST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """limit_s: after which it is over. A limit below four minutes has its first line earlier,
        too. most_s: of the time between two looks that counts as waited."""
        self.limit_s, self.seconds = limit_s, 0.0
        self._most_s, self._clock, self._looked = most_s, clock, clock()
        self.first_s = self._line_s = min(LINE_S, limit_s / 4)
        self._sign: Hashable = None

    def look(self, sign: Hashable) -> None:
        """Take up the sign of this moment."""
        now = self._clock()
        self.seconds += min(now - self._looked, self._most_s)
        self._looked = now
        if sign != self._sign:
            self._sign, self.seconds, self._line_s = sign, 0.0, self.first_s

    def is_line_due(self) -> bool:
        """Whether it is time for a line; the next one is due after twice as long."""
        if self.seconds < self._line_s:
            return False
        self._line_s = 2 * self.seconds
        return True

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.seconds >= self.limit_s


class Interrupted(Exception):
    """The call of a guest was interrupted: its waits are not watched any more."""


@contextlib.contextmanager
def watched(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every second in a thread of its own while the block runs."""

    def failed(error: Exception) -> None:
        if not isinstance(error, Interrupted):
            logger.error("waits are not watched any more; the work goes on", exc_info=error)

    with repeated(look, LOOK_S, "waits", failed):
        yield


@contextlib.contextmanager
def repeated(
    action: Callable[[], None], every_s: float, name: str, failed: Callable[[Exception], None]
) -> Iterator[None]:
    """Call `action` every so many seconds in a thread `name` while the block runs, until it raises:
    `failed` gets what.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            try:
                action()
            except Exception as error:
                failed(error)
                return

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(every_s)  # it may wait for a store


def end_now(status: int, message: str) -> NoReturn:
    """End this process whatever its threads wait for. What is committed is whole. One that is a
    caller's gets KeyboardInterrupt in its main thread.
    """
    with contextlib.suppress(OSError):  # sys.stderr may be locked by a thread that waits
        os.write(2, f"\nerror: {printable(message)}\n".encode(errors="replace"))
    if console.is_guest():
        main = threading.main_thread().ident
        signal.pthread_kill(main or 0, signal.SIGINT)  # wakes it where it waits for a lock
        raise Interrupted(message)
    os._exit(status)
