from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.schema import TaskSpec
from clipmill.study import changes
from clipmill.study.arms import GivenRun
from clipmill.study.changes import Answers, PartDifferences, TaskAnswers
from clipmill.verdict.pages.schema import PartChange
from clipmill.verdict.stats.comparison import Penalty
from tests.support import commands

TASK = TaskSpec(name="t", kind="classification", data="")


def answers_of(correct: dict[str, np.ndarray], label: np.ndarray) -> TaskAnswers:
    """Right and wrong answers, arm -> (seeds, samples); a wrong one is the next class."""
    classes = int(label.max()) + 1
    arms = {}
    for arm, right in correct.items():
        predicted = np.where(right, label, (label + 1) % classes)
        arms[arm] = Answers(seeds=tuple(range(len(right))), predicted=predicted, correct=right)
    return TaskAnswers(
        task="t",
        samples=pa.array([str(n) for n in range(len(label))]),
        label=label,
        classes=tuple(f"class {n}" for n in range(classes)),
        arms=arms,
        groups=None,
    )


def drawn_runs(
    rng: np.random.Generator, label: np.ndarray, arms: tuple[str, ...], gains: dict[str, np.ndarray]
) -> TaskAnswers:
    """Runs of 5 seeds whose classes go up and down with the seed, as those of a classifier do that
    prefers one class to another; gains: arm -> (classes,) added to the logit of a right answer.
    """
    classes = int(label.max()) + 1
    easy, swing = rng.normal(0, 1, len(label)), rng.uniform(0.1, 0.8, classes)
    of_seed = rng.normal(0, 0.3, (5, classes))
    correct = {}
    for arm in arms:
        level = of_seed + rng.normal(0, 1, (5, classes)) * swing + gains.get(arm, 0.0)
        noise = rng.normal(0, 1, (5, len(label)))
        correct[arm] = easy + level[:, label] + noise > 0
    return answers_of(correct, label)


def parts_of(answers: TaskAnswers, arm: str) -> list[PartChange]:
    parts = PartDifferences(answers, "raw", answers.partitions(), Penalty())
    return [parts.with_interval(arm, one) for one in parts.changes(arm)]


@pytest.mark.parametrize(
    ("arms", "ablations"),
    [(("raw", "a_a"), 200), pytest.param(("raw", "a", "b", "a_a"), 100, marks=pytest.mark.slow)],
)
def test_where_nothing_differs_one_ablation_in_twenty_at_most_names_a_part(
    arms: tuple[str, ...], ablations: int
) -> None:
    rng, label, called = np.random.default_rng(3), np.repeat(np.arange(10), 30), 0
    for _ in range(ablations):
        answers = drawn_runs(rng, label, arms, {})
        called += any(
            one.verdict in ("better", "worse") for arm in arms[1:] for one in parts_of(answers, arm)
        )
    assert called / ablations < 0.05 + 3 * math.sqrt(0.05 * 0.95 / ablations)


def test_a_planted_class_is_found_and_has_the_gain() -> None:
    rng, label = np.random.default_rng(4), np.repeat(np.arange(10), 60)
    gain = np.zeros(10)
    gain[3] = 4.0
    answers = drawn_runs(rng, label, ("raw", "arm", "other"), {"arm": gain})
    one = parts_of(answers, "arm")[0]
    assert (one.name, one.verdict, one.samples) == ("class 3", "better", 60)
    assert one.low is not None
    assert 0 < one.low < one.arm - one.baseline
    parts = PartDifferences(answers, "raw", answers.partitions(), Penalty())
    of_arm, of_other = (changes.arm_changes(parts, arm) for arm in ("arm", "other"))
    if of_arm.whole.verdict == "better":
        shares = [change.share for change in of_arm.changes]
        assert sum(share for share in shares if share is not None) == pytest.approx(1)
    assert of_other.whole.verdict == "not distinguishable"
    assert {change.share for change in of_other.changes} == {None}


def test_a_class_of_one_sample_and_arms_without_common_seeds_have_no_false_interval() -> None:
    label = np.array([0, 0, 0, 1])
    right = np.array([[True, False, True, False], [True, True, False, True]])
    answers = answers_of({"raw": right, "arm": ~right}, label)
    assert {one.name: one.samples for one in parts_of(answers, "arm")} == {
        "class 0": 3,
        "class 1": 1,
    }
    answers.arms["arm"] = Answers(seeds=(7, 8), predicted=label[None], correct=~right)
    assert {one.low for one in parts_of(answers, "arm")} == {None}


def runs_with_groups(folder: Path) -> list[GivenRun]:
    rng, runs = np.random.default_rng(5), []
    for arm, chance in (("raw", 0.2), ("half", 0.9)):
        for seed in range(3):
            right = rng.random(60) < chance
            columns = {
                "sample": [str(n) for n in range(60)],
                "label": ["x"] * 60,
                "predicted": ["x" if one else "y" for one in right],
                "correct": right.tolist(),
                "group": [None if n < 10 else f"place {n % 2}" for n in range(60)],
            }
            path = str(folder / f"{arm}-{seed}.parquet")
            disk.write_parquet(path, pa.table(columns), {})
            runs.append(GivenRun(arm=arm, seed=seed, files={"t": path}))
    return runs


def test_groups_of_the_task_are_parts_too(tmp_path: Path) -> None:
    (change,) = changes.collect_changes(runs_with_groups(tmp_path), TASK, "raw")
    assert change.parts == {"class": 1, "group": 2}
    groups = [one for one in change.changes if one.kind == "group"]
    assert {one.name: one.samples for one in groups} == {"place 0": 25, "place 1": 25}
    assert {one.verdict for one in change.changes} == {"better"}
    assert change.whole.samples == 60


@pytest.mark.slow
def test_the_command_says_what_changed_and_what_it_does_not_know(
    concluded: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.why([concluded, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == {"class": 2}
    assert commands.why([concluded]) == 0
    text = capsys.readouterr().out
    assert text.startswith("half against raw on colours: accuracy ")
    assert "By class (all 2); the 95 % hold for all parts and all arms together:" in text
    assert commands.why([concluded, "a_a"]) == 0
    assert "Nothing is distinguishable" in capsys.readouterr().out
    model = f"{concluded}/runs/raw/seed-0"  # of these runs, which a user should not take
    assert commands.why([concluded, "half", "--clusters", "2", "--model", model]) == 0
    text = capsys.readouterr().out
    assert "By cluster (all 2)" in text
    for words, message in (
        (["half", "--clusters", "9", "--model", model], "--clusters is 9; it must be 2 to 8"),
        (["raw"], "arm 'raw' has no runs that differ from the baseline's"),
        (["nothing"], "arm 'nothing' has no runs that differ"),
        (["half", "--task", "colour"], "there is no task 'colour'; did you mean 'colours'?"),
        (["half", "--clusters", "2"], "the ablation has no scorer; name one with --model"),
        (["half", "--model", "x"], "--model goes with --clusters"),
    ):
        assert commands.why([concluded, *words]) == 2
        assert message in capsys.readouterr().err
    assert commands.why([str(tmp_path)]) == 2
    assert "has no ablation.json" in capsys.readouterr().err
