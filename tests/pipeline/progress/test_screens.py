"""A table on terminals of any width, log lines elsewhere."""

from __future__ import annotations

import io
import logging
import os
import re
import sys

import pytest

from pipeline.progress import view
from pipeline.progress.view import Bars, LogLines, screen_for, stage_line
from tests.support.command_states import command_state, stage_state
from tests.support.terminals import terminal

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_a_line_says_what_the_stage_did_and_how_long_it_will_take() -> None:
    line = stage_line(stage_state())
    assert line.startswith(
        "fetch: 51 of 200 tasks, 1 failed, 500,000 rows (833.0 rows/s), 20.0 MB/s, "
        "0:10:00, about 0:29:10 left, 400,000 stored, reason_0 10,000, "
    )
    assert "8 other reasons 79,940" in line
    assert "slow or failing: slow.example (120 rows, 2,400 s, deadline)" in line
    assert line.endswith("ab12 runs since 0:06:40")
    assert "\x1b" not in line
    quiet = stage_state(rows=0, bytes_per_s=0.0, reasons={}, hosts=(), oldest=None, ended=True)
    assert stage_line(quiet) == "fetch: 51 of 200 tasks, 1 failed, 0:10:00"


@pytest.mark.parametrize("width", [1, 20, 72, 200])
def test_bars_have_stages_outcomes_and_hosts_on_a_terminal_of_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    bars = Bars(stream)
    bars.show(command_state(stage_state(name="plan: sort", number=0, ended=True), stage_state()))
    bars.show(command_state(stage_state(done=60)))  # the first stage is not shown any more
    bars.close()
    text = stream.getvalue()
    assert "red.example" not in text or "\x1b[31mred" not in text, "text of strangers is escaped"
    lines = ESCAPES.sub("", text).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= width
    if width == 200:
        assert any(line.startswith("clipmill build recipe.yaml") for line in lines)
        assert any(
            re.match(r"fetch +\S+ +61 of 200 tasks, 1 failed, 500,000 rows", x) for x in lines
        )
        assert any(line.startswith("400,000 stored, reason_0 10,000") for line in lines)
        assert any("slow.example (120 rows, 2,400 s, deadline)" in line for line in lines)


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
            assert isinstance(screen, Bars)
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


def test_a_broken_pipe_is_an_error_and_no_exit() -> None:
    with pytest.raises(BrokenPipeError):
        Bars(io.StringIO())._progress.console.on_broken_pipe()


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
    assert caplog.messages[-1].endswith("ab12 runs since 0:06:40")
    screen.show(command_state(stage_state(ended=True)))
    screen.close()
