from __future__ import annotations

import numpy as np
import pytest

from clipmill.verdict.stats.signals import metric_signals


def table(
    means: tuple[float, ...], sd: float, generator: np.random.Generator, seeds: int = 6
) -> dict[str, dict[int, float]]:
    """Arms with these means, a seed effect that all share, and residuals of this SD."""
    shared = 3 * generator.standard_normal(seeds)
    return {
        f"arm{i}": {
            seed: mean + float(shared[seed]) + sd * float(generator.standard_normal())
            for seed in range(seeds)
        }
        for i, mean in enumerate(means)
    }


def test_spread_and_noise_of_a_small_table_by_hand() -> None:
    # Residuals of a 2 × 2 table are ± (a0 − a1 − b0 + b1) / 4; one degree of freedom.
    values = {"top1": {"a": {0: 0.50, 1: 0.56}, "b": {0: 0.40, 1: 0.42}}}
    (signal,) = metric_signals(values)
    assert signal.spread == pytest.approx(0.12, abs=1e-12)
    assert signal.noise == pytest.approx(2 * 0.04 / 4, abs=1e-12)
    assert signal.ratio is not None
    assert signal.ratio.value == pytest.approx(6, abs=1e-9)
    assert signal.best == "a"
    assert signal.single_agreement == signal.half_agreement == 1


@pytest.mark.parametrize(("arms", "seeds"), [(2, 2), (3, 3), (6, 2), (6, 5)])
def test_the_interval_of_the_ratio_holds_it_in_95_percent(arms: int, seeds: int) -> None:
    generator, held, by_chance = np.random.default_rng(arms), 0, []
    means = tuple(float(mean) for mean in np.linspace(0, 6, arms))
    for _ in range(400):
        tables = {
            "m": table(means, 1.0, generator, seeds),
            "equal": table((0.0,) * arms, 1.0, generator, seeds),
        }
        signals = {signal.metric: signal for signal in metric_signals(tables)}
        held += signals["m"].ratio.low <= 6 <= signals["m"].ratio.high
        by_chance.append(signals["equal"].spread)
    assert 0.92 * 400 <= held <= 0.99 * 400
    assert np.mean(by_chance) == pytest.approx(signals["equal"].by_chance, rel=0.1)


def test_arms_of_one_seed_and_seeds_of_some_arms_are_left_out() -> None:
    values = {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 3.0, 1: 3.0}, "c": {0: 7.0}}
    (signal,) = metric_signals({"m": values, "alone": {"a": values["a"]}})
    assert (signal.metric, signal.arms, signal.seeds, signal.spread) == ("m", 2, 2, 1.5)


def test_a_metric_with_more_signal_comes_first_whatever_its_unit() -> None:
    generator = np.random.default_rng(3)
    means = (0.0, 1.0, 2.0)
    noisy = table(means, 2.0, generator)
    clear = table(means, 0.2, generator)
    loss = {arm: {seed: -100 * value for seed, value in row.items()} for arm, row in clear.items()}
    signals = metric_signals(
        {"top1": noisy, "logprob": clear, "loss": loss},
        lower_is_better=["loss"],
    )
    first, second, last = sorted(signals[:2], key=lambda signal: signal.metric) + signals[2:]
    assert [first.metric, second.metric, last.metric] == ["logprob", "loss", "top1"]
    assert first.ratio is not None
    assert second.ratio is not None
    assert last.ratio is not None
    assert second.ratio.value == pytest.approx(first.ratio.value, rel=1e-9)
    assert second.spread == pytest.approx(100 * first.spread, rel=1e-9)
    assert first.best == second.best == "arm2"
    assert not second.higher_is_better
    assert first.ratio.low <= first.ratio.value <= first.ratio.high
    assert first.half_agreement == 1
    assert last.single_agreement < 1


def test_agreement_is_counted_over_disjoint_seeds_and_ties_count_half() -> None:
    # Seed 2 orders the arms the other way round; seed 3 ties them.
    values = {"m": {"a": {0: 1.0, 1: 2.0, 2: 0.0, 3: 1.0}, "b": {0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0}}}
    (signal,) = metric_signals(values)
    # pairs of seeds: (0,1) agree, (0,2) (1,2) disagree, three with the tie
    assert signal.single_agreement == pytest.approx((1 + 0 + 0 + 3 * 0.5) / 6, abs=1e-12)
    # halves: {0,1}|{2,3} disagree, {0,2} ties against {1,3}, {0,3}|{1,2} agree
    assert signal.half_agreement == pytest.approx((0 + 0.5 + 1) / 3, abs=1e-12)


def test_identical_scores_have_no_ratio_and_come_last() -> None:
    flat = {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.5, 1: 0.5}}
    noisy = table((0.0, 0.0), 1.0, np.random.default_rng(7), seeds=2)
    signals = metric_signals({"flat": flat, "noisy": noisy})
    assert [signal.metric for signal in signals] == ["noisy", "flat"]
    assert signals[1].ratio is None
    assert signals[1].single_agreement == 0.5
