from __future__ import annotations

import dataclasses

import pytest

from train.ablation import wording
from train.ablation.arms import NO_SEED
from train.ablation.wording import DASH, MINUS
from train.stats.analysis import TaskScores, analyse
from train.stats.comparison import Comparison, Power

RAW = {0: 0.30, 1: 0.34, 2: 0.32}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0412, "+4.1"),
        (-0.0412, f"{MINUS}4.1"),
        (0.0, "+0.0"),
        (-0.0001, f"{MINUS}0.0"),
        (None, DASH),
    ],
)
def test_points_always_have_a_sign(value: float | None, shown: str) -> None:
    assert wording.points(value) == shown


def test_intervals_are_written_one_way() -> None:
    assert wording.interval(0.041, -0.029, 0.053) == f"+4.1 [{MINUS}2.9, +5.3]"
    assert wording.interval(0.041, None, None) == "+4.1"
    assert wording.mean_and_sd(0.341, 0.01) == "34.1 ± 1.0"
    assert wording.mean_and_sd(0.341, None) == "34.1"
    assert wording.mean_and_sd(None, None) == DASH


def test_an_arm_that_is_one_model_has_no_seed() -> None:
    assert wording.run_name("b32", NO_SEED) == "b32"
    assert wording.run_name("half", 3) == "half seed 3"
    assert wording.seed_name(NO_SEED) == DASH
    assert wording.without((NO_SEED,)) == "without its model"
    assert wording.without((1, 4)) == "without seed 1, 4"


def compared(values: dict[int, float], band: float = 0.005) -> Comparison:
    scores = TaskScores(values={"raw": RAW, "a": values})
    analysis = analyse({"objects": scores}, "raw", arms=["a"], band=band)
    return analysis.tasks["objects"].comparisons[0]


def test_other_units_are_shown_as_they_are() -> None:
    assert wording.interval(0.0412, -0.1, 0.5, "nats") == f"+0.041 [{MINUS}0.100, +0.500]"
    assert wording.mean_and_sd(-1.5, 0.25, "nats") == f"{MINUS}1.500 ± 0.250"
    text = wording.describe(
        dataclasses.replace(compared({0: 0.401, 1: 0.439, 2: 0.422}), unit="nats")
    )
    assert "+0.101 [" in text
    assert " nats (3 seeds, " in text


def test_a_difference_is_described_in_points() -> None:
    clip30 = compared({0: 0.401, 1: 0.439, 2: 0.422})
    assert wording.describe(clip30, Power(smallest=0.02, half=0.01, seeds_for_half=9)) == (
        "a is better than raw on objects: +10.1 [+9.7, +10.4] points (3 seeds, Dunnett p < 0.001)."
    )


def test_a_tiny_difference_is_named_as_inside_the_band() -> None:
    text = wording.describe(compared({0: 0.2981, 1: 0.3380, 2: 0.3179}))
    assert f"a is worse than raw on objects: {MINUS}0.2 [" in text
    assert text.endswith("; it is inside the band of ±0.5 that counts as equal.")


def test_what_could_not_have_been_found_is_said_where_nothing_was() -> None:
    noisy = compared({0: 0.33, 1: 0.30, 2: 0.35})
    text = wording.describe(noisy, Power(smallest=0.123, half=0.06, seeds_for_half=9))
    assert "a is not distinguishable from raw on objects" in text
    assert text.endswith("; these runs could only have seen 12.3 or more.")
    assert wording.describe(noisy).endswith(").")
    blind = Power(smallest=2.04, half=0.35, seeds_for_half=9, possible=0.7)
    assert wording.describe(noisy, power=blind).endswith(
        "; these runs could have seen nothing: no difference can be as large as their noise."
    )


def test_what_else_a_p_value_is_adjusted_for_is_said() -> None:
    one = dataclasses.replace(compared(RAW), p_adjusted=0.01)
    assert wording.adjusted(one) == "Dunnett p = 0.010"
    one = dataclasses.replace(one, tasks=5, rounds=2, looks=3)
    assert wording.adjusted(one) == "Dunnett p = 0.010 over 5 tasks over 2 rounds, look 3"
    assert [wording.level(looks) for looks in (1, 2, 3)] == ["95 %", "97.5 %", "98.75 %"]


def test_identical_scores_are_described_without_a_claim() -> None:
    assert wording.describe(compared(RAW), Power(smallest=0.1, half=0.05, seeds_for_half=9)) == (
        "a is not distinguishable from raw on objects: +0.0 points (3 seeds, Dunnett p = 1.000); "
        "nothing varies between these runs, so the noise is not known."
    )


@pytest.mark.parametrize(
    ("p", "adjustment", "text"),
    [(0.0004, "Holm", "Holm p < 0.001"), (0.25, "none", "p = 0.250")],
)
def test_p_values_have_the_name_of_their_adjustment(p: float, adjustment: str, text: str) -> None:
    assert wording.p_value(p, adjustment) == text
