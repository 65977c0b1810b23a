"""Which worker gets which ticket: order in a group, one worker per group, and what a death costs."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pipeline.executor.schedule import Deal, Ticket


def tickets(*groups: str) -> list[Ticket]:
    """One ticket for each letter; its id is the letter and how many there were."""
    seen: Counter[str] = Counter()
    found = []
    for group in groups:
        found.append(Ticket(id=f"{group}{seen[group]}", group=group))
        seen[group] += 1
    return found


def begun(deal: Deal, worker: str, coming: int = 0) -> list[str]:
    """All that a worker may begin now."""
    found = []
    while (ticket := deal.next(worker, coming)) is not None:
        found.append(ticket.id)
    return found


def named(deal: Deal, worker: str, name: str) -> Ticket:
    return next(ticket for ticket in deal.of(worker) if ticket.id == name)


def test_one_at_a_time_where_nothing_else_is_said() -> None:
    deal = Deal(tickets(*"aab"))
    assert begun(deal, "w") == ["a0"]
    assert begun(deal, "v") == ["b0"], "a is held"
    deal.ended("w", named(deal, "w", "a0"), again=False)
    assert begun(deal, "w") == ["a1"]
    assert not deal.left()


def test_other_groups_first_then_the_next_of_its_own() -> None:
    deal = Deal(tickets(*"aaabb"), ahead=2)
    assert begun(deal, "w", coming=1) == ["a0", "a1"]
    assert begun(deal, "v") == ["b0", "b1"]
    deal.ended("w", named(deal, "w", "a0"), again=False)
    assert begun(deal, "w") == ["a2"]
    alone = Deal(tickets(*"aabc"), ahead=4)
    assert begun(alone, "w") == ["a0", "b0", "c0", "a1"]


def test_a_worker_goes_on_with_a_group_that_it_had() -> None:
    deal = Deal(tickets(*"aabbcc"), ahead=2)
    assert begun(deal, "w") == ["a0", "b0"]
    deal.ended("w", named(deal, "w", "a0"), again=False)
    assert begun(deal, "w") == ["a1"]


def test_a_second_group_is_left_to_workers_that_are_coming() -> None:
    deal = Deal(tickets(*"abc"), ahead=3)
    assert begun(deal, "w", coming=2) == ["a0"]
    assert begun(deal, "w", coming=1) == ["b0"]
    assert begun(deal, "v") == ["c0"]


def test_what_is_tried_again_comes_first_in_its_group() -> None:
    deal = Deal(tickets(*"aaa"), ahead=2)
    begun(deal, "w")
    deal.ended("w", named(deal, "w", "a0"), again=True)
    assert begun(deal, "w") == ["a0"]
    assert [ticket.id for ticket in deal.of("w")] == ["a1", "a0"]


def test_after_a_death_each_ticket_is_tried_alone() -> None:
    deal = Deal(tickets(*"aaaa"), ahead=3)
    assert begun(deal, "w") == ["a0", "a1", "a2"]
    deal.lost("w", deal.of("w"))
    assert begun(deal, "v") == ["a0"]
    assert begun(deal, "u") == []
    deal.lost("v", [])  # it was the one
    assert begun(deal, "u") == ["a1"]
    deal.ended("u", named(deal, "u", "a1"), again=False)
    assert begun(deal, "u") == ["a2"]
    deal.ended("u", named(deal, "u", "a2"), again=False)
    assert begun(deal, "u") == ["a3"]


@pytest.mark.parametrize("seed", range(30))
def test_every_ticket_once_in_order_on_one_worker_per_group(seed: int) -> None:
    rng = random.Random(seed)
    ahead = rng.randint(1, 4)
    todo = tickets(*(rng.choice("abcdef") for _ in range(60)))
    deal = Deal(todo, ahead)
    workers = ["u", "v", "w"]
    starts: dict[str, list[str]] = {}
    ended: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    while deal.left() or any(deal.of(worker) for worker in workers):
        worker = rng.choice(workers)
        if (ticket := deal.next(worker, coming=rng.randint(0, 2))) is not None:
            tries[ticket.id] += 1
            if tries[ticket.id] == 1:
                starts.setdefault(ticket.group, []).append(ticket.id)
        assert len(deal.of(worker)) <= ahead
        holders = Counter(
            group for one in workers for group in {ticket.group for ticket in deal.of(one)}
        )
        assert all(count == 1 for count in holders.values())
        if deal.of(worker) and rng.random() < 0.3:
            done = rng.choice(deal.of(worker))
            again = tries[done.id] < 2 and rng.random() < 0.2
            ended[done.id] += not again
            deal.ended(worker, done, again=again)
        if rng.random() < 0.03:
            again_too = [ticket for ticket in deal.of(worker) if tries[ticket.id] < 2]
            ended.update(ticket.id for ticket in deal.of(worker) if ticket not in again_too)
            deal.lost(worker, again_too)
    assert ended == Counter(ticket.id for ticket in todo)
    for group, ids in starts.items():
        assert ids == [ticket.id for ticket in todo if ticket.group == group]
