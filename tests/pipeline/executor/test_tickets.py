"""Which worker gets which ticket: order in a group, one worker per group, deaths of workers."""

from __future__ import annotations

import functools
import pickle
import random
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.pipeline.executor import tickets as executor
from clipmill.pipeline.executor.stage import execute
from clipmill.pipeline.executor.tickets import (
    Outcomes,
    Report,
    Stage,
    Ticket,
    TicketQueue,
    Tickets,
    Work,
    Worker,
    check_ready,
    error_line,
)
from clipmill.pipeline.progress.state import StageCounter


def tickets(*groups: str) -> list[Ticket]:
    """One ticket for each letter; its id is the letter and how many there were."""
    seen: Counter[str] = Counter()
    tickets = []
    for group in groups:
        tickets.append(Ticket(id=f"{group}{seen[group]}", group=group))
        seen[group] += 1
    return tickets


def begun(queue: TicketQueue, worker: str, starting_workers: int = 0) -> list[str]:
    """All that a worker may begin now."""
    started = []
    while (ticket := queue.start_next(worker, starting_workers)) is not None:
        started.append(ticket.id)
    return started


def named(queue: TicketQueue, worker: str, name: str) -> Ticket:
    return next(ticket for ticket in queue.running(worker) if ticket.id == name)


def test_other_groups_first_then_the_next_of_its_own() -> None:
    queue = TicketQueue(tickets(*"aaabb"), concurrency=2)
    assert begun(queue, "w", starting_workers=1) == ["a0", "a1"]
    assert begun(queue, "v") == ["b0", "b1"]
    queue.finished("w", named(queue, "w", "a0"), retry=False)
    assert begun(queue, "w") == ["a2"]
    alone = TicketQueue(tickets(*"aabc"), concurrency=4)
    assert begun(alone, "w") == ["a0", "b0", "c0", "a1"]


def test_a_second_group_is_left_to_workers_that_are_coming() -> None:
    queue = TicketQueue(tickets(*"abc"), concurrency=3)
    assert begun(queue, "w", starting_workers=2) == ["a0"]
    assert begun(queue, "w", starting_workers=1) == ["b0"]
    assert begun(queue, "v") == ["c0"]


def test_after_a_death_the_tickets_of_a_group_are_tried_in_order() -> None:
    queue = TicketQueue(tickets(*"aaa"), concurrency=3)
    assert begun(queue, "w") == ["a0", "a1", "a2"]
    queue.worker_died("w", queue.running("w"))
    for name in ("a0", "a1", "a2"):
        assert begun(queue, "v") == [name]
        queue.finished("v", named(queue, "v", name), retry=False)


def test_a_ticket_is_made_when_it_starts() -> None:
    made: list[int] = []

    def make(number: int) -> Ticket:
        made.append(number)
        return Ticket(id=str(number), group=str(number % 2))

    queue = TicketQueue(Tickets(np.array([0, 1, 0, 1, 0]), make))
    assert made == []
    assert begun(queue, "w") == ["0"]
    assert begun(queue, "v") == ["1"]
    queue.finished("w", named(queue, "w", "0"), retry=False)
    assert begun(queue, "w") == ["2"]
    assert made == [0, 1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_every_ticket_once_in_order_on_one_worker_per_group(seed: int) -> None:
    """Whatever waits, fails and dies; time passes only where nothing may start. What is tried again
    is the next of its group, at its time, and after a death alone.
    """
    rng = random.Random(seed)
    todo = tickets(*(rng.choice("abcdefgh") for _ in range(80)))
    queue = TicketQueue(todo, rng.randint(1, 4))
    workers, now = ["u", "v", "w"], 0.0
    starts: dict[str, list[str]] = {}
    ended, tries = Counter[str](), Counter[str]()
    again: set[str] = set()  # a group is the first letter of these ids
    not_before: dict[str, float] = {}  # of a group, until its next ticket starts
    suspects: set[str] = set()
    while queue.has_unstarted() or any(queue.running(worker) for worker in workers):
        for worker in rng.sample(workers, 2):
            if (ticket := queue.start_next(worker, rng.randint(0, 2), now=now)) is not None:
                tries[ticket.id] += 1
                assert now >= not_before.pop(ticket.group, -1.0)
                assert ticket.id in again or ticket.group not in {name[0] for name in again}
                again.discard(ticket.id)
                beside = {each.id for each in queue.running(worker)}
                assert len(beside) == 1 or not beside & suspects
                if tries[ticket.id] == 1:
                    starts.setdefault(ticket.group, []).append(ticket.id)
        assert all(len(queue.running(worker)) <= queue.concurrency for worker in workers)
        holders = Counter(
            group for one in workers for group in {ticket.group for ticket in queue.running(one)}
        )
        assert all(count == 1 for count in holders.values())
        busy = [worker for worker in workers if queue.running(worker)]
        if not busy:
            waiting = {name[0] for name in again}
            assert all(ticket.id in tries or ticket.group in waiting for ticket in todo)
            retry_time = queue.retry_time(now)
            assert retry_time is not None
            assert retry_time > now
            now = retry_time
            continue
        worker = rng.choice(busy)
        running = queue.running(worker)
        if rng.random() < 0.1:
            retried = [ticket for ticket in running if tries[ticket.id] < 2]
            ended.update(ticket.id for ticket in running if ticket not in retried)
            retry_time = now + rng.choice([-1.0, rng.random()])
            queue.worker_died(worker, retried, not_before=retry_time)
            suspects.update(ticket.id for ticket in retried)
        elif rng.random() < 0.5:
            done = rng.choice(running)
            retry = tries[done.id] < 2 and rng.random() < 0.4
            ended[done.id] += not retry
            retry_time = now + rng.random()
            queue.finished(worker, done, retry=retry, not_before=retry_time)
            retried = [done] if retry else []
            now += 0.01
        else:
            continue
        again.update(ticket.id for ticket in retried)
        not_before |= {ticket.group: retry_time for ticket in retried}
    assert ended == Counter(ticket.id for ticket in todo)
    assert queue.free_groups == 0
    for group, ids in starts.items():
        assert ids == [ticket.id for ticket in todo if ticket.group == group]


# --------------------------------------------------------------------------------------------------
# Tries are counted, the last failure is kept, and a retry waits.


TRIED: list[tuple[str, float]] = []


def failing_once(job: Any) -> Work:
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
    monkeypatch.setattr(executor, "RETRY_PAUSE_S", 0.3)
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
    for _ in range(executor.LOST_TRIES - 1):
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


# --------------------------------------------------------------------------------------------------
# A stage names a function that a worker can import, and a worker's answers are plain text.


def factory(job: Any) -> Work:
    """Returns the payload of a ticket and the job."""

    def work(ticket: Ticket) -> dict[str, Any]:
        return {"payload": ticket.payload, "job": job}

    return work


class Failing:
    """A class is a factory too."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        raise OSError(f"no space left for {ticket.id}")


class Refusing(Failing):
    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        raise ValueError(f"{ticket.id} is cut off")


def worker_of(stage: Stage) -> Worker:
    worker = Worker(*Worker.arguments(stage))
    check_ready(stage, worker.ready())
    return worker


def test_an_error_is_one_line_with_the_line_of_our_code() -> None:
    worker = worker_of(Stage(name="s", work=Failing))
    kind, text = worker.run(pickle.dumps(Ticket(id="7", group="a")))
    assert kind == "raised"
    assert text.startswith("OSError: no space left for 7 (test_tickets.py:")
    assert error_line(ValueError("the tar is cut off")) == "the tar is cut off"
    with pytest.raises(pa.ArrowInvalid) as invalid:
        pa.array(["x"]).cast(pa.int64())
    assert error_line(invalid.value).startswith("ArrowInvalid: ")


def test_a_mistake_is_logged_without_a_traceback_unless_one_is_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(Stage(name="s", work=Refusing))
    monkeypatch.delenv("CLIPMILL_TRACEBACK", raising=False)
    assert worker.run(pickle.dumps(Ticket(id="7", group="a"))) == ["raised", "7 is cut off"]
    assert not caplog.records
    monkeypatch.setenv("CLIPMILL_TRACEBACK", "1")
    worker.run(pickle.dumps(Ticket(id="7", group="a")))
    assert caplog.records[0].exc_info


def local_function() -> Any:
    def local(job: Any) -> Work:
        return factory(job)

    return local


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda _: factory({}), "<lambda>"),
        (local_function(), "local_function.<locals>.local"),
        (functools.partial(factory, {}), "partial"),
    ],
)
def test_a_function_that_no_worker_can_import_is_refused(work: Any, name: str) -> None:
    with pytest.raises(ValueError, match="which a worker cannot import; give a function") as error:
        Stage(name="fetch", work=work)
    assert str(error.value).startswith("stage fetch: work is ")
    assert name in str(error.value)


def test_a_function_of_the_script_that_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "__module__", "__main__")
    with pytest.raises(ValueError, match="factory of the script that runs, which a worker cannot"):
        Stage(name="fetch", work=factory)
