"""Which small scale orders arms as a large one: counts, intervals and stated probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clipmill.verdict.stats.scales import (
    NO_SHIFT,
    SHIFTS,
    ScaleTables,
    arm_means,
    scale_agreement,
    shift_weights,
)

ACCURACY = ("cars", "accuracy")


def test_agreement_counts_the_pairs_that_both_scales_order_alike() -> None:
    small = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.3}
    large = {"a": 0.5, "b": 0.4, "c": 0.6, "d": 0.7}
    agreement = scale_agreement(small, large)
    assert agreement is not None
    assert (agreement.pairs, agreement.alike, agreement.left_out) == (5, 4, 1)
    assert (agreement.share.low, agreement.share.value) == (0.0, 0.8)
    # Differences whose product would round to 0 still count.
    tiny = scale_agreement({"a": 0, "b": 1e-200}, {"a": 0, "b": 1e-200})
    assert tiny is not None
    assert tiny.alike == 1
    assert (tiny.share.low, tiny.share.high) == (0, 1)  # of two arms nothing is known
    assert scale_agreement({"a": 0.1, "b": 0.1}, {"a": 0.1, "b": 0.2}) is None


def test_the_interval_of_agreement_is_the_jackknife_over_arms() -> None:
    values = np.random.default_rng(5).standard_normal((2, 7))
    small, large = (dict(zip("abcdefg", scale, strict=True)) for scale in values)
    agreement = scale_agreement(small, large)
    assert agreement is not None
    pseudo = []
    for arm in "abcdefg":
        others = [other for other in "abcdefg" if other != arm]
        rest = scale_agreement({k: small[k] for k in others}, {k: large[k] for k in others})
        assert rest is not None
        pseudo.append(7 * agreement.share.value - 6 * rest.share.value)
    half = 2.446912 * np.std(pseudo, ddof=1) / math.sqrt(7)  # t of 6 degrees of freedom
    wanted = np.clip([agreement.share.value - half, agreement.share.value + half], 0, 1)
    assert [agreement.share.low, agreement.share.high] == pytest.approx(wanted, abs=1e-6)


def test_the_interval_of_agreement_holds_the_share_of_all_arms_in_ninety_five_percent() -> None:
    # Scales with correlation 0.6 order 1/2 + asin(0.6)/pi of all pairs alike. An interval that
    # takes the 105 pairs for independent holds it in 76 %.
    rng = np.random.default_rng(17)
    truth, held = 0.5 + math.asin(0.6) / math.pi, 0
    for _ in range(300):
        small = rng.standard_normal(15)
        large = 0.6 * small + 0.8 * rng.standard_normal(15)
        arms = "abcdefghijklmno"
        agreement = scale_agreement(
            dict(zip(arms, small, strict=True)), dict(zip(arms, large, strict=True))
        )
        assert agreement is not None
        held += agreement.share.low <= truth <= agreement.share.high
    assert 0.91 <= held / 300 < 0.99


def test_pairs_that_are_all_alike_have_the_limit_of_those_without_a_common_arm() -> None:
    arms = {f"arm{n}": float(n) for n in range(12)}
    agreement = scale_agreement(arms, arms)
    assert agreement is not None
    assert (agreement.share.low, agreement.share.high) == (pytest.approx(0.025 ** (1 / 6)), 1.0)
    none = scale_agreement(arms, {arm: -value for arm, value in arms.items()})
    assert none is not None
    assert (none.share.low, none.share.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 6)))


def test_two_arms_have_the_variance_of_a_paired_t_test() -> None:
    table = {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {0: 0.5, 1: 2.5, 2: 2.0}}
    means = arm_means(table, True)
    assert means is not None
    differences = np.array([0.5, -0.5, 2.0])
    assert means.variance[0, 1] == pytest.approx(differences.var(ddof=1) / 3)
    assert means.df[0, 1] == 2
    assert means.noise == pytest.approx(differences.var(ddof=1) / 6)


def test_a_pair_that_varies_more_than_the_others_has_a_larger_variance() -> None:
    rng = np.random.default_rng(2)
    table = {
        f"arm{n}": {seed: float(rng.normal(0, 5 if n == 0 else 1)) for seed in range(6)}
        for n in range(8)
    }
    means = arm_means(table, True)
    assert means is not None
    others = means.variance[1:, 1:][~np.eye(7, dtype=bool)]
    assert means.variance[0, 1:].min() > 1.5 * others.max()
    assert means.df[0, 1:].max() < means.df.max() == 35


def test_arms_with_other_seeds_and_one_run_are_compared_too() -> None:
    table = {"a": {0: 1.0, 1: 1.2}, "b": {1: 2.0, 2: 2.2}, "c": {7: 3.0}, "d": {0: 1.0, 2: 1.1}}
    means = arm_means(table, False)
    assert means is not None
    assert np.isfinite(means.variance).all()
    assert means.means[2] == -3.0
    assert arm_means({"a": {0: 1.0}, "b": {0: 2.0}}, True) is None
    assert arm_means({"a": {0: 1.0, 1: 1.0}, "b": {0: 2.0, 1: 2.0}}, True) is None  # no noise
    published = arm_means({"a": {0: 1.0}, "b": {0: 2.0}}, True, noise=0.3)
    assert published is not None
    assert published.variance[0, 1] == pytest.approx(2 * 0.3**2)


def study(
    rng: np.random.Generator,
    shift: float,
    spread: float = 1.0,
    sizes: tuple[float, ...] = (1, 4, 16),
) -> tuple[ScaleTables, np.ndarray]:
    """Twelve arms at some scales with 5 seeds: `shift` is what a step by a factor of e moves an arm
    by, over the spread. And the true means at the largest scale.
    """
    truth, scales = spread * rng.standard_normal(12), {}
    for n, size in enumerate(sizes):
        if n:
            moved = shift * math.sqrt(math.log(size / sizes[n - 1])) * rng.standard_normal(12)
            truth = truth + spread * moved
        of_seed = rng.standard_normal(5)
        values = truth[:, None] + of_seed + 0.7 * rng.standard_normal((12, 5))
        scales[float(size)] = {
            f"arm{arm:02}": dict(enumerate(values[arm].tolist())) for arm in range(12)
        }
    names = {scale: f"{scale:g}" for scale in scales}
    return ScaleTables(columns={ACCURACY: scales}, lower=(), names=names, costs=True), truth


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_a_stated_probability_is_how_often_it_is_right(shift: float) -> None:
    """40 studies with 66 pairs: what is stated is what comes out, and 95 % is at least 95 %."""
    rng = np.random.default_rng(8)
    stated, pairs, alike, decided, right = [], 0, 0, 0, 0
    for _ in range(40):
        (first, _) = study(rng, shift)[0].decisions(ACCURACY)
        assert first.probability is not None
        stated.append(first.probability)
        pairs, alike = pairs + first.agreement.pairs, alike + first.agreement.alike
        if first.stated is not None:
            decided, right = decided + first.stated.pairs, right + first.stated.alike
    assert np.mean(stated) == pytest.approx(alike / pairs, abs=0.05)
    assert decided > 0.1 * pairs
    assert right / decided >= 0.95


def test_of_equal_arms_hardly_any_pair_is_decided() -> None:
    rng = np.random.default_rng(9)
    decided = 0
    for _ in range(30):
        (one,) = study(rng, 0.0, spread=0.0, sizes=(1, 4))[0].decisions(ACCURACY)
        decided += one.stated.pairs if one.stated else 0
        assert not one.with_shift
    assert decided / (30 * 66) < 0.02


def test_the_shift_is_learned_from_smaller_scales() -> None:
    rng = np.random.default_rng(10)
    expected = []
    for shift in (0.0, 0.5, 2.0):
        tables, _ = study(rng, shift)
        arms = tuple(tables.columns[ACCURACY][1.0])
        pair = [arm_means({a: tables.columns[ACCURACY][s][a] for a in arms}, True) for s in (1, 4)]
        weights = shift_weights([(pair[0], pair[1], math.log(4))])
        expected.append(float(weights @ SHIFTS))
    assert expected[0] < 0.35 < expected[1] < 1.0 < expected[2]
    assert shift_weights([]) is NO_SHIFT


def test_a_metric_that_says_the_opposite_decides_nothing_once_that_is_seen() -> None:
    rng = np.random.default_rng(11)
    tables, _ = study(rng, 0.0)
    opposite = {
        scale: {arm: {seed: -value for seed, value in runs.items()} for arm, runs in table.items()}
        for scale, table in tables.columns[ACCURACY].items()
    }
    both = ScaleTables(
        columns={ACCURACY: tables.columns[ACCURACY], ("cars", "margin"): opposite},
        lower=(),
        names=tables.names,
    )
    rows = [row for row in both.decisions(ACCURACY) if row.metric == "margin"]
    wrong = [row for row in rows if row.truth == ACCURACY]
    assert [row.agreement.share.value < 0.2 for row in wrong] == [True, True]
    assert [row.stated for row in wrong] == [None, None]
    assert [row.probability for row in wrong] == [0.5, 0.5]
    own = [row for row in rows if row.truth == ("cars", "margin")]
    assert all(row.stated is not None for row in own)


def test_more_seeds_make_a_scale_surer_and_are_priced() -> None:
    tables, _ = study(np.random.default_rng(12), 0.0, sizes=(1, 4))
    (one,) = tables.decisions(ACCURACY)
    assert one.probability is not None
    assert one.cost == pytest.approx(0.25)
    assert one.seeds == 5
    assert one.seeds_for_sure is not None
    assert (one.seeds_for_sure <= 5) == (one.probability >= 0.9)
    assert sum(pairs.pairs for _, pairs in one.bins) == 66
