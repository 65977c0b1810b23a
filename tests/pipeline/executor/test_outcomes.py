"""Tries are counted, the last failure is kept, and a retry waits."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pipeline.executor import tickets as outcomes
from pipeline.executor.stage import execute
from pipeline.executor.tickets import Outcomes, Report, Stage, Ticket, Work
from pipeline.progress.state import StageCounter

TRIED: list[tuple[str, float]] = []


def failing_once(config: dict[str, Any]) -> Work:
    """The ticket named bad raises in its first try."""

    def work(ticket: Ticket) -> dict[str, Any]:
        again = any(name == ticket.id for name, _ in TRIED)
        TRIED.append((ticket.id, time.monotonic()))
        if ticket.id == "bad" and not again:
            raise OSError("SlowDown")
        return {}

    return work


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_ticket_that_failed_is_tried_again_after_a_pause(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "RETRY_PAUSE_S", 0.3)
    TRIED.clear()
    tickets = [Ticket(id=name, group=name) for name in ("bad", "fine", "other")]
    stage = Stage(name="s", work=failing_once, concurrency=concurrency)
    assert execute(stage, tickets, engine="inline").failed == {}
    first, second = [moment for name, moment in TRIED if name == "bad"]
    assert second - first >= 0.2
    if concurrency > 1:
        assert TRIED[-1][0] == "bad", "other groups do not wait"


def test_a_try_that_was_lost_with_its_node_is_none_of_the_two() -> None:
    record = Outcomes("s", StageCounter("s", 1))
    ticket = Ticket(id="1", group="a")
    assert not record.record(ticket, "lost", "the node is gone")
    assert not record.record(ticket, "raised", "first")
    assert not record.record(ticket, "lost", "the node is gone")
    assert record.record(ticket, "raised", "second")
    assert record.report == Report(failures=1, failed={"1": "second"})
    for _ in range(outcomes.LOST_TRIES - 1):
        assert not record.record(ticket, "lost", "the node is gone")
    assert record.record(ticket, "lost", "the node is gone")
    assert record.report.failures == 2


def test_a_report_counts_all_failures_and_names_a_hundred(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = Outcomes("s", StageCounter("s", 1000))
    for number in range(1000):
        ticket = Ticket(id=str(number), group="a")
        while not record.record(ticket, "raised", "the store is gone"):
            pass
    assert (record.report.failures, record.report.done) == (1000, 0)
    assert list(record.report.failed) == [str(number) for number in range(100)]
    assert len(caplog.records) == 101
    assert "only counted" in caplog.text
