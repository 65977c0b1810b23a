"""Terminals of any size, and what a program writes to them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO


@dataclass(slots=True)
class Terminal:
    """A terminal: `stream` writes to it, `text()` is what arrived."""

    stream: IO[str]
    _master: int
    _parts: list[bytes] = field(default_factory=list)
    _reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self.read, daemon=True)

    def text(self) -> str:
        """What arrived, after the writer has closed the stream."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.close()
        self._reader.join(300)
        return b"".join(self._parts).decode()

    def read(self) -> None:
        """Keep what arrives until the writer closes."""
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # EIO: nobody has it open for writing
                return
            if not data:
                return
            self._parts.append(data)


@contextlib.contextmanager
def terminal(columns: int, rows: int = 40) -> Iterator[Terminal]:
    """A terminal of that size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    made = Terminal(stream=os.fdopen(slave, "w"), _master=master)
    made._reader.start()
    try:
        yield made
    finally:
        made.text()
        os.close(master)
