"""What a command does before its heavy imports: stop signals end it with the documented status.

It imports the standard library only. Python, torch and PyArrow take seconds to import; until
`console.run_command` installs its own handlers, and again after it, Ctrl-C would end the process
with a traceback and SIGTERM without a word.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_on_stop_signals() -> None:
    """From now on SIGINT and SIGTERM end the process with 128 + N and one line on stderr."""
    for number in STOP_SIGNALS:
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    """os._exit, because an exception inside an import is caught by some libraries."""
    name = signal.Signals(number).name
    os.write(2, f"\nstopped by {name}: run the command again\n".encode())
    os._exit(128 + number)
