from __future__ import annotations

import pytest

from tests.support.ablations import by_seed, three_arms
from train.ablation import wording
from train.ablation.conclusions import TaskFacts, metric_scores, range_of, scorer_score
from train.stats.analysis import TaskRange, TaskScores


def where(
    metric: str, raw: float, other: float, chance: float = 0.1, **changes: object
) -> TaskRange:
    given = TaskScores(values=by_seed({"raw": [raw, raw], "clip30": [other, other]}))
    facts = TaskFacts(samples=10_000, chance=chance)
    found = range_of(three_arms(**changes), metric_scores(metric, given), facts)
    assert found is not None
    return found


def test_the_default_band_follows_the_room_of_the_metric() -> None:
    assert where("accuracy", 0.60, 0.62).band == 0.005
    assert where("accuracy", 0.20, 0.22).band == pytest.approx(0.02 * 0.10)
    assert where("accuracy", 0.90, 0.92).band == pytest.approx(0.02 * 0.10)
    assert where("accuracy", 0.20, 0.22, equivalence=0.004).band == 0.004  # as stated


def test_near_an_end_nothing_is_equal() -> None:
    floor = where("accuracy", 0.12, 0.13)
    assert (floor.near, floor.band, floor.at_chance) == ("floor", 0.0, False)
    assert where("accuracy", 0.12, 0.40).near is None  # one arm is well above
    ceiling = where("accuracy", 0.97, 0.98)
    assert (ceiling.near, ceiling.band) == ("ceiling", 0.0)
    assert where("accuracy", 0.18, 0.19, equivalence=0.01).near == "floor"  # within ten bands
    assert where("calibration_error", 0.03, 0.02).near == "ceiling"
    assert where("calibration_error", 0.20, 0.22).near is None


def test_at_chance_is_within_two_standard_errors() -> None:
    at_chance = where("accuracy", 0.100, 0.105)
    assert at_chance.at_chance
    assert not where("accuracy", 0.100, 0.108).at_chance


def test_a_scorer_is_at_chance_by_the_same_two_standard_errors() -> None:
    facts = TaskFacts(samples=1_000, chance=0.1)
    weak = scorer_score("trusted/all", "objects", "accuracy", 0.11, facts)
    assert wording.scorer_caution(weak) == (
        " The scorer is at chance on objects (11.0 % against 10.0 %): what it filtered says "
        "little about CLIP-score filtering."
    )
    good = scorer_score("trusted/all", "objects", "accuracy", 0.12, facts)
    assert (good.at_chance, wording.scorer_caution(good)) == (False, "")
    assert wording.scorer_sentence(good) == (
        "The scorer, trained on trusted/all, has accuracy 12.0 % on objects; chance is 10.0 %"
    )
    free = scorer_score("trusted/all", "objects", "logprob", -4.0, facts)
    assert (free.chance, free.at_chance) == (None, False)
    assert wording.scorer_sentence(free).endswith(
        f"has logprob {wording.MINUS}4.000 nats on objects"
    )


def test_only_shares_have_ends() -> None:
    free = where("logprob", -4.0, -4.1)
    assert (free.near, free.band) == (None, 0.0)
    assert where("logprob", -4.0, -4.1, equivalence=0.05).band == 0.05
    none = TaskScores(values={"raw": {}, "clip30": {0: 0.5}})
    assert range_of(three_arms(), metric_scores("accuracy", none), None) is None
