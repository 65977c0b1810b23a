from __future__ import annotations

import numpy as np
import pytest

from train.stats.model import fit_additive, paired_variance

COMPLETE = {
    "base": {0: 0.30, 1: 0.34, 2: 0.31},
    "a": {0: 0.36, 1: 0.37, 2: 0.35},
    "b": {0: 0.29, 1: 0.36, 2: 0.30},
}


def test_a_complete_table_has_differences_of_means_and_the_textbook_variance() -> None:
    table = np.array([list(row.values()) for row in COMPLETE.values()])
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    fit = fit_additive(COMPLETE)
    assert fit.df == 4
    assert fit.variance == pytest.approx((residuals**2).sum() / 4, rel=1e-9)
    assert fit.estimate("a", "base") == pytest.approx(table[1].mean() - table[0].mean(), abs=1e-12)
    assert fit.factor("a", "base") == pytest.approx(2 / 3, abs=1e-12)
    assert fit.joint_factor("a", "base", "b", "base") == pytest.approx(1 / 3, abs=1e-12)


def test_with_two_arms_the_variance_is_half_that_of_the_differences() -> None:
    table = {arm: COMPLETE[arm] for arm in ("base", "a")}
    assert fit_additive(table).variance == pytest.approx(
        paired_variance(table, "a", "base") / 2, rel=1e-9
    )


def test_a_table_with_holes_agrees_with_another_route() -> None:
    # Frisch-Waugh: sweep the seeds out of the values and of the arms' columns, then regress
    rng = np.random.default_rng(7)
    cells = [(a, s) for a in range(5) for s in range(4) if (a, s) not in {(1, 0), (3, 2), (4, 3)}]
    y = rng.normal(size=len(cells))
    values: dict[str, dict[int, float]] = {}
    for (arm, seed), value in zip(cells, y, strict=True):
        values.setdefault(f"arm{arm}", {})[seed] = value
    arms = np.array([[float(a == arm) for arm in range(1, 5)] for a, _ in cells])
    swept = np.column_stack([arms, y])
    for seed in range(4):
        rows = [i for i, (_, s) in enumerate(cells) if s == seed]
        swept[rows] -= swept[rows].mean(axis=0)
    x, target = swept[:, :4], swept[:, 4]
    effects, squares, rank, _ = np.linalg.lstsq(x, target, rcond=None)
    covariance = np.linalg.inv(x.T @ x)
    fit = fit_additive(values)
    assert rank == 4
    assert fit.df == len(cells) - 4 - 4
    assert fit.variance == pytest.approx(squares[0] / fit.df, rel=1e-9)
    for arm in range(1, 5):
        name = f"arm{arm}"
        assert fit.estimate(name, "arm0") == pytest.approx(effects[arm - 1], abs=1e-10)
        assert fit.factor(name, "arm0") == pytest.approx(covariance[arm - 1, arm - 1], rel=1e-9)
    assert fit.joint_factor("arm1", "arm0", "arm3", "arm0") == pytest.approx(
        covariance[0, 2], rel=1e-9
    )


def test_the_least_correlation_is_that_of_the_pair_that_shares_the_fewest_runs() -> None:
    values = {
        "base": {0: 0.3, 1: 0.4, 2: 0.5, 3: 0.1},
        "a": {0: 0.1, 1: 0.2, 2: 0.4, 3: 0.3},
        "b": {0: 0.5, 1: 0.2},
        "c": {2: 0.1, 3: 0.6},
    }
    fit = fit_additive(values)
    pairs = [(arm, "base") for arm in ("a", "b", "c")]
    of_pairs = [
        fit.joint_factor(*one, *other) / (fit.factor(*one) * fit.factor(*other)) ** 0.5
        for one, other in ((pairs[0], pairs[1]), (pairs[0], pairs[2]), (pairs[1], pairs[2]))
    ]
    assert max(of_pairs) > min(of_pairs)
    assert fit.least_correlation(pairs) == pytest.approx(min(of_pairs), rel=1e-9)
    assert fit_additive(COMPLETE).least_correlation([("a", "base"), ("b", "base")]) == (
        pytest.approx(0.5, abs=1e-12)
    )
    assert fit.least_correlation(pairs[:1]) == 1.0


def test_arms_without_common_seeds_do_not_cost_degrees_of_freedom_twice() -> None:
    values = {"a": {0: 0.1, 1: 0.2}, "b": {0: 0.3, 1: 0.5}, "c": {7: 0.1, 8: 0.4}}
    # a, b: one; c has its seeds for itself, so that it leaves no residual
    assert fit_additive(values).df == 1


def test_many_seeds_cost_no_more_than_their_runs() -> None:
    random = np.random.default_rng(3)
    seeds = random.normal(size=20_000)  # the full equations would need a matrix of 3.2 GB
    values = {
        arm: {seed: effect + float(seeds[seed]) for seed in range(offset, 20_000, 2)}
        for arm, effect, offset in (("base", 0.0, 0), ("a", 0.25, 0), ("b", 0.5, 1), ("c", 0.1, 1))
    }
    fit = fit_additive(values)
    assert fit.df == 40_000 - 20_000 - 2  # two pairs of arms that share no seed
    assert fit.estimate("a", "base") == pytest.approx(0.25, abs=1e-9)
    assert fit.factor("c", "b") == pytest.approx(2 / 10_000, rel=1e-9)


def test_rounding_errors_are_no_residuals() -> None:
    values = {"a": {0: 0.1, 1: 0.2, 2: 0.3}, "b": {0: 0.1 + 0.2, 1: 0.4, 2: 0.5}}
    assert fit_additive(values).variance == 0.0
    assert paired_variance(values, "b", "a") == 0.0


def test_values_that_cannot_be_fitted_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no run"):
        fit_additive({"a": {}})
    with pytest.raises(ValueError, match="a seed 4 is nan; it must be finite"):
        fit_additive({"a": {4: float("nan")}})
    with pytest.raises(ValueError, match="1 seeds in common; 2 are needed"):
        paired_variance({"a": {0: 0.1}, "b": {0: 0.2, 1: 0.3}}, "a", "b")
