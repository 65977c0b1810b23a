"""The view of the command that this process runs: screens, log lines, files, Ray's metrics."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from manifests import disk
from manifests.columns import REASONS
from manifests.layout import PoolLayout
from manifests.text import printable
from pipeline.progress.state import (
    STATE_VERSION,
    CommandPhase,
    CommandState,
    HostState,
    Measurer,
    StageCounter,
    StageState,
    state_from_plain,
)

# --------------------------------------------------------------------------------------------------
# The state of a command as text: one line for a log, a few lines for a narrow terminal.


REASONS_IN_A_LINE = 4
HOSTS_IN_A_LINE = 2
OLD_S = 300.0  # a ticket that runs longer is named
TIME_LEFT_METHOD = "time left: tasks left ÷ tasks ended per second in the last 10 min of this run"


def stage_line(stage: StageState) -> str:
    """One line about one stage, for a log."""
    parts = [f"{stage.done + stage.failed:,} of {stage.total:,} tasks", f"{stage.failed} failed"]
    if stage.rows:
        parts.append(f"{stage.rows:,} rows ({rate_text(stage.rows_per_s)} rows/s)")
    if stage.bytes_per_s:
        parts.append(f"{bytes_text(stage.bytes_per_s)}/s")
    if stage.reasons:
        parts.append(f"{stage.stored:,} stored")
        parts.append(reasons_text(stage.reasons, REASONS_IN_A_LINE))
    if stage.hosts and not stage.ended:
        hosts = ", ".join(host_text(host) for host in stage.hosts[:HOSTS_IN_A_LINE])
        parts.append(f"slow or failing: {hosts}")
    if stage.oldest is not None and stage.oldest_s >= OLD_S:
        parts.append(f"{stage.oldest} runs since {span_text(stage.oldest_s)}")
    parts.append(f"{stage.seconds:.1f} s")
    if not stage.ended and stage.left_s is not None:
        parts.append(f"about {span_text(stage.left_s)} left")
    return printable(f"{stage.name}: {', '.join(parts)}")


def short_lines(state: CommandState, now: float | None = None) -> Iterator[str]:
    """A few short lines, for a terminal without room for a table."""
    yield printable(f"{state.command} {header_text(state, now)}")
    for stage in state.stages:
        ended = stage.done + stage.failed
        mark = "ok" if stage.ended and not stage.failed else f"{percent(ended, stage.total)} %"
        yield printable(f"{stage.name} {ended:,}/{stage.total:,} {mark}")
    current = state.current
    if current is None or current.ended:
        return
    if current.failed:
        yield f"failed {current.failed:,}"
    if current.rows:
        yield f"{rate_text(current.rows_per_s)} rows/s {bytes_text(current.bytes_per_s)}/s"
    yield f"left {span_text(current.left_s)}"
    for reason, count in list((current.reasons or {}).items())[:REASONS_IN_A_LINE]:
        yield printable(f"{reason} {count:,}")
    for host in current.hosts[:HOSTS_IN_A_LINE]:
        yield printable(f"slow {host.host}")


def header_text(state: CommandState, now: float | None = None) -> str:
    """`since 12 min`, `finished after 3 h`, or why it failed."""
    if state.phase == "running":
        return f"since {span_text((now or time.time()) - state.started)}"
    text = f"{state.phase} after {span_text(state.updated - state.started)}"
    return f"{text}: {state.message}" if state.message else text


def reasons_text(reasons: Mapping[str, int], limit: int) -> str:
    """The commonest reasons with their rows, and how many more there are."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    texts = [f"{reason} {count:,}" for reason, count in ranked[:limit]]
    if len(ranked) > limit:
        others = sum(count for _, count in ranked[limit:])
        texts.append(f"{len(ranked) - limit} other reasons {others:,}")
    return ", ".join(texts)


def host_text(host: HostState) -> str:
    """`a.example (12 rows, 240 s, deadline)`."""
    return f"{host.host} ({host.rows:,} rows, {host.seconds:,.0f} s, {host.reason})"


def span_text(seconds: float | None) -> str:
    """Seconds for a person: `42 s`, `12 min`, `3.5 h`, `4 days`; `?` where nothing is known."""
    if seconds is None:
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 72 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def bytes_text(size: float) -> str:
    """Bytes for a person: `5.6 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def rate_text(per_second: float) -> str:
    """Rows per second for a person."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def percent(part: int, total: int) -> int:
    """Whole percent; 100 of nothing."""
    return 100 if not total else int(100 * part / total)


# --------------------------------------------------------------------------------------------------
# POOL/progress.json: what a running command writes for those who watch it from elsewhere.
#
# It is no part of the pool: nothing reads it but a person's view, it is not synced, and a write
# that fails is tried again with the next state.


LOCAL_EVERY_S = 2.0
REMOTE_EVERY_S = 15.0  # a put is paid for


def write_every_s(pool: str) -> float:
    """Seconds between two writes."""
    return REMOTE_EVERY_S if disk.is_url(pool) else LOCAL_EVERY_S


def write_state(pool: str, state: CommandState) -> None:
    """Write progress.json, whole or not at all, over the one of before.

    The name of the partial file does not change, so that killed commands leave at most one.
    """
    path = PoolLayout(pool).progress_json
    if disk.is_url(path):
        disk.write_json(path, state)
        return
    target = disk.local_path(path)
    partial = target.with_name(f".{target.name}.partial")
    with open(partial, "w") as f:
        json.dump(disk.to_plain(state), f)
    os.replace(partial, target)


def read_state(pool: str) -> CommandState | None:
    """The last state that a command has written; None where there is none that can be read."""
    try:
        return state_from_plain(disk.read_json(PoolLayout(pool).progress_json))
    except (FileNotFoundError, ValueError):
        return None


# --------------------------------------------------------------------------------------------------
# Counters of a stage for Prometheus, through Ray's metrics: the port that Ray exports has them.
#
# Tags are the stage and the outcome, so the number of series is bounded; hosts are not among
# them.


METRICS_EVERY_S = 5.0
TICKET_SECONDS = [0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0]  # bounds of the histogram
STAGE = ("stage",)


class RayMetrics:
    """Adds what changed between two states. It does nothing where Ray is not connected."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._counted: dict[tuple[int, str, str | None], float] = {}

    def add(self, state: CommandState, durations: Mapping[str, list[float]]) -> None:
        """Record a state, and the seconds of the tickets that ended since, by stage."""
        if not _is_connected():
            return
        metrics = self._metrics = self._metrics or _make_metrics()
        for stage in state.stages:
            self._add_stage(metrics, stage)
        for name, seconds in durations.items():
            for each in seconds:
                metrics["ticket_seconds"].observe(each, tags={"stage": name})

    def _add_stage(self, metrics: Mapping[str, Any], stage: StageState) -> None:
        name = stage.name
        self._count(stage, "tickets", stage.done, "done")
        self._count(stage, "tickets", stage.failed, "failed")
        self._count(stage, "rows", stage.stored, "stored")
        for reason, rows in (stage.reasons or {}).items():
            self._count(stage, "rows", rows, reason)
        self._count(stage, "bytes", stage.bytes)
        left = stage.total - stage.done - stage.failed
        metrics["tickets_left"].set(left, tags={"stage": name})
        metrics["tickets_running"].set(stage.running, tags={"stage": name})
        if stage.left_s is not None:
            metrics["seconds_left"].set(stage.left_s, tags={"stage": name})

    def _count(
        self, stage: StageState, metric: str, value: float, outcome: str | None = None
    ) -> None:
        """Raise a counter to a value. A running ticket that dies takes rows back; no counter
        does.
        """
        key = (stage.number, metric, outcome)
        more = value - self._counted.get(key, 0.0)
        if more > 0:
            tags = {"stage": stage.name}
            if outcome is not None:
                tags["outcome"] = outcome
            self._metrics[metric].inc(more, tags=tags)
            self._counted[key] = value


def _is_connected() -> bool:
    """Whether this process has a Ray. It is not imported for that."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _make_metrics() -> dict[str, Any]:
    from ray.util.metrics import Counter, Gauge, Histogram

    both = ("stage", "outcome")
    return {
        "tickets": Counter("clipmill_tickets", "Tickets that ended", tag_keys=both),
        "rows": Counter("clipmill_rows", "Rows that have an outcome", tag_keys=both),
        "bytes": Counter("clipmill_bytes", "Bytes of images", tag_keys=STAGE),
        "ticket_seconds": Histogram(
            "clipmill_ticket_seconds", "Time of a ticket", boundaries=TICKET_SECONDS, tag_keys=STAGE
        ),
        "tickets_left": Gauge("clipmill_tickets_left", "Tickets that have not ended", STAGE),
        "tickets_running": Gauge("clipmill_tickets_running", "Tickets that run", STAGE),
        "seconds_left": Gauge("clipmill_seconds_left", "Estimate of the time left", STAGE),
    }


# --------------------------------------------------------------------------------------------------
# Where the state of a command is shown: a table on a terminal, log lines elsewhere.
#
# A screen may raise whatever its stream raises; view.py keeps that from the command.


LINE_EVERY_S = 10.0
TABLE_WIDTH = 72  # characters; a narrower terminal gets short lines
SHOWN_REASONS = 8
SHOWN_STAGES = 12
QUIET_S = 60.0  # without the end of a ticket until the table says so
logger = logging.getLogger("pipeline.progress")


class Screen(Protocol):
    """Shows states until it is closed."""

    def show(self, state: CommandState) -> None: ...

    def stage_ended(self, stage: StageState) -> None: ...

    def close(self) -> None: ...


class LogLines:
    """At most one line in LINE_EVERY_S, and one for each stage that has ended."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, state: CommandState) -> None:
        """Log a line about the running stage, unless the last one is recent."""
        current = state.current
        now = time.monotonic()
        if current is None or current.ended or now - self._last < LINE_EVERY_S:
            return
        self._last = now
        logger.info("%s", stage_line(current))

    def stage_ended(self, stage: StageState) -> None:
        """Log the last line of a stage."""
        self._last = time.monotonic()
        logger.info("%s", stage_line(stage))

    def close(self) -> None:
        """Nothing is open."""


class Table:
    """A table that is drawn again in place. Log lines and what is printed appear above it."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        class OwnConsole(Console):
            def on_broken_pipe(self) -> None:
                """Rich would end the process here."""
                raise BrokenPipeError("the terminal is closed")

        self.console = OwnConsole(file=stream, highlight=False, emoji=False)
        self._live = Live(
            console=self.console,
            auto_refresh=False,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            vertical_overflow="crop",
        )
        self._redirected: list[tuple[Any, Any]] = []

    def show(self, state: CommandState) -> None:
        """Draw the state."""
        if not self._live.is_started:
            self._open()
        self._live.update(drawing(state, self.console.width), refresh=True)

    def stage_ended(self, stage: StageState) -> None:
        """The table shows it."""

    def close(self) -> None:
        """Leave the last table on the terminal."""
        for handler, stream in self._redirected:
            handler.setStream(stream)
        self._redirected = []
        self._live.stop()

    def _open(self) -> None:
        before = sys.stderr
        self._live.start()
        # A killed process cannot show the cursor again, so it is never hidden.
        self.console.show_cursor(True)
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                self._redirected.append((handler, before))
                handler.setStream(sys.stderr)


def screen_for(stream: IO[str] | None) -> Screen:
    """A table where the stream is a terminal that can draw one, else log lines."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # ValueError: it is closed
        if stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            return Table(stream)
    return LogLines()


def drawing(state: CommandState, width: int) -> Any:
    """What rich draws for a state on a terminal of `width` characters."""
    from rich.console import Group
    from rich.text import Text

    if width < TABLE_WIDTH:
        lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in short_lines(state)]
        return Group(*lines)
    parts = [
        Text(printable(f"{state.command}  {header_text(state)}"), style="bold", no_wrap=True),
        _stages(state.stages[-SHOWN_STAGES:]),
    ]
    current = state.current
    if current is not None:
        if current.reasons or current.stored:
            parts.append(_outcomes(current))
        if current.hosts and not current.ended:
            parts.append(_hosts(current))
        parts += [Text(line, style="dim", no_wrap=True) for line in _remarks(current)]
    return Group(*parts)


def _table(*columns: str) -> Any:
    from rich.table import Table as RichTable

    table = RichTable(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _stages(stages: tuple[StageState, ...]) -> Any:
    table = _table("stage", "tasks", "failed", "rows", "rows/s", "bytes/s", "time", "left")
    for stage in stages:
        ended = stage.done + stage.failed
        table.add_row(
            printable(stage.name),
            f"{ended:,} of {stage.total:,} ({percent(ended, stage.total)} %)",
            f"{stage.failed:,}",
            f"{stage.rows:,}" if stage.rows else "",
            rate_text(stage.rows_per_s) if stage.rows else "",
            bytes_text(stage.bytes_per_s) if stage.bytes else "",
            span_text(stage.seconds),
            "" if stage.ended else span_text(stage.left_s),
            style="dim" if stage.ended else "red" if stage.failed else "",
        )
    return table


def _outcomes(stage: StageState) -> Any:
    table = _table("outcome", "rows", "share", "class")
    reasons = stage.reasons or {}
    table.add_row("stored", f"{stage.stored:,}", f"{percent(stage.stored, stage.rows)} %", "")
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    for reason, count in ranked[:SHOWN_REASONS]:
        kind = REASONS.get(reason, "")
        table.add_row(printable(reason), f"{count:,}", f"{percent(count, stage.rows)} %", kind)
    others = sum(count for _, count in ranked[SHOWN_REASONS:])
    if others:
        name = f"{len(ranked) - SHOWN_REASONS} others"
        table.add_row(name, f"{others:,}", f"{percent(others, stage.rows)} %", "")
    return table


def _hosts(stage: StageState) -> Any:
    table = _table("slow or failing host", "rows", "seconds lost", "last reason")
    for host in stage.hosts:
        seconds = f"{host.seconds:,.0f}"
        table.add_row(printable(host.host)[:60], f"{host.rows:,}", seconds, printable(host.reason))
    return table


def _remarks(stage: StageState) -> Iterator[str]:
    if stage.ended:
        return
    if stage.oldest is not None and stage.oldest_s >= QUIET_S:
        yield printable(
            f"{stage.running} tasks are running; {stage.oldest} since {span_text(stage.oldest_s)}"
        )
    if stage.quiet_s >= QUIET_S:
        yield f"no task has ended since {span_text(stage.quiet_s)}"
    yield TIME_LEFT_METHOD


# --------------------------------------------------------------------------------------------------
# The view of the command that this process runs: its stages, shown, stored and counted.
#
# Nothing that goes wrong here reaches the command: a screen that raises is given up, a file that
# cannot be written is tried again later, and a thread that does not end in time is left behind.


SHOW_EVERY_S = 1.0
JOIN_S = 5.0  # for a thread that writes to a slow terminal or store
MAX_ENDED = 50  # stages that have ended and are kept
MAX_COMMAND = 200  # characters of a command line
MAX_MESSAGE = 400


class View:
    """The stages of one command. `pool` is where its state is written; None: it is only shown."""

    def __init__(self, pool: str | None, screen: Screen | None) -> None:
        self._pool, self._screen = pool, screen
        self._started = time.time()
        self._ended: list[StageState] = []
        self._running: list[StageCounter] = []
        self._count = 0
        self._phase: CommandPhase = "running"
        self._message = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._metrics: RayMetrics | None = RayMetrics()
        self._durations: dict[str, list[float]] = {}
        self._metrics_at = time.monotonic()
        self._is_written = self._warned = False

    def begin(self, name: str, total: int, measure: Measurer | None) -> StageCounter:
        """A stage with `total` tickets begins."""
        with self._lock:
            counter = StageCounter(name, total, measure, number=self._count)
            self._count += 1
            self._running.append(counter)
        if not self._threads:
            self._start("progress", SHOW_EVERY_S, self._show)
            if self._pool is not None:
                self._start("progress-file", write_every_s(self._pool), self._write)
        return counter

    def end(self, counter: StageCounter, *, brief: bool) -> None:
        """A stage has ended. A brief one is one of many of its name: only the last is kept."""
        counter.end()
        state = counter.state()
        with self._lock:
            self._running.remove(counter)
            self._durations.setdefault(counter.name, []).extend(counter.take_durations())
            if brief and self._ended and self._ended[-1].name == state.name:
                del self._ended[-1]
            self._ended = [*self._ended[-MAX_ENDED:], state]
        if not brief and self._screen is not None:
            screen = self._screen
            self._with_screen(lambda: screen.stage_ended(state))

    def state(self) -> CommandState:
        """The command at this moment."""
        with self._lock:
            ended, running = self._ended, list(self._running)
        return CommandState(
            version=STATE_VERSION,
            command=command_line(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self._started,
            updated=time.time(),
            phase=self._phase,
            message=self._message,
            stages=(*ended, *(counter.state() for counter in running)),
        )

    def close(self, phase: CommandPhase, message: str = "") -> None:
        """The command has ended: show, count and write its last state."""
        self._phase, self._message = phase, message[:MAX_MESSAGE]
        self._stop.set()
        ends = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        if self._screen is not None:
            self._with_screen(self._screen.close)

    # --- threads ----------------------------------------------------------------------------------

    def _start(self, name: str, every_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            while not self._stop.wait(every_s):
                action()
            action()  # the last state

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _show(self) -> None:
        try:
            state = self.state()
        except Exception:  # a defect of the view must not end its thread
            logger.debug("the state could not be made", exc_info=True)
            return
        if self._screen is not None:
            screen = self._screen
            self._with_screen(lambda: screen.show(state))
        now = time.monotonic()
        if now - self._metrics_at >= METRICS_EVERY_S or self._stop.is_set():
            self._metrics_at = now
            self._add_metrics(state)

    def _with_screen(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            # The terminal is gone, or too strange for the table: the command goes on without.
            broken, self._screen = self._screen, None
            with contextlib.suppress(Exception):
                if broken is not None:
                    broken.close()
            logger.debug("the progress is not shown any more", exc_info=True)

    def _add_metrics(self, state: CommandState) -> None:
        if self._metrics is None:
            return
        with self._lock:
            durations, self._durations = self._durations, {}
            for counter in self._running:
                durations.setdefault(counter.name, []).extend(counter.take_durations())
        try:
            self._metrics.add(state, durations)
        except Exception as error:
            self._metrics = None
            logger.warning("Ray takes no metrics, so Prometheus has none: %s", error)

    def _write(self) -> None:
        assert self._pool is not None
        try:
            is_short = self._stop.is_set() and not self._is_written
            if is_short and not disk.exists(PoolLayout(self._pool).progress_json):
                return  # a short command leaves a pool as it would without a view
            write_state(self._pool, self.state())
            self._is_written = True
        except Exception as error:
            if not self._warned:
                logger.warning("progress.json could not be written: %s; the work goes on", error)
            self._warned = True


_current: View | None = None


@contextlib.contextmanager
def shown_progress(pool: str | None = None) -> Iterator[None]:
    """Show the progress of all stages of the body: a table on a terminal, log lines elsewhere.

    With `pool`, whose lease this process holds, the state is written to POOL/progress.json too.
    Inside another one it does nothing: the outer one shows the stages.
    """
    global _current
    if _current is not None:
        yield
        return
    view = _current = View(pool, screen_for(sys.stderr))
    try:
        yield
    except BaseException as error:
        _current = None
        view.close("failed", f"{type(error).__name__}: {error}")
        raise
    _current = None
    view.close("finished")


@contextlib.contextmanager
def counted_stage(
    name: str, total: int, measure: Measurer | None = None, *, brief: bool = False
) -> Iterator[StageCounter]:
    """Count the tickets of a stage, and show them in the view of the command, or in one of their
    own.

    `brief`: it is one of many of its name, and gets a line only while it takes long.
    """
    with contextlib.ExitStack() as stack:
        if _current is None:
            stack.enter_context(shown_progress())
        view = _current
        assert view is not None
        counter = view.begin(name, total, measure)
        try:
            yield counter
        finally:
            view.end(counter, brief=brief)


def command_line() -> str:
    """The command of this process, without the folder of its script."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else ["python"]
    return shlex.join(words)[:MAX_COMMAND]
