from __future__ import annotations

import math

import numpy as np
import pytest

from train.stats.analysis import (
    TaskScores,
    analyse,
    mcnemar,
    mean_sd,
    one_model_difference,
    run_spread,
)


def test_mean_and_sample_sd() -> None:
    mean, sd = mean_sd([0.25, 0.27, 0.32])
    assert mean == pytest.approx(0.28, abs=1e-12)
    expected = math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2)
    assert sd == pytest.approx(expected, abs=1e-12)
    assert mean_sd([0.3])[1] is None
    with pytest.raises(ValueError, match="at least 1 seed; there are 0"):
        mean_sd([])


def test_mcnemar_counts_the_discordant_samples() -> None:
    first = [True] * 9 + [False] * 2 + [True] * 50 + [False] * 20
    second = [False] * 9 + [True] * 2 + [True] * 50 + [False] * 20
    # both tails of Binomial(11, 1/2) from 9 up: 2 (55 + 11 + 1) / 2^11
    assert mcnemar(first, second) == pytest.approx(134 / 2048, abs=1e-9)
    assert mcnemar([True, False], [True, False]) == 1.0
    with pytest.raises(ValueError, match="2 samples cannot be paired with 1"):
        mcnemar([True, False], [True])


def test_the_spread_of_a_run_holds_the_seed_effects() -> None:
    # Two arms with equal seed effects 0, 2, 4: no residual, and a variance of 4 over seeds.
    values = {"raw": {0: 0.0, 1: 2.0, 2: 4.0}, "long": {0: 1.0, 1: 3.0, 2: 5.0}}
    spread = run_spread(values, "raw")
    assert spread is not None
    assert (spread.variance, spread.df) == (pytest.approx(4.0), pytest.approx(2.0))
    alone = run_spread({"raw": values["raw"]}, "raw")
    assert alone is not None
    assert (alone.variance, alone.df) == (pytest.approx(4.0), 2)
    assert run_spread({"raw": {0: 1.0}}, "raw") is None
    assert run_spread({"raw": {0: 1.0, 1: 1.0}}, "raw") is None


def test_one_model_is_one_run_and_never_several() -> None:
    values = {"raw": {0: 0.0, 1: 2.0, 2: 4.0}, "one": {-1: 5.0}}
    row = one_model_difference(values, ("one", "raw"))
    assert row is not None
    assert (row.difference, row.seeds) == (3.0, ())
    assert row.over_seeds[0].variance == pytest.approx(4.0 * (1 + 1 / 3))
    assert row.over_samples == ()
    with_floor = one_model_difference(values, ("one", "raw"), floor=9.0)
    assert with_floor is not None
    assert with_floor.over_seeds[1].variance == pytest.approx(12.0)
    with pytest.raises(ValueError, match="raw has 3 values; one model has one"):
        one_model_difference(values, ("raw", "one"))


def test_one_model_has_the_noise_of_the_samples() -> None:
    rng = np.random.default_rng(0)
    baseline = {seed: [rng.normal(size=500)] for seed in range(3)}
    model = {-1: [rng.normal(size=500)]}
    values = {
        "raw": {seed: float(groups[0].mean()) for seed, groups in baseline.items()},
        "one": {-1: float(model[-1][0].mean())},
    }
    row = one_model_difference(values, ("one", "raw"), {"raw": baseline, "one": model})
    assert row is not None
    difference = model[-1][0] - np.mean([baseline[seed][0] for seed in range(3)], axis=0)
    added = row.over_samples[0].variance - row.over_seeds[0].variance
    assert added == pytest.approx(difference.var(ddof=1) / 500)
    other = {"raw": baseline, "one": {-1: [np.zeros(7)]}}
    with pytest.raises(ValueError, match="need the same samples; one has 7"):
        one_model_difference(values, ("one", "raw"), other)


@pytest.mark.slow
@pytest.mark.parametrize("seed_sd", [0.0, 1.0, 3.0])
def test_the_interval_of_one_model_holds_in_95_percent(seed_sd: float) -> None:
    """3 arms × 3 seeds with effects of the seeds, one model from another seed; 1,000 tables."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(1000):
        effects = rng.normal(0, seed_sd, 4)
        values = {
            arm: {seed: float(effects[seed] + rng.normal()) for seed in range(3)}
            for arm in ("raw", "a", "b")
        }
        values["one"] = {-1: float(effects[3] + rng.normal())}
        table = {"t": TaskScores(values=values)}
        row = analyse(table, "raw", arms=["one"], one_models=["one"], band=0.1)
        (only,) = row.tasks["t"].comparisons
        assert only.low is not None
        assert only.high is not None
        held += only.low <= 0 <= only.high
    assert 0.94 <= held / 1000 <= 0.99
