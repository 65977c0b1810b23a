"""The state of a running command at one moment, as it is shown, stored and read again."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from clipmill.manifests import disk
from clipmill.manifests.columns import REASONS
from clipmill.manifests.layout import CommitRecord

# --------------------------------------------------------------------------------------------------
# What a ticket did, in rows and bytes.


@dataclass(slots=True, kw_only=True)
class Measure:
    """Rows that have an outcome, those among them that are stored, bytes, and the reasons of the
    others. `total`: all rows of a ticket that is running.
    """

    total: int = 0
    rows: int = 0
    stored: int = 0
    bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add_row(self, reason: str | None, size: int) -> None:
        """A row has its outcome: `reason` is None where it is stored."""
        self.add(Measure(rows=1, stored=reason is None, bytes=size))
        if reason is not None:
            self.reasons[reason] += 1

    def add(self, other: Measure) -> None:
        """What another ticket did too."""
        self.rows += other.rows
        self.stored += other.stored
        self.bytes += other.bytes
        self.reasons.update(other.reasons)


def measure_of(result: object) -> Measure:
    """What a ticket did, by what its worker gave: a Measure, or the commit record of a shard. Of
    any other result nothing is counted.
    """
    if isinstance(result, CommitRecord):
        return Measure(
            rows=result.count,
            stored=result.successes,
            bytes=result.tar_bytes,
            reasons=Counter(result.reasons),
        )
    return result if isinstance(result, Measure) else Measure()


# --------------------------------------------------------------------------------------------------
# The state of a command, in progress.json.


CommandPhase = Literal["running", "finished", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host on which rows lost time."""

    host: str
    rows: int  # that were slow, or failed for a transient reason
    seconds: float  # that they lost, see HostLosses
    reason: str  # of the last one; "slow" where it was stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """One stage of a command: its tickets of this run, and what they did."""

    name: str
    number: int  # in its command: two stages may have one name
    total: int  # tickets of this run; those that earlier runs ended are not among them
    done: int = 0
    failed: int = 0
    running: int = 0
    oldest: str | None = None  # id of the ticket that runs longest
    oldest_s: float = 0.0
    seconds: float = 0.0  # since the stage began
    ended: bool = False
    rows: int = 0  # that have an outcome, those of running tickets too where workers tell
    stored: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # rows that are not stored, by reason
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    left_s: float | None = None  # estimate of the time left; None where nothing is known
    hosts: tuple[HostState, ...] = ()  # the worst ones


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """progress.json: the stages of a command that writes into a pool, in order of their start."""

    command: str
    host: str
    pid: int
    started: float  # seconds since 1970
    phase: CommandPhase
    version: Literal[2] = 2
    message: str = ""  # why it failed
    stages: tuple[StageState, ...] = ()

    @property
    def current(self) -> StageState | None:
        """The stage that is running, else the last one."""
        stages = [stage for stage in self.stages if not stage.ended] or self.stages
        return stages[-1] if stages else None


# --------------------------------------------------------------------------------------------------
# Hosts on which rows lose time, in a table of bounded size.
#
# A row that failed for a transient reason has lost the whole time that it took, at least a
# second; a row that ended otherwise has lost the time above SLOW_S. Hosts that lose nothing are
# not in the table.


SLOW_S = 2.0
MIN_LOST_S = 1.0  # of a row that failed: one that was never requested took no time
MAX_HOSTS = 1_000  # that are kept; twice as many are held before the rest is dropped
SHOWN = 10


class HostLosses:
    """Seconds that were lost, by host. Adding costs O(1), and memory does not grow."""

    def __init__(self) -> None:
        self._hosts: dict[str, HostState] = {}

    def add(self, host: str, seconds: float, reason: str | None) -> None:
        """A row of a host has ended with a reason, or None where it has an image."""
        if reason is not None and REASONS.get(reason) == "transient":
            lost = max(MIN_LOST_S, seconds)
        elif seconds > SLOW_S:
            lost = seconds - SLOW_S
        else:
            return
        self.merge([HostState(host=host, rows=1, seconds=lost, reason=reason or "slow")])

    def merge(self, hosts: Iterable[HostState]) -> None:
        """Add what another table says."""
        for each in hosts:
            if (before := self._hosts.get(each.host)) is not None:
                rows, seconds = before.rows + each.rows, before.seconds + each.seconds
                each = dataclasses.replace(each, rows=rows, seconds=seconds)
            self._hosts[each.host] = each
        if len(self._hosts) > 2 * MAX_HOSTS:
            self._hosts = {each.host: each for each in self.worst(MAX_HOSTS)}

    def worst(self, count: int = SHOWN) -> tuple[HostState, ...]:
        """The hosts that lost most, the worst first."""
        hosts = list(self._hosts.copy().values())
        return tuple(sorted(hosts, key=lambda each: (-each.seconds, each.host))[:count])


# --------------------------------------------------------------------------------------------------
# Counts what the tickets of a stage do, and estimates the time left.
#
# Time left = tickets left ÷ tickets ended per second in the last SAMPLES seconds of this run. A
# ticket that is running counts as the share of its rows that have an outcome, where its worker
# tells. Tickets that an earlier run ended are not counted, so a resumed stage is not taken for a
# fast one.


SAMPLES = 600  # one a second at most: rates are of the last ten minutes
SAMPLE_S = 1.0
SETTLED_S = 3.0  # before that no time left is given
Reported = tuple[str, str]  # (name of a worker, JSON of a WorkerReport)


@dataclass(slots=True)
class WorkerReport:
    """What a worker tells while it works: its running tickets, and the hosts that lose time."""

    tickets: dict[str, Measure] = field(default_factory=dict)
    losses: HostLosses = field(default_factory=HostLosses)

    def to_json(self) -> str:
        """As it crosses to the driver. It may be called from another thread."""
        tickets = {}
        for name, measure in self.tickets.copy().items():
            tickets[name] = dataclasses.replace(measure, reasons=measure.reasons.copy())
        return json.dumps(disk.to_plain({"tickets": tickets, "hosts": self.losses.worst()}))


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    tickets: float = 0.0  # ended, with parts of running ones
    rows: int = 0
    bytes: int = 0


class StageCounter:
    """One stage while it runs. Its methods may be called from any thread."""

    def __init__(
        self,
        name: str,
        total: int,
        *,
        number: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.total, self.number = name, total, number
        self._clock = clock
        self.ask_workers: Callable[[], Iterable[Reported]] | None = None  # of an inline stage
        self._lock = threading.Lock()
        self._first = _Sample(clock())
        self._samples = deque([self._first], maxlen=SAMPLES)
        self._ended_at: float | None = None
        self._done = self._failed = 0
        self._ended = Measure()
        self._running: dict[str, float] = {}  # ticket -> when it started
        self._in_flight: dict[str, Measure] = {}
        self._hosts: dict[str, list[HostState]] = {}  # by worker

    def started(self, ticket: str) -> None:
        """A ticket is running now."""
        with self._lock:
            self._running[ticket] = self._clock()

    def retried(self, ticket: str) -> None:
        """A try has failed, and the ticket waits for its next one."""
        with self._lock:
            self._running.pop(ticket, None)
            self._in_flight.pop(ticket, None)

    def ended(self, ticket: str, measure: Measure | None) -> None:
        """A ticket has ended: what it did, or None where it failed."""
        self.retried(ticket)
        with self._lock:
            self._done += measure is not None
            self._failed += measure is None
            self._ended.add(measure or Measure())

    def reported(self, worker: str, report: str) -> None:
        """Take up a WorkerReport. Tickets that do not run any more are left out."""
        plain = json.loads(report)
        hosts = [HostState(**each) for each in plain["hosts"]]
        with self._lock:
            self._hosts[worker] = hosts
            for name, fields in plain["tickets"].items():
                if name in self._running:
                    fields["reasons"] = Counter(fields["reasons"])
                    self._in_flight[name] = Measure(**fields)

    def end(self) -> None:
        """The stage has ended."""
        with self._lock:
            self._ended_at = self._clock()
            self._running.clear()
            self._in_flight.clear()

    def state(self) -> StageState:
        """The stage at this moment."""
        if self.ask_workers is not None and self._ended_at is None:
            for worker, report in self.ask_workers():
                self.reported(worker, report)
        with self._lock:
            return self._state()

    def _state(self) -> StageState:
        now = self._ended_at or self._clock()
        all_rows, tickets = Measure(), float(self._done + self._failed)
        all_rows.add(self._ended)
        for each in self._in_flight.values():
            all_rows.add(each)
            tickets += each.rows / max(1, each.total)
        sample = _Sample(now, tickets, all_rows.rows, all_rows.bytes)
        if self._ended_at is None and now - self._samples[-1].time >= SAMPLE_S:
            self._samples.append(sample)
        since = self._samples[0] if self._ended_at is None else self._first
        elapsed = max(now - since.time, 1e-9)
        oldest = min(self._running, key=self._running.__getitem__, default=None)
        losses = HostLosses()
        for hosts in self._hosts.values():
            losses.merge(hosts)
        left: float | None = None
        if self._ended_at is not None or tickets >= self.total:
            left = 0.0
        elif elapsed >= SETTLED_S and tickets > since.tickets:
            left = (self.total - tickets) * elapsed / (tickets - since.tickets)
        return StageState(
            name=self.name,
            number=self.number,
            total=self.total,
            done=self._done,
            failed=self._failed,
            running=len(self._running),
            oldest=oldest,
            oldest_s=0.0 if oldest is None else now - self._running[oldest],
            seconds=now - self._first.time,
            ended=self._ended_at is not None,
            rows=all_rows.rows,
            stored=all_rows.stored,
            bytes=all_rows.bytes,
            reasons=dict(all_rows.reasons.most_common()),
            rows_per_s=max(0.0, (sample.rows - since.rows) / elapsed),
            bytes_per_s=max(0.0, (sample.bytes - since.bytes) / elapsed),
            left_s=left,
            hosts=losses.worst(),
        )
