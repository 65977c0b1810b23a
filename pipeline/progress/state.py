"""The state of a running command at one moment, as it is shown, stored and read again."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from manifests import disk
from manifests.columns import REASONS

# --------------------------------------------------------------------------------------------------
# What a ticket did, in rows and bytes, from what its worker returned.


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Rows that have an outcome, those among them that are stored, bytes, and the reasons of the
    others.
    """

    rows: int = 0
    stored: int = 0
    bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


Measurer = Callable[[Mapping[str, Any]], Measure]


def measure_commit(result: Mapping[str, Any]) -> Measure:
    """Of a ticket that returns the plain commit record of a shard."""
    return Measure(
        rows=int(result["count"]),
        stored=int(result["successes"]),
        bytes=int(result["tar_bytes"]),
        reasons=result["reasons"],
    )


def measure_links(result: Mapping[str, Any]) -> Measure:
    """Of a ticket that reads a part of a source: links or rows, and the pairs among them."""
    return Measure(rows=int(result["links"]), stored=int(result["pairs"]))


def measure_scored(result: Mapping[str, Any]) -> Measure:
    """Of a ticket that scores a shard: its rows, whatever the number of score sets."""
    rows = max(result["scored"].values(), default=0)
    return Measure(rows=rows, stored=rows)


STATE_VERSION = 1
CommandPhase = Literal["running", "finished", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host on which rows lost time."""

    host: str
    rows: int  # that were slow, or failed for a transient reason
    seconds: float  # that they lost, see host_losses.py
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
    quiet_s: float = 0.0  # since a ticket ended
    ended: bool = False
    rows: int = 0  # that have an outcome, those of running tickets too where workers tell
    stored: int = 0
    bytes: int = 0
    reasons: dict[str, int] | None = None  # rows that are not stored, by reason
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    left_s: float | None = None  # estimate of the time left; None where nothing is known
    hosts: tuple[HostState, ...] = ()  # the worst ones


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """progress.json: the stages of a command that writes into a pool, in order of their start."""

    version: int
    command: str
    host: str
    pid: int
    started: float  # seconds since 1970
    updated: float
    phase: CommandPhase
    message: str = ""  # why it failed
    stages: tuple[StageState, ...] = ()

    @property
    def current(self) -> StageState | None:
        """The stage that is running, else the last one."""
        stages = [stage for stage in self.stages if not stage.ended] or self.stages
        return stages[-1] if stages else None


def state_from_plain(document: Any) -> CommandState:
    """The inverse of `disk.to_plain`. ValueError for anything else."""
    if not isinstance(document, dict) or document.get("version") != STATE_VERSION:
        raise ValueError(f"it is not the progress of a command in version {STATE_VERSION}")
    state: CommandState = disk.from_plain(CommandState, document)
    disk.check_types(CommandState, document, "progress.json")
    return state


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

    def __init__(self, max_hosts: int = MAX_HOSTS) -> None:
        self._max_hosts = max_hosts
        self._hosts: dict[str, tuple[float, int, str]] = {}  # seconds, rows, last reason

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, host: str, seconds: float, reason: str | None) -> None:
        """A row of a host has ended with a reason, or None where it has an image."""
        if reason is not None and REASONS.get(reason) == "transient":
            lost = max(MIN_LOST_S, seconds)
        elif seconds > SLOW_S:
            lost = seconds - SLOW_S
        else:
            return
        self._add(host, lost, 1, reason or "slow")

    def merge(self, hosts: Iterable[HostState]) -> None:
        """Add what another table says."""
        for each in hosts:
            self._add(each.host, each.seconds, each.rows, each.reason)

    def worst(self, count: int = SHOWN) -> tuple[HostState, ...]:
        """The hosts that lost most, the worst first."""
        ranked = sorted(self._hosts.copy().items(), key=lambda item: (-item[1][0], item[0]))
        states = []
        for host, (seconds, rows, reason) in ranked[:count]:
            states.append(HostState(host=host, rows=rows, seconds=round(seconds, 1), reason=reason))
        return tuple(states)

    def _add(self, host: str, lost: float, rows: int, reason: str) -> None:
        seconds, before, _ = self._hosts.get(host, (0.0, 0, ""))
        self._hosts[host] = (seconds + lost, before + rows, reason)
        if len(self._hosts) > 2 * self._max_hosts:
            kept = {state.host for state in self.worst(self._max_hosts)}
            self._hosts = {name: row for name, row in self._hosts.items() if name in kept}


# --------------------------------------------------------------------------------------------------
# Counts what the tickets of a stage do, and estimates the time left.
#
# Time left = tickets left ÷ tickets ended per second in the last TIME_LEFT_WINDOW_S of this run.
# A ticket that is running counts as the share of its rows that have an outcome, where its worker
# tells. Tickets that an earlier run ended are not counted, so a resumed stage is not taken for a
# fast one.


RATE_WINDOW_S = 60.0
TIME_LEFT_WINDOW_S = 600.0
SAMPLE_S = 1.0  # between two samples at least
SETTLED_S = 3.0  # before that no time left is given
MAX_DURATIONS = 10_000  # of tickets that are kept until they are taken
Reported = tuple[str, str]  # (name of a worker, JSON of a WorkerReport)


@dataclass(slots=True, kw_only=True)
class TicketRows:
    """The rows of a ticket that is running."""

    total: int
    rows: int = 0
    stored: int = 0
    bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str | None, size: int) -> None:
        """A row has its outcome: `reason` is None where it is stored."""
        self.rows += 1
        self.bytes += size
        if reason is None:
            self.stored += 1
        else:
            self.reasons[reason] += 1


@dataclass(slots=True)
class WorkerReport:
    """What a worker tells while it works: its running tickets, and the hosts that lose time."""

    tickets: dict[str, TicketRows] = field(default_factory=dict)
    losses: HostLosses = field(default_factory=HostLosses)

    def to_json(self) -> str:
        """As it crosses to the driver. It may be called from another thread."""
        tickets = {}
        for name, rows in self.tickets.copy().items():
            counts = [rows.total, rows.rows, rows.stored, rows.bytes, dict(rows.reasons)]
            tickets[name] = counts
        hosts = [[h.host, h.rows, h.seconds, h.reason] for h in self.losses.worst()]
        return json.dumps({"tickets": tickets, "hosts": hosts})


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    tickets: float  # ended, with parts of running ones
    rows: int
    bytes: int


class StageCounter:
    """One stage while it runs. Its methods may be called from any thread."""

    def __init__(
        self,
        name: str,
        total: int,
        measure: Measurer | None = None,
        *,
        number: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.total, self.number = name, total, number
        self._measure, self._clock = measure, clock
        self.ask_workers: Callable[[], Iterable[Reported]] | None = None  # of an inline stage
        self._lock = threading.Lock()
        self._started = self._last_end = clock()
        self._ended_at: float | None = None
        self._done = self._failed = self._rows = self._stored = self._bytes = 0
        self._reasons: Counter[str] = Counter()
        self._running: dict[str, float] = {}  # ticket -> when it started
        self._durations: deque[float] = deque(maxlen=MAX_DURATIONS)
        self._in_flight: dict[str, TicketRows] = {}
        self._hosts: dict[str, tuple[HostState, ...]] = {}  # by worker
        self._samples: deque[_Sample] = deque([_Sample(self._started, 0.0, 0, 0)])

    def started(self, ticket: str) -> None:
        """A ticket is running now."""
        with self._lock:
            self._running[ticket] = self._clock()

    def retried(self, ticket: str) -> None:
        """A try has failed, and the ticket waits for its next one."""
        with self._lock:
            self._running.pop(ticket, None)
            self._in_flight.pop(ticket, None)

    def ended(self, ticket: str, result: Mapping[str, Any] | None) -> None:
        """A ticket has ended with what its worker returned, or None where it failed."""
        measure = None
        if result is not None and self._measure is not None:
            measure = self._measure(result)
        with self._lock:
            now = self._last_end = self._clock()
            self._durations.append(now - self._running.pop(ticket, now))
            self._in_flight.pop(ticket, None)
            if result is None:
                self._failed += 1
                return
            self._done += 1
            if measure is not None:
                self._rows += measure.rows
                self._stored += measure.stored
                self._bytes += measure.bytes
                self._reasons.update(measure.reasons)

    @property
    def wants_results(self) -> bool:
        """Whether `ended` looks into results."""
        return self._measure is not None

    def reported(self, worker: str, report: str) -> None:
        """Take up a WorkerReport. Tickets that do not run any more are left out."""
        plain = json.loads(report)
        hosts = tuple(
            HostState(host=host, rows=rows, seconds=seconds, reason=reason)
            for host, rows, seconds, reason in plain["hosts"]
        )
        with self._lock:
            if hosts:
                self._hosts[worker] = hosts
            for name, (total, rows, stored, size, reasons) in plain["tickets"].items():
                if name in self._running:
                    self._in_flight[name] = TicketRows(
                        total=total, rows=rows, stored=stored, bytes=size, reasons=Counter(reasons)
                    )

    def take_durations(self) -> list[float]:
        """Seconds of the tickets that ended since the last call, at most MAX_DURATIONS."""
        with self._lock:
            durations = list(self._durations)
            self._durations.clear()
        return durations

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
        in_flight = list(self._in_flight.values())
        reasons = self._reasons.copy()
        for each in in_flight:
            reasons.update(each.reasons)
        sample = _Sample(
            now,
            self._done + self._failed + sum(each.rows / max(1, each.total) for each in in_flight),
            self._rows + sum(each.rows for each in in_flight),
            self._bytes + sum(each.bytes for each in in_flight),
        )
        self._sample(sample)
        since = self._samples[0] if self._ended_at is not None else self._before(RATE_WINDOW_S, now)
        elapsed = max(now - since.time, 1e-9)
        oldest = min(self._running, key=self._running.__getitem__, default=None)
        return StageState(
            name=self.name,
            number=self.number,
            total=self.total,
            done=self._done,
            failed=self._failed,
            running=len(self._running),
            oldest=oldest,
            oldest_s=0.0 if oldest is None else round(now - self._running[oldest], 1),
            seconds=round(now - self._started, 2),
            quiet_s=round(now - self._last_end, 1),
            ended=self._ended_at is not None,
            rows=sample.rows,
            stored=self._stored + sum(each.stored for each in in_flight),
            bytes=sample.bytes,
            reasons=dict(reasons.most_common()),
            rows_per_s=round(max(0.0, (sample.rows - since.rows) / elapsed), 2),
            bytes_per_s=round(max(0.0, (sample.bytes - since.bytes) / elapsed), 1),
            left_s=self._time_left(sample),
            hosts=self._worst_hosts(),
        )

    def _sample(self, sample: _Sample) -> None:
        """Keep a sample. The first one, of the start, is kept beside those of the window."""
        if self._ended_at is None and sample.time - self._samples[-1].time >= SAMPLE_S:
            self._samples.append(sample)
            # The last one that is older than the window stays: it is what rates are since.
            while (
                len(self._samples) > 2 and self._samples[2].time <= sample.time - TIME_LEFT_WINDOW_S
            ):
                del self._samples[1]

    def _before(self, seconds: float, now: float) -> _Sample:
        """The last sample that is at least so old, else the first."""
        chosen = self._samples[0]
        for sample in self._samples:
            if sample.time > now - seconds:
                break
            chosen = sample
        return chosen

    def _time_left(self, sample: _Sample) -> float | None:
        left = self.total - sample.tickets
        if left <= 0 or self._ended_at is not None:
            return 0.0
        since = self._before(TIME_LEFT_WINDOW_S, sample.time)
        elapsed, ended = sample.time - since.time, sample.tickets - since.tickets
        if elapsed < SETTLED_S or ended <= 0:
            return None
        return round(left * elapsed / ended, 1)

    def _worst_hosts(self) -> tuple[HostState, ...]:
        losses = HostLosses()
        for hosts in self._hosts.values():
            losses.merge(hosts)
        return losses.worst()
