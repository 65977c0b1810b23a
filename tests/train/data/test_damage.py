"""Counts of damaged samples: JSON and back, the sum over ranks, and the limit."""

from __future__ import annotations

import json

import pytest

from train.data import damage
from train.data.damage import DamageCounts, DamagedSample, too_many_damaged


def sample(step: int, position: int) -> DamagedSample:
    return DamagedSample(
        step=step, position=position, source="web/all", shard="00001", key="000010003", reason="no"
    )


def test_counts_survive_json() -> None:
    counts = DamageCounts()
    counts.add(16, [sample(0, 3)])
    counts.add(16, [])
    counts.add(16, [sample(2, 1), sample(2, 9)])
    assert (counts.drawn, counts.count) == (48, 3)
    copy = DamageCounts.from_plain(json.loads(json.dumps(counts.to_plain())))
    assert copy == counts
    copy.add(16, [sample(3, 0)])
    assert (copy.drawn, copy.count, len(copy.samples)) == (64, 4, 4)
    assert len(counts.samples) == 3


def test_ranks_add_up_in_the_order_of_the_run() -> None:
    ranks = [DamageCounts(), DamageCounts()]
    ranks[0].add(8, [sample(0, 1), sample(4, 0)])
    ranks[1].add(8, [sample(0, 0), sample(2, 5)])
    merged = DamageCounts.merge(ranks)
    assert (merged.drawn, merged.count) == (16, 4)
    assert [(s.step, s.position) for s in merged.samples] == [(0, 0), (0, 1), (2, 5), (4, 0)]
    assert len(ranks[0].samples) == 2  # the parts stay as they are
    assert DamageCounts.merge([]) == DamageCounts()


def test_only_the_first_are_listed_but_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "LISTED", 3)
    counts = DamageCounts()
    for step in range(3):
        counts.add(2, [sample(step, 0), sample(step, 1)])
    assert (counts.count, len(counts.samples)) == (6, 3)
    merged = DamageCounts.merge([counts, counts])
    assert (merged.count, len(merged.samples)) == (12, 3)


@pytest.mark.parametrize(
    ("drawn", "count", "limit_passed"),
    [(10, 10, False), (11, 11, True), (10_000, 10, False), (20_000, 20, False), (19_999, 20, True)],
)
def test_ten_are_free_and_then_one_in_a_thousand(
    drawn: int, count: int, limit_passed: bool
) -> None:
    assert too_many_damaged(count, drawn) is limit_passed
