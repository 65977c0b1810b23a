"""Counts, rates and the time left of a stage, by a clock that the test sets."""

from __future__ import annotations

import json

import pytest

from pipeline.progress.state import (
    MAX_DURATIONS,
    TIME_LEFT_WINDOW_S,
    StageCounter,
    TicketRows,
    WorkerReport,
    measure_commit,
)

RESULT = {"count": 100, "successes": 80, "tar_bytes": 5_000, "reasons": {"dns": 20}}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def counter_of(clock: Clock, total: int = 10) -> StageCounter:
    return StageCounter("fetch", total, measure_commit, clock=clock)


def run_tickets(counter: StageCounter, clock: Clock, count: int, each_s: float) -> None:
    for number in range(count):
        counter.started(f"t{number}")
        clock.now += each_s
        counter.ended(f"t{number}", RESULT)
        counter.state()


def test_rows_reasons_and_bytes_add_up(clock: Clock) -> None:
    counter = counter_of(clock)
    run_tickets(counter, clock, 3, 10.0)
    counter.started("bad")
    counter.ended("bad", None)
    state = counter.state()
    assert (state.done, state.failed, state.running) == (3, 1, 0)
    assert (state.rows, state.stored, state.bytes, state.reasons) == (300, 240, 15_000, {"dns": 60})
    assert state.rows_per_s == 10.0
    assert state.bytes_per_s == 500.0


def test_the_time_left_follows_from_the_tickets_of_this_run(clock: Clock) -> None:
    # 10 tickets are left of a pool that has thousands: those of earlier runs do not count.
    counter = counter_of(clock, total=10)
    assert counter.state().left_s is None
    run_tickets(counter, clock, 4, 10.0)
    assert counter.state().left_s == pytest.approx(60.0)
    run_tickets(counter, clock, 6, 10.0)
    assert counter.state().left_s == 0.0


def test_the_time_left_forgets_what_is_older_than_its_window(clock: Clock) -> None:
    counter = counter_of(clock, total=1_000)
    run_tickets(counter, clock, 100, 1.0)
    run_tickets(counter, clock, 100, 20.0)  # the network became slow
    assert counter.state().left_s == pytest.approx(800 * 20.0, rel=0.05)
    clock.now += 2 * TIME_LEFT_WINDOW_S
    assert counter.state().left_s is None, "nothing has ended in the window"
    assert counter.state().quiet_s == pytest.approx(2 * TIME_LEFT_WINDOW_S)


def test_samples_are_bounded(clock: Clock) -> None:
    counter = counter_of(clock)
    for _ in range(5_000):
        clock.now += 1.0
        counter.state()
    assert len(counter._samples) <= TIME_LEFT_WINDOW_S + 5


def test_rows_of_running_tickets_are_counted_once(clock: Clock) -> None:
    counter = counter_of(clock, total=2)
    report = WorkerReport()
    for name in ("a", "b"):
        counter.started(name)
        report.tickets[name] = TicketRows(total=100)
    for _ in range(50):
        report.tickets["a"].add(None, 10)
    report.tickets["b"].add("dns", 0)
    report.losses.add("dead.example", 9.0, "dns")
    clock.now += 10.0
    counter.reported("w", report.to_json())
    state = counter.state()
    assert (state.rows, state.stored, state.bytes, state.reasons) == (51, 50, 500, {"dns": 1})
    assert state.left_s == pytest.approx(10.0 * (2 - 0.51) / 0.51, rel=0.01)
    assert [host.host for host in state.hosts] == ["dead.example"]
    counter.ended("a", RESULT)
    counter.reported("w", report.to_json())  # a report from before the end
    assert counter.state().rows == 101
    counter.retried("b")
    assert counter.state().rows == 100


def test_the_ticket_that_runs_longest_is_named(clock: Clock) -> None:
    counter = counter_of(clock)
    counter.started("old")
    clock.now += 30.0
    counter.started("new")
    state = counter.state()
    assert (state.running, state.oldest, state.oldest_s) == (2, "old", 30.0)


def test_an_ended_stage_stands_still_and_has_the_rate_of_its_whole_time(clock: Clock) -> None:
    counter = counter_of(clock, total=4)
    run_tickets(counter, clock, 4, 100.0)
    counter.end()
    clock.now += 1_000.0
    state = counter.state()
    assert (state.seconds, state.rows_per_s, state.left_s, state.ended) == (400.0, 1.0, 0.0, True)


def test_a_stage_without_tickets_has_no_time_left(clock: Clock) -> None:
    counter = counter_of(clock, total=0)
    clock.now += 10.0
    assert counter.state().left_s == 0.0


def test_durations_are_taken_once_and_bounded(clock: Clock) -> None:
    counter = StageCounter("s", 10, clock=clock)
    run_tickets(counter, clock, 3, 2.0)
    assert counter.take_durations() == [2.0, 2.0, 2.0]
    assert counter.take_durations() == []
    for number in range(MAX_DURATIONS + 10):
        counter.ended(str(number), {})
    assert len(counter.take_durations()) == MAX_DURATIONS


def test_a_worker_that_tells_nonsense_is_an_error_of_the_caller(clock: Clock) -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        counter_of(clock).reported("w", "no json")
    with pytest.raises(KeyError):
        counter_of(clock).reported("w", json.dumps({}))
