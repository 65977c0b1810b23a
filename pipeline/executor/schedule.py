"""Which worker gets which ticket next.

The functions are pure: they know tickets, groups and names of workers, and run nothing.

Tickets of a group start in order, and only one worker at a time has tickets of it. A worker may run
several tickets at once (`concurrency`): of different groups while no other worker needs one,
because different groups do not share a slow host; otherwise the next ones of the groups that it
has. When a worker dies, each ticket that it was running is tried again alone, so that the next
death shows which ticket caused it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One task: `id` is unique in its stage, `payload` holds plain JSON values."""

    id: str
    group: str
    payload: dict[str, Any] = field(default_factory=dict)


class Tickets:
    """The tickets of a stage, each made when it starts: a million cost 8 MB, not 500."""

    def __init__(self, groups: Integers, make: Callable[[int], Ticket]) -> None:
        """`groups` has a number for the group of each ticket; `make` gives ticket i, always the
        same one. No two tickets have the same id.
        """
        self.groups = groups
        self.make = make

    @classmethod
    def of(cls, tickets: Iterable[Ticket]) -> Tickets:
        """Tickets that exist already. No two of them may have the same id."""
        if isinstance(tickets, Tickets):
            return tickets
        listed = list(tickets)
        assert len({ticket.id for ticket in listed}) == len(listed), "two tickets have the same id"
        numbers: dict[str, int] = {}
        groups = [numbers.setdefault(ticket.group, len(numbers)) for ticket in listed]
        return cls(np.array(groups, dtype=np.int64), listed.__getitem__)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Ticket]:
        for number in range(len(self.groups)):
            yield self.make(number)


class TicketQueue:
    """The tickets of a stage that have not ended.

    A call costs O(concurrency + log n) for n groups that wait for a retry. Groups are numbers here.
    """

    def __init__(self, tickets: Iterable[Ticket], concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self._tickets = Tickets.of(tickets)
        self._unstarted = len(self._tickets)
        _, first, groups, sizes = np.unique(
            self._tickets.groups, return_index=True, return_inverse=True, return_counts=True
        )
        # The tickets of group g are _order[_next[g]:_end[g]], those before have started.
        self._order = np.argsort(groups, kind="stable")
        self._end = np.cumsum(sizes)
        self._next = self._end - sizes
        # Groups that no worker has, with tickets left, are in one of four containers. Unstarted
        # ones: the longest group starts first, so that the stage ends sooner.
        self._fresh = np.lexsort((first, -sizes))
        self._fresh_position = 0
        self._released: list[int] = []  # the next one is at the end
        self._suspected: list[int] = []  # whose next ticket must run alone
        self._waiting: list[tuple[float, int]] = []  # heap by the time of a retry
        self._running: dict[Hashable, list[Ticket]] = {}
        self._group_of: dict[str, int] = {}  # of running tickets and of those that are tried again
        self._again: dict[int, list[Ticket]] = {}  # to be tried again; the next one is at the end
        self._suspects: set[str] = set()
        self._not_before: dict[int, float] = {}  # time of the retry of a group that has a worker

    @property
    def free_groups(self) -> int:
        """Number of groups that no worker has and that have tickets left."""
        started = len(self._released) + len(self._suspected) + len(self._waiting)
        return len(self._fresh) - self._fresh_position + started

    def has_unstarted(self) -> bool:
        """Whether a ticket has yet to start."""
        return self._unstarted > 0

    def running(self, worker: Hashable) -> list[Ticket]:
        """The tickets that a worker is running, in order of their start."""
        return list(self._running.get(worker, []))

    def load(self, worker: Hashable) -> int:
        """How many tickets a worker is running."""
        return len(self._running.get(worker, ()))

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
        self._not_before.pop(group, None)
        ticket = self._pop(group)
        self._running.setdefault(worker, []).append(ticket)
        self._group_of[ticket.id] = group
        self._unstarted -= 1
        return ticket

    def retry_time(self, now: float) -> float | None:
        """The earliest time after `now` at which a group may be retried.

        None where none waits, or where one may be retried already.
        """
        times = [time for time in self._not_before.values() if time > now]
        if self._waiting and self._waiting[0][0] > now:
            times.append(self._waiting[0][0])
        return min(times, default=None)

    def finished(
        self, worker: Hashable, ticket: Ticket, *, retry: bool, not_before: float = -math.inf
    ) -> None:
        """A try of a ticket has ended.

        With `retry`, it is the next ticket of its group, but not before the time `not_before`.
        """
        self._running[worker].remove(ticket)
        group = self._group_of.pop(ticket.id)
        if retry:
            self._put_first(ticket, group)
            if not_before > -math.inf:
                self._not_before[group] = not_before
        self._release_groups(worker, [group])

    def worker_died(
        self, worker: Hashable, retry: Iterable[Ticket], *, not_before: float = -math.inf
    ) -> None:
        """All tickets of a worker have ended with it; those in `retry` are tried again, but not
        before the time `not_before`.
        """
        tickets = self._running.pop(worker, [])
        groups = [self._group_of.pop(ticket.id) for ticket in tickets]
        retry_ids = {ticket.id for ticket in retry}
        self._suspects.update(ticket.id for ticket in tickets if ticket.id in retry_ids)
        for ticket, group in zip(reversed(tickets), reversed(groups), strict=True):
            if ticket.id in retry_ids:
                self._put_first(ticket, group)
                if not_before > -math.inf:
                    self._not_before[group] = not_before
        self._release_groups(worker, groups)

    def _next_group(self, running: list[Ticket], starting_workers: int, now: float) -> int | None:
        """A free group where the worker may have one, else a group that it has already."""
        if not running or self.free_groups > starting_workers:
            group = self._free_group(busy=bool(running), now=now)
            if group is not None:
                return group
        for ticket in running:
            group = self._group_of[ticket.id]
            if self._not_before.get(group, -math.inf) <= now and self._may_run_beside(group):
                return group
        return None

    def _free_group(self, *, busy: bool, now: float) -> int | None:
        """A free group, taken out of its container. A suspect is not for a busy worker."""
        while self._waiting and self._waiting[0][0] <= now and self._suspect(self._waiting[0][1]):
            self._suspected.append(heapq.heappop(self._waiting)[1])
        if self._suspected and not busy:
            return self._suspected.pop()
        if self._released:
            return self._released.pop()
        if self._waiting and self._waiting[0][0] <= now:
            return heapq.heappop(self._waiting)[1]
        if self._fresh_position < len(self._fresh):
            self._fresh_position += 1
            return int(self._fresh[self._fresh_position - 1])
        return None

    def _may_run_beside(self, group: int) -> bool:
        """Whether a group has a next ticket, and one that may run beside others."""
        if self._again.get(group):
            return not self._suspect(group)
        return bool(self._next[group] < self._end[group])

    def _suspect(self, group: int) -> bool:
        """Whether the next ticket of a group is one that must run alone."""
        again = self._again.get(group)
        if not again:
            return False
        return again[-1].id in self._suspects

    def _pop(self, group: int) -> Ticket:
        """The next ticket of a group."""
        again = self._again.get(group)
        if again:
            ticket = again.pop()
            if not again:
                del self._again[group]
            return ticket
        position = self._next[group]
        self._next[group] += 1
        return self._tickets.make(int(self._order[position]))

    def _put_first(self, ticket: Ticket, group: int) -> None:
        self._again.setdefault(group, []).append(ticket)
        self._unstarted += 1

    def _release_groups(self, worker: Hashable, groups: Iterable[int]) -> None:
        """Free the groups of which a worker runs nothing any more.

        They become the first free groups: their last worker is idle now and has open connections to
        these hosts.
        """
        running = self._running.get(worker, [])
        running_groups = {self._group_of[ticket.id] for ticket in running}
        for group in reversed(list(dict.fromkeys(groups))):
            unstarted = self._next[group] < self._end[group]
            if group in running_groups or not (self._again.get(group) or unstarted):
                continue
            if group in self._not_before:
                heapq.heappush(self._waiting, (self._not_before.pop(group), group))
            elif self._suspect(group):
                self._suspected.append(group)
            else:
                self._released.append(group)
        if not running:
            self._running.pop(worker, None)
