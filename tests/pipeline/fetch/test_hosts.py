"""Queues of hosts by the clock of the test: limits, delays, pauses, silence, order of shards."""

from __future__ import annotations

import pytest

from clipmill.manifests.schema import Fetch
from clipmill.pipeline.fetch import hosts
from clipmill.pipeline.fetch.hosts import (
    GIVE_UP,
    GIVE_UP_FIRST,
    LONGEST_PAUSE_S,
    PROBE_S,
    Host,
    Queues,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(**changes: object) -> tuple[Queues[str], Clock]:
    clock = Clock()
    return Queues(Fetch(**changes), clock), clock  # type: ignore[arg-type]


def taken(queues: Queues[str]) -> list[str]:
    """Rows that may start now."""
    rows = []
    while (host_and_row := queues.take()) is not None:
        rows.append(host_and_row[1])
    return rows


def ask(queues: Queues[str]) -> tuple[Host[str], str]:
    host_and_row = queues.take()
    assert host_and_row is not None
    queues.reserve_start(host_and_row[0])
    return host_and_row


def test_each_host_has_its_limit_and_the_rows_go_round() -> None:
    queues, _ = made(per_host=2)
    for i in range(4):
        for name in ("a", "b"):
            assert queues.add(name, 1, f"{name}{i}") is None
    assert taken(queues) == ["a0", "b0", "a1", "b1"]
    queues.finish(queues.host("b"), answered=True)
    assert taken(queues) == ["b2"]


def test_an_earlier_shard_goes_first_where_its_hosts_are_ready() -> None:
    queues, _ = made(per_host=1)
    queues.add("later", 2, "L0")
    queues.add("shared", 1, "E0")
    queues.add("shared", 1, "E1")
    queues.add("shared", 2, "L1")
    queues.add("other", 1, "E2")
    assert taken(queues) == ["E0", "E2", "L0"]
    queues.finish(queues.host("shared"), answered=True)
    assert taken(queues) == ["E1"]
    queues.finish(queues.host("shared"), answered=True)
    assert taken(queues) == ["L1"]


def test_a_delay_lies_between_two_starts() -> None:
    queues, clock = made(per_host=2, delay_s=1.5)
    for i in range(3):
        queues.add("a", 1, str(i))
    host, first = ask(queues)
    assert (first, queues.take(), queues.wake_at()) == ("0", None, 1001.5)
    clock.now = 1001.4
    assert queues.take() is None
    clock.now = 1001.5
    assert ask(queues)[1] == "1"
    queues.finish(host, answered=True)
    clock.now = 1002.9
    assert queues.take() is None
    clock.now = 1003.0
    assert ask(queues)[1] == "2"


def test_the_larger_of_our_delay_and_theirs_counts() -> None:
    queues, clock = made(delay_s=1.0)
    host = queues.host("a")
    assert (queues.reserve_start(host), queues.reserve_start(host)) == (0.0, 1.0)
    queues.raise_delay(host, 0.5)
    assert host.delay_s == 1.0
    clock.now = 1002.0
    queues.raise_delay(host, 5.0)
    assert queues.wait_s(host) == 5.0


def test_a_host_that_asks_to_wait_is_left_alone_with_all_its_rows() -> None:
    queues, clock = made(per_host=2)
    for i in range(3):
        queues.add("a", 1, str(i))
    host, _ = ask(queues)
    assert queues.record_answer(host, busy=True, retry_after_s=30.0) == []
    queues.finish(host, answered=True)
    assert (queues.take(), queues.wake_at()) == (None, 1030.0)
    clock.now = 1030.0
    assert taken(queues) == ["1", "2"]


def test_repeated_refusals_hold_a_host_for_longer_and_longer() -> None:
    queues, clock = made()
    host = queues.host("a")
    waits = []
    for _ in range(10):
        queues.record_answer(host, busy=True)
        waits.append(queues.wait_s(host))
        clock.now += waits[-1]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    queues.record_answer(host, busy=False)
    queues.record_answer(host, busy=True)
    assert queues.wait_s(host) == 0.0


def test_who_wants_to_be_left_alone_for_longer_than_our_patience_is() -> None:
    queues, clock = made(patience_s=100.0)
    for i in range(3):
        queues.add("a", 1, str(i))
    host, _ = ask(queues)
    rejected = queues.record_answer(host, busy=True, retry_after_s=1e9)
    assert [row for row, _ in rejected] == ["1", "2"]
    assert "for longer than fetch.patience_s" in rejected[0][1]
    queues.finish(host, answered=True)
    assert "for longer" in (queues.add("a", 1, "3") or "")
    clock.now += LONGEST_PAUSE_S
    assert queues.add("a", 2, "4") is None
    assert taken(queues) == ["4"]


@pytest.mark.parametrize(("answers", "rows"), [(1, GIVE_UP), (0, GIVE_UP_FIRST)])
def test_a_silent_host_is_given_up_and_tried_again_by_one_row(answers: int, rows: int) -> None:
    queues, clock = made(per_host=2)
    for i in range(answers + rows + 5):
        queues.add("a", 1, str(i))
    for i in range(answers + rows):
        host, _ = ask(queues)
        rejected = queues.finish(host, answered=i < answers)
    assert [row for row, _ in rejected] == [
        str(i) for i in range(answers + rows, answers + rows + 5)
    ]
    assert "not asked" in (queues.add("a", 1, "more") or "")
    clock.now += PROBE_S
    for i in range(4):
        assert queues.add("a", 2, f"probe {i}") is None
    assert taken(queues) == ["probe 0"], "one at a time"
    assert [row for row, _ in queues.finish(host, answered=False)] == [
        "probe 1",
        "probe 2",
        "probe 3",
    ]
    clock.now += PROBE_S
    for i in range(4):
        queues.add("a", 3, f"again {i}")
    assert taken(queues) == ["again 0"]
    assert queues.finish(host, answered=True) == []
    assert taken(queues) == ["again 1", "again 2"], "it answers: the usual limit"


def test_rows_that_were_not_asked_say_nothing_about_a_host() -> None:
    queues, _ = made(per_host=1)
    host = queues.host("a")
    for _ in range(3 * GIVE_UP):
        queues.add("a", 1, "row")
        ask(queues)
        assert queues.finish(host, answered=None) == []
    assert host.silent == 0


def test_the_rows_of_a_shard_can_be_removed() -> None:
    queues, _ = made(per_host=1)
    for shard in (1, 2):
        for name in "ab":
            queues.add(name, shard, f"{name}{shard}")
    assert sorted(queues.remove(1)) == ["a1", "b1"]
    assert sorted(taken(queues)) == ["a2", "b2"]
    assert queues.remove(1) == []


def test_hosts_that_have_nothing_to_do_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "SWEEP", 50)
    queues, clock = made()
    queues.record_answer(queues.host("paused"), busy=True, retry_after_s=1000.0)
    for i in range(500):
        queues.add(f"h{i}", 1, "row")
        assert taken(queues) == ["row"]
        queues.finish(queues.host(f"h{i}"), answered=True)
    assert len(queues._hosts) < 120
    assert queues.wait_s(queues.host("paused")) == 1000.0
    clock.now += 1000
