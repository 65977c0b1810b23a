"""Whose turn it is: a queue per host with its limits, delays and rests. Pure; the clock is given.

Rows of several jobs (shards) wait side by side. An earlier job's rows go first wherever their hosts are ready, so that
a later job only uses what the stragglers of the earlier ones leave free.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from manifests.schema import Fetch, HostLimit

GIVE_UP = 10  # rows in a row that a host may leave unanswered, before the rest of those that wait are not asked
GIVE_UP_FIRST = 4  # the same for a host that has never answered: at a deadline of 20 s, this takes 40 s of the shard
PROBE_S = 60.0  # after which one row tries such a host again
LONGEST_HOLD_S = 3600.0  # of a Retry-After; after that the host is asked again
FIRST_HOLD_S = 0.5  # after the second 429 or 503 in a row, doubled for each further one
LONGEST_OWN_HOLD_S = 60.0
SWEEP = 10_000  # hosts after which those that have nothing to do are forgotten

Row = TypeVar("Row")


@dataclass(slots=True, kw_only=True, eq=False)
class Host(Generic[Row]):
    """A host's queue, and what it has told us."""

    name: str
    limit: int  # requests at once
    delay_s: float  # between the starts of two requests
    rows: dict[int, deque[Row]] = field(default_factory=dict)  # that wait, by job
    active: int = 0
    next_at: float = -math.inf  # the delay is over
    held_until: float = -math.inf  # it asked us to wait
    strikes: int = 0  # 429 and 503 in a row
    answered: bool = False  # ever
    silent: int = 0  # rows in a row that got no answer
    probe_at: float = -math.inf  # when a silent host may be tried again
    in_line: bool = False

    @property
    def given_up(self) -> bool:
        return self.silent >= (GIVE_UP if self.answered else GIVE_UP_FIRST)


def limit_of(host: str, settings: Fetch) -> tuple[int, float]:
    """(requests at once, seconds between two) for a host: its own entry of fetch.hosts, the longest *.suffix, or the
    rule for all."""
    own = HostLimit()
    labels = host.split(".")
    for name in (host, *("*." + ".".join(labels[cut:]) for cut in range(1, len(labels)))):
        if name in settings.hosts:
            own = settings.hosts[name]
            break
    return (
        settings.per_host if own.per_host is None else own.per_host,
        settings.delay_s if own.delay_s is None else own.delay_s,
    )


class Queues(Generic[Row]):
    """All hosts of a worker. What is refused or cut off here ends as host_busy, with the words that are returned."""

    def __init__(self, settings: Fetch, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._hosts: dict[str, Host[Row]] = {}
        self._ready: dict[int, deque[Host[Row]]] = {}  # by the job of their first row
        self._later: list[tuple[float, int, Host[Row]]] = []
        self._count = itertools.count()
        self._sweep_at = SWEEP

    def host(self, name: str) -> Host[Row]:
        """The queue of that name."""
        if (host := self._hosts.get(name)) is None:
            if len(self._hosts) >= self._sweep_at:
                self._forget()
            limit, delay_s = limit_of(name, self._settings)
            host = self._hosts[name] = Host(name=name, limit=limit, delay_s=delay_s)
        return host

    def add(self, name: str, job: int, row: Row, *, first: bool = False) -> str | None:
        """Put a row into its host's queue, or say why that is of no use. `first`: to the head of its job, for a
        row that a redirect has moved here or that has been here already."""
        host = self.host(name)
        if (why := self._closed(host)) is not None:
            return why
        rows = host.rows.setdefault(job, deque())
        (rows.appendleft if first else rows.append)(row)
        self._offer(host)
        return None

    def take(self) -> tuple[Host[Row], Row] | None:
        """The next row that may start now, and its host, which has one more under way."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            self._back(heapq.heappop(self._later)[2])
        while self._ready:
            job = min(self._ready)
            line = self._ready[job]
            host = line.popleft()
            if not line:
                del self._ready[job]
            host.in_line = False
            if host.rows and self._free_at(host) <= now:
                host.active += 1
                oldest = min(host.rows)
                row = host.rows[oldest].popleft()
                if not host.rows[oldest]:
                    del host.rows[oldest]
                self._offer(host)
                return host, row
            self._offer(host)
        return None

    def wake_at(self) -> float | None:
        """When to call `take` again although nothing has ended; None where nothing waits for a time."""
        return self._later[0][0] if self._later else None

    def left(self, host: Host[Row], *, answered: bool | None) -> list[tuple[Row, str]]:
        """A row has left its host; `answered` is None where it was not asked. Returns the rows that are cut off."""
        host.active -= 1
        if answered is not None:
            host.answered = host.answered or answered
            host.silent = 0 if answered else host.silent + 1
            if host.given_up:
                host.probe_at = self._clock() + PROBE_S
        self._offer(host)
        return self._cut(host)

    def start(self, host: Host[Row]) -> float:
        """Reserve the next moment at which a request to this host may start: seconds until then."""
        now = self._clock()
        at = max(now, host.next_at)
        if host.delay_s:
            host.next_at = at + host.delay_s
        return at - now

    def wait_s(self, host: Host[Row]) -> float:
        """Seconds for which no request to this host should start."""
        return max(max(host.next_at, host.held_until) - self._clock(), 0.0)

    def slow(self, host: Host[Row], delay_s: float) -> None:
        """A Crawl-delay: the larger of ours and theirs counts, from the request before on."""
        if delay_s > host.delay_s:
            host.delay_s, host.next_at = delay_s, max(host.next_at, self._clock() + delay_s)

    def told(
        self, host: Host[Row], *, busy: bool, retry_after_s: float | None = None
    ) -> list[tuple[Row, str]]:
        """An answer came. 429 and 503 (`busy`) hold back all rows of the host: for as long as it says, or, from the
        second in a row on, for a time that doubles. Returns the rows that are cut off."""
        if not busy:
            host.strikes = 0
            return []
        host.strikes += 1
        pause = retry_after_s
        if pause is None:
            pause = (
                0.0
                if host.strikes < 2
                else min(FIRST_HOLD_S * 2.0 ** (host.strikes - 2), LONGEST_OWN_HOLD_S)
            )
        host.held_until = max(host.held_until, self._clock() + min(pause, LONGEST_HOLD_S))
        return self._cut(host)

    def remove(self, job: int) -> list[Row]:
        """Take out every row of a job that still waits."""
        return [row for host in self._hosts.values() for row in host.rows.pop(job, ())]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _closed(self, host: Host[Row]) -> str | None:
        now = self._clock()
        if host.given_up and now < host.probe_at:
            return "not asked: several rows in a row got no answer from this host"
        if host.held_until - now > self._settings.patience_s:
            return "not asked: the host wants to be left alone for longer than fetch.patience_s"
        return None

    def _cut(self, host: Host[Row]) -> list[tuple[Row, str]]:
        """The rows of a host that is closed now, each with the words for it."""
        if not host.rows or (why := self._closed(host)) is None:
            return []
        rows = [(row, why) for job in sorted(host.rows) for row in host.rows[job]]
        host.rows.clear()
        return rows

    def _free_at(self, host: Host[Row]) -> float:
        """When a row may start here; infinity where one that is under way must end first."""
        if host.active >= (1 if host.given_up else host.limit):
            return math.inf
        return max(host.next_at, host.held_until)

    def _offer(self, host: Host[Row]) -> None:
        """Put a host in line, once, if it has a row that may start now or at a known time."""
        if not host.rows or host.in_line or (at := self._free_at(host)) == math.inf:
            return
        host.in_line = True
        if at > self._clock():
            heapq.heappush(self._later, (at, next(self._count), host))
        else:
            self._ready.setdefault(min(host.rows), deque()).append(host)

    def _back(self, host: Host[Row]) -> None:
        host.in_line = False
        self._offer(host)

    def _forget(self) -> None:
        now = self._clock()
        self._hosts = {
            host.name: host for host in self._hosts.values() if not self._idle(host, now)
        }
        self._sweep_at = max(SWEEP, 2 * len(self._hosts))

    def _idle(self, host: Host[Row], now: float) -> bool:
        busy = host.rows or host.active or host.in_line or host.given_up
        return not busy and max(host.next_at, host.held_until) <= now
