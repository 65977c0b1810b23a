"""Hosts that lose time are ranked, in a table that does not grow."""

from __future__ import annotations

from pipeline.progress.state import MIN_LOST_S, SLOW_S, HostLosses


def test_hosts_that_lose_nothing_are_not_there() -> None:
    losses = HostLosses()
    losses.add("fast.example", 0.2, None)
    losses.add("fast.example", SLOW_S, "http_4xx")  # an answer, and in time
    assert losses.worst() == ()


def test_the_worst_host_comes_first_with_its_last_reason() -> None:
    losses = HostLosses()
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
    losses = HostLosses(max_hosts=100)
    for number in range(100_000):
        losses.add(f"h{number}.example", 2.0, "dns")
        if number % 50 == 0:
            losses.add("worst.example", 3.0, "deadline")
        assert len(losses) <= 200
    assert losses.worst()[0].host == "worst.example"
    assert losses.worst()[0].rows == 2_000


def test_tables_of_workers_are_added_up() -> None:
    one, other, both = HostLosses(), HostLosses(), HostLosses()
    one.add("a.example", 5.0, "dns")
    other.add("a.example", 6.0, "reset")
    both.merge(one.worst())
    both.merge(other.worst())
    (state,) = both.worst()
    assert (state.rows, state.seconds, state.reason) == (2, 11.0, "reset")
