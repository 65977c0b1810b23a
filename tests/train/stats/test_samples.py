from __future__ import annotations

import numpy as np
import pytest

from train.stats.model import check_mean, sample_noise


def crossed_table(differences: np.ndarray) -> tuple[float, float]:
    """Mean squares of samples and residual of a seeds × samples table, by the textbook."""
    seeds, n = differences.shape
    of_samples = differences.mean(0) - differences.mean()
    residual = differences - differences.mean(0) - differences.mean(1, keepdims=True)
    residual = residual + differences.mean()
    between = seeds * (of_samples**2).sum() / (n - 1)
    return between, (residual**2).sum() / ((seeds - 1) * (n - 1))


def runs(table: np.ndarray) -> dict[int, list[np.ndarray]]:
    return {seed: [row] for seed, row in enumerate(table)}


def test_mean_squares_are_those_of_the_crossed_table() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(size=300)
    arm = rng.normal(size=(4, 300)) + hard + rng.normal(size=(4, 1)) < 0.9
    baseline = rng.normal(size=(4, 300)) + 0.6 * hard < 0.4
    between, residual = crossed_table(arm.astype(float) - baseline.astype(float))
    noise = sample_noise(runs(arm), runs(baseline))
    assert noise.floor == pytest.approx(residual / 300, rel=1e-9)
    assert noise.drawing == pytest.approx((between - residual) / (4 * 300), rel=1e-9)
    df = (between - residual) ** 2 / (between**2 / 299 + residual**2 / (3 * 299))
    assert noise.drawing**2 / noise.drawing_error == pytest.approx(df, rel=1e-9)


def test_the_floor_is_half_the_disagreement_of_seeds_for_independent_arms() -> None:
    """With D the share of samples on which two seeds disagree: D/(2N) for each of the two arms."""
    rng = np.random.default_rng(4)
    right = rng.uniform(0.1, 0.9, 20000)
    arm, baseline = rng.random((2, 6, 20000)) < right
    disagreement = 0.0
    for table in (arm, baseline):
        pairs = [(table[i] != table[j]).mean() for i in range(6) for j in range(i)]
        disagreement += float(np.mean(pairs)) / 2
    noise = sample_noise(runs(arm), runs(baseline))
    assert noise.floor == pytest.approx(disagreement / 20000, rel=0.02)


def test_errors_that_the_same_seed_makes_in_both_arms_lower_the_floor() -> None:
    rng = np.random.default_rng(4)
    shared = rng.random((3, 5000)) < 0.5
    flipped = shared ^ (rng.random((3, 5000)) < 0.05)
    paired = sample_noise(runs(flipped), runs(shared))
    apart = sample_noise(runs(np.roll(flipped, 1, axis=0)), runs(shared))
    assert paired.floor < apart.floor / 5


def test_equal_differences_in_every_seed_leave_no_floor() -> None:
    right = np.array([True, False, True, True])
    wrong = np.array([False, False, True, True])
    noise = sample_noise(runs(np.array([right] * 3)), runs(np.array([wrong] * 3)))
    assert noise.floor == 0.0
    # the difference is that of 4 samples: variance of (1, 0, 0, 0) over 4
    assert noise.drawing == pytest.approx(0.25 / 4, rel=1e-9)


def test_several_groups_have_the_mean_of_their_standard_errors() -> None:
    rng = np.random.default_rng(9)
    images = rng.normal(size=(2, 3, 40)) + rng.normal(size=(2, 1, 40))
    texts = rng.normal(size=(2, 3, 200)) + rng.normal(size=(2, 1, 200))
    both = sample_noise(
        {seed: [images[0, seed], texts[0, seed]] for seed in range(3)},
        {seed: [images[1, seed], texts[1, seed]] for seed in range(3)},
    )
    one = sample_noise(runs(images[0]), runs(images[1]))
    other = sample_noise(runs(texts[0]), runs(texts[1]))
    assert both.floor**0.5 == pytest.approx((one.floor**0.5 + other.floor**0.5) / 2, rel=1e-9)
    assert both.drawing**0.5 == pytest.approx((one.drawing**0.5 + other.drawing**0.5) / 2, rel=1e-9)
    df = both.drawing**2 / both.drawing_error
    assert df == pytest.approx(min(n.drawing**2 / n.drawing_error for n in (one, other)))


def test_a_group_in_which_hardly_anything_is_drawn_takes_no_degrees_of_freedom() -> None:
    """One direction of retrieval may be equally hard for both arms: its share is near 0."""
    rng = np.random.default_rng(9)
    wide = rng.normal(size=(2, 3, 2000)) + rng.normal(size=(2, 1, 2000))
    first = rng.normal(size=(3, 2000))
    second = first + 1e-3 * rng.normal(size=(3, 2000)) + 2e-4 * rng.normal(size=2000)
    both = sample_noise(
        {seed: [wide[0, seed], first[seed]] for seed in range(3)},
        {seed: [wide[1, seed], second[seed]] for seed in range(3)},
    )
    still = sample_noise(runs(first), runs(second))
    assert 0 < still.drawing**2 / still.drawing_error < 100
    assert both.drawing**2 / both.drawing_error > 150


def test_tables_that_do_not_match_are_refused() -> None:
    five, four, one = [np.ones(5)], [np.ones(4)], [np.ones(1)]
    with pytest.raises(ValueError, match="at least 2 common seeds; got 1"):
        sample_noise({0: five}, {0: five, 1: five})
    with pytest.raises(ValueError, match="same samples"):
        sample_noise({0: five, 1: four}, {0: five, 1: five})
    with pytest.raises(ValueError, match="at least 2 values"):
        sample_noise({0: one, 1: one}, {0: one, 1: one})


def test_samples_of_another_metric_are_refused() -> None:
    check_mean(0.75, [np.array([True, True, True, False])], "zeroshot, raw seed 0")
    check_mean(0.5, [np.array([1.0, 0.0]), np.array([0.5, 0.5, 0.5])], "retrieval")
    with pytest.raises(ValueError, match=r"raw seed 0: the samples' mean is 0.75, but the value"):
        check_mean(75.0, [np.array([True, True, True, False])], "raw seed 0")
    with pytest.raises(ValueError, match="nan"):
        check_mean(0.5, [np.array([np.nan, 0.5])], "raw seed 0")
