"""Which worker gets which ticket next. Pure: it knows tickets, groups and names of workers, and runs nothing.

A group's tickets are begun in order and only one worker has any of them at a time. A worker may have several under way
(`ahead`): of different groups where nobody else is waiting for one, as those do not share a slow host, else the next of
the groups that it holds. When a worker dies, each ticket that it had is tried again alone: the next death shows which
one it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One task: `id` is unique in its stage, `payload` holds plain JSON values."""

    id: str
    group: str
    payload: dict[str, Any] = field(default_factory=dict)


class Deal:
    """The tickets of a stage: waiting, under way, or ended."""

    def __init__(self, tickets: Iterable[Ticket], ahead: int = 1) -> None:
        self.ahead = ahead
        self._pending: dict[str, deque[Ticket]] = {}
        for ticket in tickets:
            self._pending.setdefault(ticket.group, deque()).append(ticket)
        # groups that nobody holds, the longest first: the shortest tail
        self._waiting = deque(
            sorted(self._pending, key=lambda group: len(self._pending[group]), reverse=True)
        )
        self._under_way: dict[Hashable, list[Ticket]] = {}
        self._suspects: set[str] = set()

    @property
    def groups(self) -> int:
        """Groups that nobody holds and that have tickets left."""
        return len(self._waiting)

    def left(self) -> bool:
        """Whether a ticket is yet to be begun."""
        return any(self._pending.values())

    def next(self, worker: Hashable, coming: int = 0) -> Ticket | None:
        """The ticket that this worker begins now, or None. `coming` workers are about to be free: a second group is
        not for one that has work while they have none."""
        busy = self._under_way.get(worker, [])
        if len(busy) >= self.ahead or any(ticket.id in self._suspects for ticket in busy):
            return None
        unheld = list(self._waiting) if not busy or len(self._waiting) > coming else []
        for group in [*unheld, *dict.fromkeys(ticket.group for ticket in busy)]:
            pending = self._pending[group]
            if pending and not (busy and pending[0].id in self._suspects):
                if group in unheld:
                    self._waiting.remove(group)
                self._under_way.setdefault(worker, []).append(pending[0])
                return pending.popleft()
        return None

    def ended(self, worker: Hashable, ticket: Ticket, *, again: bool) -> None:
        """A ticket has come back. `again`: it is the first that is begun next of its group."""
        self._under_way[worker].remove(ticket)
        if again:
            self._pending[ticket.group].appendleft(ticket)
        self._let_go(worker, [ticket.group])

    def lost(self, worker: Hashable, again: Iterable[Ticket]) -> None:
        """A worker has died with all that it had under way; `again` are those that are tried once more."""
        tickets = self._under_way.pop(worker, [])
        repeated = [ticket for ticket in tickets if ticket in list(again)]
        self._suspects.update(ticket.id for ticket in repeated)
        for ticket in reversed(repeated):
            self._pending[ticket.group].appendleft(ticket)
        self._let_go(worker, [ticket.group for ticket in tickets])

    def of(self, worker: Hashable) -> list[Ticket]:
        """What a worker has under way, in order of start."""
        return list(self._under_way.get(worker, []))

    def _let_go(self, worker: Hashable, groups: Iterable[str]) -> None:
        """Groups of which a worker has nothing under way any more wait again, first in line: the worker that held one
        is free now, and has what it needs for these hosts."""
        held = {ticket.group for ticket in self._under_way.get(worker, [])}
        for group in reversed(list(dict.fromkeys(groups))):
            if group not in held and self._pending[group]:
                self._waiting.appendleft(group)
        if not self._under_way.get(worker):
            self._under_way.pop(worker, None)
