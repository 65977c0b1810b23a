"""The view of the command that this process runs: bars, log lines, progress.json."""

from __future__ import annotations

import contextlib
import datetime
import io
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from clipmill.manifests import console, disk, telemetry, waits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.text import printable
from clipmill.pipeline.progress.state import (
    CommandPhase,
    CommandState,
    StageCounter,
    StageState,
)

# --------------------------------------------------------------------------------------------------
# The state of a stage as text.


REASONS_IN_A_LINE = 4
HOSTS_IN_A_LINE = 2
OLD_S = 300.0  # a ticket that runs longer is named


def stage_line(stage: StageState) -> str:
    """One line about one stage, for a log."""
    details = list(_details(stage, REASONS_IN_A_LINE, HOSTS_IN_A_LINE))
    return printable(f"{stage.name}: {', '.join([_counts(stage), *details])}")


def _counts(stage: StageState) -> str:
    """Tasks, rows, rates and times of a stage."""
    from rich.filesize import decimal

    parts = [f"{stage.done + stage.failed:,} of {stage.total:,} tasks", f"{stage.failed} failed"]
    if stage.rows:
        parts.append(f"{stage.rows:,} rows ({stage.rows_per_s:,.1f} rows/s)")
    if stage.bytes_per_s:
        parts.append(f"{decimal(int(stage.bytes_per_s))}/s")
    parts.append(_span(stage.seconds))
    if not stage.ended and stage.left_s is not None:
        parts.append(f"about {_span(stage.left_s)} left")
    return ", ".join(parts)


def _details(stage: StageState, reasons: int, hosts: int) -> Iterator[str]:
    """The outcomes of a stage, the hosts on which it loses time, and the task that runs long."""
    if stage.reasons:
        counts = [f"{reason} {count:,}" for reason, count in stage.reasons.items()]
        others = sum(list(stage.reasons.values())[reasons:])
        more = [f"{len(counts) - reasons} other reasons {others:,}"] if others else []
        yield ", ".join([f"{stage.stored:,} stored", *counts[:reasons], *more])
    if stage.hosts and not stage.ended:
        shown = []
        for each in stage.hosts[:hosts]:
            text = f"{each.host} ({each.rows:,} rows, {each.seconds:,.0f} s, {each.reason})"
            shown.append(text)
        yield f"slow or failing: {', '.join(shown)}"
    if stage.oldest is not None and stage.oldest_s >= OLD_S:
        yield f"{stage.oldest} runs since {_span(stage.oldest_s)}"


def _span(seconds: float) -> str:
    """`0:29:10`, `3 days, 2:00:00`."""
    return str(datetime.timedelta(seconds=round(max(0.0, seconds))))


# --------------------------------------------------------------------------------------------------
# POOL/progress.json: what a running command writes for those who watch it from elsewhere.
#
# It is no part of the pool: nothing reads it but a person's view, it is not synced, and a write
# that fails is tried again with the next state.


LOCAL_EVERY_S = 2.0
REMOTE_EVERY_S = 15.0  # a put is paid for


def write_state(pool: str, state: CommandState) -> None:
    """Write progress.json, whole or not at all, over the one of before."""
    disk.write_json(PoolLayout(pool).progress_json, state)


def read_state(pool: str) -> CommandState | None:
    """The last state that a command has written; None where there is none that can be read."""
    try:
        document = disk.read_json(PoolLayout(pool).progress_json)
        state: CommandState = disk.from_plain(CommandState, document)
    except (FileNotFoundError, ValueError):
        return None
    return state


# --------------------------------------------------------------------------------------------------
# Where the state of a command is shown: bars on a terminal and in a notebook, log lines elsewhere.
#
# A screen may raise whatever its stream raises; `View` keeps that from the command.


LINE_EVERY_S = 10.0
SHOWN_STAGES = 12
SHOWN_REASONS, SHOWN_HOSTS = 8, 5
CELL_WIDTH = 110  # characters of a line in a notebook
logger = logging.getLogger("clipmill.pipeline.progress")


class LogLines:
    """A screen: it shows states until it is closed. This one logs at most one line in LINE_EVERY_S,
    and one for each stage that has ended.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, state: CommandState) -> None:
        """Log a line about the running stage, unless the last one is recent."""
        current = state.current
        if current is None or current.ended or time.monotonic() - self._last < LINE_EVERY_S:
            return
        self.stage_ended(current)

    def stage_ended(self, stage: StageState) -> None:
        """Log the last line of a stage."""
        self._last = time.monotonic()
        logger.info("%s", stage_line(stage))

    def close(self) -> None:
        """Nothing is open."""


class Bars(LogLines):
    """Rich's progress bars, a stage each, and what the last stage does. Log lines and what is
    printed appear above them."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        class OwnConsole(Console):
            def on_broken_pipe(self) -> None:
                """Rich would end the process here."""
                raise BrokenPipeError("the terminal is closed")

        bars = self

        class OwnProgress(Progress):
            def get_renderables(self) -> Iterable[Any]:
                yield self.make_tasks_table(self.tasks)
                for line in bars._lines:
                    yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")

        self._lines: list[str] = []
        self._tasks: dict[int, Any] = {}  # number of a stage -> its bar
        self._redirected: list[tuple[Any, Any]] = []
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[counts]}", markup=False),
        )
        self._progress = OwnProgress(
            *columns,
            console=OwnConsole(file=stream, highlight=False, emoji=False, force_jupyter=False),
            auto_refresh=False,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )

    def show(self, state: CommandState) -> None:
        """Draw the state."""
        if not self._progress.live.is_started:
            self._open()
        self._update(state)
        self._progress.refresh()

    def _update(self, state: CommandState) -> None:
        """Take the state over into the bars and the lines below them."""
        progress = self._progress
        shown = {stage.number: stage for stage in state.stages[-SHOWN_STAGES:]}
        for number in self._tasks.keys() - shown.keys():
            progress.remove_task(self._tasks.pop(number))
        for number, stage in shown.items():
            if number not in self._tasks:
                self._tasks[number] = progress.add_task(printable(stage.name), counts="")
            progress.update(
                self._tasks[number],
                total=max(1, stage.total),
                completed=stage.done + stage.failed if stage.total else 1,
                counts=printable(_counts(stage)),
            )
        self._lines = [printable(state.command)]
        if state.current is not None:
            details = _details(state.current, SHOWN_REASONS, SHOWN_HOSTS)
            self._lines += [printable(each) for each in details]

    def stage_ended(self, stage: StageState) -> None:
        """Its bar shows it."""

    def close(self) -> None:
        """Leave the last bars on the terminal."""
        for handler, stream in self._redirected:
            handler.setStream(stream)
        self._redirected = []
        self._progress.stop()

    def _open(self) -> None:
        before = sys.stderr
        self._progress.start()
        # A killed process cannot show the cursor again, so it is never hidden.
        self._progress.console.show_cursor(True)
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                self._redirected.append((handler, before))
                handler.setStream(sys.stderr)


class Cell(Bars):
    """The same bars in the cell of a notebook, as one output that is drawn anew; of what ends at
    once there is none. IPython is enough for it: Rich's own bars in Jupyter need ipywidgets."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self._progress.console.width = CELL_WIDTH
        self._output: Any = None

    def show(self, state: CommandState) -> None:
        """Draw the state."""
        from IPython.display import display

        if self._output is None and time.time() - state.started < SHOW_EVERY_S:
            return
        self._update(state)
        del self._lines[0]  # the words of the kernel
        with self._progress.console.capture() as capture:
            self._progress.console.print(*self._progress.get_renderables())
        text = {"text/plain": capture.get()}
        if self._output is None:
            self._output = display(text, raw=True, display_id=True)  # type: ignore[no-untyped-call,unused-ignore]
        else:
            self._output.update(text, raw=True)

    def close(self) -> None:
        """The last bars stay."""


def screen_for(stream: IO[str] | None) -> LogLines:
    """Bars in a notebook, and where the stream is a terminal that can draw them, else log lines."""
    if console.in_notebook():
        return Cell()
    with contextlib.suppress(ValueError, OSError):  # ValueError: it is closed
        if stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            return Bars(stream)
    return LogLines()


# --------------------------------------------------------------------------------------------------
# The view of the command that this process runs: its stages, shown and stored.
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

    def __init__(self, pool: str | None, screen: LogLines | None) -> None:
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
        self._is_written = self._warned = False

    def begin(self, name: str, total: int) -> StageCounter:
        """A stage with `total` tickets begins."""
        with self._lock:
            counter = StageCounter(name, total, number=self._count)
            self._count += 1
            self._running.append(counter)
        if not self._threads:
            self._start("progress", SHOW_EVERY_S, self._show)
            if self._pool is not None:
                every_s = REMOTE_EVERY_S if disk.is_url(self._pool) else LOCAL_EVERY_S
                self._start("progress-file", every_s, self._write)
        return counter

    def end(self, counter: StageCounter, *, brief: bool) -> None:
        """A stage has ended. A brief one is one of many of its name: only the last is kept."""
        counter.end()
        state = counter.state()
        with self._lock:
            self._running.remove(counter)
            if brief and self._ended and self._ended[-1].name == state.name:
                del self._ended[-1]
            self._ended = [*self._ended[-MAX_ENDED:], state]
        if not brief:
            self._with_screen(lambda screen: screen.stage_ended(state))

    def state(self) -> CommandState:
        """The command at this moment."""
        with self._lock:
            ended, running = self._ended, list(self._running)
        words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else ["python"]
        return CommandState(
            command=shlex.join(words)[:MAX_COMMAND],
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self._started,
            phase=self._phase,
            message=self._message,
            stages=(*ended, *(counter.state() for counter in running)),
        )

    def samples(self) -> Iterator[telemetry.Sample]:
        """The command at this moment, for Prometheus."""
        return samples_of(self.state(), self._pool or "")

    def close(self, phase: CommandPhase, message: str = "") -> None:
        """The command has ended: show and write its last state."""
        self._phase, self._message = phase, message[:MAX_MESSAGE]
        self._stop.set()
        ends = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        self._with_screen(lambda screen: screen.close())

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
        self._with_screen(lambda screen: screen.show(self.state()))

    def _with_screen(self, action: Callable[[LogLines], None]) -> None:
        screen = self._screen
        if screen is None:
            return
        try:
            action(screen)
        except Exception:
            # The terminal is gone, or too strange for bars: the command goes on without.
            self._screen = None
            with contextlib.suppress(Exception):
                screen.close()
            logger.debug("the progress is not shown any more", exc_info=True)

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


def samples_of(state: CommandState, pool: str) -> Iterator[telemetry.Sample]:
    """The state of a command as Prometheus has it; of stages of one name the last."""
    for stage in {stage.name: stage for stage in state.stages}.values():
        labels = {"pool": pool, "stage": stage.name}
        for name, count in (
            ("all", stage.total), ("done", stage.done), ("failed", stage.failed),
            ("running", stage.running),
        ):  # fmt: skip
            yield telemetry.Sample("clipmill_stage_tasks", count, labels | {"state": name})
        for reason, count in {"stored": stage.stored, **stage.reasons}.items():
            yield telemetry.Sample("clipmill_stage_rows_total", count, labels | {"outcome": reason})
        yield telemetry.Sample("clipmill_stage_bytes_total", stage.bytes, labels)
        yield telemetry.Sample("clipmill_stage_seconds", stage.seconds, labels)
        if stage.left_s is not None:
            yield telemetry.Sample("clipmill_stage_left_seconds", stage.left_s, labels)


_current: View | None = None


def _look_at(view: View) -> Callable[[], None]:
    """What is done every second while a command runs."""
    life, still = waits.Life(), waits.Stillness(waits.LIMIT_S)

    def look() -> None:
        rows = sum(stage.rows for stage in view.state().stages)
        still.look((rows, waits.begun_and_ended(), life.look()))
        text = f"nothing has been done for {still.seconds:.0f} s"
        if still.is_over:
            text += f": {waits.longest() or waits.where()}; what is committed stays"
            waits.end_now(console.EXIT_INCOMPLETE, f"{text}; run the command again to resume")
        if still.is_line_due():
            logger.warning("%s: %s", text, waits.longest() or waits.where())

    return look


@contextlib.contextmanager
def shown_progress(pool: str | None = None) -> Iterator[None]:
    """Show the progress of all stages of the body: bars on a terminal, log lines elsewhere.

    With `pool`, whose lease this process holds, the state is written to POOL/progress.json too.
    Where this process does nothing, a line says where it waits, and after `waits.LIMIT_S` it ends.
    Inside another one it does nothing: the outer one shows the stages.
    """
    global _current
    if _current is not None:
        yield
        return
    view = _current = View(pool, screen_for(sys.stderr))
    try:
        with waits.watched(_look_at(view)), telemetry.exported(view.samples):
            yield
    except BaseException as error:
        _current = None
        view.close("failed", f"{type(error).__name__}: {error}")
        raise
    _current = None
    view.close("finished")


@contextlib.contextmanager
def counted_stage(name: str, total: int, *, brief: bool = False) -> Iterator[StageCounter]:
    """Count the tickets of a stage, and show them in the view of the command, or in one of their
    own.

    `brief`: it is one of many of its name, and gets a line only while it takes long.
    """
    with contextlib.ExitStack() as stack:
        if _current is None:
            stack.enter_context(shown_progress())
        view = _current
        assert view is not None
        counter = view.begin(name, total)
        try:
            yield counter
        finally:
            view.end(counter, brief=brief)
