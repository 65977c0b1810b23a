"""The law of mixtures, its candidates and what it leaves open, on laws that are known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.late import stats
from train.stats import mixing
from train.stats.mixing import FloatArray


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
    shares_MS, losses_TM = mixing.mean_of_seeds(shares_RS, np.array([[1.0, 5.0, 2.0]]))
    assert shares_MS.tolist() == [[0.3, 0.7], [1.0, 0.0]]
    assert losses_TM.tolist() == [[1.5, 5.0]]


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
    candidates_CS, losses_BC = mixing.search(refits, first_CS)
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
        candidates_CS, losses_BC = mixing.search(refits, mixing.candidates_of(shares_RS))
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
