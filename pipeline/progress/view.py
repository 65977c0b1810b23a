"""The view of the command that this process runs: its stages, shown, stored and counted.

Nothing that goes wrong here reaches the command: a screen that raises is given up, a file that
cannot be written is tried again later, and a thread that does not end in time is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from manifests import disk
from manifests.pool_layout import PoolLayout
from pipeline.progress.measure import Measurer
from pipeline.progress.progress_file import write_every_s, write_state
from pipeline.progress.ray_metrics import EVERY_S as METRICS_EVERY_S
from pipeline.progress.ray_metrics import RayMetrics
from pipeline.progress.screens import Screen, screen_for
from pipeline.progress.stage_counter import StageCounter
from pipeline.progress.state import STATE_VERSION, CommandPhase, CommandState, StageState

SHOW_EVERY_S = 1.0
JOIN_S = 5.0  # for a thread that writes to a slow terminal or store
MAX_ENDED = 50  # stages that have ended and are kept
MAX_COMMAND = 200  # characters of a command line
MAX_MESSAGE = 400
logger = logging.getLogger(__name__)


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
