from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from train.stats.analysis import AVERAGE, Analysis, TaskScores, analyse
from train.stats.comparison import smallest_visible

ARMS = ("base", "a", "b", "control", "again")


def scores(
    rng: np.random.Generator,
    *,
    arms: tuple[str, ...] = ARMS,
    seeds: int = 3,
    samples: int = 400,
    effects: dict[str, float] | None = None,
) -> TaskScores:
    """Runs that are right on a sample where its easiness, seed and own luck say so."""
    easiness = rng.normal(0, 1, samples)
    values: dict[str, dict[int, float]] = {}
    correct: dict[str, dict[int, np.ndarray]] = {}
    for arm in arms:
        values[arm], correct[arm] = {}, {}
        taste = rng.normal(0, 0.4, samples)
        for seed in range(seeds):
            luck = rng.normal(0, 0.8, samples) + rng.normal(0, 0.05)
            right = easiness + taste + luck + (effects or {}).get(arm, 0.0) > 0
            correct[arm][seed] = right
            values[arm][seed] = float(right.mean())
    return TaskScores(values=values, samples=correct)


def test_every_question_is_answered_once() -> None:
    task = scores(np.random.default_rng(1), effects={"b": 1.5})
    result = analyse(
        {"task": task},
        "base",
        arms=["a", "b"],
        controls=[("a", "control"), ("b", "control")],
        a_a=("again", "base"),
        band=0.02,
    )
    assert result.average is None
    of_task = result.tasks["task"]
    assert [(row.arm, row.baseline) for row in of_task.comparisons] == [
        ("a", "base"),
        ("b", "base"),
    ]
    assert {row.adjustment for row in of_task.comparisons} == {"Dunnett"}
    assert {row.adjustment for row in of_task.controls} == {"Holm"}
    assert of_task.a_a is not None
    assert (of_task.a_a.arm, of_task.a_a.adjustment) == ("again", "none")
    assert of_task.comparisons[1].verdict == "better"
    assert of_task.df == of_task.own_df == 8.0


def test_one_figure_says_what_could_have_been_seen() -> None:
    task = scores(np.random.default_rng(1))
    plain = TaskScores(values=task.values)
    result = analyse({"task": plain}, "base", arms=["a", "b"], band=0.02).tasks["task"]
    assert result.sd is not None
    expected = smallest_visible(result.sd, seeds=3, arms=2, df=8.0)
    assert result.power is not None
    assert result.power.smallest == pytest.approx(expected, rel=1e-12)
    with_samples = analyse({"task": task}, "base", arms=["a", "b"], band=0.02).tasks["task"]
    assert with_samples.power is not None
    assert with_samples.power.smallest >= expected
    assert result.drawing_sd is None
    assert with_samples.drawing_sd is not None
    assert with_samples.drawing_sd > 0


def test_without_samples_the_interval_is_over_seeds() -> None:
    task = scores(np.random.default_rng(1))
    assert task.samples is not None
    holed = {**task.samples, "a": {**task.samples["a"], 2: None}}
    partly = TaskScores(values=task.values, samples=holed)
    result = analyse({"task": partly}, "base", arms=["a", "b"], band=0.02).tasks["task"]
    assert result.comparisons[0].low_samples is None
    assert result.comparisons[1].low_samples is not None
    assert result.floor_sd is not None
    none = analyse({"task": TaskScores(values=task.values)}, "base", arms=["a"], band=0.02)
    assert none.tasks["task"].floor_sd is None


def test_pairs_without_two_common_seeds_are_left_out() -> None:
    task = scores(np.random.default_rng(1))
    values = dict(task.values)
    values["b"] = {2: values["b"][2], 7: 0.4}
    values["control"] = {}
    result = analyse(
        {"task": TaskScores(values=values)},
        "base",
        arms=["a", "b", "never"],
        controls=[("a", "control")],
        a_a=("again", "base"),
        band=0.02,
    ).tasks["task"]
    assert [row.arm for row in result.comparisons] == ["a"]
    # one comparison is left: it is not adjusted
    assert result.comparisons[0].p == pytest.approx(result.comparisons[0].p_adjusted, abs=1e-12)


def test_a_baseline_without_runs_leaves_everything_out() -> None:
    result = analyse(
        {"task": TaskScores(values={"a": {0: 0.5}, "base": {}})}, "base", arms=["a"], band=0.02
    ).tasks["task"]
    assert (result.sd, result.df, result.power) == (None, None, None)
    assert result.comparisons == ()


def test_a_hole_in_a_table_keeps_the_other_runs() -> None:
    task = scores(np.random.default_rng(1), seeds=4)
    values = {arm: dict(row) for arm, row in task.values.items()}
    del values["a"][3]
    result = analyse({"task": TaskScores(values=values)}, "base", arms=["a", "b"], band=0.02)
    rows = result.tasks["task"].comparisons
    assert [row.n for row in rows] == [3, 4]
    # of the 11 of all runs, at most twice the 5 of the family
    assert (result.tasks["task"].own_df, result.tasks["task"].df) == (11.0, 10.0)


def test_identical_scores_are_not_distinguishable() -> None:
    right = np.array([True, False, True, True] * 5)
    for changed in (right, ~right):
        samples = {"base": dict.fromkeys(range(3), right), "a": dict.fromkeys(range(3), changed)}
        values = {
            arm: {seed: float(row.mean()) for seed, row in runs.items()}
            for arm, runs in samples.items()
        }
        result = analyse(
            {"task": TaskScores(values=values, samples=samples)}, "base", arms=["a"], band=0.02
        ).tasks["task"]
        (row,) = result.comparisons
        assert (row.verdict, row.low, row.p, result.power) == (
            "not distinguishable",
            None,
            1.0,
            None,
        )


def test_the_average_is_over_runs_of_all_tasks_and_has_three_intervals() -> None:
    rng = np.random.default_rng(5)
    tasks = {f"task{i}": scores(rng, effects={"b": 1.2}) for i in range(4)}
    result = analyse(tasks, "base", arms=["a", "b"], a_a=("again", "base"), band=0.02)
    assert result.average is not None
    assert result.average.task == AVERAGE
    row = result.average.comparisons[1]
    of_tasks = [result.tasks[task].comparisons[1].difference for task in tasks]
    assert row.difference == pytest.approx(np.mean(of_tasks), abs=1e-12)
    for low in (row.low_seeds, row.low_samples, row.low_tasks):
        assert low is not None
    assert result.tasks["task0"].comparisons[1].low_tasks is None
    two = {task: tasks[task] for task in ("task0", "task1")}
    average = analyse(two, "base", arms=["a", "b"], band=0.02).average
    assert average is not None
    assert average.comparisons[0].low_tasks is None


def test_a_task_without_samples_takes_them_from_the_average() -> None:
    rng = np.random.default_rng(5)
    tasks = {"one": scores(rng), "two": scores(rng), "three": TaskScores(values=scores(rng).values)}
    average = analyse(tasks, "base", arms=["a"], band=0.02).average
    assert average is not None
    assert average.comparisons[0].low_samples is None


def test_retrieval_gives_two_groups_of_samples() -> None:
    rng = np.random.default_rng(3)
    images, texts = scores(rng, samples=100), scores(rng, samples=500)
    assert images.samples is not None
    assert texts.samples is not None
    values: dict[str, dict[int, float]] = {}
    samples: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    for arm in ARMS:
        values[arm], samples[arm] = {}, {}
        for seed in range(3):
            pair = (np.asarray(images.samples[arm][seed]), np.asarray(texts.samples[arm][seed]))
            samples[arm][seed] = pair
            values[arm][seed] = float(np.mean([group.mean() for group in pair]))
    result = analyse(
        {"retrieval": TaskScores(values=values, samples=samples)}, "base", arms=["a"], band=0.02
    )
    assert result.tasks["retrieval"].comparisons[0].low_samples is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {}}, "there is no task"),
        ({"band": -0.1}, "the equivalence band is -0.1; it is at least 0"),
        ({"primary": "other"}, "the primary task 'other' is not one of"),
        ({"arms": ["a", "a"]}, "must differ from each other"),
        ({"arms": ["a", "base"]}, "and from the baseline 'base'"),
    ],
)
def test_wrong_arguments_are_refused(change, message: str) -> None:
    values = {"base": {0: 0.1, 1: 0.2}, "a": {0: 0.3, 1: 0.4}}
    arguments = {
        "tasks": {"task": TaskScores(values=values)},
        "baseline": "base",
        "arms": ["a"],
        "band": 0.02,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        analyse(**arguments)


def test_samples_of_another_metric_are_refused_with_task_arm_and_seed() -> None:
    task = scores(np.random.default_rng(1))
    values = {arm: {s: 100 * v for s, v in row.items()} for arm, row in task.values.items()}
    with pytest.raises(ValueError, match="zeroshot, base seed 0: the samples' mean is"):
        analyse({"zeroshot": replace(task, values=values)}, "base", arms=["a"], band=2.0)


@pytest.mark.slow
def test_the_pair_of_equal_arms_is_called_different_in_at_most_five_percent() -> None:
    rng = np.random.default_rng(23)
    called = 0
    for _ in range(500):
        values = {
            arm: {seed: float(value) for seed, value in enumerate(rng.normal(0.3, 0.01, 3))}
            for arm in ARMS
        }
        row = (
            analyse(
                {"task": TaskScores(values=values)},
                "base",
                arms=[],
                a_a=("again", "base"),
                band=0.001,
            )
            .tasks["task"]
            .a_a
        )
        assert row is not None
        called += row.verdict in ("better", "worse")
    assert 0.002 <= called / 500 <= 0.05


@pytest.mark.slow
def test_the_smallest_visible_difference_is_seen_in_eighty_percent() -> None:
    """Values only: 4 arms × 3 seeds, one arm with that true difference; s is known by design."""
    rng = np.random.default_rng(29)
    effect = smallest_visible(1.0, seeds=3, arms=4, df=8.0)
    seen = 0
    for _ in range(120):
        values = {
            arm: {seed: float(v) for seed, v in enumerate(rng.normal(0.0, 1.0, 3))}
            for arm in ("base", "a", "b", "c", "d")
        }
        values["a"] = {seed: value + effect for seed, value in values["a"].items()}
        rows = (
            analyse(
                {"task": TaskScores(values=values)}, "base", arms=["a", "b", "c", "d"], band=0.1
            )
            .tasks["task"]
            .comparisons
        )
        seen += rows[0].verdict == "better"
    assert 0.70 <= seen / 120 <= 0.89


@pytest.mark.slow
def test_a_noisy_baseline_does_not_make_its_a_a_arm_different() -> None:
    """The baseline and its A/A arm have 3 times the spread of the three other arms; equal means."""
    rng = np.random.default_rng(31)
    spreads = {"base": 0.03, "a": 0.01, "b": 0.01, "c": 0.01, "again": 0.03}
    called = 0
    for _ in range(500):
        values = {}
        for arm, spread in spreads.items():
            drawn = rng.normal(0.3, spread, 5).tolist()
            values[arm] = dict(enumerate(drawn))
        analysis = analyse(
            {"task": TaskScores(values=values)},
            "base",
            arms=["a", "b", "c"],
            a_a=("again", "base"),
            band=0.001,
        )
        row = analysis.tasks["task"].a_a
        assert row is not None
        called += row.verdict in ("better", "worse")
    assert called / 500 <= 0.07  # 0.118 by the shared spread


def equal_arms(
    rng: np.random.Generator, tasks: int, arms: int, seeds: int, spread: float = 0.01
) -> dict[str, TaskScores]:
    """Tasks on which nothing differs; the baseline is `base`."""
    names = ["base", *(f"a{number}" for number in range(arms))]
    made = {}
    for task in range(tasks):
        values = {}
        for name in names:
            values[name] = dict(enumerate(rng.normal(0.5, spread, seeds).tolist()))
        made[f"t{task}"] = TaskScores(values=values, limit=1.0)
    return made


def called(analysis: Analysis) -> bool:
    rows = [row for task in analysis.tasks.values() for row in task.comparisons]
    return any(row.verdict in ("better", "worse") for row in rows)


def test_the_verdicts_of_other_tasks_hold_for_all_of_them() -> None:
    tasks = equal_arms(np.random.default_rng(1), 4, 2, 3)
    apart = analyse({"t1": tasks["t1"]}, "base", arms=["a0", "a1"], band=0.0).tasks["t1"]
    result = analyse(tasks, "base", arms=["a0", "a1"], band=0.0, primary="t1")
    assert result.tasks["t1"].comparisons == apart.comparisons
    other = result.tasks["t2"].comparisons[0]
    alone = analyse({"t2": tasks["t2"]}, "base", arms=["a0", "a1"], band=0.0).tasks["t2"]
    assert (other.tasks, apart.comparisons[0].tasks) == (3, 1)
    assert other.p_adjusted == pytest.approx(min(1.0, 3 * alone.comparisons[0].p_adjusted))
    assert other.low < alone.comparisons[0].low  # type: ignore[operator]
    # without a task that was chosen before, all of them hold together
    assert analyse(tasks, "base", arms=["a0"], band=0.0).tasks["t1"].comparisons[0].tasks == 4


@pytest.mark.slow
def test_many_tasks_make_no_more_false_calls_than_one() -> None:
    rng = np.random.default_rng(7)
    count = 0
    for _ in range(40):  # without the adjustment 12 of them call some arm different
        count += called(analyse(equal_arms(rng, 10, 2, 3), "base", arms=["a0", "a1"], band=0))
    assert count <= 6


def test_every_further_look_halves_the_error() -> None:
    (task,) = equal_arms(np.random.default_rng(1), 1, 2, 3).values()
    rows = []
    for looks in (1, 2, 4):
        result = analyse({"t": task}, "base", arms=["a0", "a1"], band=0.0, looks=looks).tasks["t"]
        rows.append(result.comparisons[0])
    assert [row.looks for row in rows] == [1, 2, 4]
    for row, factor in zip(rows, (1, 2, 8), strict=True):
        assert row.p_adjusted == pytest.approx(min(1.0, factor * rows[0].p_adjusted))
    lows = [row.low for row in rows]
    assert lows == sorted(lows, reverse=True)  # type: ignore[type-var]


def test_planned_rounds_share_the_error_of_one_look() -> None:
    (task,) = equal_arms(np.random.default_rng(1), 1, 2, 3).values()
    arguments = {"arms": ["a0"], "controls": [("a1", "base")], "a_a": ("a1", "base"), "band": 0.0}
    one = analyse({"t": task}, "base", **arguments).tasks["t"]  # type: ignore[arg-type]
    three = analyse({"t": task}, "base", rounds=3, **arguments).tasks["t"]  # type: ignore[arg-type]
    pairs = [(one.comparisons[0], three.comparisons[0]), (one.controls[0], three.controls[0])]
    assert one.a_a is not None
    assert three.a_a is not None
    for before, now in (*pairs, (one.a_a, three.a_a)):
        assert (before.rounds, now.rounds) == (1, 3)
        assert now.p_adjusted == pytest.approx(min(1.0, 3 * before.p_adjusted))
        assert now.p == before.p


def test_where_less_is_better_the_verdicts_are_turned() -> None:
    values = {"base": {0: 0.30, 1: 0.31, 2: 0.30}, "a": {0: 0.10, 1: 0.12, 2: 0.11}}
    for higher, verdict in ((True, "worse"), (False, "better")):
        scores = TaskScores(values=values, metric="loss", unit="nats", higher_is_better=higher)
        row = analyse({"t": scores}, "base", arms=["a"], band=0.01).tasks["t"].comparisons[0]
        assert (row.verdict, row.task, row.metric, row.unit) == (verdict, "t", "loss", "nats")


def test_no_interval_of_a_share_leaves_what_is_possible() -> None:
    values = {"base": {0: 0.1, 1: 0.5}, "a": {0: 0.6, 1: 0.3}}
    result = analyse({"t": TaskScores(values=values, limit=1.0)}, "base", arms=["a"], band=0.01)
    row = result.tasks["t"].comparisons[0]
    assert (row.low, row.high, row.low_seeds, row.high90) == (-1.0, 1.0, -1.0, 1.0)
    power = result.tasks["t"].power
    assert power is not None
    assert power.possible == pytest.approx(0.7)  # the baseline has 0.3
    assert power.smallest > 0.7
    assert power.half == pytest.approx(0.35)


def test_a_band_of_zero_calls_nothing_equal() -> None:
    (task,) = equal_arms(np.random.default_rng(1), 1, 1, 6, spread=1e-6).values()
    wide = analyse({"t": task}, "base", arms=["a0"], band=0.01).tasks["t"].comparisons[0]
    assert wide.verdict == "practically equal"
    own = replace(task, band=0.0)  # that of the task counts
    row = analyse({"t": own}, "base", arms=["a0"], band=0.01).tasks["t"].comparisons[0]
    assert (row.verdict, row.band) == ("not distinguishable", 0.0)


@pytest.mark.slow
def test_controls_with_a_wide_spread_are_rarely_called_different() -> None:
    rng = np.random.default_rng(3)
    count = 0
    for _ in range(150):  # with the shared spread alone 11 to 16 % were
        values = {}
        for name in ("base", *(f"a{i}" for i in range(8)), "random"):
            wide = 3.0 if name in ("base", "random") else 1.0
            values[name] = dict(enumerate((wide * rng.standard_normal(3)).tolist()))
        result = analyse(
            {"t": TaskScores(values=values)},
            "base",
            arms=[f"a{i}" for i in range(8)],
            controls=[("a0", "random"), ("random", "base")],
            band=0.0,
        ).tasks["t"]
        count += any(row.verdict in ("better", "worse") for row in result.controls)
    assert count <= 12  # 5 % and one and a half standard errors
