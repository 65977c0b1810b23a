"""Which worker gets which ticket next, what a worker does, and what became of it."""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
import pickle
import random
import socket
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clipmill import OWN
from clipmill.manifests import disk, waits
from clipmill.manifests.arrays import Integers
from clipmill.pipeline.progress.state import StageCounter, measure_of

# --------------------------------------------------------------------------------------------------
# Which worker gets which ticket next.
#
# The functions are pure: they know tickets, groups and names of workers, and run nothing.
#
# Tickets of a group start in order, and only one worker at a time has tickets of it. A worker may
# run several tickets at once (`concurrency`): of different groups while no other worker needs
# one, because different groups do not share a slow host; otherwise the next ones of the groups
# that it has. When a worker dies, each ticket that it was running is tried again alone, so that
# the next death shows which ticket caused it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One task: `id` is unique in its stage, `payload` is a number, a text or several, or a frozen
    dataclass at the top level of a module."""

    id: str
    group: str
    payload: Any = None


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
        # Groups that no worker has, with tickets left, are in one of three containers. Unstarted
        # ones: the longest group starts first, so that the stage ends sooner.
        self._fresh = np.lexsort((first, -sizes))
        self._fresh_position = 0
        self._released: list[int] = []  # the next one is at the end
        self._waiting: list[tuple[float, int]] = []  # heap by the time of a retry
        self._running: dict[Hashable, list[Ticket]] = {}
        self._group_of: dict[str, int] = {}  # of running tickets and of those that are tried again
        self._again: dict[int, list[Ticket]] = {}  # to be tried again; the next one is at the end
        self._suspects: set[str] = set()
        self._not_before: dict[int, float] = {}  # time of the retry of a group that has a worker

    @property
    def free_groups(self) -> int:
        """Number of groups that no worker has and that have tickets left."""
        started = len(self._released) + len(self._waiting)
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
            self._again.setdefault(group, []).append(ticket)
            self._unstarted += 1
            if not_before > -math.inf:
                self._not_before[group] = not_before
        self._release_group(worker, group)

    def worker_died(
        self, worker: Hashable, retry: Iterable[Ticket], *, not_before: float = -math.inf
    ) -> None:
        """All tickets of a worker have ended with it; those in `retry` are tried again, but not
        before the time `not_before`.
        """
        retry_ids = {ticket.id for ticket in retry}
        self._suspects |= retry_ids
        for ticket in reversed(self.running(worker)):
            is_retried = ticket.id in retry_ids
            self.finished(worker, ticket, retry=is_retried, not_before=not_before)

    def _next_group(self, running: list[Ticket], starting_workers: int, now: float) -> int | None:
        """A free group where the worker may have one, else a group that it has already."""
        if not running or self.free_groups > starting_workers:
            group = self._free_group(busy=bool(running), now=now)
            if group is not None:
                return group
        for ticket in running:  # none of these groups has a suspect: it would run alone
            group = self._group_of[ticket.id]
            if self._not_before.get(group, -math.inf) <= now and self._has_next(group):
                return group
        return None

    def _free_group(self, *, busy: bool, now: float) -> int | None:
        """A free group, taken out of its container. A suspect is not for a busy worker."""
        while self._waiting and self._waiting[0][0] <= now:
            self._released.insert(0, heapq.heappop(self._waiting)[1])
        for position in reversed(range(len(self._released))):
            if not (busy and self._suspect(self._released[position])):
                return self._released.pop(position)
        if self._fresh_position < len(self._fresh):
            self._fresh_position += 1
            return int(self._fresh[self._fresh_position - 1])
        return None

    def _has_next(self, group: int) -> bool:
        """Whether a group has a next ticket."""
        return bool(self._again.get(group) or self._next[group] < self._end[group])

    def _suspect(self, group: int) -> bool:
        """Whether the next ticket of a group is one that must run alone."""
        again = self._again.get(group) or []
        return any(ticket.id in self._suspects for ticket in again[-1:])

    def _pop(self, group: int) -> Ticket:
        """The next ticket of a group."""
        if again := self._again.get(group):
            return again.pop()
        position = self._next[group]
        self._next[group] += 1
        return self._tickets.make(int(self._order[position]))

    def _release_group(self, worker: Hashable, group: int) -> None:
        """Free a group of which a worker runs nothing any more.

        It becomes the first free group: its last worker is idle now and has open connections to
        these hosts.
        """
        running = self._running[worker]
        if not running:
            del self._running[worker]
        if group in [self._group_of[ticket.id] for ticket in running]:
            return
        if not self._has_next(group):
            return
        if group in self._not_before:
            heapq.heappush(self._waiting, (self._not_before.pop(group), group))
        else:
            self._released.append(group)


# --------------------------------------------------------------------------------------------------
# How the tickets of a stage ended: counts, and the first failures.


TRIES = 2  # of a ticket that raises, or whose worker dies
# Of a ticket whose node dies or runs out of memory: other tickets may be the cause, and spot nodes
# are taken away.
LOST_TRIES = 6
RETRY_PAUSE_S = 2.0  # before the second try; four times that before each further one
MAX_RETRY_PAUSE_S = 60.0
# Pauses are up to a quarter shorter: tickets that failed together do not all come back at once.
PAUSE_JITTER = 0.25
EXAMPLES = 100  # failures that a report names, and that are logged one by one
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How many tickets ended, and how the first failed ones did."""

    done: int = 0
    failures: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # id -> error of the last try; EXAMPLES


def retry_pause_s(tries: int) -> float:
    """Seconds between a failed try and the next, so that an overloaded store can recover."""
    pause = min(MAX_RETRY_PAUSE_S, RETRY_PAUSE_S * 4.0 ** min(tries - 1, 9))
    return pause * random.uniform(1 - PAUSE_JITTER, 1)


def seconds_until(moment: float | None) -> float | None:
    """Seconds from now to a time (monotonic), at least 0; None stays None."""
    return None if moment is None else max(0.0, moment - time.monotonic())


class Outcomes:
    """Counts the tries of the tickets that failed, and the tickets that ended."""

    def __init__(
        self,
        stage_name: str,
        counter: StageCounter,
        on_done: Callable[[str, Any], None] | None = None,
        result: Any = object,
    ) -> None:
        """`on_done` gets the id of each ticket that is done, and what it returned; `result`: its
        type.
        """
        self._stage_name = stage_name
        self.counter = counter
        self._on_done, self._result = on_done, result
        # Of tickets that are tried again: tries that failed, and tries that were lost
        self._failed_tries: dict[str, tuple[int, int]] = {}
        self._logged = 0
        self._done = self._failures = 0
        self._failed: dict[str, str] = {}

    @property
    def report(self) -> Report:
        """What has ended up to now."""
        return Report(done=self._done, failures=self._failures, failed=dict(self._failed))

    @property
    def ended(self) -> int:
        """How many tickets have ended."""
        return self._done + self._failures

    def retry_time(self, ticket: Ticket) -> float:
        """The time (monotonic) before which a ticket that failed is not tried again."""
        return time.monotonic() + retry_pause_s(sum(self._failed_tries.get(ticket.id, (1, 0))))

    def record(self, ticket: Ticket, kind: str, text: str) -> bool:
        """Record how a try ended: done or raised (see Worker.run), died with its worker, or lost
        with its node. False: the ticket must be tried again.
        """
        failed, lost = self._failed_tries.pop(ticket.id, (0, 0))
        if kind == "done":
            self._done += 1
            result = disk.from_plain(self._result, json.loads(text))
            if self._on_done is not None:
                self._on_done(ticket.id, result)
            self.counter.ended(ticket.id, measure_of(result))
            return True
        if kind == "lost":
            lost += 1
            self._log(ticket, f"was lost in try {lost} of {LOST_TRIES}", text)
        else:
            failed += 1
            self._log(ticket, f"failed in try {failed} of {TRIES}", text)
        if failed < TRIES and lost < LOST_TRIES:
            self._failed_tries[ticket.id] = (failed, lost)
            self.counter.retried(ticket.id)
            return False
        self.fail(ticket, text)
        return True

    def fail(self, ticket: Ticket, text: str) -> None:
        """Record that a ticket ends without an outcome and is not tried again."""
        self._failures += 1
        if len(self._failed) < EXAMPLES:
            self._failed[ticket.id] = text
        self.counter.ended(ticket.id, None)

    def _log(self, ticket: Ticket, end: str, text: str) -> None:
        """One line per failed try, up to a limit: a store that is gone fails them all."""
        self._logged += 1
        if self._logged <= EXAMPLES:
            logger.warning("stage %s: %s %s: %s", self._stage_name, ticket.id, end, text)
        if self._logged == EXAMPLES:
            logger.warning("stage %s: further failed tries are only counted", self._stage_name)


# --------------------------------------------------------------------------------------------------
# A stage and its worker: a function that is loaded once and turns tickets into results.
#
# Names of functions and records of numbers and texts cross to a worker, pickled. Of what comes back
# nothing is unpickled, exceptions neither: an answer is a kind and a text.


BETWEEN_ASKS_S = 300.0  # 1,024 workers are asked every 160 s
Work = Callable[[Ticket], Any]
WorkFactory = Callable[[Any], Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is done to a ticket.

    `work` is a factory, a function or class at the top level of a module: work(job) is called once
    per worker (models are loaded there) and returns the function that works on a ticket. `result`
    is the type of what that function returns, which crosses as JSON.
    `job` is a frozen dataclass, what all tickets have in common; `on_ray` takes its place on Ray.
    If the function has a `close()`, it is called when the stage ends. `cpus` and `gpus` are what a
    worker asks of Ray. `concurrency` is how many tickets a worker runs at once, each in a thread of
    its own: above 1, the function must be thread-safe. If the function has a method `progress()`,
    it gives the JSON of a `WorkerReport` while tickets run; it is called from another thread.
    """

    name: str
    work: WorkFactory
    job: Any = None
    on_ray: Any = None
    gpus: float = 0
    cpus: float = 1
    concurrency: int = 1
    result: Any = object

    def __post_init__(self) -> None:
        work_reference(self.name, self.work)


def work_reference(stage_name: str, work: WorkFactory) -> bytes:
    """The factory pickled by its name. ValueError for one that a worker cannot import."""
    name = getattr(work, "__qualname__", repr(work))
    if getattr(work, "__module__", None) == "__main__":
        raise ValueError(
            f"stage {stage_name}: work is {name} of the script that runs, "
            "which a worker cannot import; import it from a module"
        )
    try:
        if not hasattr(work, "__qualname__"):
            raise pickle.PicklingError("no function and no class")
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ValueError(
            f"stage {stage_name}: work is {name}, which a worker cannot import; "
            "give a function or a class from the top level of a module"
        ) from None


class Worker:
    """Holds what the factory loaded. An answer is [kind, JSON or text]."""

    def __init__(self, stage_name: str, work: bytes, job: bytes) -> None:
        """`work` is a `work_reference`, `job` that of the stage, pickled."""
        self.stage_name = stage_name
        self._factory_reference = work
        self._job = job
        self._work: Work | None = None
        self._life = waits.Life()
        self._still = waits.Stillness(waits.LIMIT_S, most_s=BETWEEN_ASKS_S)

    @staticmethod
    def arguments(stage: Stage, *, on_ray: bool = False) -> tuple[str, bytes, bytes]:
        """What a worker of a stage is made with."""
        job = stage.on_ray if on_ray and stage.on_ray is not None else stage.job
        return stage.name, work_reference(stage.name, stage.work), pickle.dumps(job)

    def up(self) -> None:
        """Returns once there is a process, before the factory is called."""

    def ready(self) -> list[str]:
        """Call the factory. ["ready", ""], or ["refused" | "broken", its error]."""
        try:
            factory = pickle.loads(self._factory_reference)
            self._work = factory(pickle.loads(self._job))
        except ValueError as error:
            return ["refused", str(error)]
        except Exception as error:
            logger.exception("stage %s: the factory raised", self.stage_name)
            return ["broken", error_line(error)]
        return ["ready", ""]

    def run(self, pickled: bytes) -> list[str]:
        """Work on one ticket. It comes pickled, so that the threads of an actor of Ray, which begin
        in order, do not lose it over the import of a payload's module. ["done", result as JSON] or
        ["raised", its error].
        """
        ticket: Ticket = pickle.loads(pickled)
        assert self._work is not None
        try:
            with waits.doing(f"{self.stage_name} {ticket.id}"):
                return ["done", json.dumps(disk.to_plain(self._work(ticket)))]
        except Exception as error:
            if not _explains_itself(error) or os.environ.get("CLIPMILL_TRACEBACK"):
                logger.exception("stage %s: a ticket raised", self.stage_name)
            return ["raised", error_line(error)]

    def progress(self) -> list[Any]:
        """What the work tells of its running tickets (JSON, or nothing, see `Stage`); for how many
        seconds it has done nothing; which ticket runs longest, and where.

        A ticket that begins or ends, rows that it tells, the CPU and bytes are signs of work.
        """
        tell = getattr(self._work, "progress", None)
        told = str(tell()) if tell is not None else ""
        self._still.look((told, waits.begun_and_ended(), self._life.look()))
        place = f"{socket.gethostname()}, process {os.getpid()}"
        return [told, self._still.seconds, f"{waits.longest() or 'nothing'} on {place}"]

    def close(self) -> None:
        """Close what the factory loaded."""
        if self._work is not None and hasattr(self._work, "close"):
            self._work.close()


def error_line(error: Exception) -> str:
    """The error in one line, with the last file of ours in its traceback.

    The traceback itself is in the worker's log.
    """
    if _explains_itself(error):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(OWN)]
    last = own_frames[-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno})"


def _explains_itself(error: Exception) -> bool:
    """True for a ValueError of ours. ArrowInvalid is one too, of another library."""
    package = type(error).__module__.partition(".")[0]
    is_ours = type(error) is ValueError or package == "clipmill"
    return isinstance(error, ValueError) and is_ours


def check_ready(stage: Stage, answer: list[str]) -> None:
    """Raise what a factory raised: ValueError for a person's mistake, else RuntimeError."""
    kind, text = answer
    if kind == "refused":
        raise ValueError(text)
    if kind == "broken":
        raise RuntimeError(f"stage {stage.name}: {stage.work.__qualname__} raised {text}")
