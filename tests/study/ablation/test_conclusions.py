"""Tables over whole ablations, from metrics that no run made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from clipmill.manifests import disk
from clipmill.manifests.metrics import chance_of
from clipmill.manifests.schema import NO_SEED, Ablation
from clipmill.verdict import wording
from clipmill.verdict.conclusions import (
    EarlierLook,
    FailedRun,
    StudyResults,
    TaskSignals,
    conclude,
    metric_tables,
    scorer_score,
)
from clipmill.verdict.measurements import Measurement, Measurements
from clipmill.verdict.ranges import range_of
from clipmill.verdict.stats.analysis import ScorerScore, TaskRange, TaskScores, analyse
from clipmill.verdict.stats.comparison import Comparison, Power
from clipmill.verdict.wording import DASH, MINUS
from tests.support.ablations import measured, three_arms

VALUES: dict[str, list[float]] = {
    "raw": [0.300, 0.310, 0.305],
    "clip30": [0.400, 0.412, 0.404],
    "basic": [0.309, 0.304, 0.306],
    "random_like_clip30": [0.297, 0.301, 0.303],
    "a_a": [0.304, 0.306, 0.307],
}
LOWER = "contrastive_loss"
CONTROLS = {"random_like": ["clip30"], "a_a": "raw"}
RECALL = {arm: [0.2, 0.21, 0.2] for arm in VALUES}


def both(design: Ablation | None = None, **objects: list[float | None]) -> Measurements:
    """Both tasks, with other values on the first for some arms."""
    values = {"objects": {**VALUES, **objects}, "other": RECALL}
    return measured(design or three_arms(), values)


def test_the_baseline_meets_every_arm_in_every_task_the_primary_first() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    order = [(row.task, row.metric, row.arm) for row in result.comparisons]
    tasks = (("objects", "accuracy"), ("other", "recall@1"))
    assert order == [(task, metric, arm) for task, metric in tasks for arm in ("clip30", "basic")]
    where = result.tasks["objects"].range
    assert where is not None
    table = both()
    analysis = analyse(
        {
            "objects": table.scores("objects", "accuracy"),
            "other": table.scores("other", "recall@1"),
        },
        "raw",
        arms=["clip30", "basic"],
        band=where.band,
        controls=[("clip30", "random_like_clip30"), ("random_like_clip30", "raw")],
        a_a=("a_a", "raw"),
        primary="objects",
    )
    expected = analysis.tasks["objects"].comparisons[0]
    assert result.comparisons[0] == expected
    verdicts = [row.verdict for row in result.comparisons]
    assert verdicts[:2] == ["better", "not distinguishable"]
    assert verdicts[2:] == ["not distinguishable"] * 2  # identical scores prove nothing
    assert result.average is not None
    assert [row.arm for row in result.average.comparisons] == ["clip30", "basic"]
    assert [(one.task, one.own_df) for one in result.tasks.values()] == [
        ("objects", 8.0),
        ("other", 8.0),
    ]
    plain = disk.to_plain(result)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert disk.from_plain(StudyResults, plain) == result


def test_controls_and_a_a_are_separate_from_the_arms() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    assert [(c.arm, c.baseline, c.verdict) for c in result.tasks["objects"].controls] == [
        ("clip30", "random_like_clip30", "better"),
        ("random_like_clip30", "raw", "not distinguishable"),
    ]
    a_a = result.tasks["objects"].a_a
    assert a_a is not None
    assert (a_a.arm, a_a.baseline, a_a.n, a_a.p_adjusted) == ("a_a", "raw", 3, a_a.p)
    assert a_a.difference == pytest.approx((0.304 + 0.306 + 0.307 - 0.915) / 3, abs=1e-12)
    lines = result.verdict.splitlines()
    assert lines[0] == result.headline
    assert lines[0].startswith("On objects, better than raw: clip30 +10.0 [")
    assert lines[0].endswith("points; no difference was found for 1 of 2 arms.")
    assert lines[1].startswith("clip30 is better than raw on objects: +10.0 [")
    assert lines[3].startswith("Control: clip30 is better than random_like_clip30 on objects")
    assert lines[5].startswith("A/A, equal data in another order: a_a is ")
    assert "believe" not in result.verdict


def test_less_loss_is_better() -> None:
    task = {"name": "objects", "kind": "classification", "data": "d", "metric": LOWER}
    ablation = three_arms(evaluate=[task], primary="objects")
    result = conclude(ablation, measured(ablation, {"objects": VALUES}))
    assert (result.comparisons[0].arm, result.comparisons[0].verdict) == ("clip30", "worse")
    assert "worse than raw: clip30 +" in result.headline


def test_an_a_a_difference_is_a_warning() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(a_a=[0.380, 0.391, 0.385]))
    assert result.tasks["objects"].a_a is not None
    assert result.tasks["objects"].a_a.verdict == "better"
    assert "Equal data differ: by chance alone" in result.verdict


def test_a_failed_run_costs_its_own_seed_only() -> None:
    failed = [
        FailedRun(arm="clip30", seed=1, error="its process ended with -9"),
        FailedRun(arm="basic", seed=1, error="x"),
        FailedRun(arm="basic", seed=2, error="x"),
    ]
    incomplete = {"clip30": (1,), "basic": (1, 2)}
    values = both(clip30=[0.400, None, 0.404], basic=[0.309, None, None])
    ablation = three_arms()
    result = conclude(ablation, values, failed, incomplete, 9)
    on_primary = [(row.arm, row.n) for row in result.comparisons if row.task == "objects"]
    assert on_primary[0] == ("clip30", 2)
    assert "basic" not in dict(on_primary)
    lines = result.verdict.splitlines()
    assert lines[-2] == (
        "3 of 9 runs ended without a result; the first is clip30 seed 1: its process ended with -9"
    )
    assert lines[-1] == (
        "Incomplete: clip30 (without seed 1), basic (without seed 1, 2). The other seeds are used."
    )


def test_without_a_baseline_nothing_is_compared() -> None:
    result = conclude(three_arms(), both(raw=[0.3, None, None]))
    assert [row.task for row in result.comparisons if row.task == "objects"] == []
    assert result.headline == (
        "Nothing can be compared: no arm shares two finished seeds with the baseline."
    )


@pytest.mark.parametrize(
    ("basic", "start"),
    [
        ([0.3001, 0.3099, 0.3051], "No difference on objects: practically equal to raw are"),
        ([0.309, 0.304, 0.306], "No difference to raw found on objects: clip30 "),
        ([0.201, 0.209, 0.205], "On objects, worse than raw: basic "),
    ],
)
def test_the_headline_is_one_sentence(basic: list[float | None], start: str) -> None:
    values = both(basic=basic, clip30=[0.3002, 0.3101, 0.3049])
    headline = conclude(three_arms(), values).headline
    assert headline.startswith(start)
    assert headline.endswith(".")
    assert "\n" not in headline


RETRIEVAL = {"name": "objects", "kind": "retrieval", "data": "d"}
NEAR_CHANCE = {
    "raw": [0.0050, 0.0051, 0.0050],
    "clip30": [0.0052, 0.0051, 0.0052],
    "basic": [0.0050, 0.0052, 0.0049],
}
RANKS = {
    "raw": [300.0, 302.0, 299.0],
    "clip30": [250.0, 248.0, 251.0],
    "basic": [301.0, 300.0, 299.0],
}


def test_a_metric_near_its_floor_calls_nothing_equal_and_names_one_that_separates() -> None:
    ablation = three_arms(evaluate=[RETRIEVAL])
    facts = {"test_samples": 1000, "chance": 0.001}
    alone = conclude(ablation, measured(ablation, {"objects": NEAR_CHANCE}, **facts))
    assert alone.other_metrics == ()
    values = {
        "objects": NEAR_CHANCE,
        "objects mean_rank": RANKS,
        "objects recall@10": NEAR_CHANCE,
        "objects image_to_text_recall@1": NEAR_CHANCE,  # of one direction
        "objects recall@5": {**NEAR_CHANCE, "basic": [0.5, 0.5, None]},  # not of all runs
    }
    result = conclude(ablation, measured(ablation, values, **facts))
    assert (result.tasks["objects"].samples, result.tasks["objects"].chance) == (1000, 0.001)
    assert [task.metric for task in result.other_metrics] == ["recall@10", "mean_rank"]
    where = result.tasks["objects"].range
    assert where is not None
    assert (where.near, where.at_chance, where.band) == ("floor", False, 0.0)
    assert {row.verdict for row in result.comparisons} == {"not distinguishable"}
    assert result.headline.endswith(
        "recall@1 is near its floor on objects: 0.5 % at best, chance gives 0.1 %: nothing can be "
        "called equal by it; mean_rank of the same predictions tells arms apart: clip30 is better."
    )
    rows = [row for task in result.other_metrics for row in task.comparisons]
    better = [row for row in rows if row.verdict == "better"]
    assert [(row.arm, row.metric, row.tasks) for row in better] == [("clip30", "mean_rank", 2)]
    assert wording.describe(better[0]) in result.verdict.splitlines()


def test_models_at_chance_are_said_in_the_headline() -> None:
    ablation = three_arms(evaluate=[RETRIEVAL])
    values = {"objects": NEAR_CHANCE}
    result = conclude(ablation, measured(ablation, values, test_samples=300, chance=1 / 300))
    assert "No model is above chance on objects: the best arm has 0.5 %, chance 0.3 %" in (
        result.headline
    )


def test_metrics_of_opposite_directions_have_no_average() -> None:
    tasks = [
        {"name": "objects", "kind": "classification", "data": "d"},
        {"name": "other", "kind": "classification", "data": "d", "metric": "calibration_error"},
    ]
    opposite = three_arms(evaluate=tasks)
    assert conclude(opposite, both(opposite)).average is None
    alike = three_arms(evaluate=[{**task, "metric": "accuracy"} for task in tasks])
    average = conclude(alike, both(alike)).average
    assert average is not None
    assert len(average.comparisons) == 2


def test_earlier_looks_are_said_and_widen_the_intervals() -> None:
    first = conclude(three_arms(), both())
    seen = (
        EarlierLook(date="2026-01-31T12:00:00Z", seeds=(0, 1), task="objects", metric="accuracy"),
    )
    second = conclude(three_arms(), both(), earlier=seen)
    assert second.earlier_looks == seen
    assert "Look 2 at these arms; verdicts were seen with 2 seeds by accuracy on objects" in (
        second.verdict
    )
    assert "intervals of 97.5 %" in second.verdict
    for before, now in zip(first.comparisons, second.comparisons, strict=True):
        assert now.looks == 2
        assert now.p_adjusted == pytest.approx(min(1.0, 2 * before.p_adjusted))
        if before.low is not None and now.low is not None:
            assert now.low < before.low


def where(
    metric: str, raw: float, other: float, chance: float = 0.1, **changes: object
) -> TaskRange:
    design = three_arms(**changes)
    values = {f"objects {metric}": {"raw": [raw, raw], "clip30": [other, other]}}
    given = measured(design, values, test_samples=10_000, chance=chance_of(metric, chance))
    found = range_of(design, given.scores("objects", metric))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("metric", "raw", "other", "changes", "near", "band", "at_chance"),
    [
        # the default band follows the room of the metric; a stated one does not
        ("accuracy", 0.60, 0.62, {}, None, 0.005, False),
        ("accuracy", 0.20, 0.22, {}, None, 0.002, False),
        ("accuracy", 0.90, 0.92, {}, None, 0.002, False),
        ("accuracy", 0.20, 0.22, {"equivalence": 0.004}, None, 0.004, False),
        # within ten bands of an end nothing is equal, unless one arm is well above
        ("accuracy", 0.12, 0.13, {}, "floor", 0.0, False),
        ("accuracy", 0.12, 0.40, {}, None, 0.0004, False),
        ("accuracy", 0.97, 0.98, {}, "ceiling", 0.0, False),
        ("accuracy", 0.18, 0.19, {"equivalence": 0.01}, "floor", 0.0, False),
        ("calibration_error", 0.03, 0.02, {}, "ceiling", 0.0, False),
        ("calibration_error", 0.20, 0.22, {}, None, 0.004, False),
        # at chance: two standard errors of 10,000 guesses
        ("accuracy", 0.100, 0.105, {}, "floor", 0.0, True),
        ("accuracy", 0.100, 0.108, {}, "floor", 0.0, False),
        # only shares have ends
        ("logprob", -4.0, -4.1, {}, None, 0.0, False),
        ("logprob", -4.0, -4.1, {"equivalence": 0.05}, None, 0.05, False),
    ],
)
def test_where_the_scores_lie_in_the_range_of_their_metric(
    metric: str,
    raw: float,
    other: float,
    changes: dict[str, float],
    near: str | None,
    band: float,
    at_chance: bool,
) -> None:
    found = where(metric, raw, other, **changes)
    assert (found.near, found.at_chance) == (near, at_chance)
    assert found.band == pytest.approx(band)


def test_a_scorer_is_at_chance_by_the_same_two_standard_errors() -> None:
    def scored(value: float, metric: str = "accuracy", chance: float | None = 0.1) -> ScorerScore:
        row = Measurement(
            arm="scorer", seed=NO_SEED, task="objects", metric=metric, value=value, chance=chance,
            test_samples=1_000,
        )  # fmt: skip
        score = scorer_score("trusted/all", row)
        assert score is not None
        return score

    weak = scored(0.11)
    assert wording.scorer_caution(weak) == (
        " The scorer is at chance on objects (11.0 % against 10.0 %): what it filtered says "
        "little about CLIP-score filtering."
    )
    good = scored(0.12)
    assert (good.at_chance, wording.scorer_caution(good)) == (False, "")
    assert wording.scorer_sentence(good) == (
        "The scorer, trained on trusted/all, has accuracy 12.0 % on objects; chance is 10.0 %"
    )
    free = scored(-4.0, "logprob", None)
    assert (free.chance, free.at_chance) == (None, False)
    assert wording.scorer_sentence(free).endswith(
        f"has logprob {wording.MINUS}4.000 nats on objects"
    )


def test_without_a_run_of_the_baseline_there_is_no_range() -> None:
    none = measured(three_arms(), {"objects": {"raw": [], "clip30": [0.5]}})
    assert range_of(three_arms(), none.scores("objects", "accuracy")) is None


MEANS = {"raw": 0.30, "clip30": 0.40, "basic": 0.35}


def runs_of(
    means: dict[str, float], noise: float = 0.004, seeds: int = 4
) -> dict[str, dict[str, list[float]]]:
    """Accuracy and log-loss of every arm; the loss has ten times less signal."""
    rng = np.random.default_rng(1)
    made: dict[str, dict[str, list[float]]] = {"objects accuracy": {}, "objects logprob": {}}
    for arm, mean in means.items():
        noise_S2 = noise * rng.normal(size=(seeds, 2))
        made["objects accuracy"][arm] = (mean + noise_S2[:, 0]).tolist()
        made["objects logprob"][arm] = (3 - 0.1 * mean + noise_S2[:, 1]).tolist()
    return made


def signals(made: Mapping[str, Mapping[str, Sequence[float | None]]]) -> tuple[TaskSignals, ...]:
    return metric_tables(three_arms(), measured(three_arms(), made))


def test_metrics_are_ranked_by_their_signal() -> None:
    tables = signals(runs_of(MEANS))
    assert [table.task for table in tables] == ["objects"]  # `other` has no runs
    (table,) = tables
    assert table.deciding == "accuracy"
    assert [row.metric for row in table.rows] == ["accuracy", "logprob"]
    best = table.rows[0]
    assert (best.arms, best.seeds, best.best) == (3, 4, "clip30")
    assert best.spread == pytest.approx(0.10, abs=0.01)
    assert signals(runs_of(MEANS)) == tables


def test_an_arm_with_too_few_seeds_is_left_out_and_too_few_arms_make_no_table() -> None:
    made = runs_of(MEANS)
    for of_metric in made.values():
        of_metric["basic"] = of_metric["basic"][:1]
    (table,) = signals(made)
    assert table.rows[0].arms == 2
    two = {key: {arm: of[arm] for arm in ("raw", "basic")} for key, of in made.items()}
    assert signals(two) == ()
    nan = runs_of(MEANS)
    nan["objects accuracy"]["raw"][0] = float("nan")
    assert signals(nan)[0].rows[0].seeds in (3, 4)


RAW = {0: 0.30, 1: 0.34, 2: 0.32}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (wording.points(0.0412), "+4.1"),
        (wording.points(-0.0412), f"{MINUS}4.1"),
        (wording.points(0.0), "+0.0"),
        (wording.points(-0.0001), f"{MINUS}0.0"),
        (wording.points(None), DASH),
        (wording.interval(0.041, -0.029, 0.053), f"+4.1 [{MINUS}2.9, +5.3]"),
        (wording.interval(0.041, None, None), "+4.1"),
        (wording.interval(0.0412, -0.1, 0.5, "nats"), f"+0.04 [{MINUS}0.10, +0.50]"),
        (wording.interval(0.00003, 0.00001, 0.00005), "+0.0030 [+0.0010, +0.0050]"),
        (wording.mean_and_sd(0.341, 0.01), "34.1 ± 1.0"),
        (wording.mean_and_sd(0.341, None), "34.1"),
        (wording.mean_and_sd(None, None), DASH),
        (wording.mean_and_sd(-1.5, 0.25, "nats"), f"{MINUS}1.50 ± 0.25"),
        (wording.run_name("b32", NO_SEED), "b32"),
        (wording.run_name("half", 3), "half seed 3"),
        (wording.seed_name(NO_SEED), DASH),
        (wording.without((NO_SEED,)), "without its model"),
        (wording.without((1, 4)), "without seed 1, 4"),
        (wording.p_value(0.0004, "Holm"), "Holm p < 0.001"),
        (wording.p_value(0.25, "none"), "p = 0.250"),
    ],
)
def test_numbers_and_names_are_written_one_way(shown: str, text: str) -> None:
    assert shown == text


def compared(values: dict[int, float], band: float = 0.005) -> Comparison:
    scores = TaskScores(values={"raw": RAW, "a": values})
    analysis = analyse({"objects": scores}, "raw", arms=["a"], band=band)
    return analysis.tasks["objects"].comparisons[0]


def test_other_units_are_shown_as_they_are() -> None:
    row = compared({0: 0.401, 1: 0.439, 2: 0.422})
    text = wording.describe(dataclasses.replace(row, unit="nats"))
    assert "+0.101 [" in text
    assert " nats (3 seeds, " in text
    no_unit = wording.describe(dataclasses.replace(row, unit=""))
    assert "] (3 seeds, " in no_unit


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
    assert text.endswith("; these runs could only have seen 12.3 points or more.")
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
