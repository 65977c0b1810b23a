"""Counts of damaged samples: JSON and back, the sum over ranks, and the limit."""

from __future__ import annotations

import json

import pytest

from manifests import disk
from train.data import damage
from train.data.damage import DamageCounts, DamagedSample, sum_damage, too_many_damaged


def sample(step: int, position: int) -> DamagedSample:
    return DamagedSample(
        step=step, position=position, source="web/all", shard="00001", key="000010003", reason="no"
    )


def test_ranks_add_up_in_the_order_of_the_run_and_the_first_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(damage, "LISTED", 3)
    ranks = [DamageCounts(), DamageCounts()]
    ranks[0].add([sample(0, 1), sample(4, 0)])
    ranks[1].add([sample(0, 0)])
    ranks[1].add([])
    ranks[1].add([sample(2, 5), sample(2, 7), sample(2, 9)])
    assert [len(of_rank.samples) for of_rank in ranks] == [2, 3]
    total = sum_damage(json.loads(json.dumps(disk.to_plain(ranks))))
    assert total["count"] == 6
    assert [(s["step"], s["position"]) for s in total["samples"]] == [(0, 0), (0, 1), (2, 5)]
    assert sum_damage([]) == {"count": 0, "samples": []}


@pytest.mark.parametrize(
    ("drawn", "count", "limit_passed"),
    [(10, 10, False), (11, 11, True), (10_000, 10, False), (20_000, 20, False), (19_999, 20, True)],
)
def test_ten_are_free_and_then_one_in_a_thousand(
    drawn: int, count: int, limit_passed: bool
) -> None:
    assert too_many_damaged(count, drawn) is limit_passed
