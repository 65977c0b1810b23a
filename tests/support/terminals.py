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
    """A terminal: `stream` writes to it, `text()` is what arrived. `hang_up` closes it."""

    stream: IO[str]
    _master: int
    _parts: list[bytes] = field(default_factory=list)
    _reader: threading.Thread | None = None
    _is_open: bool = True

    def text(self) -> str:
        """What arrived, after the writer has closed the stream."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.close()
        if self._reader is not None:
            self._reader.join(10)
        return b"".join(self._parts).decode()

    def hang_up(self) -> None:
        """Close the terminal under the writer: its next write fails."""
        if self._is_open:
            self._is_open = False
            os.close(self._master)

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
def terminal(columns: int, rows: int = 40, *, read: bool = True) -> Iterator[Terminal]:
    """A terminal of that size. Without `read` nobody reads what is written."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    made = Terminal(stream=os.fdopen(slave, "w"), _master=master)
    if read:
        made._reader = threading.Thread(target=made.read, daemon=True)
        made._reader.start()
    try:
        yield made
    finally:
        with contextlib.suppress(OSError, ValueError):
            made.stream.close()
        if made._reader is not None:
            made._reader.join(10)
        made.hang_up()
