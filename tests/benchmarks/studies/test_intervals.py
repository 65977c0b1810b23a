"""The study of the intervals: the data file, both methods, and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies import intervals

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
    rows = {row.method: row for row in intervals.study(drawn_runs(), sizes=(3,), draws=60)}
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


def test_the_old_method_is_the_paired_t_interval_with_holm() -> None:
    values = {"raw": [0.30, 0.31, 0.33], "a": [0.40, 0.42, 0.41], "b": [0.31, 0.30, 0.33]}
    a, b = intervals.old_method(values, ["a", "b"])
    # differences 0.10, 0.11, 0.08: mean 0.0967, SD 0.01528; t(0.975, 2) = 4.3027
    assert a.difference == pytest.approx(0.29 / 3)
    assert a.high - a.low == pytest.approx(2 * 4.30265 * 0.0152753 / 3**0.5, rel=1e-4)
    assert (a.called, b.called) == (True, False)
