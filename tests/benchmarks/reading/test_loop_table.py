"""The table of loaders: the best turn counts, what was not measured says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reading import loop_table, remote_loops


def turns(*rates: float) -> list[dict[str, float]]:
    return [{"samples_per_cpu_s": rate, "first_batch_s": 1 + rate / 1000} for rate in rates]


def loader(title: str, *rates: float, **tried: bool) -> dict[str, Any]:
    both = {"exact resume": tried.get("resume", False), "other ranks": tried.get("ranks", False)}
    measured = {"kernels": turns(*rates), "transform": turns(40, 50)}
    return {"title": title, "rows": "no", "version": "1.2", "turns": measured, "tried": both}


def test_the_best_turn_counts_and_a_missing_loader_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = {
        "clipmill": loader("ours", 900, 1000, resume=True, ranks=True) | {"version": None},
        "slow": loader("slow", 700, 600, resume=True),
        "gone": {"title": "gone", "rows": "no", "version": None, "missing": "no wheel"},
        "fast": loader("fast", 1100),
    }
    origin = {"date": "2026-11-29", "samples": 4600, "turns": 2, "machine": "2 cores"}
    (tmp_path / "foreign_loops.json").write_text(json.dumps({"loaders": loaders, **origin}))
    monkeypatch.setattr(loop_table, "RESULTS", tmp_path)
    assert loop_table.loop_table().split("\n")[2:] == [
        "| ours | 1,000 | 50 | 1.9 | yes | yes | no |",
        "| fast 1.2 | 1,100 | 50 | 2.1 | **no** | **no** | no |",
        "| slow 1.2 | 700 | 50 | 1.6 | yes | **no** | no |",
        "| gone | not measured: no wheel |  |  |  |  |  |",
        "",
        "2026-11-29, 4,600 samples, turns: 2, 2 cores "
        "([results](../benchmarks/results/foreign_loops.json))",
    ]


def test_remote_passes_are_ordered_by_their_best_cold_turn() -> None:
    def passes(*rates: float) -> dict[str, Any]:
        turns = [{"samples_per_s": rate, "first_s": 100 / rate} for rate in rates]
        return {"cold": turns, "warm": [{"samples_per_s": 2000.0, "first_s": 0.5}]}

    loaders = {
        "clipmill": {"title": "ours", "turns": passes(300, 250)},
        "gone": {"title": "gone", "version": None, "turns": None, "missing": "no wheel"},
        "slow": {"title": "slow", "version": "1.2", "turns": passes(100)},
        "fast": {"title": "fast", "version": "3", "turns": passes(200, 400)},
    }
    origin = {"date": "2026-11-29", "samples": 4600, "turns": 2, "machine": "2 cores"}
    assert list(remote_loops.table_lines({"loaders": loaders, **origin}))[2:] == [
        "| ours | 300 | 2,000 | 0.3 | 0.5 |",
        "| fast 3 | 400 | 2,000 | 0.2 | 0.5 |",
        "| slow 1.2 | 100 | 2,000 | 1.0 | 0.5 |",
        "| gone | not measured: no wheel |  |  |  |",
        "",
        "2026-11-29, 4,600 samples, turns: 2, 2 cores "
        "([results](../benchmarks/results/remote_loops.json))",
    ]
