"""Counts what the tickets of a stage do, and estimates the time left.

Time left = tickets left ÷ tickets ended per second in the last TIME_LEFT_WINDOW_S of this run. A
ticket that is running counts as the share of its rows that have an outcome, where its worker tells.
Tickets that an earlier run ended are not counted, so a resumed stage is not taken for a fast one.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.progress.host_losses import HostLosses
from pipeline.progress.measure import Measurer
from pipeline.progress.state import HostState, StageState

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
