"""Rows of `make bench`: medians, ratios inside a turn, bars of rates and of costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.rows import read_stage, row_of, write_stage


@pytest.mark.parametrize(
    ("at_least", "bar", "met"),
    [(True, 1.5, True), (True, 1.6, False), (False, 1.5, True), (False, 1.4, False)],
)
def test_a_rate_has_to_reach_its_bar_and_a_cost_may_not_exceed_it(
    at_least: bool, bar: float, met: bool, tmp_path: Path
) -> None:
    ours, peer = [3.0, 30.0, 1.0], [2.0, 20.0, 1.0]
    row = row_of("a", "b", bar, "c", ours, peer, items=1, at_least=at_least)
    assert (row.ours, row.peer, row.ratio, row.ratio_range) == (3.0, 2.0, 1.5, (1.0, 1.5))
    assert row.met is met
    write_stage(tmp_path, "crawl", [row], None, {"c": None}, "bench")
    assert read_stage(tmp_path / "crawl.json").rows == (row,)
