"""The state of a stage as text."""

from __future__ import annotations

import pytest

from pipeline.progress.view import (
    bytes_text,
    header_text,
    percent,
    rate_text,
    reasons_text,
    short_lines,
    span_text,
    stage_line,
)
from tests.support.command_states import command_state, stage_state


def test_a_line_says_what_the_stage_did_and_how_long_it_will_take() -> None:
    line = stage_line(stage_state())
    assert line.startswith("fetch: 51 of 200 tasks, 1 failed, 500,000 rows (833 rows/s), 20.0 MB/s")
    assert "400,000 stored, reason_0 10,000" in line
    assert "8 other reasons 79,940" in line
    assert "slow or failing: slow.example (120 rows, 2,400 s, deadline)" in line
    assert "ab12 runs since 7 min" in line
    assert line.endswith("600.0 s, about 29 min left")
    assert "\x1b" not in line


def test_a_stage_that_counts_no_rows_has_a_short_line() -> None:
    line = stage_line(
        stage_state(rows=0, bytes=0, bytes_per_s=0.0, reasons={}, hosts=(), oldest=None, ended=True)
    )
    assert line == "fetch: 51 of 200 tasks, 1 failed, 600.0 s"


def test_short_lines_are_short() -> None:
    lines = list(short_lines(command_state(), now=1_060.0))
    assert lines[0] == "clipmill build recipe.yaml --out out/pool since 60 s"
    assert lines[1:3] == ["plan: sort 3/3 ok", "fetch 51/200 25 %"]
    assert max(map(len, lines[1:])) <= 26
    assert not any("\x1b" in line for line in lines)


def test_the_header_says_how_a_command_ended() -> None:
    assert header_text(command_state(phase="finished")) == "finished after 12 min"
    failed = command_state(phase="failed", message="ValueError: no weights")
    assert header_text(failed) == "failed after 12 min: ValueError: no weights"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (-1.0, "0 s"), (99.0, "99 s"), (150.0, "2 min"), (8000.0, "2.2 h")],
)
def test_spans(seconds: float | None, text: str) -> None:
    assert span_text(seconds) == text
    assert span_text(1e6) == "12 days"


def test_sizes_rates_and_shares() -> None:
    assert [bytes_text(size) for size in (0, 1500, 2e13)] == ["0 B", "1.5 kB", "20.0 TB"]
    assert [rate_text(rate) for rate in (0.25, 1234.0)] == ["0.2", "1,234"]
    assert [percent(1, 3), percent(0, 0)] == [33, 100]
    assert reasons_text({"dns": 2, "tls": 3}, 4) == "tls 3, dns 2"
