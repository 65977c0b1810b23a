"""Which worker gets which ticket next.

The functions are pure: they know tickets, groups and names of workers, and run nothing.

Tickets of a group start in order, and only one worker at a time has tickets of it. A worker may run
several tickets at once (`concurrency`): of different groups while no other worker needs one,
because different groups do not share a slow host; otherwise the next ones of the groups that it
has. When a worker dies, each ticket that it was running is tried again alone, so that the next
death shows which ticket caused it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One task: `id` is unique in its stage, `payload` holds plain JSON values."""

    id: str
    group: str
    payload: dict[str, Any] = field(default_factory=dict)


class TicketQueue:
    """The tickets of a stage that have not ended.

    A call costs O(concurrency), plus one step per group that waits for a retry or a suspect.
    """

    def __init__(self, tickets: Iterable[Ticket], concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self._pending: dict[str, deque[Ticket]] = {}
        for ticket in tickets:
            self._pending.setdefault(ticket.group, deque()).append(ticket)
        self._unstarted = sum(len(pending) for pending in self._pending.values())
        # Groups of no worker, with pending tickets. The longest group starts first: the stage ends
        # sooner.
        longest_first = sorted(
            self._pending, key=lambda group: len(self._pending[group]), reverse=True
        )
        self._free_groups: OrderedDict[str, None] = OrderedDict.fromkeys(longest_first)
        self._running: dict[Hashable, list[Ticket]] = {}
        self._suspects: set[str] = set()
        self._not_before: dict[str, float] = {}  # group -> time of its retry

    @property
    def free_groups(self) -> int:
        """Number of groups that no worker has and that have tickets left."""
        return len(self._free_groups)

    def has_unstarted(self) -> bool:
        """Whether a ticket has yet to start."""
        return self._unstarted > 0

    def running(self, worker: Hashable) -> list[Ticket]:
        """The tickets that a worker is running, in order of their start."""
        return list(self._running.get(worker, []))

    def start_next(
        self, worker: Hashable, starting_workers: int = 0, now: float = math.inf
    ) -> Ticket | None:
        """The ticket that this worker starts now, or None.

        `starting_workers` is how many workers will be ready soon. A busy worker gets no second
        group while these need one. `now` is compared with the time before which a ticket is not
        tried again.
        """
        running = self._running.get(worker, [])
        if len(running) >= self.concurrency:
            return None
        if any(ticket.id in self._suspects for ticket in running):
            return None
        group = self._next_group(running, starting_workers, now)
        if group is None:
            return None
        self._free_groups.pop(group, None)
        self._not_before.pop(group, None)
        ticket = self._pending[group].popleft()
        self._running.setdefault(worker, []).append(ticket)
        self._unstarted -= 1
        return ticket

    def retry_time(self, now: float) -> float | None:
        """The earliest time after `now` at which a group may be retried; None where none waits."""
        return min((moment for moment in self._not_before.values() if moment > now), default=None)

    def finished(
        self, worker: Hashable, ticket: Ticket, *, retry: bool, not_before: float = -math.inf
    ) -> None:
        """A try of a ticket has ended.

        With `retry`, it is the next ticket of its group, but not before the time `not_before`.
        """
        self._running[worker].remove(ticket)
        if retry:
            self._put_first(ticket)
            if not_before > -math.inf:
                self._not_before[ticket.group] = not_before
        self._release_groups(worker, [ticket.group])

    def worker_died(self, worker: Hashable, retry: Iterable[Ticket]) -> None:
        """All tickets of a worker have ended with it; those in `retry` are tried again."""
        tickets = self._running.pop(worker, [])
        retry_ids = {ticket.id for ticket in retry}
        repeated = [ticket for ticket in tickets if ticket.id in retry_ids]
        self._suspects.update(ticket.id for ticket in repeated)
        for ticket in reversed(repeated):
            self._put_first(ticket)
        self._release_groups(worker, [ticket.group for ticket in tickets])

    def _next_group(self, running: list[Ticket], starting_workers: int, now: float) -> str | None:
        """A free group where the worker may have one, else a group that it has already."""
        if not running or len(self._free_groups) > starting_workers:
            for group in self._free_groups:  # skips only groups whose next ticket is a suspect
                if self._may_start(group, busy=bool(running), now=now):
                    return group
        for ticket in running:
            if self._may_start(ticket.group, busy=True, now=now):
                return ticket.group
        return None

    def _may_start(self, group: str, *, busy: bool, now: float) -> bool:
        """Whether the next ticket of a group may start on a worker. A suspect runs alone."""
        pending = self._pending[group]
        if self._not_before.get(group, -math.inf) > now:
            return False
        return bool(pending) and not (busy and pending[0].id in self._suspects)

    def _put_first(self, ticket: Ticket) -> None:
        self._pending[ticket.group].appendleft(ticket)
        self._unstarted += 1

    def _release_groups(self, worker: Hashable, groups: Iterable[str]) -> None:
        """Free the groups of which a worker runs nothing any more.

        They become the first free groups: their last worker is idle now and has open connections to
        these hosts.
        """
        running_groups = {ticket.group for ticket in self._running.get(worker, [])}
        for group in reversed(list(dict.fromkeys(groups))):
            if group not in running_groups and self._pending[group]:
                self._free_groups[group] = None
                # A group that waits for its retry goes to the end of the free groups.
                self._free_groups.move_to_end(group, last=group in self._not_before)
        if not self._running.get(worker):
            self._running.pop(worker, None)
