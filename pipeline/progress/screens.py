"""Where the state of a command is shown: a table on a terminal, log lines elsewhere.

A screen may raise whatever its stream raises; view.py keeps that from the command.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import IO, Any, Protocol

from manifests.columns import REASONS
from manifests.text import printable
from pipeline.progress.lines import (
    TIME_LEFT_METHOD,
    bytes_text,
    header_text,
    percent,
    rate_text,
    short_lines,
    span_text,
    stage_line,
)
from pipeline.progress.state import CommandState, StageState

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
