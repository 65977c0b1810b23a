"""A table on terminals of any width, log lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys

import pytest

from pipeline.progress import view
from pipeline.progress.view import LogLines, Table, drawing, screen_for
from tests.support.command_states import command_state, stage_state
from tests.support.terminals import terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def drawn(width: int) -> list[str]:
    """The lines of the table on a terminal of that width."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    console.print(drawing(command_state(), width))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [1, 5, 20, 40, 72, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines), "text of strangers is escaped"


def test_the_table_has_stages_outcomes_hosts_and_the_method() -> None:
    text = "\n".join(drawn(100))
    assert re.search(r"fetch +51 of 200 \(25 %\) +1 +500,000 +833 +20\.0 MB +10 min +29 min", text)
    assert re.search(r"stored +400,000 +80 %", text)
    assert re.search(r"4 others +39,962", text)
    assert re.search(r"slow\.example +120 +2,400 +deadline", text)
    assert "6 tasks are running; ab12 since 7 min" in text
    assert "no task has ended since 90 s" in text
    assert "tasks left ÷ tasks ended per second in the last 10 min of this run" in text


@pytest.mark.parametrize("columns", [20, 100])
def test_log_lines_appear_above_the_table_and_the_cursor_stays_visible(
    columns: int, xterm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(columns) as shown:
        monkeypatch.setattr(sys, "stderr", shown.stream)
        handler = logging.StreamHandler()
        logging.getLogger().addHandler(handler)
        try:
            screen = screen_for(shown.stream)
            assert isinstance(screen, Table)
            screen.show(command_state())
            logging.getLogger("somewhere").warning("a line [of] markup: %s", "x" * 5)
            screen.show(command_state())
            screen.close()
            assert handler.stream is sys.stderr is shown.stream
        finally:
            logging.getLogger().removeHandler(handler)
        text = shown.text()
    plain = ESCAPES.sub("", text).replace("\r\n", "").replace("\r", "")
    assert "a line [of] markup: xxxxx" in plain
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_a_pipe_and_nothing_get_log_lines(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term or "dumb")
    with terminal(80) as shown:
        assert isinstance(screen_for(shown.stream), LogLines)
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        assert isinstance(screen_for(pipe), LogLines)
    assert isinstance(screen_for(pipe), LogLines), "a closed stream"
    assert isinstance(screen_for(None), LogLines)


def test_a_terminal_that_hangs_up_does_not_end_the_process(xterm: None) -> None:
    with terminal(80, read=False) as shown:
        screen = screen_for(shown.stream)
        screen.show(command_state())
        shown.hang_up()
        with contextlib.suppress(OSError):  # whether it raises is up to the terminal
            screen.show(command_state())
        with contextlib.suppress(OSError):
            screen.close()


def test_a_broken_pipe_is_an_error_and_no_exit() -> None:
    with pytest.raises(BrokenPipeError):
        Table(io.StringIO()).console.on_broken_pipe()


def test_there_is_at_most_one_log_line_in_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    clock = [100.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: clock[0])
    screen = LogLines()
    for _ in range(1_000):
        clock[0] += 0.1
        screen.show(command_state())
    assert len(caplog.records) in (9, 10)
    screen.stage_ended(stage_state(ended=True))
    assert caplog.messages[-1].endswith("600.0 s")
    screen.show(command_state(stage_state(ended=True)))
    screen.close()
