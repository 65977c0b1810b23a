"""The study of the intervals: the data file, both methods, and what is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.studies import intervals
from manifests import disk
from tests.support.ablations import tiny_ablation

pytestmark = pytest.mark.slow


def drawn_runs(seeds: int = 12, samples: int = 400, spread: float = 0.02) -> intervals.Runs:
    """Runs whose samples differ in difficulty; `good` is 10 points better than the baseline."""
    generator = np.random.default_rng(0)
    difficulty = generator.uniform(-0.3, 0.3, samples)
    runs: dict[str, dict[int, np.ndarray]] = {}
    for arm, accuracy in (("raw", 0.5), ("good", 0.6), ("same", 0.5), ("a_a", 0.5)):
        runs[arm] = {}
        for seed in range(seeds):
            share = accuracy + difficulty + generator.normal(0, spread)
            runs[arm][seed] = (generator.random(samples) < share).astype(np.float64)
    return runs


def test_intervals_hold_and_equal_arms_are_seldom_called_different() -> None:
    rows = {row.method: row for row in intervals.study(drawn_runs(), sizes=(3,), draws=200)}
    assert set(rows) == {"old", "new", "new, headline"}
    new, old = rows["new"], rows["old"]
    assert 0.95 < new.nominal < 0.98
    assert new.held_all > 0.9
    assert old.held_all < new.held_all
    assert new.a_a_called is not None
    assert new.a_a_called < 0.12
    assert new.mde < old.mde
    spans = [row.mde_5_95[1] / row.mde_5_95[0] for row in (new, old)]
    assert spans[0] < spans[1] / 2, "one spread of all runs varies less than one of three runs"
    assert new.half_width_5_95[0] <= new.half_width <= new.half_width_5_95[1]


def test_without_a_a_runs_their_share_is_not_known() -> None:
    runs = {arm: by_seed for arm, by_seed in drawn_runs().items() if arm != "a_a"}
    rows = intervals.study(runs, sizes=(2,), draws=3)
    assert [row.a_a_called for row in rows] == [None] * 3
    assert "| ? |" in intervals.table_lines(rows)[2]


def test_the_old_method_is_the_paired_t_interval_with_holm() -> None:
    values = {"raw": [0.30, 0.31, 0.33], "a": [0.40, 0.42, 0.41], "b": [0.31, 0.30, 0.33]}
    a, b = intervals.old_method(values, ["a", "b"])
    # differences 0.10, 0.11, 0.08: mean 0.0967, SD 0.01528; t(0.975, 2) = 4.3027
    assert a.difference == pytest.approx(0.29 / 3)
    assert a.high - a.low == pytest.approx(2 * 4.30265 * 0.0152753 / 3**0.5, rel=1e-4)
    assert (a.called, b.called) == (True, False)


def test_what_is_shown() -> None:
    rows = intervals.study(drawn_runs(), sizes=(2, 3), draws=5)
    lines = intervals.table_lines(rows)
    assert len(lines) == 2 + 2 * 3
    assert all(line.count("|") == 8 for line in lines)
    svg = intervals.chart(rows)
    assert svg.count("<circle") == 4 + 2
    assert "3 seeds" in svg


def test_collected_runs_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, data = tmp_path / "out", tmp_path / "runs.parquet"
    monkeypatch.setattr(intervals, "ROOT", tmp_path)
    monkeypatch.setattr(intervals, "DATA", data)
    ablation = tiny_ablation("x", "x", seeds=[4, 5])
    disk.write_json(out / "ablation.json", ablation)
    for number, (arm, seed) in enumerate([("raw", 4), ("raw", 5), ("half", 4), ("half", 5)]):
        predicted = [0, 1, number]
        table = pa.table({"label": [0, 1, 2], "predicted": predicted})
        disk.write_parquet(out / "runs" / arm / f"seed-{seed}" / "eval" / "colours.parquet", table)
    unfinished = disk.to_plain(tiny_ablation("x", "x", seeds=[4, 5], controls={"a_a": "raw"}))
    disk.write_json(out / "ablation.json", unfinished)
    intervals.collect(str(out))  # the A/A arm has no runs: it is left out
    runs = intervals.read_runs(data)
    assert {arm: sorted(by_seed) for arm, by_seed in runs.items()} == {
        "raw": [4, 5],
        "half": [4, 5],
    }
    assert [by_seed[seed].tolist() for by_seed in runs.values() for seed in (4, 5)] == [
        [1, 1, 0],
        [1, 1, 0],
        [1, 1, 1],
        [1, 1, 0],
    ]


def test_without_the_data_file_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(intervals, "DATA", tmp_path / "none.parquet")
    assert intervals.main(["study"]) == 2
    assert "benchmarks/studies/intervals.py collect OUT" in capsys.readouterr().err
