"""Time limits that leave out the time in which this process did not run.

A process that is stopped, or that waits for a processor beside others, finds all its limits passed
when it runs again, though the answers lie in its sockets: hosts would be blamed for it, and what a
pool holds would depend on what else a machine does. So a beat runs in the event loop. What it comes
late is added to every limit, and `now` stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

BEAT_S = 0.25


class _Beat:
    """The limits of one event loop. It beats while there are any."""

    def __init__(self) -> None:
        self.limits: set[asyncio.Timeout] = set()
        self.lost_s = 0.0
        self.due = math.inf  # by time.monotonic

    def start(self) -> None:
        self.due = time.monotonic() + BEAT_S
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def late_s(self) -> float:
        return max(0.0, time.monotonic() - self.due)

    def _beat(self) -> None:
        late_s = self.late_s()
        self.lost_s += late_s
        for limit in self.limits:
            if (when := limit.when()) is not None and not limit.expired():
                limit.reschedule(when + late_s)
        self.due = math.inf
        if self.limits:
            self.start()


_beats: WeakKeyDictionary[asyncio.AbstractEventLoop, _Beat] = WeakKeyDictionary()


def _of_running_loop() -> _Beat:
    loop = asyncio.get_running_loop()
    if (beat := _beats.get(loop)) is None:
        beat = _beats[loop] = _Beat()
    return beat


def now() -> float:
    """Seconds of a clock of the running loop that stands still while the process does not run."""
    beat = _of_running_loop()
    return time.monotonic() - beat.lost_s - beat.late_s()


@contextlib.asynccontextmanager
async def limit(seconds: float | None) -> AsyncGenerator[asyncio.Timeout]:
    """`asyncio.timeout` by `now`: TimeoutError, except that a beat of the time can be missing."""
    beat = _of_running_loop()
    async with asyncio.timeout(seconds) as timeout:
        beat.limits.add(timeout)
        if beat.due == math.inf:
            beat.start()
        try:
            yield timeout
        finally:
            beat.limits.discard(timeout)
