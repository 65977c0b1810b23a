"""The law of mixtures, its candidates and what it leaves open, on laws that are known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from clipmill.manifests.arrays import FloatArray
from clipmill.verdict.stats import mixing
from tests.support.late import stats


def planted(
    seed: int, sources: int = 6, runs: int = 24, noise: float = 0.0, power: float = 0.5
) -> tuple[FloatArray, FloatArray, mixing.MixingLaw]:
    """Mixtures, their losses and the law that made them; noise in parts of the losses' SD."""
    random = np.random.default_rng(seed)
    shares_RS = random.dirichlet(np.ones(sources), runs)
    truth = mixing.MixingLaw(
        power=power,
        floor=0.0,
        least=0.5,
        span=1.0,
        coefficients_K=np.append(0.0, random.normal(0, 1, sources)),
        predicted_R=np.empty(0),
        errors_R=np.empty(0),
    )
    loss_R = truth.at(shares_RS)
    return shares_RS, loss_R + random.normal(0, noise * loss_R.std(), runs), truth


def law_of(shares_RS: FloatArray, loss_R: FloatArray) -> mixing.MixingLaw:
    return mixing.fit_laws(shares_RS, loss_R[None])[0]


@pytest.mark.parametrize("power", mixing.POWERS)
def test_a_law_without_noise_is_recovered(power: float) -> None:
    shares_RS, loss_R, truth = planted(3, runs=40, power=power)
    law = law_of(shares_RS, loss_R)
    new_NS = np.random.default_rng(9).dirichlet(np.ones(6), 200)
    assert np.abs(law.at(new_NS) - truth.at(new_NS)).max() < 0.06 * np.ptp(truth.at(new_NS))
    planted_K, found_K = truth.coefficients_K[1:], law.coefficients_K[1:]
    assert list(np.argsort(found_K)) == list(np.argsort(planted_K))
    assert np.corrcoef(law.predicted_R, loss_R)[0, 1] > 0.99


def test_laws_of_several_rows_are_the_laws_of_each() -> None:
    shares_RS, loss_R, _ = planted(0, noise=0.3)
    other_R = planted(1, noise=0.3)[1]
    both = mixing.fit_laws(shares_RS, np.stack([loss_R, other_R]))
    for law, own_R in zip(both, (loss_R, other_R), strict=True):
        alone = law_of(shares_RS, own_R)
        assert (law.power, law.floor) == (alone.power, alone.floor)
        np.testing.assert_allclose(law.coefficients_K, alone.coefficients_K)


def test_a_law_does_not_depend_on_units_or_order() -> None:
    shares_RS, loss_R, _ = planted(0, noise=0.3)
    law = law_of(shares_RS, loss_R)
    order = np.random.default_rng(0).permutation(len(loss_R))
    other = law_of(shares_RS[order], 7 + 1000 * loss_R[order])
    np.testing.assert_allclose(other.at(shares_RS), 7 + 1000 * law.at(shares_RS))


def test_what_a_run_is_predicted_to_be_does_not_depend_on_its_own_value() -> None:
    shares_RS, loss_R, _ = planted(0, noise=0.3)
    inside = int(np.argsort(loss_R)[12])  # neither the least nor the largest, which set the range
    law, moved_R = law_of(shares_RS, loss_R), loss_R.copy()
    moved_R[inside] += 0.01 * np.ptp(loss_R)
    other = law_of(shares_RS, moved_R)
    assert other.predicted_R[inside] == pytest.approx(law.predicted_R[inside])
    assert other.predicted_R[0] != pytest.approx(law.predicted_R[0], rel=1e-9)


@pytest.mark.parametrize(("sources", "runs"), [(2, 4), (6, 8)])
def test_fewer_mixtures_than_a_law_needs_are_refused(sources: int, runs: int) -> None:
    shares_RS, loss_R, _ = planted(0, sources, runs)
    law_of(shares_RS, loss_R)
    with pytest.raises(ValueError, match=f"{runs - 1} different mixtures are too few"):
        law_of(shares_RS[1:], loss_R[1:])
    with pytest.raises(ValueError, match="the same value"):
        law_of(shares_RS, np.full(runs, 2.0))


def test_seeds_of_one_mixture_count_as_their_mean() -> None:
    shares_RS = np.array([[0.3, 0.7], [1.0, 0.0], [0.3, 0.7]])
    means = mixing.mean_of_seeds(shares_RS, np.array([[1.0, 5.0, 2.0]]))
    assert means.shares_MS.tolist() == [[0.3, 0.7], [1.0, 0.0]]
    assert means.losses_TM.tolist() == [[1.5, 5.0]]
    assert (means.mixture_R.tolist(), means.runs_M.tolist()) == ([0, 1, 0], [2, 1])
    assert (means.repeated, means.spread_T.tolist()) == (1, [0.5])


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_averages_of_runs_within_the_caps(seed: int) -> None:
    random = np.random.default_rng(seed)
    shares_RS = random.dirichlet(np.full(5, 0.3), 12)
    free_CS = mixing.candidates_of(shares_RS)
    np.testing.assert_allclose(free_CS.sum(axis=1), 1)
    assert {tuple(row) for row in shares_RS} <= {tuple(row) for row in free_CS}
    inside_S = random.dirichlet(np.ones(12)) @ shares_RS
    caps_S = inside_S * 1.01  # hardly any average is within them
    capped_CS = mixing.candidates_of(shares_RS, caps_S)
    assert (capped_CS <= caps_S + 1e-9).all()
    np.testing.assert_allclose(capped_CS.sum(axis=1), 1)
    assert (capped_CS >= shares_RS.min(axis=0) - 1e-9).all()
    assert np.ptp(capped_CS, axis=0).max() > 0  # not one point alone
    with pytest.raises(ValueError, match="allow more repeats"):
        mixing.candidates_of(shares_RS, np.append(shares_RS.min(axis=0)[:-1] / 2, 1.0))


def test_caps_that_no_candidate_exceeds_change_none() -> None:
    shares_RS = planted(0)[0]
    free_CS = mixing.candidates_of(shares_RS)
    np.testing.assert_allclose(mixing.candidates_of(shares_RS, np.ones(6)), free_CS)


def test_diminishing_returns_make_a_blend_better_than_each_source() -> None:
    shares_RS = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    loss_R = 1 + np.exp(-np.sqrt(shares_RS[:, 0]) - np.sqrt(shares_RS[:, 1]))
    law = law_of(shares_RS, loss_R)
    candidates_CS = mixing.candidates_of(shares_RS)
    best_S = candidates_CS[np.argmin(law.at(candidates_CS))]
    assert best_S[:2].min() > 0.3


def test_a_search_goes_beyond_its_first_candidates() -> None:
    shares_RS, loss_R, _ = planted(0, sources=17, runs=60, noise=0.1)
    refits = mixing.refitted([law_of(shares_RS, loss_R)], shares_RS)
    first_CS = mixing.candidates_of(shares_RS)
    candidates_CS, losses_BC = mixing.search(partial(mixing.losses_of, refits), first_CS)
    np.testing.assert_array_equal(candidates_CS[: len(first_CS)], first_CS)
    np.testing.assert_allclose(candidates_CS.sum(axis=1), 1)
    mean_C = losses_BC.mean(axis=0)
    assert mean_C.min() < mean_C[: len(first_CS)].min()
    np.testing.assert_allclose(losses_BC[:, -5:], mixing.losses_of(refits, candidates_CS[-5:]))


def test_the_bound_of_the_regret_holds_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "CANDIDATES", 1_000)
    monkeypatch.setattr(mixing, "RESAMPLES", 60)
    held = []
    for seed in range(60):
        shares_RS, loss_R, truth = planted(seed, noise=0.5, power=(0.5, 1.0)[seed % 2])
        refits = mixing.refitted([law_of(shares_RS, loss_R)], shares_RS)
        candidates_CS, losses_BC = mixing.search(
            partial(mixing.losses_of, refits), mixing.candidates_of(shares_RS)
        )
        best, true_C = int(np.argmin(losses_BC.mean(axis=0))), truth.at(candidates_CS)
        regrets_B = losses_BC[:, best] - losses_BC.min(axis=1)
        held.append(true_C[best] - true_C.min() <= np.quantile(regrets_B, 0.95))
    assert sum(held) >= 52  # of 60 at 95 %: fewer come in 1 of 1,000


def test_p_is_uniform_where_shares_do_not_matter_and_small_where_they_do() -> None:
    random = np.random.default_rng(0)
    equal = []
    for _ in range(300):
        shares_RS = random.dirichlet(np.ones(6), 16)
        equal.append(mixing.p_of_weights(shares_RS, random.normal(size=16)))
    assert stats.kstest(equal, "uniform").pvalue > 0.01
    shares_RS, loss_R, _ = planted(0, noise=0.2)
    assert mixing.p_of_weights(shares_RS, loss_R) < 1e-4
    assert mixing.p_of_weights(shares_RS[:6], loss_R[:6]) == 1.0  # a line through every point
    never_RS = np.hstack([shares_RS, np.zeros((24, 1))])  # a source that no run had
    assert mixing.p_of_weights(never_RS, loss_R) == pytest.approx(
        mixing.p_of_weights(shares_RS, loss_R)
    )


# --- what the law leaves out ----------------------------------------------------------------------


def with_pairs(
    seed: int, sources: int = 6, runs: int = 24, noise: float = 0.15, size: float = 3.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mixtures, their true losses, which are a line and products of each two shares, and with noise
    in parts of their SD.
    """
    random = np.random.default_rng([seed, sources])
    shares_RS = random.dirichlet(np.ones(sources), runs)
    pairs_SS = np.triu(random.standard_normal((sources, sources)), 1)
    slopes_S = 0.5 * random.standard_normal(sources)
    loss_R = shares_RS @ slopes_S + size * np.einsum("rs,st,rt->r", shares_RS, pairs_SS, shares_RS)
    return shares_RS, loss_R, loss_R + random.normal(0, noise * loss_R.std(), runs)


def p_of_misfit(shares_RS: FloatArray, losses_TR: FloatArray) -> float | None:
    means = mixing.mean_of_seeds(shares_RS, losses_TR)
    laws = [mixing.fit_laws(means.shares_MS, loss_M[None])[0] for loss_M in means.losses_TM]
    return mixing.p_of_misfit(laws, means)


def test_pairs_of_sources_are_no_law_and_a_law_is_one() -> None:
    of_laws, of_pairs = [], []
    for seed in range(40):
        shares_RS, loss_R, _ = planted(seed, noise=0.3, power=(0.5, 1.0)[seed % 2])
        of_laws.append(p_of_misfit(shares_RS, loss_R[None]))
        shares_RS, _, loss_R = with_pairs(seed)
        of_pairs.append(p_of_misfit(shares_RS, loss_R[None]))
    assert sum(p < 0.05 for p in of_laws) <= 6  # of 40 at 5 %: more come in 1 of 100
    assert sum(p < 0.05 for p in of_pairs) >= 28


def test_runs_of_one_mixture_are_what_a_law_is_tested_with() -> None:
    shares_RS = np.repeat(np.random.default_rng(0).dirichlet(np.ones(3), 8), 2, axis=0)
    noise_R = np.random.default_rng(1).normal(0, 0.01, 16)
    step_R = (shares_RS[:, 0] > np.median(shares_RS[:, 0])).astype(float)
    p_of_step = p_of_misfit(shares_RS, (shares_RS[:, 1] + step_R + noise_R)[None])
    assert p_of_step is not None
    assert p_of_step < 0.001
    p_of_line = p_of_misfit(shares_RS, (shares_RS[:, 1] + noise_R)[None])
    assert p_of_line is not None
    assert p_of_line > 0.05
    one_each = p_of_misfit(shares_RS[::2], (shares_RS[:, 1] + noise_R)[None, ::2])
    assert one_each is None, "4 degrees of freedom, and no repeats"


def test_a_run_that_is_copied_is_no_repeat() -> None:
    shares_RS, loss_R, _ = planted(0, noise=0.3)
    alone = p_of_misfit(shares_RS, loss_R[None])
    twice = p_of_misfit(np.repeat(shares_RS, 2, axis=0), np.repeat(loss_R, 2)[None])
    assert twice == pytest.approx(alone)


@pytest.mark.parametrize("exact", ["law", "line"])
def test_values_without_noise_fit_and_have_no_regret(exact: str) -> None:
    shares_RS, loss_R, _ = planted(0, runs=40)
    if exact == "line":
        loss_R = shares_RS @ np.arange(6.0)
    means = mixing.mean_of_seeds(shares_RS, loss_R[None])
    laws = mixing.fit_laws(means.shares_MS, means.losses_TM)
    refits = mixing.refitted(laws, means.shares_MS)
    found = mixing.search(partial(mixing.losses_of, refits), mixing.candidates_of(means.shares_MS))
    mean, high = mixing.regrets(mixing.misfits(refits, means), *found)
    assert 0 <= mean <= high < 0.02 * np.ptp(loss_R)


def test_of_several_targets_the_worst_counts_as_often_as_there_are_targets() -> None:
    shares_RS, _, of_pairs_R = with_pairs(0)
    of_law_R = planted(3, noise=0.3)[1]
    alone = p_of_misfit(shares_RS, of_pairs_R[None])
    both = p_of_misfit(shares_RS, np.stack([of_pairs_R, shares_RS[:, 0] + 0.1 * of_law_R]))
    assert alone is not None
    assert both == pytest.approx(2 * alone)


def test_draws_with_pairs_know_what_a_law_cannot() -> None:
    shares_RS, true_R, loss_R = with_pairs(1, sources=4, runs=60, noise=0.02)
    kept, left_out = slice(0, 40), slice(40, 60)
    means = mixing.mean_of_seeds(shares_RS[kept], loss_R[None, kept])
    (law,) = mixing.fit_laws(means.shares_MS, means.losses_TM, powers=(1.0,), floors=(3.0,))
    centre = mixing.misfits([[law]], means)
    drawn_BN = mixing.losses_of_wider(
        mixing.wider_laws(40 * centre, least=0.0), shares_RS[left_out]
    )
    errors = [
        np.abs(one - true_R[left_out]) for one in (drawn_BN.mean(0), law.at(shares_RS[left_out]))
    ]
    assert errors[0].mean() < errors[1].mean() / 4
    low_N, high_N = np.quantile(drawn_BN, [0.025, 0.975], axis=0)
    assert ((low_N <= true_R[left_out]) & (true_R[left_out] <= high_N)).sum() >= 16  # of 20
    none = np.zeros((1, 5)), np.zeros((1, 10))
    bare = mixing.WiderLaws(law=law, changes_BK=none[0], terms_BE=none[1], curves=(2.0,), scale=1.0)
    np.testing.assert_allclose(bare.at(shares_RS)[0], law.at(shares_RS))


def test_targets_with_one_error_have_it_in_all_draws() -> None:
    shares_RS, _, loss_R = with_pairs(0)
    means = mixing.mean_of_seeds(shares_RS, np.stack([loss_R, 2 * loss_R, planted(5)[1]]))
    laws = [law_of(means.shares_MS, loss_M) for loss_M in means.losses_TM]
    (first, second, other) = mixing.wider_laws(mixing.misfits([laws], means), least=1.0)[0]
    np.testing.assert_allclose(second.at(shares_RS), 2 * first.at(shares_RS), rtol=1e-6, atol=1e-6)
    assert np.abs(np.corrcoef(first.terms_BE[:, 0], other.terms_BE[:, 0])[0, 1]) < 0.9


@pytest.mark.slow
def test_the_bound_holds_where_pairs_of_sources_need_or_spoil_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixing, "CANDIDATES", 1_000)
    held, by_the_law = 0, 0
    for seed in range(40):
        shares_RS, true_R, loss_R = with_pairs(seed, noise=0.3)
        means = mixing.mean_of_seeds(shares_RS, loss_R[None])
        laws = mixing.fit_laws(means.shares_MS, means.losses_TM)
        refits = mixing.refitted(laws, means.shares_MS)
        candidates_CS, losses_BC = mixing.search(
            partial(mixing.losses_of, refits), mixing.candidates_of(means.shares_MS)
        )
        best_S = candidates_CS[losses_BC.mean(axis=0).argmin()]
        slope = np.linalg.lstsq(_scheffe(shares_RS), true_R, rcond=None)[0]
        true_C = _scheffe(candidates_CS) @ slope  # the truth has no other terms
        regret = float((_scheffe(best_S[None]) @ slope)[0] - true_C.min())
        centres = mixing.misfits(refits, means)
        mean, bound = mixing.regrets(centres, candidates_CS, losses_BC)
        assert mean <= bound
        held += regret <= bound + 1e-9
        best = losses_BC.mean(axis=0).argmin()
        by_the_law += regret <= np.quantile(losses_BC[:, best] - losses_BC.min(axis=1), 0.95)
    assert held >= 34  # of 40 at 95 %: fewer come in 1 of 100
    assert by_the_law <= 30


def _scheffe(shares_NS: FloatArray) -> FloatArray:
    """Shares, and products of each two."""
    first, second = np.triu_indices(shares_NS.shape[1], 1)
    return np.hstack([shares_NS, shares_NS[:, first] * shares_NS[:, second]])


def test_the_best_of_many_measured_values_is_not_taken_at_its_word() -> None:
    random, probabilities = np.random.default_rng(0), []
    for _ in range(20):  # of runs that are all alike the best is better by luck alone
        shares_RS = random.dirichlet(np.ones(4), 24)
        means = mixing.mean_of_seeds(shares_RS, random.normal(size=(1, 24)))
        laws = mixing.fit_laws(means.shares_MS, means.losses_TM)
        refits = mixing.refitted(laws, means.shares_MS)
        centres = mixing.misfits(refits, means)
        best = int(means.losses_TM[0].argmin())
        middle_S = means.shares_MS.mean(axis=0)
        probabilities.append(mixing.p_of_better(centres, middle_S, means.shares_MS[best]))
    assert sum(p < 0.05 for p in probabilities) <= 6
    assert np.mean(probabilities) > 0.1
    shares_RS, _, loss_R = with_pairs(0, noise=0.02)
    means = mixing.mean_of_seeds(shares_RS, loss_R[None])
    refits = mixing.refitted(mixing.fit_laws(means.shares_MS, means.losses_TM), means.shares_MS)
    centres = mixing.misfits(refits, means)
    best_S, worst_S = (
        means.shares_MS[order(means.losses_TM[0])] for order in (np.argmin, np.argmax)
    )
    assert mixing.p_of_better(centres, best_S, worst_S) > 0.99
    assert mixing.p_of_better(centres, worst_S, best_S) < 0.01
