"""Counts, rates, hosts and the time left of a stage, by a clock that the test sets."""

from __future__ import annotations

from collections import Counter

import pytest

from clipmill.pipeline.progress.state import (
    MAX_HOSTS,
    MIN_LOST_S,
    SAMPLES,
    SLOW_S,
    HostLosses,
    Measure,
    StageCounter,
    WorkerReport,
    measure_of,
)
from tests.support.command_states import command_state, stage_state
from tests.support.commit_records import commit_record

MEASURE = Measure(rows=100, stored=80, bytes=5_000, reasons=Counter({"dns": 20}))


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def counter_of(clock: Clock, total: int = 10) -> StageCounter:
    return StageCounter("fetch", total, clock=clock)


def run_tickets(counter: StageCounter, clock: Clock, count: int, each_s: float) -> None:
    for number in range(count):
        counter.started(f"t{number}")
        for _ in range(int(each_s)):
            clock.now += 1.0
            counter.state()
        counter.ended(f"t{number}", MEASURE)


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
    assert counter_of(clock, total=0).state().left_s == 0.0
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
    for _ in range(2 * SAMPLES):
        clock.now += 1.0
        counter.state()
    assert counter.state().left_s is None, "nothing has ended in the window"
    assert len(counter._samples) == SAMPLES


def test_rows_of_running_tickets_are_counted_once(clock: Clock) -> None:
    counter = counter_of(clock, total=2)
    report = WorkerReport()
    for name in ("a", "b"):
        counter.started(name)
        report.tickets[name] = Measure(total=100)
    for _ in range(50):
        report.tickets["a"].add_row(None, 10)
    report.tickets["b"].add_row("dns", 0)
    report.losses.add("dead.example", 9.0, "dns")
    clock.now += 10.0
    counter.reported("w", report.to_json())
    state = counter.state()
    assert (state.running, state.oldest, state.oldest_s) == (2, "a", 10.0)
    assert (state.rows, state.stored, state.bytes, state.reasons) == (51, 50, 500, {"dns": 1})
    assert state.left_s == pytest.approx(10.0 * (2 - 0.51) / 0.51, rel=0.01)
    assert [host.host for host in state.hosts] == ["dead.example"]
    counter.ended("a", MEASURE)
    counter.reported("w", report.to_json())  # a report from before the end
    assert counter.state().rows == 101
    counter.retried("b")
    assert counter.state().rows == 100


def test_an_ended_stage_stands_still_and_has_the_rate_of_its_whole_time(clock: Clock) -> None:
    counter = counter_of(clock, total=4)
    run_tickets(counter, clock, 4, 100.0)
    counter.end()
    clock.now += 1_000.0
    state = counter.state()
    assert (state.seconds, state.rows_per_s, state.left_s, state.ended) == (400.0, 1.0, 0.0, True)


# --- hosts ----


def test_the_worst_host_comes_first_with_its_last_reason() -> None:
    losses = HostLosses()
    losses.add("fast.example", 0.2, None)
    losses.add("fast.example", SLOW_S, "http_4xx")  # an answer, and in time
    losses.add("slow.example", SLOW_S + 3, None)
    losses.add("dead.example", 20.0, "deadline")
    losses.add("dead.example", 0.0, "host_busy")
    losses.add("large.example", SLOW_S + 1, "http_4xx")
    dead, slow, large = losses.worst()
    assert (dead.host, dead.rows, dead.reason) == ("dead.example", 2, "host_busy")
    assert dead.seconds == 20.0 + MIN_LOST_S
    assert (slow.host, slow.seconds, slow.reason) == ("slow.example", 3.0, "slow")
    assert (large.host, large.reason) == ("large.example", "http_4xx")
    assert losses.worst(1) == (dead,)


def test_a_hundred_thousand_hosts_stay_a_small_table_that_has_the_worst() -> None:
    losses = HostLosses()
    for number in range(20 * MAX_HOSTS):
        losses.add(f"h{number}.example", 2.0, "dns")
        if number % 50 == 0:
            losses.add("worst.example", 3.0, "deadline")
    assert len(losses.worst(10 * MAX_HOSTS)) <= 2 * MAX_HOSTS
    assert losses.worst()[0].host == "worst.example"
    assert losses.worst()[0].rows == 400


# --- what tickets did, and the state on disk ----


def test_what_each_kind_of_worker_returns() -> None:
    record = commit_record(7, successes=3, reasons={"dns": 2})
    expected = Measure(rows=5, stored=3, bytes=record.tar_bytes, reasons=Counter({"dns": 2}))
    assert measure_of(record) == expected
    assert measure_of(Measure(rows=9, stored=4)) == Measure(rows=9, stored=4)
    assert measure_of(None) == Measure()


def test_the_current_stage_is_the_one_that_runs_else_the_last_one() -> None:
    running, ended = stage_state(name="a"), stage_state(name="b", ended=True)
    assert command_state(running, ended).current == running
    assert command_state(ended).current == ended
    assert command_state(stages=()).current is None
