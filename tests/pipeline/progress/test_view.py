"""The view follows a command, and whatever breaks in it does not reach the command; a table on
terminals of any width, log lines elsewhere."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import Stage, Ticket, Work
from clipmill.pipeline.progress import view
from clipmill.pipeline.progress.state import CommandState, Measure, StageState
from clipmill.pipeline.progress.view import (
    Bars,
    LogLines,
    View,
    counted_stage,
    read_state,
    screen_for,
    shown_progress,
    stage_line,
    write_state,
)
from tests.support.command_states import command_state, stage_state
from tests.support.notebooks import fake_notebook
from tests.support.terminals import terminal


class BrokenScreen(LogLines):
    """Raises wherever it may."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def show(self, state: CommandState) -> None:
        self.calls += 1
        raise self.error

    def stage_ended(self, stage: StageState) -> None:
        self.show(None)  # type: ignore[arg-type]

    def close(self) -> None:
        self.show(None)  # type: ignore[arg-type]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view looks every 20 ms."""
    monkeypatch.setattr(view, "SHOW_EVERY_S", 0.02)
    monkeypatch.setattr(view, "LOCAL_EVERY_S", 0.02)


def sleeping(config: dict[str, float]) -> Work:
    def work(ticket: Ticket) -> Measure:
        time.sleep(config.get("sleep", 0.0))
        if ticket.id in config:
            raise ValueError("it never works")
        return Measure(rows=7, stored=7)

    return work


def run_tickets(count: int = 4, **config: float) -> None:
    tickets = [Ticket(id=f"t{i}", group=str(i)) for i in range(count)]
    stage = Stage(name="work", work=sleeping, job=config, result=Measure, concurrency=2)
    execute(stage, tickets, engine="inline")


def test_the_state_of_a_command_is_written_while_it_runs(tmp_path: Path, fast: None) -> None:
    pool = str(tmp_path)
    with shown_progress(pool):
        with counted_stage("first", 2) as counter:
            counter.started("a")
            ends = time.monotonic() + 900
            while read_state(pool) is None and time.monotonic() < ends:
                time.sleep(0.01)
            state = read_state(pool)
            assert state is not None
            assert (state.phase, state.pid) == ("running", os.getpid())
            assert [(stage.name, stage.running) for stage in state.stages] == [("first", 1)]
        run_tickets()
    state = read_state(pool)
    assert state is not None
    assert state.phase == "finished"
    assert [(stage.name, stage.ended) for stage in state.stages] == [
        ("first", True),
        ("work", True),
    ]
    assert (state.stages[1].done, state.stages[1].rows) == (4, 28)


def test_a_command_that_fails_says_why(tmp_path: Path, fast: None) -> None:
    def fail() -> None:
        with shown_progress(str(tmp_path)):
            run_tickets(sleep=0.1)
            raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        fail()
    state = read_state(str(tmp_path))
    assert state is not None
    assert (state.phase, state.message) == ("failed", "ValueError: no weights")


def test_a_short_command_leaves_no_file(tmp_path: Path) -> None:
    with shown_progress(str(tmp_path)):
        run_tickets()
    assert os.listdir(tmp_path) == []
    with shown_progress(str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "error", [BrokenPipeError("closed"), RuntimeError("rich"), ValueError("closed file")]
)
def test_a_screen_that_raises_is_given_up(
    error: Exception, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = BrokenScreen(error)
    monkeypatch.setattr(view, "screen_for", lambda stream: broken)
    with shown_progress():
        run_tickets(sleep=0.1)
    assert broken.calls == 2, "once shown, once closed, then never again"


def test_a_file_that_cannot_be_written_is_one_warning(
    tmp_path: Path, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "progress.json").mkdir()  # stands in the way of every write
    with shown_progress(str(tmp_path)):
        run_tickets(sleep=0.1)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "the work goes on" in warnings[0].getMessage()


def test_a_screen_that_blocks_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, ended = threading.Event(), threading.Event()

    class Blocking(LogLines):
        def show(self, state: CommandState) -> None:
            goes_on.wait(600)
            ended.set()

    monkeypatch.setattr(view, "JOIN_S", 0.2)
    monkeypatch.setattr(view, "SHOW_EVERY_S", 0.01)
    monkeypatch.setattr(view, "screen_for", lambda stream: Blocking())
    with shown_progress():
        run_tickets(sleep=0.05)
    assert not ended.is_set()
    goes_on.set()


def test_a_notebook_shows_one_output_that_is_drawn_anew(
    fast: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    outputs = fake_notebook(monkeypatch)
    with shown_progress():
        run_tickets(sleep=0.1)
        run_tickets(count=2, sleep=0.1)
    (output,) = outputs
    assert len(output.texts) > 1
    first, last = output.texts[0], output.texts[-1]
    assert [line.split()[0] for line in last.splitlines()[:2]] == ["work", "work"]
    assert "━" in last
    assert "\x1b" not in last
    assert len(first.splitlines()) < len(last.splitlines()) < 8
    assert capfd.readouterr() == ("", "")


def test_nested_views_are_one(tmp_path: Path, fast: None) -> None:
    with shown_progress(str(tmp_path)), shown_progress(), shown_progress(str(tmp_path / "other")):
        run_tickets(sleep=0.1)
    assert os.listdir(tmp_path) == ["progress.json"]


def test_brief_stages_of_one_name_are_one_entry_and_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    view_ = View(None, LogLines())
    for _ in range(100):
        view_.end(view_.begin("choose", 3), brief=True)
    assert [stage.number for stage in view_.state().stages] == [99]
    assert caplog.messages == []
    view_.close("finished")


def test_stages_that_have_ended_are_bounded() -> None:
    view_ = View(None, None)
    for number in range(500):
        view_.end(view_.begin(f"s{number}", 1), brief=False)
    assert len(view_.state().stages) <= view.MAX_ENDED + 1
    view_.close("finished")


# --------------------------------------------------------------------------------------------------
# progress.json is whole or not there, and killed writers leave one partial file at most.


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_state(str(tmp_path)) is None
    write_state(str(tmp_path), command_state(pid=1))
    write_state(str(tmp_path), command_state(pid=2))
    assert read_state(str(tmp_path)) == command_state(pid=2)
    assert os.listdir(tmp_path) == ["progress.json"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", "{}", '{"version": 1}', '{"version": 2}', '{"version": 2, "pid": "x"}'],
)
def test_a_damaged_file_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "progress.json").write_text(content)
    assert read_state(str(tmp_path)) is None


def test_an_object_store_has_a_state_too() -> None:
    write_state("memory://progress-test", command_state())
    assert read_state("memory://progress-test") == command_state()


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
