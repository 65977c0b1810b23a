from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.manifests.schema import Ablation, Arm, Mixtures, TaskSpec
from clipmill.study.pair_groups import GroupRuns, explain_gain
from clipmill.verdict.stats.groups import (
    LinearFit,
    PairGroup,
    changed_shares,
    fit_groups,
    parts_of_gain,
    spearman,
)
from clipmill.verdict.wording import missed_gain

GROUPS = 16


def halves(number: int, seed: int = 0, rows: np.ndarray | None = None) -> np.ndarray:
    """(number, GROUPS) shares of the mixtures that an ablation draws."""
    names = tuple(f"web/g{n:02}" for n in range(GROUPS))
    mixtures = Mixtures(sources=names, number=number, draw="halves", seed=seed)
    sizes = np.ones(GROUPS) if rows is None else rows
    table = np.array(
        [
            [size * (name in arm["views"]) for name, size in zip(names, sizes, strict=True)]
            for arm in mixtures.arms().values()
        ]
    )
    return table / table.sum(axis=1, keepdims=True)


def test_halves_are_of_half_the_groups_and_every_second_one_is_the_rest() -> None:
    shares = halves(64)
    assert ((shares > 0).sum(axis=1) == GROUPS // 2).all()
    assert ((shares[::2] > 0) != (shares[1::2] > 0)).all()
    assert ((shares > 0).sum(axis=0) == 32).all()
    assert len(np.unique(shares, axis=0)) == 64
    assert (halves(64, seed=1) != shares).any()


@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 50), min_size=16, max_size=16))
@settings(max_examples=30)
def test_planted_worth_is_recovered_exactly_where_nothing_varies(
    seed: int, sizes: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.array(sizes, float)
    worth, shares = rng.normal(0, 1, GROUPS), halves(96, seed % 1000, rows)
    fit = fit_groups(shares, shares @ worth)
    np.testing.assert_allclose(fit.worth_G, worth, atol=1e-8)
    base = rows / rows.sum()
    arm = np.where(worth > 0, rows, 0) / max(1.0, rows[worth > 0].sum())
    if arm.sum():
        parts = parts_of_gain(base, arm)
        np.testing.assert_allclose(parts.sum(axis=0), arm - base, atol=1e-9)
        # Groups that keep all of their rows have no part of the gain.
        np.testing.assert_allclose(parts[worth > 0] @ worth, 0, atol=1e-9)


def test_the_change_of_leaving_a_group_out_is_that_of_the_mixture_without_it() -> None:
    rows = np.array([1.0, 2.0, 3.0, 4.0])
    base = rows / rows.sum()
    without = np.array([[0, 2, 3, 4], [1, 0, 3, 4], [1, 2, 0, 4], [1, 2, 3, 0]])
    expected = without / without.sum(axis=1, keepdims=True) - base
    np.testing.assert_allclose(changed_shares(base, rows), expected, atol=1e-12)
    some = np.array([0.25, 0.75, 0, 0])  # the others come with all of their rows
    added = np.array([1, 2, 3, 0]) / 6 - np.array([1, 2, 0, 0]) / 3
    base = np.array([1, 2, 0, 0]) / 3
    np.testing.assert_allclose(changed_shares(base, rows)[2], added, atol=1e-12)
    assert changed_shares(some, rows).sum() == pytest.approx(0)
    alone = np.array([1.0, 0, 0, 0])
    np.testing.assert_array_equal(changed_shares(alone, rows)[0], 0)


@pytest.mark.parametrize("runs", [48, 96])
def test_where_no_group_matters_at_most_one_table_in_twenty_calls_one(runs: int) -> None:
    rng, base = np.random.default_rng(7), np.full(GROUPS, 1 / GROUPS)
    shares, called, tables = halves(runs), 0, 1000
    for _ in range(tables):
        fit = fit_groups(shares, rng.normal(0, 0.01, runs))
        called += any(one.is_clear for one in fit.estimates(changed_shares(base, base)))
    # 5 % and three standard errors of the simulation.
    assert called / tables < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)


def test_simultaneous_intervals_and_those_of_ratios_hold_as_often_as_they_say() -> None:
    rng, base = np.random.default_rng(8), np.full(GROUPS, 1 / GROUPS)
    worth, shares = np.linspace(-0.3, 0.3, GROUPS), halves(96)
    arm = np.where(np.arange(GROUPS) < 8, 0, 1 / 8)
    contrasts, parts = changed_shares(base, base), parts_of_gain(base, arm)
    held, of_ratio, tables = 0, 0, 1000
    for _ in range(tables):
        fit = fit_groups(shares, shares @ worth + rng.normal(0, 0.05, len(shares)))
        rows = zip(fit.estimates(contrasts), (contrasts @ worth).tolist(), strict=True)
        held += all(one.low <= true <= one.high for one, true in rows)
        ratio = fit.ratio(parts[0], arm - base)
        assert ratio is not None
        true = float(parts[0] @ worth / ((arm - base) @ worth))
        of_ratio += ratio.low <= true <= ratio.high
    for share in (held / tables, of_ratio / tables):
        assert 0.93 < share < 0.985


def test_a_ratio_to_nothing_has_no_bounds() -> None:
    fit = LinearFit(worth_G=np.array([1.0, 0.1]), covariance_GG=np.eye(2), df=10)
    assert fit.ratio(np.array([1.0, 0.0]), np.array([0.0, 1.0])) is None


def test_too_few_mixtures_and_groups_that_come_together_are_refused() -> None:
    with pytest.raises(ValueError, match="20 mixtures are too few for 16 groups; 32 are needed"):
        fit_groups(halves(20), np.zeros(20))
    shares = np.repeat(halves(64)[:, :1], 2, axis=1)
    with pytest.raises(ValueError, match="two groups always came together"):
        fit_groups(shares, np.zeros(64))


def test_a_rank_correlation_has_ties_and_may_not_exist() -> None:
    assert spearman(np.array([1.0, 2, 2, 4]), np.array([1.0, 3, 3, 9])) == pytest.approx(1)
    assert math.isnan(spearman(np.ones(3), np.arange(3.0)))


def test_a_gain_that_groups_miss_is_said_and_has_shares_where_they_predict_too_much() -> None:
    """`picked` has the shares of raw but for a little, and gains more or less than they predict."""
    mixtures = {f"mix{n:02}": np.eye(3)[[n % 3, (n + n // 3) % 3]].mean(axis=0) for n in range(9)}
    shares = {"raw": np.full(3, 1 / 3), "picked": np.array([0.4, 0.3, 0.3]), **mixtures}
    levels = {name: 0.3 * share[0] + 0.2 * share[1] for name, share in shares.items()}
    rng = np.random.default_rng(0)
    answers = {}
    for extra in (0.0, 0.2, -0.009):
        values = {}
        for name, level in levels.items():
            more = extra * (name == "picked")
            values[name] = {seed: level + more + rng.normal(0, 0.002) for seed in range(3)}
        runs = GroupRuns(
            ablation=Ablation(
                name="a", question="?", arms={"raw": Arm(view="web/raw")}, baseline="raw",
                seeds=(0, 1, 2), primary="t", train={"preset": "micro"},
                evaluate=(TaskSpec(name="t", kind="classification", data="d"),),
            ),
            groups=tuple(
                PairGroup(name=f"web/{n}", folder="web", view=str(n), rule="", rows=10)
                for n in range(3)
            ),
            mixtures=tuple(mixtures),
            shares=shares,
            values=values,
            metric="accuracy",
            unit="share",
        )  # fmt: skip
        answers[extra] = explain_gain(runs, "picked")
    assert answers[0.0].misses is None
    assert missed_gain(answers[0.0]) == ""
    misses = answers[0.2].misses
    assert misses is not None
    assert misses.measured is not None
    assert misses.measured.value == pytest.approx(0.2, abs=0.02)
    assert "it comes from what it selects inside of them" in missed_gain(answers[0.2])
    assert "where more of the same helps less" in missed_gain(answers[-0.009])
    assert [one.share for one in answers[0.2].effects] == [None] * 3
    for extra in (0.0, -0.009):
        assert any(one.share for one in answers[extra].effects)
