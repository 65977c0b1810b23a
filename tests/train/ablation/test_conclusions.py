from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import pytest

from manifests import disk
from manifests.schema import Ablation
from tests.support.ablations import by_seed, three_arms
from train.ablation import wording
from train.ablation.conclusions import FailedRun, Results, TaskFacts, conclude
from train.ablation.history import EarlierLook
from train.stats.analysis import TaskScores, analyse

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


def scores(values: Mapping[str, Sequence[float | None]]) -> TaskScores:
    return TaskScores(values=by_seed(values))


def both(**objects: list[float | None]) -> dict[str, TaskScores]:
    """Scores of both tasks, with other ones for some arms."""
    return {"objects": scores({**VALUES, **objects}), "other": scores(RECALL)}


def test_the_baseline_meets_every_arm_in_every_task_the_primary_first() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    order = [(row.task, row.metric, row.arm) for row in result.comparisons]
    tasks = (("objects", "accuracy"), ("other", "recall@1"))
    assert order == [(task, metric, arm) for task, metric in tasks for arm in ("clip30", "basic")]
    where = result.tasks["objects"].range
    assert where is not None
    analysis = analyse(
        both(),
        "raw",
        arms=["clip30", "basic"],
        band=where.band,
        controls=[("clip30", "random_like_clip30"), ("random_like_clip30", "raw")],
        a_a=("a_a", "raw"),
        primary="objects",
    )
    expected = analysis.tasks["objects"].comparisons[0]
    assert result.comparisons[0] == dataclasses.replace(expected, metric="accuracy")
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
    assert disk.from_plain(Results, plain) == result


def test_controls_and_a_a_are_separate_from_the_arms() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    assert [(c.arm, c.baseline, c.verdict) for c in result.tasks["objects"].controls] == [
        ("clip30", "random_like_clip30", "better"),
        ("random_like_clip30", "raw", "not distinguishable"),
    ]
    assert result.tasks["objects"].a_a is not None
    assert (
        result.tasks["objects"].a_a.arm,
        result.tasks["objects"].a_a.baseline,
        result.tasks["objects"].a_a.n,
    ) == ("a_a", "raw", 3)
    assert result.tasks["objects"].a_a.p_adjusted == result.tasks["objects"].a_a.p
    assert result.tasks["objects"].a_a.difference == pytest.approx(
        (0.304 + 0.306 + 0.307 - 0.915) / 3, abs=1e-12
    )
    lines = result.verdict.splitlines()
    assert lines[0] == result.headline
    assert lines[0].startswith("On objects, better than raw: clip30 +10.0 [")
    assert lines[0].endswith("points; no difference was found for 1 of 2 arms.")
    assert lines[1].startswith("clip30 is better than raw on objects: +10.0 [")
    assert lines[3].startswith("Control: clip30 is better than random_like_clip30 on objects")
    assert lines[5].startswith("A/A, equal data in another order: a_a is ")
    assert "believe" not in result.verdict


def test_holm_goes_over_the_controls() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    p = [row.p for row in result.tasks["objects"].controls]
    assert [row.adjustment for row in result.tasks["objects"].controls] == ["Holm", "Holm"]
    assert result.tasks["objects"].controls[0].p_adjusted == min(1.0, 2 * min(p))


def test_less_loss_is_better() -> None:
    task = {"name": "objects", "kind": "classification", "data": "d", "metric": LOWER}
    ablation = three_arms(evaluate=[task], primary="objects")
    result = conclude(ablation, {"objects": scores(VALUES)})
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


def test_a_task_without_values_is_an_error() -> None:
    with pytest.raises(KeyError, match="other"):
        conclude(three_arms(), {"objects": scores(VALUES)})


def on_retrieval(values: dict[str, list[float]], **changes: object) -> tuple[Ablation, TaskScores]:
    task = {"name": "objects", "kind": "retrieval", "data": "d"}
    return three_arms(evaluate=[task], primary="objects", **changes), scores(values)


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
    ablation, of_recall = on_retrieval(NEAR_CHANCE)
    facts = {"objects": TaskFacts(samples=1000, chance=0.001)}
    others = {"mean_rank": scores(RANKS), "recall@10": scores(NEAR_CHANCE)}
    plain = conclude(
        three_arms(evaluate=disk.to_plain(ablation)["evaluate"]), {"objects": of_recall}
    )
    assert plain.other_metrics == ()
    result = conclude(ablation, {"objects": of_recall}, facts=facts, others=others)
    assert result.tasks["objects"].chance == 0.001
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
    ablation, of_recall = on_retrieval(NEAR_CHANCE)
    facts = {"objects": TaskFacts(samples=300, chance=1 / 300)}
    result = conclude(ablation, {"objects": of_recall}, facts=facts)
    assert "No model is above chance on objects: the best arm has 0.5 %, chance 0.3 %" in (
        result.headline
    )


def test_metrics_of_opposite_directions_have_no_average() -> None:
    tasks = [
        {"name": "objects", "kind": "classification", "data": "d"},
        {"name": "other", "kind": "classification", "data": "d", "metric": "calibration_error"},
    ]
    assert conclude(three_arms(evaluate=tasks), both()).average is None
    same = [{**task, "metric": "accuracy"} for task in tasks]
    average = conclude(three_arms(evaluate=same), both()).average
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


def test_a_share_is_never_said_to_differ_by_more_than_there_is() -> None:
    """Hostile: two seeds of hardly trained models."""
    values = both(raw=[0.1, 0.7, None], clip30=[0.6, 0.2, None], basic=[0.3, 0.4, None])
    values["objects"] = scores({"raw": [0.1, 0.7], "clip30": [0.6, 0.2]})
    result = conclude(three_arms(arms={"raw": "web/raw", "clip30": "web/clip30"}), values)
    assert "these runs could have seen nothing" in result.headline
    row = result.comparisons[0]
    assert row.low is not None
    assert row.low >= -1.0
