"""The pages of figures say what the JSON files of the benchmarks say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measured
from benchmarks.peers import page
from benchmarks.peers.rows import Row, read_stage, row_of, write_stage


def row(**changes: Any) -> Row:
    made = row_of("a thing", "CPU ms", 0.8, "a peer", [1.0, 3.0, 2.0], [2.0, 2.0, 2.0], items=7)
    return dataclasses.replace(made, **changes)


def test_the_page_is_what_the_results_say() -> None:
    for path, text in measured.filled().items():
        assert path.read_text() == text, "run make bench-page"


def test_pages_that_lack_a_table_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "PAGES", measured.PAGES[:1])
    with pytest.raises(ValueError, match=r"have the blocks .*; they have all of stages,"):
        measured.filled()


def test_every_stage_has_a_row_and_what_fell_short_says_so(tmp_path: Path) -> None:
    results = tmp_path / "bench"
    missing = row_of("b", "CPU s", 1.0, "c", [1.0], [], items=1, missing="no wheel for it")
    write_stage(results, "crawl", [row(), missing], "3 photographs", {"a peer": "1.2"}, "bench")
    text = "\n".join([*page.stage_lines(results), *page.gpu_lines(results)])
    assert "| crawl | a thing | CPU ms | 2 | a peer | 2 | 1.00 (0.50 to 1.50) | ≤ 0.8 |" in text
    assert "**not met**" in text
    assert "| ≤ 1 | not measured: no wheel for it |" in text
    assert "| fetch | not measured |" in text
    assert "make bench-gpu` has not run" in text
    document = json.loads((results / "crawl.json").read_text())
    assert {"date", "machine", "command"} <= set(document)
    assert {"cores", "processor", "load"} <= set(document["machine"])


# --- Rows of `make bench`: medians, ratios inside a turn, bars of rates and of costs


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
