"""A queue per host with its limits, delays and pauses. Pure: the clock is a parameter.

Rows of several shards wait side by side. Rows of a shard with a lower number start first wherever
their hosts are ready, so a later shard only uses what the last rows of an earlier one leave free.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from clipmill.manifests.schema import Fetch

GIVE_UP = 10  # unanswered rows in a row after which the waiting rows of a host are not requested
GIVE_UP_FIRST = 4  # the same for a host that never answered: 40 s at a deadline of 20 s
PROBE_S = 60.0  # after which one row tries such a host again
LONGEST_PAUSE_S = 3600.0  # of a Retry-After; after that the host is asked again
FIRST_PAUSE_S = 0.5  # after the second 429 or 503 in a row, doubled for each further one
LONGEST_OWN_PAUSE_S = 60.0
SWEEP = 10_000  # hosts from which on those without work are removed

Row = TypeVar("Row")


@dataclass(slots=True, kw_only=True, eq=False)
class Host(Generic[Row]):
    """The queue of one host, and what the host has answered so far."""

    name: str
    limit: int  # requests at once
    delay_s: float  # between the starts of two requests
    rows: dict[int, deque[Row]] = field(default_factory=dict)  # that wait, by shard
    active: int = 0
    next_at: float = -math.inf  # when the delay is over
    paused_until: float = -math.inf  # the host asked for this pause
    busy_answers: int = 0  # 429 and 503 in a row
    answered: bool = False  # ever
    silent: int = 0  # rows in a row without an answer
    probe_at: float = -math.inf  # when a silent host may be tried again
    scheduled: bool = False  # in the ready or the later queue

    @property
    def given_up(self) -> bool:
        return self.silent >= (GIVE_UP if self.answered else GIVE_UP_FIRST)


class Queues(Generic[Row]):
    """All hosts of a worker. A row that is rejected here ends as host_busy, with the detail."""

    def __init__(self, settings: Fetch, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._hosts: dict[str, Host[Row]] = {}
        self._ready: dict[int, deque[Host[Row]]] = {}  # by the shard of their first row
        self._later: list[tuple[float, int, Host[Row]]] = []
        self._count = itertools.count()
        self._sweep_at = SWEEP
        self.is_paused = False  # no row is rejected: what hosts do says nothing about them

    def host(self, name: str) -> Host[Row]:
        """The queue of that name."""
        if (host := self._hosts.get(name)) is None:
            if len(self._hosts) >= self._sweep_at:
                self._remove_idle_hosts()
            limit, delay_s = self._settings.per_host, self._settings.delay_s
            host = self._hosts[name] = Host(name=name, limit=limit, delay_s=delay_s)
        return host

    def add(self, name: str, shard: int, row: Row, *, first: bool = False) -> str | None:
        """Put a row into its host's queue, or return why it would be useless.

        `first`: at the head of its shard, for a row that a redirect brought or that is repeated.
        """
        host = self.host(name)
        if (detail := self._closed(host)) is not None:
            return detail
        rows = host.rows.setdefault(shard, deque())
        (rows.appendleft if first else rows.append)(row)
        self._schedule(host)
        return None

    def take(self) -> tuple[Host[Row], Row] | None:
        """The next row that may start now, and its host. The row counts as active from then on."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            host = heapq.heappop(self._later)[2]
            host.scheduled = False
            self._schedule(host)
        while self._ready:
            shard = min(self._ready)
            ready = self._ready[shard]
            host = ready.popleft()
            if not ready:
                del self._ready[shard]
            host.scheduled = False
            if host.rows and self._free_at(host) <= now:
                host.active += 1
                first_shard = min(host.rows)
                row = host.rows[first_shard].popleft()
                if not host.rows[first_shard]:
                    del host.rows[first_shard]
                self._schedule(host)
                return host, row
            self._schedule(host)
        return None

    def wake_at(self) -> float | None:
        """When to call `take` again although no row has ended; None where none waits for a time."""
        return self._later[0][0] if self._later else None

    def finish(self, host: Host[Row], *, answered: bool | None) -> list[tuple[Row, str]]:
        """A row has left its host. `answered` is None where no request was made.

        Returns the rows that are rejected now, each with the detail.
        """
        host.active -= 1
        if answered is not None:
            host.answered = host.answered or answered
            host.silent = 0 if answered else host.silent + 1
            if host.given_up:
                host.probe_at = self._clock() + PROBE_S
        self._schedule(host)
        return self._rejected(host)

    def reserve_start(self, host: Host[Row]) -> float:
        """Reserve the next moment at which a request may start: seconds until then."""
        now = self._clock()
        at = max(now, host.next_at)
        if host.delay_s:
            host.next_at = at + host.delay_s
        return at - now

    def wait_s(self, host: Host[Row]) -> float:
        """Seconds for which no request to this host should start."""
        return max(max(host.next_at, host.paused_until) - self._clock(), 0.0)

    def raise_delay(self, host: Host[Row], delay_s: float) -> None:
        """A Crawl-delay: the larger of ours and theirs counts, from the previous request on."""
        if delay_s > host.delay_s:
            host.delay_s, host.next_at = delay_s, max(host.next_at, self._clock() + delay_s)

    def record_answer(
        self, host: Host[Row], *, busy: bool, retry_after_s: float | None = None
    ) -> list[tuple[Row, str]]:
        """A response has arrived. 429 and 503 (`busy`) pause all rows of the host.

        The pause is what the host asks for. Without that it starts with the second busy answer in
        a row and doubles. Returns the rows that are rejected now, each with the detail.
        """
        if not busy:
            host.busy_answers = 0
            return []
        host.busy_answers += 1
        pause_s = _own_pause_s(host.busy_answers) if retry_after_s is None else retry_after_s
        host.paused_until = max(host.paused_until, self._clock() + min(pause_s, LONGEST_PAUSE_S))
        return self._rejected(host)

    def forgive(self) -> None:
        """Hosts that gave no answer did so without a fault of theirs."""
        for host in self._hosts.values():
            host.silent, host.probe_at = 0, -math.inf
            self._schedule(host)

    def remove(self, shard: int) -> list[Row]:
        """Remove every waiting row of a shard."""
        rows: list[Row] = []
        for host in self._hosts.values():
            rows.extend(host.rows.pop(shard, ()))
        return rows

    # --- inside ------------------------------------------------------------------------------

    def _closed(self, host: Host[Row]) -> str | None:
        now = self._clock()
        if self.is_paused:
            return None
        if host.given_up and now < host.probe_at:
            return "not asked: several rows in a row got no answer from this host"
        if host.paused_until - now > self._settings.patience_s:
            return "not asked: the host wants to be left alone for longer than fetch.patience_s"
        return None

    def _rejected(self, host: Host[Row]) -> list[tuple[Row, str]]:
        """Remove the rows of a host that is closed now."""
        if not host.rows or (detail := self._closed(host)) is None:
            return []
        rows = [row for shard in sorted(host.rows) for row in host.rows[shard]]
        host.rows.clear()
        return [(row, detail) for row in rows]

    def _free_at(self, host: Host[Row]) -> float:
        """When a row may start here; infinity where an active one must end first."""
        if host.active >= (1 if host.given_up else host.limit):
            return math.inf
        return max(host.next_at, host.paused_until)

    def _schedule(self, host: Host[Row]) -> None:
        """Queue a host, once, if it has a row that may start now or at a known time."""
        if not host.rows or host.scheduled or (at := self._free_at(host)) == math.inf:
            return
        host.scheduled = True
        if at > self._clock():
            heapq.heappush(self._later, (at, next(self._count), host))
        else:
            self._ready.setdefault(min(host.rows), deque()).append(host)

    def _remove_idle_hosts(self) -> None:
        now = self._clock()
        hosts = self._hosts.values()
        self._hosts = {host.name: host for host in hosts if not self._idle(host, now)}
        self._sweep_at = max(SWEEP, 2 * len(self._hosts))

    def _idle(self, host: Host[Row], now: float) -> bool:
        in_use = host.rows or host.active or host.scheduled or host.given_up
        return not in_use and max(host.next_at, host.paused_until) <= now


def _own_pause_s(busy_answers: int) -> float:
    """The pause after so many 429 and 503 in a row that name none."""
    if busy_answers < 2:
        return 0.0
    return min(FIRST_PAUSE_S * 2.0 ** (busy_answers - 2), LONGEST_OWN_PAUSE_S)
