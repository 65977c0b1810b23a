"""Tables over whole ablations, from metrics that no run made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.ablations import three_arms
from train.ablation.conclusions import metric_tables, scaling_tables

MEANS = {"raw": 0.30, "clip30": 0.40, "basic": 0.35}


def runs(
    means: dict[str, float], noise: float = 0.004, seeds: int = 4
) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Accuracy and log-loss of every arm; the loss has ten times less signal."""
    rng = np.random.default_rng(1)
    made: dict[str, Any] = {}
    for arm, mean in means.items():
        made[arm] = {}
        for seed in range(seeds):
            accuracy = mean + noise * rng.normal()
            loss = 3 - 0.1 * mean + noise * rng.normal()
            made[arm][str(seed)] = {"objects": {"accuracy": accuracy, "logprob": loss}}
    return made


def test_metrics_are_ranked_by_their_signal() -> None:
    tables = metric_tables(three_arms(), runs(MEANS), draws=50)
    assert [table.task for table in tables] == ["objects"]  # `other` has no runs
    (table,) = tables
    assert table.deciding == "accuracy"
    assert [row.metric for row in table.rows] == ["accuracy", "logprob"]
    best = table.rows[0]
    assert (best.arms, best.seeds, best.best) == (3, 4, "clip30")
    assert best.spread == pytest.approx(0.10, abs=0.01)
    assert metric_tables(three_arms(), runs(MEANS), draws=50) == tables


def test_an_arm_with_too_few_seeds_is_left_out_and_too_few_arms_make_no_table() -> None:
    made = runs(MEANS)
    made["basic"] = {"0": made["basic"]["0"]}
    (table,) = metric_tables(three_arms(), made, draws=20)
    assert table.rows[0].arms == 2
    assert metric_tables(three_arms(), {"raw": made["raw"], "basic": made["basic"]}) == ()
    nan = runs(MEANS)
    nan["raw"]["0"]["objects"]["accuracy"] = float("nan")
    assert metric_tables(three_arms(), nan, draws=20)[0].rows[0].seeds in (3, 4)


def scaled(sizes: tuple[int, ...]) -> Any:
    arms = {}
    for data in ("raw", "clip30"):
        for size in sizes:
            arms[f"{data}-{size}"] = {"view": f"web/{data}", "train": {"samples_seen": size}}
    return three_arms(arms=arms, baseline=f"raw-{sizes[0]}", vary={"samples_seen": list(sizes)})


def test_error_falls_with_the_samples_seen() -> None:
    sizes = (128_00, 256_00, 512_00, 1024_00)
    ablation = scaled(sizes)
    means = {}
    for size in sizes:
        means[f"raw-{size}"] = 1 - (0.2 + 0.5 * (size / 12_800) ** -0.6)
        means[f"clip30-{size}"] = 1 - (0.4 + 0.1 * (size / 12_800) ** -0.4)
    (table,) = scaling_tables(ablation, runs(means, noise=0.0005), draws=20)
    assert (table.task, table.metric, table.sizes) == ("objects", "accuracy", sizes)
    assert list(table.curves) == ["web/raw", "web/clip30"]
    assert float(table.curves["web/raw"].at(12_800)) == pytest.approx(0.7, abs=0.01)
    assert [one.n for one in table.predictions] == [4 * sizes[-1]] * 2
    assert [size for size, _ in table.points["web/raw"]] == list(sizes)
    assert table.points["web/raw"][0][1] == pytest.approx(0.7, abs=0.01)
    (crossing,) = table.crossings
    assert crossing.better_before == "web/clip30"
    assert crossing.better_after == "web/raw"


def test_two_sizes_or_another_factor_have_no_curve() -> None:
    sizes = (12_800, 25_600)
    means = {f"{data}-{size}": 0.3 for data in ("raw", "clip30") for size in sizes}
    assert scaling_tables(scaled(sizes), runs(means)) == ()
    assert scaling_tables(three_arms(), runs(MEANS)) == ()
