"""Which worker gets which ticket: order in a group, one worker per group, deaths of workers."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from pipeline.executor.tickets import Ticket, TicketQueue, Tickets


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


def test_one_at_a_time_where_nothing_else_is_said() -> None:
    queue = TicketQueue(tickets(*"aab"))
    assert begun(queue, "w") == ["a0"]
    assert begun(queue, "v") == ["b0"], "a has a worker"
    queue.finished("w", named(queue, "w", "a0"), retry=False)
    assert begun(queue, "w") == ["a1"]
    assert not queue.has_unstarted()


def test_other_groups_first_then_the_next_of_its_own() -> None:
    queue = TicketQueue(tickets(*"aaabb"), concurrency=2)
    assert begun(queue, "w", starting_workers=1) == ["a0", "a1"]
    assert begun(queue, "v") == ["b0", "b1"]
    queue.finished("w", named(queue, "w", "a0"), retry=False)
    assert begun(queue, "w") == ["a2"]
    alone = TicketQueue(tickets(*"aabc"), concurrency=4)
    assert begun(alone, "w") == ["a0", "b0", "c0", "a1"]


def test_a_worker_goes_on_with_a_group_that_it_had() -> None:
    queue = TicketQueue(tickets(*"aabbcc"), concurrency=2)
    assert begun(queue, "w") == ["a0", "b0"]
    queue.finished("w", named(queue, "w", "a0"), retry=False)
    assert begun(queue, "w") == ["a1"]


def test_a_second_group_is_left_to_workers_that_are_coming() -> None:
    queue = TicketQueue(tickets(*"abc"), concurrency=3)
    assert begun(queue, "w", starting_workers=2) == ["a0"]
    assert begun(queue, "w", starting_workers=1) == ["b0"]
    assert begun(queue, "v") == ["c0"]


def test_what_is_tried_again_comes_first_in_its_group() -> None:
    queue = TicketQueue(tickets(*"aaa"), concurrency=2)
    begun(queue, "w")
    queue.finished("w", named(queue, "w", "a0"), retry=True)
    assert begun(queue, "w") == ["a0"]
    assert [ticket.id for ticket in queue.running("w")] == ["a1", "a0"]


def test_after_a_death_each_ticket_is_tried_alone() -> None:
    queue = TicketQueue(tickets(*"aaaa"), concurrency=3)
    assert begun(queue, "w") == ["a0", "a1", "a2"]
    queue.worker_died("w", queue.running("w"))
    assert begun(queue, "v") == ["a0"]
    assert begun(queue, "u") == []
    queue.worker_died("v", [])  # it was the one
    assert begun(queue, "u") == ["a1"]
    queue.finished("u", named(queue, "u", "a1"), retry=False)
    assert begun(queue, "u") == ["a2"]
    queue.finished("u", named(queue, "u", "a2"), retry=False)
    assert begun(queue, "u") == ["a3"]


@pytest.mark.parametrize("seed", range(30))
def test_every_ticket_once_in_order_on_one_worker_per_group(seed: int) -> None:
    rng = random.Random(seed)
    concurrency = rng.randint(1, 4)
    todo = tickets(*(rng.choice("abcdef") for _ in range(60)))
    queue = TicketQueue(todo, concurrency)
    workers = ["u", "v", "w"]
    starts: dict[str, list[str]] = {}
    ended: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    while queue.has_unstarted() or any(queue.running(worker) for worker in workers):
        worker = rng.choice(workers)
        if (ticket := queue.start_next(worker, rng.randint(0, 2))) is not None:
            tries[ticket.id] += 1
            if tries[ticket.id] == 1:
                starts.setdefault(ticket.group, []).append(ticket.id)
        assert len(queue.running(worker)) <= concurrency
        holders = Counter(
            group for one in workers for group in {ticket.group for ticket in queue.running(one)}
        )
        assert all(count == 1 for count in holders.values())
        if queue.running(worker) and rng.random() < 0.3:
            done = rng.choice(queue.running(worker))
            again = tries[done.id] < 2 and rng.random() < 0.2
            ended[done.id] += not again
            queue.finished(worker, done, retry=again)
        if rng.random() < 0.03:
            again_too = [ticket for ticket in queue.running(worker) if tries[ticket.id] < 2]
            ended.update(ticket.id for ticket in queue.running(worker) if ticket not in again_too)
            queue.worker_died(worker, again_too)
    assert ended == Counter(ticket.id for ticket in todo)
    for group, ids in starts.items():
        assert ids == [ticket.id for ticket in todo if ticket.group == group]


def test_a_retry_waits_for_its_time_and_other_groups_do_not_wait_for_it() -> None:
    queue = TicketQueue(tickets(*"aab"))
    first = queue.start_next("w", now=0.0)
    assert first is not None
    queue.finished("w", first, retry=True, not_before=5.0)
    assert queue.retry_time(now=0.0) == 5.0
    other = queue.start_next("w", now=4.9)
    assert other is not None
    assert other.id == "b0"
    queue.finished("w", other, retry=False)
    assert queue.start_next("w", now=4.9) is None, "order in a group is kept"
    assert queue.has_unstarted()
    assert queue.retry_time(now=5.0) is None
    assert begun(queue, "w") == ["a0"]


def test_after_a_death_a_ticket_waits_for_its_time_and_then_runs_alone() -> None:
    queue = TicketQueue(tickets(*"aabb"), concurrency=2)
    assert begun(queue, "w") == ["a0", "b0"]
    queue.worker_died("w", queue.running("w"), not_before=5.0)
    assert queue.start_next("v", now=4.9) is None
    assert queue.retry_time(now=4.9) == 5.0
    first = queue.start_next("v", now=5.0)
    assert first is not None
    assert queue.start_next("v", now=5.0) is None, "each suspect runs alone"
    second = queue.start_next("u", now=5.0)
    assert second is not None
    assert {first.id, second.id} == {"a0", "b0"}
    queue.finished("v", first, retry=False)
    assert len(begun(queue, "v")) == 1
    assert queue.retry_time(now=5.0) is None


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


@pytest.mark.parametrize("seed", range(10))
def test_retries_with_times_end_too(seed: int) -> None:
    """Every ticket ends once, whatever waits and dies; time passes only where nothing may start."""
    rng = random.Random(seed)
    todo = tickets(*(rng.choice("abcdefgh") for _ in range(80)))
    queue = TicketQueue(todo, concurrency=rng.randint(1, 3))
    workers, now = ["u", "v"], 0.0
    ended, tries = Counter[str](), Counter[str]()
    while queue.has_unstarted() or any(queue.running(worker) for worker in workers):
        for worker in workers:
            while (ticket := queue.start_next(worker, now=now)) is not None:
                tries[ticket.id] += 1
        busy = [worker for worker in workers if queue.running(worker)]
        if not busy:
            retry_time = queue.retry_time(now)
            assert retry_time is not None
            now = retry_time
            continue
        worker = rng.choice(busy)
        if rng.random() < 0.1:
            again = [ticket for ticket in queue.running(worker) if tries[ticket.id] < 2]
            ended.update(ticket.id for ticket in queue.running(worker) if ticket not in again)
            queue.worker_died(worker, again, not_before=now + rng.choice([-1.0, rng.random()]))
            continue
        done = rng.choice(queue.running(worker))
        retry = tries[done.id] < 2 and rng.random() < 0.4
        ended[done.id] += not retry
        queue.finished(worker, done, retry=retry, not_before=now + rng.random())
        now += 0.01
    assert ended == Counter(ticket.id for ticket in todo)
    assert queue.free_groups == 0


def test_tickets_of_one_id_are_refused() -> None:
    with pytest.raises(AssertionError, match="same id"):
        Tickets.of([Ticket(id="1", group="a"), Ticket(id="1", group="b")])
