from __future__ import annotations

import json

import pytest

from manifests import disk
from tests.support.ablations import Values, by_seed, three_arms
from train.ablation import Conclusions, FailedRun, conclude, stats

VALUES: dict[str, list[float]] = {
    "raw": [0.300, 0.310, 0.305],
    "clip30": [0.400, 0.412, 0.404],
    "basic": [0.309, 0.304, 0.306],
    "random_like_clip30": [0.297, 0.301, 0.303],
    "a_a": [0.304, 0.306, 0.307],
}
CONTROLS = {"random_like": ["clip30"], "a_a": "raw"}
RECALL = {arm: [0.2, 0.21, 0.2] for arm in VALUES}


def both(**objects: list[float | None]) -> dict[str, Values]:
    """Values of both tasks, with other ones for some arms."""
    values = {**VALUES, **objects}
    return {"objects": by_seed(values), "other": by_seed(RECALL)}


def test_the_baseline_meets_every_arm_in_every_task_the_primary_first() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    order = [(row.task, row.metric, row.arm) for row in result.comparisons]
    arms = ("clip30", "basic", "random_like_clip30")
    tasks = (("objects", "accuracy"), ("other", "recall@1"))
    assert order == [(task, metric, arm) for task, metric in tasks for arm in arms]
    values = {arm: by_seed(VALUES)[arm] for arm in ("raw", *arms)}
    expected = stats.compare(values, "raw", 0.005)[0]
    shown = disk.to_plain(result.comparisons[0])
    assert {key: shown[key] for key in disk.to_plain(expected)} == disk.to_plain(expected)
    verdicts = [row.verdict for row in result.comparisons]
    assert verdicts[:3] == ["better", *["not distinguishable"] * 2]
    assert verdicts[3:] == ["not distinguishable"] * 3  # identical scores prove nothing
    plain = disk.to_plain(result)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert disk.from_plain(Conclusions, plain) == result


def test_controls_and_a_a_are_separate_from_the_arms() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(), runs=15)
    assert [(c.arm, c.baseline, c.verdict) for c in result.controls] == [
        ("clip30", "random_like_clip30", "better")
    ]
    assert result.aa is not None
    assert (result.aa.arm, result.aa.baseline, result.aa.n) == ("a_a", "raw", 3)
    assert result.aa.p_holm == result.aa.p
    assert result.aa.difference == pytest.approx((0.304 + 0.306 + 0.307 - 0.915) / 3, abs=1e-12)
    lines = result.verdict.splitlines()
    assert lines[0] == result.headline
    assert lines[0].startswith("On objects, better than raw: clip30 +10.0 [")
    assert lines[0].endswith("points; no difference was found for 1 of 2 arms.")
    assert lines[1].startswith("clip30 is better than raw on objects: +10.0 [")
    assert "Against a random subset of its size: clip30 is better than random_like_" in lines[4]
    assert lines[5].startswith("A/A, equal data in another order: a_a is ")
    assert "believe" not in result.verdict


def test_holm_goes_over_the_controls() -> None:
    # Each p is 0.033: one control alone would be found, two together are not.
    values: dict[str, list[float | None]] = {
        "clip30": [0.400, 0.412, 0.404],
        "basic": [0.400, 0.412, 0.404],
        "random_like_clip30": [0.392, 0.399, 0.398],
        "random_like_basic": [0.392, 0.399, 0.398],
    }
    one = conclude(three_arms(controls={"random_like": ["clip30"]}), both(**values))
    (alone,) = one.controls
    assert 0.025 < alone.p < 0.05
    assert (alone.p_holm, alone.verdict) == (alone.p, "better")
    two = conclude(three_arms(controls={"random_like": ["clip30", "basic"]}), both(**values))
    assert [row.p for row in two.controls] == [alone.p] * 2
    assert [row.p_holm for row in two.controls] == [2 * alone.p] * 2
    assert {row.verdict for row in two.controls} == {"not distinguishable"}
    assert alone.mde is not None
    assert all(row.mde is not None and row.mde > alone.mde for row in two.controls)


def test_an_a_a_difference_is_a_warning() -> None:
    result = conclude(three_arms(controls=CONTROLS), both(a_a=[0.350, 0.361, 0.355]))
    assert result.aa is not None
    assert result.aa.verdict == "better"
    assert "Equal data differ: do not believe a verdict above" in result.verdict


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
        ([0.309, 0.304, 0.306], "No difference to raw was found on objects (clip30 "),
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
        conclude(three_arms(), {"objects": by_seed(VALUES)})
