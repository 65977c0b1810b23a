from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from train.ablation.stats import (
    Difference,
    Verdict,
    adjust,
    compare,
    detectable,
    difference,
    equivalence,
    holm,
    mcnemar,
    mean_sd,
    pairs,
    verdict,
)


def measured(mean: float, low90: float, high90: float, p: float) -> Difference:
    return Difference(n=3, mean=mean, sd=1.0, df=2, low=-9, high=9, low90=low90, high90=high90, p=p)


def test_mean_and_sample_sd() -> None:
    measured = mean_sd([0.25, 0.27, 0.32])
    assert measured.mean == pytest.approx(0.28, abs=1e-12)
    expected = math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2)
    assert measured.sd == pytest.approx(expected, abs=1e-12)
    assert mean_sd([0.3]).sd is None
    with pytest.raises(ValueError, match="at least 1 seed; there are 0"):
        mean_sd([])


def test_difference_is_the_paired_t_test() -> None:
    a, b = [0.41, 0.44, 0.40, 0.47], [0.38, 0.40, 0.39, 0.41]
    reference = stats.ttest_rel(a, b)
    ours = difference(a, b)
    assert ours.p == pytest.approx(reference.pvalue, abs=1e-9)
    assert (ours.low, ours.high) == pytest.approx(
        tuple(reference.confidence_interval(0.95)), abs=1e-9
    )
    assert (ours.low90, ours.high90) == pytest.approx(
        tuple(reference.confidence_interval(0.90)), abs=1e-9
    )
    assert ours.mean == pytest.approx(0.035, abs=1e-12)


def test_difference_of_unequal_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values cannot be paired with 2"):
        difference([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="at least 2 seeds; there are 1"):
        difference([1], [2])


def test_equal_differences_are_no_proof() -> None:
    same = difference([0.3, 0.5, 0.4], [0.2, 0.4, 0.3])
    assert (same.p, same.sd, same.low, same.high) == (0.25, 0.0, None, None)
    assert verdict(same, same.p, band=0.005) == "not distinguishable"
    assert equivalence(same, 0.005) is None


def test_identical_scores_prove_no_equality() -> None:
    scores = {0: 0.5, 1: 0.375, 2: 0.5}  # of 8 images
    (nothing,) = compare({"raw": scores, "a": scores}, "raw", 0.01)
    assert nothing.verdict == "not distinguishable"
    assert (nothing.difference, nothing.p, nothing.p_holm) == (0.0, 1.0, 1.0)
    assert (nothing.low, nothing.high, nothing.mde, nothing.p_equal) == (None,) * 4


def test_equivalence_is_the_larger_of_two_one_sided_tests() -> None:
    d = [0.002, -0.001, 0.003, 0.001]
    low = stats.ttest_1samp(d, -0.005, alternative="greater").pvalue
    high = stats.ttest_1samp(d, 0.005, alternative="less").pvalue
    assert equivalence(difference(d, [0.0] * 4), 0.005) == pytest.approx(max(low, high), abs=1e-9)


@given(
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=2, max_size=6), st.floats(0.01, 1)
)
def test_equivalence_and_the_90_percent_interval_agree(d: list[float], band: float) -> None:
    ours = difference(d, [0.0] * len(d))
    if ours.low90 is None or ours.high90 is None:
        assert equivalence(ours, band) is None
        return
    inside = -band < ours.low90 and ours.high90 < band
    if min(abs(ours.low90 + band), abs(ours.high90 - band)) > 1e-9:
        assert (equivalence(ours, band) < 0.05) == inside


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.05), (3, 0.05), (3, 0.0125), (8, 0.05), (30, 0.01)])
def test_detectable_effect_has_eighty_percent_power(n: int, alpha: float) -> None:
    effect = detectable(0.02, n, alpha=alpha)
    assert effect is not None
    critical = stats.t.ppf(1 - alpha / 2, n - 1)

    def density(
        s: float,
    ) -> float:  # s = sample SD / true SD; given it, t's two tails are normal tails
        shift = effect / 0.02 * math.sqrt(n)
        tails = stats.norm.sf(critical * s - shift) + stats.norm.cdf(-critical * s - shift)
        return float(tails * stats.chi.pdf(s * math.sqrt(n - 1), n - 1) * math.sqrt(n - 1))

    power = integrate.quad(density, 0, 12, limit=500, points=[0.5, 1, 2], epsabs=1e-12)[0]
    assert power == pytest.approx(0.8, abs=1e-6)


def test_detectable_effect_tends_to_the_normal_rule() -> None:
    assert detectable(1.0, 400) == pytest.approx((1.959964 + 0.841621) / 20, rel=5e-3)
    assert detectable(0.0, 3) is None, "nothing is known about the noise"
    with pytest.raises(ValueError, match="at least 2 seeds; there are 1"):
        detectable(1.0, 1)


def test_holm_against_an_example_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], abs=1e-12)
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_stays_between_p_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    for a, x in zip(adjusted, p, strict=True):
        assert x <= a <= min(1.0, len(p) * max(p))
    assert sorted(range(len(p)), key=lambda i: (p[i], i)) == sorted(
        range(len(p)), key=lambda i: (adjusted[i], p[i], i)
    )


def test_mcnemar_counts_the_discordant_samples() -> None:
    first = [True] * 9 + [False] * 2 + [True] * 50 + [False] * 20
    second = [False] * 9 + [True] * 2 + [True] * 50 + [False] * 20
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (9, 2)
    # both tails of Binomial(11, 1/2) from 9 up: 2 (55 + 11 + 1) / 2^11
    assert found.p == pytest.approx(134 / 2048, abs=1e-9)
    assert mcnemar([True, False], [True, False]).p == 1.0
    with pytest.raises(ValueError, match="2 samples cannot be paired with 1"):
        mcnemar([True, False], [True])


def test_verdict_follows_its_rules_in_order() -> None:
    assert verdict(measured(0.04, 0.01, 0.07, 0.01), 0.049, 0.005) == "better"
    assert verdict(measured(-0.04, -0.07, -0.01, 0.01), 0.049, 0.005) == "worse"
    assert verdict(measured(0.04, 0.01, 0.07, 0.01), 0.05, 0.005) == "not distinguishable"
    assert verdict(measured(0.001, -0.003, 0.004, 0.5), 0.5, 0.005) == "practically equal"
    assert verdict(measured(0.001, -0.003, 0.005, 0.5), 0.5, 0.005) == "not distinguishable"
    assert verdict(measured(0.001, 0.0005, 0.0015, 0.001), 0.001, 0.005) == "better"


def test_pairs_are_common_seeds() -> None:
    assert pairs({0: 1.0, 1: 2.0, 2: 3.0}, {2: 1.0, 1: 1.0}) == ((1, 1), (2, 2))
    with pytest.raises(ValueError, match=r"\[0, 1\] and \[1\] make 1 pairs"):
        pairs({0: 1.0, 1: 1.0}, {1: 1.0})
    with pytest.raises(ValueError, match="make 0 pairs"):  # an index is no pairing
        pairs({1000: 1.0, 1001: 1.0}, {0: 1.0, 1: 1.0})


def test_compare_pairs_the_seeds_and_adjusts_over_the_arms() -> None:
    values = {
        "raw": {0: 0.30, 1: 0.34, 2: 0.32},
        "good": {2: 0.422, 0: 0.401, 1: 0.439},
        "same": {0: 0.31, 1: 0.33, 2: 0.32},
    }
    good, same = compare(values, "raw", 0.005)
    reference = stats.ttest_rel([0.401, 0.439, 0.422], [0.30, 0.34, 0.32])
    assert (good.arm, good.baseline, good.n) == ("good", "raw", 3)
    assert good.seeds == ((0, 0), (1, 1), (2, 2))
    assert good.p == pytest.approx(reference.pvalue, abs=1e-9)
    assert good.p_holm == pytest.approx(2 * reference.pvalue, abs=1e-9)
    assert good.verdict == "better"
    assert same.verdict == "not distinguishable"
    assert good.mde == pytest.approx(detectable(good.sd, 3, alpha=0.025), abs=1e-12)


def test_adjust_moves_a_comparison_into_another_family() -> None:
    values = {"raw": {0: 0.30, 1: 0.34, 2: 0.32}, "a": {0: 0.39, 1: 0.45, 2: 0.42}}
    (found,) = compare(values, "raw", 0.005)
    assert found.verdict == "better"
    wider = adjust(found, 0.06, 5)
    assert (wider.p, wider.p_holm, wider.verdict) == (found.p, 0.06, "not distinguishable")
    assert wider.mde == pytest.approx(detectable(found.sd, 3, alpha=0.01), abs=1e-12)


def test_compare_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(ValueError, match=r"baseline 'none' is not one of the arms \['raw'\]"):
        compare({"raw": {0: 1.0}}, "none", 0.005)
    with pytest.raises(ValueError, match=r"clip against raw: .* make 1 pairs"):
        compare({"raw": {0: 1.0, 1: 1.0}, "clip": {0: 1.0}}, "raw", 0.005)
    with pytest.raises(ValueError, match="band is 0; it must be above 0"):
        compare({"raw": {0: 1.0, 1: 1.0}}, "raw", 0)


def simulate(effect: float, rounds: int, seed: int) -> list[list[Verdict]]:
    """Verdicts of three arms in `rounds` ablations: three seeds, mean 0.3, SD one point."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(rounds):
        noise = rng.normal(0.3, 0.01, size=(4, 3))
        noise[1] += effect
        values = {name: dict(enumerate(noise[i])) for i, name in enumerate(["raw", "a", "b", "c"])}
        out.append([c.verdict for c in compare(values, "raw", 0.01)])
    return out


def test_under_the_null_hardly_any_ablation_finds_a_difference() -> None:
    found = simulate(0.0, 500, seed=0)
    wrong = sum(any(v in ("better", "worse") for v in verdicts) for verdicts in found) / len(found)
    assert (
        0.005 < wrong < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 500)
    )  # of all three arms together: Holm's promise


def test_a_big_effect_is_found_and_only_where_it_is() -> None:
    found = simulate(0.25, 200, seed=1)
    assert sum(verdicts[0] == "better" for verdicts in found) > 180
    assert sum(v == "worse" for verdicts in found for v in verdicts) < 0.05 * 200
    assert all(v[0] != "worse" for v in simulate(0.25, 50, seed=2))
    assert sum(v[0] == "worse" for v in simulate(-0.25, 50, seed=2)) > 40


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_a_coarse_metric_gives_no_certainty_for_nothing(seed: int) -> None:
    # Accuracy on 20 pictures: the differences of three seeds often are all the same.
    rng = np.random.default_rng(seed)
    values = {
        arm: dict(enumerate((rng.binomial(20, 0.3, size=3) / 20).tolist())) for arm in ("raw", "a")
    }
    (found,) = compare(values, "raw", 0.01)
    assert found.p > 0
    numbers = (found.low, found.high, found.mde, found.p_equal)
    if found.sd == 0:
        assert numbers == (None,) * 4
        assert found.verdict == "not distinguishable"
    else:
        assert all(x is not None and math.isfinite(x) for x in numbers)
