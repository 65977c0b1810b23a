"""Whether the network of this machine is down: no host answers, and those that answered before take
no connection either.

Rows that end offline would have to be asked for again, and an offline worker ends thousands of them
a second. So it starts none until a host that answered before takes a connection, at most for
LONGEST_S. Where no host has answered yet, nothing is known and no row waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

SUSPECT = 16  # hosts without an answer, in a row, after which the witnesses are asked
WITNESSES = 3  # hosts that answered last
PAUSE_S = 5.0  # between two times at which they are asked
LONGEST_S = 3600.0  # of an outage; after it rows end as they would
logger = logging.getLogger(__name__)


class Outage:
    """What the requests of a worker tell about its network.

    connects: whether a host and port that answered before take a connection.
    """

    def __init__(self, connects: Callable[[str, int], Awaitable[bool]]) -> None:
        self._connects = connects
        self._silent: set[str] = set()  # hosts without an answer since the last one
        self._witnesses: dict[tuple[str, int], None] = {}  # the last one is the last that answered

    @property
    def is_suspected(self) -> bool:
        """No row should start before `wait` has returned."""
        return len(self._silent) >= SUSPECT and len(self._witnesses) == WITNESSES

    def answered(self, host: str, port: int) -> None:
        """An answer has come, whatever it says."""
        if self._silent:
            self._silent.clear()
        self._witnesses.pop((host, port), None)
        self._witnesses[host, port] = None
        if len(self._witnesses) > WITNESSES:
            del self._witnesses[next(iter(self._witnesses))]

    def failed(self, host: str) -> None:
        """A request has got no answer, or the name of its host none."""
        self._silent.add(host)

    async def wait(self) -> bool:
        """Return when a witness takes a connection: whether none did at first."""
        started = time.monotonic()
        is_down = False
        while not await self._any_connects():
            if not is_down:
                names = ", ".join(host for host, _ in self._witnesses)
                logger.warning(
                    "no host answers, and %s, which did before, take no connection: requests wait "
                    "until they do",
                    names,
                )
            is_down = True
            if time.monotonic() - started > LONGEST_S:
                self._witnesses.clear()  # three others must answer before rows wait again
                break
            await asyncio.sleep(PAUSE_S)
        self._silent.clear()
        if is_down:
            logger.warning("requests go on after %.0f s", time.monotonic() - started)
        return is_down

    async def _any_connects(self) -> bool:
        return any(await asyncio.gather(*(self._connects(*each) for each in self._witnesses)))
