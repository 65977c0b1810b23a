from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from train.stats.analysis import (
    add_drawing,
    average_noise,
    average_values,
    differences,
    over_tasks,
    shared_noise,
)
from train.stats.comparison import Difference
from train.stats.model import SampleNoise, Spread, sample_noise

VALUES = {
    "base": {0: 0.30, 1: 0.34, 2: 0.31},
    "a": {0: 0.36, 1: 0.37, 2: 0.35},
    "b": {0: 0.29, 1: 0.36, 2: 0.30},
}


def noise(floor: float = 0.0, drawing: float = 0.0, df: float = 100.0) -> SampleNoise:
    return SampleNoise(floor=floor, drawing=drawing, drawing_error=drawing**2 / df)


def test_two_arms_have_the_paired_t_interval() -> None:
    values = {arm: VALUES[arm] for arm in ("base", "a")}
    shared = shared_noise(values)
    assert shared is not None
    (row,) = differences(values, shared, [("a", "base")], [None], one_baseline=True)
    paired = stats.ttest_rel(list(VALUES["a"].values()), list(VALUES["base"].values()))
    assert row.difference / math.sqrt(row.over_seeds[0].variance) == pytest.approx(
        float(paired.statistic), rel=1e-9
    )
    assert row.over_seeds[0].df == paired.df == 2
    assert row.over_samples == ()


def test_the_floor_of_the_samples_is_the_least_variance() -> None:
    shared = shared_noise(VALUES)
    assert shared is not None
    pairs = [("a", "base"), ("b", "base")]
    rows = differences(VALUES, shared, pairs, [noise(floor=4.0), None], one_baseline=True)
    assert rows[0].sd == 2.0
    assert rows[0].over_seeds[1] == Spread(variance=pytest.approx(4.0 / 3), df=math.inf)  # type: ignore[arg-type]
    assert rows[1].sd < 0.1
    assert len(rows[1].over_seeds) == 1


def test_drawing_adds_its_variance_and_satterthwaites_degrees_of_freedom() -> None:
    over_seeds = Spread(variance=2.0, df=4.0)
    both = add_drawing(over_seeds, noise(drawing=1.0, df=50.0))
    assert both.variance == 3.0
    assert both.df == pytest.approx(9 / (4 / 4 + 1 / 50))
    assert add_drawing(over_seeds, noise()) == over_seeds


def test_the_noise_of_an_average_is_that_of_independent_tasks() -> None:
    mean = average_noise([noise(1.0, 3.0, 10.0), noise(2.0, 5.0, 20.0)])
    assert mean is not None
    assert (mean.floor, mean.drawing) == (3.0 / 4, 8.0 / 4)
    # degrees of freedom as by Satterthwaite
    df = mean.drawing**2 / mean.drawing_error
    assert df == pytest.approx(64 / (9 / 10 + 25 / 20))
    assert average_noise([noise(1.0), None]) is None


def average_difference(tables: list[dict[str, dict[int, float]]]) -> Difference:
    values = average_values(tables)
    shared = shared_noise(values)
    assert shared is not None
    return differences(values, shared, [("a", "base")], [None], one_baseline=True)[0]


def test_the_spread_over_tasks_holds_tasks_and_the_common_part_of_seeds() -> None:
    rng = np.random.default_rng(3)
    d = rng.normal(size=(4, 1)) + 2 * rng.normal(size=(1, 3)) + 0.3 * rng.normal(size=(4, 3))
    tables = []
    for row in d:
        tables.append({"a": dict(enumerate(row)), "base": dict.fromkeys(range(3), 0.0)})
    one = average_difference(tables)
    (spread,) = over_tasks(tables, one)
    tasks = d.mean(1).var(ddof=1) / 4
    residual = d - d.mean(1, keepdims=True) - d.mean(0) + d.mean()
    common = one.over_seeds[0].variance - (residual**2).sum() / 6 / 12
    assert spread.variance == pytest.approx(tasks + common, rel=1e-9)
    assert spread.df == pytest.approx((tasks + common) ** 2 / (tasks**2 / 3 + common**2 / 2))
    assert over_tasks(tables[:2], one) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task_sd", "seed_sd", "residual_sd"), [(1.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.2, 1.0, 0.5)]
)
def test_intervals_over_tasks_hold_what_they_promise(
    task_sd: float, seed_sd: float, residual_sd: float
) -> None:
    """6 tasks × 4 seeds of differences with crossed random effects; 2,000 tables."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        d = (
            task_sd * rng.normal(size=(6, 1))
            + seed_sd * rng.normal(size=(1, 4))
            + residual_sd * rng.normal(size=(6, 4))
        )
        mean = d.mean()
        one = Difference(
            arm="a",
            baseline="base",
            seeds=(0, 1, 2, 3),
            difference=float(mean),
            sd=1.0,
            over_seeds=(Spread(variance=float(d.mean(0).var(ddof=1)) / 4, df=3.0),),
        )
        tables = [{"a": dict(enumerate(row)), "base": dict.fromkeys(range(4), 0.0)} for row in d]
        (spread,) = over_tasks(tables, one)
        hits += abs(mean) <= stats.t.isf(0.025, spread.df) * math.sqrt(spread.variance)
    assert 0.93 <= hits / 2000 <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample_sd", "seed_sd"), [(1.0, 0.0), (1.0, 0.15), (0.3, 0.3), (3.0, 0.1)]
)
def test_intervals_over_seeds_and_samples_hold_what_they_promise(
    sample_sd: float, seed_sd: float
) -> None:
    """5 seeds × 60 samples of differences with crossed random effects; 2,000 tables."""
    rng = np.random.default_rng(6)
    zero = {seed: [np.zeros(60)] for seed in range(5)}
    hits = 0
    for _ in range(2000):
        d = (
            sample_sd * rng.normal(size=(1, 60))
            + seed_sd * rng.normal(size=(5, 1))
            + rng.normal(size=(5, 60))
        )
        samples = sample_noise({seed: [row] for seed, row in enumerate(d)}, zero)
        over_seeds = Spread(variance=float(d.mean(1).var(ddof=1)) / 5, df=4.0)
        both = add_drawing(over_seeds, samples)
        half = stats.t.isf(0.025, both.df) * math.sqrt(both.variance)
        hits += abs(d.mean()) <= half
    assert 0.935 <= hits / 2000 <= 0.975


def test_a_control_keeps_the_spread_of_its_own_runs_beside_the_shared_one() -> None:
    shared = shared_noise(VALUES)
    assert shared is not None
    (row,) = differences(VALUES, shared, [("b", "base")], [noise(1e-9, 1e-5)], one_baseline=False)
    pooled, own, floor = row.over_seeds
    assert pooled == Spread(variance=pytest.approx(2 * shared.variance / 3), df=4.0)  # type: ignore[arg-type]
    paired = stats.ttest_rel(list(VALUES["b"].values()), list(VALUES["base"].values()))
    assert row.difference / math.sqrt(own.variance) == pytest.approx(float(paired.statistic))
    assert own.df == 2
    assert floor.df == math.inf
    assert row.over_samples[1].variance == pytest.approx(own.variance + 1e-5)


def test_quiet_controls_neither_narrow_the_shared_spread_nor_outweigh_the_arms() -> None:
    values = {**VALUES, "quiet": {0: 0.30, 1: 0.32, 2: 0.31}, "still": {0: 0.30, 1: 0.32, 2: 0.31}}
    alone, among = shared_noise(VALUES), shared_noise(values, tuple(VALUES))
    assert alone is not None
    assert among is not None
    assert among.fit.variance < alone.variance  # type: ignore[operator]
    assert among.variance == alone.variance
    assert among.df == 8.0
    pair = shared_noise(values, ("base", "a"))
    assert pair is not None
    assert pair.df == 4.0  # twice the two of the pair
