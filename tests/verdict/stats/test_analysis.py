from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.studies import verdicts
from clipmill.verdict.stats.analysis import (
    AVERAGE,
    TaskScores,
    add_drawing,
    analyse,
    average_noise,
    average_values,
    differences,
    mcnemar,
    mean_sd,
    one_model_difference,
    over_tasks,
    run_spread,
    shared_noise,
)
from clipmill.verdict.stats.comparison import (
    Comparison,
    Difference,
    Family,
    StudyNoise,
    dunnett_critical,
)
from clipmill.verdict.stats.model import SampleNoise, Spread, sample_noise

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
    correct: dict[str, dict[int, list[np.ndarray]]] = {}
    for arm in arms:
        values[arm], correct[arm] = {}, {}
        taste = rng.normal(0, 0.4, samples)
        for seed in range(seeds):
            luck = rng.normal(0, 0.8, samples) + rng.normal(0, 0.05)
            right = easiness + taste + luck + (effects or {}).get(arm, 0.0) > 0
            correct[arm][seed] = [right]
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
    expected = StudyNoise(run_sd=result.sd, seeds=3, arms=2, df=8.0).smallest_visible()
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
    holed = {**task.samples, "a": {run: task.samples["a"][run] for run in (0, 1)}}
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


def test_a_hole_in_a_table_keeps_the_other_runs() -> None:
    task = scores(np.random.default_rng(1), seeds=4)
    values = {arm: dict(row) for arm, row in task.values.items()}
    del values["a"][3]
    result = analyse({"task": TaskScores(values=values)}, "base", arms=["a", "b"], band=0.02)
    rows = result.tasks["task"].comparisons
    assert [row.n for row in rows] == [3, 4]
    # of the 11 of all runs, at most twice the 5 of the family
    assert (result.tasks["task"].own_df, result.tasks["task"].df) == (11.0, 10.0)


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


@pytest.mark.slow
def test_the_smallest_visible_difference_is_seen_in_eighty_percent() -> None:
    """Values only: 4 arms × 3 seeds, one arm with that true difference; s is known by design."""
    rng = np.random.default_rng(29)
    effect = StudyNoise(run_sd=1.0, seeds=3, arms=4, df=8.0).smallest_visible()
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


EIGHT = [f"a{number}" for number in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spreads", "seeds", "tasks", "tables", "asked", "most"),
    [
        (dict.fromkeys(ARMS, 1.0), 3, 1, 500, {"arms": [], "a_a": ("again", "base")}, 25),
        # a noisy baseline and its A/A arm: 59 of 500 by the spread that quieter arms share
        (
            {"base": 3.0, "a": 1.0, "b": 1.0, "c": 1.0, "again": 3.0},
            5,
            1,
            150,
            {"arms": ["a", "b", "c"], "a_a": ("again", "base")},
            11,
        ),
        # ten tasks: 12 without the adjustment
        ({"base": 1.0, "a0": 1.0, "a1": 1.0}, 3, 10, 40, {"arms": ["a0", "a1"]}, 6),
        # a noisy baseline and a random control: 16 to 24 by the shared spread alone
        (
            {"base": 3.0, **dict.fromkeys(EIGHT, 1.0), "random": 3.0},
            3,
            1,
            150,
            {"arms": EIGHT, "controls": [("a0", "random"), ("random", "base")]},
            12,
        ),
    ],
)
def test_equal_data_are_called_different_in_about_five_percent(
    spreads: dict[str, float],
    seeds: int,
    tasks: int,
    tables: int,
    asked: dict[str, Any],
    most: int,
) -> None:
    rng = np.random.default_rng(31)
    count = 0
    for _ in range(tables):
        made = {}
        for task in range(tasks):
            values = {arm: dict(enumerate(rng.normal(0, sd, seeds))) for arm, sd in spreads.items()}
            made[f"t{task}"] = TaskScores(values=values)
        rows: list[Comparison] = []
        for result in analyse(made, "base", band=0.0, **asked).tasks.values():
            last = [result.a_a] if result.a_a else []
            rows += last or result.controls or result.comparisons
        count += any(row.verdict in ("better", "worse") for row in rows)
    assert 1 <= count <= most


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


VALUES = {
    "base": {0: 0.30, 1: 0.34, 2: 0.31},
    "a": {0: 0.36, 1: 0.37, 2: 0.35},
    "b": {0: 0.29, 1: 0.36, 2: 0.30},
}


def noise(floor: float = 0.0, drawing: float = 0.0, df: float = 100.0) -> SampleNoise:
    return SampleNoise(floor=floor, drawing=drawing, drawing_error=drawing**2 / df)


def test_two_arms_have_the_paired_t_interval() -> None:
    values = {arm: VALUES[arm] for arm in ("base", "a")}
    shared = shared_noise(values)
    assert shared is not None
    (row,) = differences(values, shared, [("a", "base")], [None], one_baseline=True)
    paired = stats.ttest_rel(list(VALUES["a"].values()), list(VALUES["base"].values()))
    assert row.difference / math.sqrt(row.over_seeds[0].variance) == pytest.approx(
        float(paired.statistic), rel=1e-9
    )
    assert row.over_seeds[0].df == paired.df == 2
    assert row.over_samples == ()


def test_the_floor_of_the_samples_is_the_least_variance() -> None:
    shared = shared_noise(VALUES)
    assert shared is not None
    pairs = [("a", "base"), ("b", "base")]
    rows = differences(VALUES, shared, pairs, [noise(floor=4.0), None], one_baseline=True)
    assert rows[0].sd == 2.0
    assert rows[0].over_seeds[1] == Spread(variance=pytest.approx(4.0 / 3), df=math.inf)  # type: ignore[arg-type]
    assert rows[1].sd < 0.1
    assert len(rows[1].over_seeds) == 1


def test_drawing_adds_its_variance_and_satterthwaites_degrees_of_freedom() -> None:
    over_seeds = Spread(variance=2.0, df=4.0)
    both = add_drawing(over_seeds, noise(drawing=1.0, df=50.0))
    assert both.variance == 3.0
    assert both.df == pytest.approx(9 / (4 / 4 + 1 / 50))
    assert add_drawing(over_seeds, noise()) == over_seeds


def test_the_noise_of_an_average_is_that_of_independent_tasks() -> None:
    mean = average_noise([noise(1.0, 3.0, 10.0), noise(2.0, 5.0, 20.0)])
    assert mean is not None
    assert (mean.floor, mean.drawing) == (3.0 / 4, 8.0 / 4)
    # degrees of freedom as by Satterthwaite
    df = mean.drawing**2 / mean.drawing_error
    assert df == pytest.approx(64 / (9 / 10 + 25 / 20))
    assert average_noise([noise(1.0), None]) is None


def average_difference(tables: list[dict[str, dict[int, float]]]) -> Difference:
    values = average_values(tables)
    shared = shared_noise(values)
    assert shared is not None
    return differences(values, shared, [("a", "base")], [None], one_baseline=True)[0]


def test_the_spread_over_tasks_holds_tasks_and_the_common_part_of_seeds() -> None:
    rng = np.random.default_rng(3)
    d = rng.normal(size=(4, 1)) + 2 * rng.normal(size=(1, 3)) + 0.3 * rng.normal(size=(4, 3))
    tables = []
    for row in d:
        tables.append({"a": dict(enumerate(row)), "base": dict.fromkeys(range(3), 0.0)})
    one = average_difference(tables)
    (spread,) = over_tasks(tables, one)
    tasks = d.mean(1).var(ddof=1) / 4
    residual = d - d.mean(1, keepdims=True) - d.mean(0) + d.mean()
    common = one.over_seeds[0].variance - (residual**2).sum() / 6 / 12
    assert spread.variance == pytest.approx(tasks + common, rel=1e-9)
    assert spread.df == pytest.approx((tasks + common) ** 2 / (tasks**2 / 3 + common**2 / 2))
    assert over_tasks(tables[:2], one) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task_sd", "seed_sd", "residual_sd"), [(1.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.2, 1.0, 0.5)]
)
def test_intervals_over_tasks_hold_what_they_promise(
    task_sd: float, seed_sd: float, residual_sd: float
) -> None:
    """6 tasks × 4 seeds of differences with crossed random effects; 2,000 tables."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        d = (
            task_sd * rng.normal(size=(6, 1))
            + seed_sd * rng.normal(size=(1, 4))
            + residual_sd * rng.normal(size=(6, 4))
        )
        mean = d.mean()
        one = Difference(
            arm="a",
            baseline="base",
            seeds=(0, 1, 2, 3),
            difference=float(mean),
            sd=1.0,
            over_seeds=(Spread(variance=float(d.mean(0).var(ddof=1)) / 4, df=3.0),),
        )
        tables = [{"a": dict(enumerate(row)), "base": dict.fromkeys(range(4), 0.0)} for row in d]
        (spread,) = over_tasks(tables, one)
        hits += abs(mean) <= stats.t.isf(0.025, spread.df) * math.sqrt(spread.variance)
    assert 0.93 <= hits / 2000 <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample_sd", "seed_sd"), [(1.0, 0.0), (1.0, 0.15), (0.3, 0.3), (3.0, 0.1)]
)
def test_intervals_over_seeds_and_samples_hold_what_they_promise(
    sample_sd: float, seed_sd: float
) -> None:
    """5 seeds × 60 samples of differences with crossed random effects; 2,000 tables."""
    rng = np.random.default_rng(6)
    zero = {seed: [np.zeros(60)] for seed in range(5)}
    hits = 0
    for _ in range(2000):
        d = (
            sample_sd * rng.normal(size=(1, 60))
            + seed_sd * rng.normal(size=(5, 1))
            + rng.normal(size=(5, 60))
        )
        samples = sample_noise({seed: [row] for seed, row in enumerate(d)}, zero)
        over_seeds = Spread(variance=float(d.mean(1).var(ddof=1)) / 5, df=4.0)
        both = add_drawing(over_seeds, samples)
        half = stats.t.isf(0.025, both.df) * math.sqrt(both.variance)
        hits += abs(d.mean()) <= half
    assert 0.935 <= hits / 2000 <= 0.975


def test_a_control_keeps_the_spread_of_its_own_runs_beside_the_shared_one() -> None:
    shared = shared_noise(VALUES)
    assert shared is not None
    (row,) = differences(VALUES, shared, [("b", "base")], [noise(1e-9, 1e-5)], one_baseline=False)
    pooled, own, floor = row.over_seeds
    assert pooled == Spread(variance=pytest.approx(2 * shared.variance / 3), df=4.0)  # type: ignore[arg-type]
    paired = stats.ttest_rel(list(VALUES["b"].values()), list(VALUES["base"].values()))
    assert row.difference / math.sqrt(own.variance) == pytest.approx(float(paired.statistic))
    assert own.df == 2
    assert floor.df == math.inf
    assert row.over_samples[1].variance == pytest.approx(own.variance + 1e-5)


def test_quiet_controls_neither_narrow_the_shared_spread_nor_outweigh_the_arms() -> None:
    values = {**VALUES, "quiet": {0: 0.30, 1: 0.32, 2: 0.31}, "still": {0: 0.30, 1: 0.32, 2: 0.31}}
    alone, among = shared_noise(VALUES), shared_noise(values, tuple(VALUES))
    assert alone is not None
    assert among is not None
    assert among.fit.variance < alone.variance  # type: ignore[operator]
    assert among.variance == alone.variance
    assert among.df == 8.0
    pair = shared_noise(values, ("base", "a"))
    assert pair is not None
    assert pair.df == 4.0  # twice the two of the pair


def test_mean_and_sample_sd() -> None:
    mean, sd = mean_sd([0.25, 0.27, 0.32])
    assert mean == pytest.approx(0.28, abs=1e-12)
    expected = math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2)
    assert sd == pytest.approx(expected, abs=1e-12)
    assert mean_sd([0.3])[1] is None
    with pytest.raises(ValueError, match="at least 1 seed; there are 0"):
        mean_sd([])


def test_mcnemar_counts_the_discordant_samples() -> None:
    first = [True] * 9 + [False] * 2 + [True] * 50 + [False] * 20
    second = [False] * 9 + [True] * 2 + [True] * 50 + [False] * 20
    # both tails of Binomial(11, 1/2) from 9 up: 2 (55 + 11 + 1) / 2^11
    assert mcnemar(first, second) == pytest.approx(134 / 2048, abs=1e-9)
    assert mcnemar([True, False], [True, False]) == 1.0
    with pytest.raises(ValueError, match="2 samples cannot be paired with 1"):
        mcnemar([True, False], [True])


def test_the_spread_of_a_run_holds_the_seed_effects() -> None:
    # Two arms with equal seed effects 0, 2, 4: no residual, and a variance of 4 over seeds.
    values = {"raw": {0: 0.0, 1: 2.0, 2: 4.0}, "long": {0: 1.0, 1: 3.0, 2: 5.0}}
    spread = run_spread(values, "raw")
    assert spread is not None
    assert (spread.variance, spread.df) == (pytest.approx(4.0), pytest.approx(2.0))
    alone = run_spread({"raw": values["raw"]}, "raw")
    assert alone is not None
    assert (alone.variance, alone.df) == (pytest.approx(4.0), 2)
    assert run_spread({"raw": {0: 1.0}}, "raw") is None
    assert run_spread({"raw": {0: 1.0, 1: 1.0}}, "raw") is None


def test_one_model_is_one_run_and_never_several() -> None:
    values = {"raw": {0: 0.0, 1: 2.0, 2: 4.0}, "one": {-1: 5.0}}
    row = one_model_difference(values, ("one", "raw"))
    assert row is not None
    assert (row.difference, row.seeds) == (3.0, ())
    assert row.over_seeds[0].variance == pytest.approx(4.0 * (1 + 1 / 3))
    assert row.over_samples == ()
    with_floor = one_model_difference(values, ("one", "raw"), floor=9.0)
    assert with_floor is not None
    assert with_floor.over_seeds[1].variance == pytest.approx(12.0)


def test_one_model_has_the_noise_of_the_samples() -> None:
    rng = np.random.default_rng(0)
    baseline = {seed: [rng.normal(size=500)] for seed in range(3)}
    model = {-1: [rng.normal(size=500)]}
    values = {
        "raw": {seed: float(groups[0].mean()) for seed, groups in baseline.items()},
        "one": {-1: float(model[-1][0].mean())},
    }
    row = one_model_difference(values, ("one", "raw"), {"raw": baseline, "one": model})
    assert row is not None
    difference = model[-1][0] - np.mean([baseline[seed][0] for seed in range(3)], axis=0)
    added = row.over_samples[0].variance - row.over_seeds[0].variance
    assert added == pytest.approx(difference.var(ddof=1) / 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed_sd", [0.0, 1.0, 3.0])
def test_the_interval_of_one_model_holds_in_95_percent(seed_sd: float) -> None:
    """3 arms × 3 seeds with effects of the seeds, one model from another seed; 1,000 tables."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(1000):
        effects = rng.normal(0, seed_sd, 4)
        values = {
            arm: {seed: float(effects[seed] + rng.normal()) for seed in range(3)}
            for arm in ("raw", "a", "b")
        }
        values["one"] = {-1: float(effects[3] + rng.normal())}
        table = {"t": TaskScores(values=values)}
        row = analyse(table, "raw", arms=["one"], one_models=["one"], band=0.1)
        (only,) = row.tasks["t"].comparisons
        assert only.low is not None
        assert only.high is not None
        held += only.low <= 0 <= only.high
    assert 0.94 <= held / 1000 <= 0.99


# Runs that are not paired: a single group, and blocks.


def in_new_order(
    tasks: dict[str, TaskScores], groups: dict[int, int], by_value: bool
) -> dict[str, TaskScores]:
    """The same runs; inside of an arm and a group their numbers are dealt out anew, for all tasks
    alike: at random, or by the value in the first one.
    """
    rng = np.random.default_rng(0)
    renumbered: dict[str, dict[int, int]] = {}
    for arm, of_arm in tasks["t0"].values.items():
        renumbered[arm] = {}
        for group in set(groups.values()):
            old = [run for run in of_arm if groups[run] == group]
            new = sorted(old, key=of_arm.__getitem__) if by_value else rng.permutation(old).tolist()
            renumbered[arm].update(zip(new, old, strict=True))
    rows = {}
    for task, scores in tasks.items():
        values: dict[str, dict[int, float]] = {}
        samples: dict[str, dict[int, Any]] = {}
        for arm, of_arm in scores.values.items():
            of_samples = scores.samples[arm]
            order = sorted(of_arm, key=renumbered[arm].__getitem__)
            values[arm] = {renumbered[arm][run]: of_arm[run] for run in order}
            samples[arm] = {renumbered[arm][run]: of_samples[run] for run in order}
        rows[task] = TaskScores(values=values, samples=samples)
    return rows


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("by_value", [True, False])
def test_no_number_depends_on_the_order_of_runs_that_are_not_paired(
    blocks: int, by_value: bool
) -> None:
    rng = np.random.default_rng(8)
    tasks = {}
    for number in range(3):
        task = scores(rng, seeds=7)
        values = {arm: dict(row) for arm, row in task.values.items()}
        del values["a"][6], values["base"][0], values["base"][5]
        tasks[f"t{number}"] = replace(task, values=values)
    groups = {run: run % blocks for run in range(7)}
    asked: dict[str, Any] = {
        "arms": ["a", "b"],
        "controls": [("a", "control")],
        "a_a": ("again", "base"),
        "band": 0.01,
        "groups": groups,
    }
    before = analyse(tasks, "base", **asked)
    turned = in_new_order(tasks, groups, by_value)
    assert before == analyse(turned, "base", **asked)
    assert before.average is not None
    rows = before.average.comparisons
    assert [(row.seeds, row.n) for row in rows] == [((), 5), ((), 5)]
    assert rows[0].low_samples is not None
    assert rows[0].low_tasks is not None
    assert before.average.a_a is not None
    # pairs of seeds are others
    asked["groups"] = None
    assert analyse(tasks, "base", **asked) != analyse(turned, "base", **asked)


def test_two_arms_of_a_single_group_have_students_interval() -> None:
    values = {"base": {0: 0.30, 1: 0.34, 2: 0.31}, "a": {3: 0.36, 4: 0.37, 5: 0.31}}
    (row,) = (
        analyse(
            {"t": TaskScores(values=values)},
            "base",
            arms=["a"],
            band=0.01,
            groups=dict.fromkeys(range(6), 0),
        )
        .tasks["t"]
        .comparisons
    )
    test = stats.ttest_ind(list(values["a"].values()), list(values["base"].values()))
    interval = test.confidence_interval(0.95)
    assert row.p == row.p_adjusted == pytest.approx(float(test.pvalue), rel=1e-9)
    assert (row.low, row.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert row.df == 4


def shaped(size: int, mean: float, sd: float = 1.0) -> dict[int, float]:
    """Runs with that mean and standard deviation."""
    x = np.arange(size, dtype=float)
    x = (x - x.mean()) / x.std(ddof=1) * sd + mean
    return dict(enumerate(x.tolist()))


@pytest.mark.parametrize("of_baseline", [2, 3, 8])
def test_unequal_numbers_of_runs_have_dunnetts_correlation_and_the_df_of_the_few(
    of_baseline: int,
) -> None:
    # the arm of fewer runs is the quieter one, so that no pair is raised
    base = shaped(of_baseline, 0.0, 0.9 if of_baseline < 4 else 1.1)
    values = {"base": base, "a": shaped(3, 0.5), "b": shaped(3, 2.0)}
    result = analyse(
        {"t": TaskScores(values=values)},
        "base",
        arms=["a", "b"],
        band=0.01,
        groups=dict.fromkeys(range(8), 0),
    ).tasks["t"]
    factor = 1 / 3 + 1 / of_baseline
    df = 2 + 2 + of_baseline - 1
    fewest = min(3, of_baseline) - 1
    # half of the variance has the degrees of freedom of the fewer runs
    of_pair = df if of_baseline == 3 else 4 / (1 / df + 1 / fewest)
    correlation = min(0.5, round(1 / of_baseline / factor, 9))
    critical = dunnett_critical(0.05, of_pair, Family(2, correlation))
    for row in result.comparisons:
        assert row.high is not None
        half = critical * math.sqrt(factor) * (result.sd or 0.0)
        assert row.high - row.difference == pytest.approx(half, rel=1e-9)
        assert row.n == min(3, of_baseline)
    within = [float(np.var(list(row.values()), ddof=1)) for row in values.values()]
    square = 2 * within[1] + 2 * within[2] + (of_baseline - 1) * within[0]
    assert (result.df, result.sd) == (df, pytest.approx(math.sqrt(square / df)))


def test_the_power_of_a_single_group_has_its_degrees_of_freedom() -> None:
    values = {"base": shaped(4, 0.0), "a": shaped(4, 0.5), "b": shaped(4, 2.0)}
    result = analyse(
        {"t": TaskScores(values=values)},
        "base",
        arms=["a", "b"],
        band=0.01,
        groups=dict.fromkeys(range(4), 0),
    )
    expected = StudyNoise(run_sd=1.0, seeds=4, arms=2, df=9.0, paired=False)
    known = result.noises["t"]
    assert known is not None
    assert known.smallest_visible() == pytest.approx(expected.smallest_visible(), rel=1e-9)
    paired = StudyNoise(run_sd=1.0, seeds=4, arms=2, df=6.0)
    assert known.smallest_visible() < paired.smallest_visible()
    needed = known.seeds_for(1.0)
    assert needed is not None
    assert replace(expected, seeds=needed, df=3.0 * (needed - 1)).smallest_visible() <= 1.0


@pytest.mark.parametrize("groups", [None, dict.fromkeys(range(5), 0)])
def test_arms_with_one_run_are_not_compared(groups: dict[int, int] | None) -> None:
    rng = np.random.default_rng(3)
    values = {arm: dict(enumerate(rng.normal(size=3).tolist())) for arm in ("base", "a")}
    values["one"] = {0: 9.0}
    few = {"t": TaskScores(values=values)}
    result = analyse(few, "base", arms=["one", "a"], band=0.1, groups=groups).tasks["t"]
    assert [row.arm for row in result.comparisons] == ["a"]
    assert result.power is not None
    # nor is any where the baseline has one run
    result = analyse(few, "one", arms=["base", "a"], band=0.1, groups=groups).tasks["t"]
    assert result.comparisons == ()
    assert result.power is None


def test_blocks_are_compared_inside_of_a_block() -> None:
    rng = np.random.default_rng(3)
    groups = {run: run // 2 for run in range(6)}
    values = {
        arm: {run: float(rng.normal() + 50 * groups[run]) for run in range(6)} for arm in "ab"
    }
    values["apart"] = {6: 1.0, 7: 2.0}
    groups |= {6: 9, 7: 9}
    task = {"t": TaskScores(values=values)}
    result = analyse(task, "a", arms=["b", "apart"], band=0.1, groups=groups).tasks["t"]
    (row,) = result.comparisons  # the other arm has no block in common
    assert row.low is not None
    assert row.high is not None
    assert row.high - row.low < 10  # the blocks are 50 apart
    assert row.n == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": {0: 0}}, "run 1 is in no group"),
        ({"one_models": ["a"]}, "cannot be single models of runs that are in groups"),
    ],
)
def test_wrong_groups_are_refused(change: dict[str, Any], message: str) -> None:
    values = {"base": {0: 0.1, 1: 0.2}, "a": {0: 0.3, 1: 0.4}}
    asked: dict[str, Any] = {"arms": ["a"], "band": 0.0, "groups": {0: 0, 1: 0}, **change}
    with pytest.raises(ValueError, match=message):
        analyse({"t": TaskScores(values=values)}, "base", **asked)


def test_groups_of_seeds_have_the_spread_over_tasks_of_seeds() -> None:
    rng = np.random.default_rng(5)
    tasks = {f"t{i}": scores(rng, effects={"b": 0.3 * i}) for i in range(4)}
    asked: dict[str, Any] = {"arms": ["a", "b"], "band": 0.02}
    paired = analyse(tasks, "base", **asked).average
    grouped = analyse(tasks, "base", groups={run: run for run in range(3)}, **asked).average
    assert paired is not None
    assert grouped is not None
    for one, other in zip(paired.comparisons, grouped.comparisons, strict=True):
        assert (one.seeds, one.n) == (other.seeds, other.n)
        for name in ("low", "high_samples", "low_tasks", "high_tasks", "df"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9)


def test_the_spread_over_tasks_of_unpaired_runs_holds_what_they_share() -> None:
    # runs of 0.1 in every task alike: no part of runs × tasks is taken off
    values = {"base": {0: -0.1, 1: 0.0, 2: 0.1}, "a": {0: -0.1, 1: 0.0, 2: 0.1}}
    tables = []
    for effect in (0.0, 1.0, 2.0, 3.0):
        of_a = {run: value + effect for run, value in values["a"].items()}
        tables.append({"base": values["base"], "a": of_a})
    groups = dict.fromkeys(range(3), 0)
    average = average_values(tables)
    shared = shared_noise(average, (), groups)
    assert shared is not None
    (one,) = differences(average, shared, [("a", "base")], [None], one_baseline=True, groups=groups)
    (spread,) = over_tasks(tables, one, groups)
    between = np.var([0.0, 1.0, 2.0, 3.0], ddof=1) / 4
    assert spread.variance == pytest.approx(between + 2 * 0.01 / 3, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("sample_sd", "run_sd"), [(1.0, 0.0), (1.0, 0.15), (0.3, 0.3), (3.0, 0.1)])
def test_unpaired_intervals_over_runs_and_samples_hold_what_they_promise(
    sample_sd: float, run_sd: float
) -> None:
    """Two arms of 5 and 3 runs × 60 samples with crossed random effects; 1,000 tables."""
    rng = np.random.default_rng(6)
    groups = dict.fromkeys(range(5), 0)
    hits = 0
    for _ in range(1000):
        values, samples = {}, {}
        taste = sample_sd / math.sqrt(2) * rng.normal(size=(2, 60))
        for number, (arm, count) in enumerate((("base", 5), ("a", 3))):
            table = taste[number] + run_sd * rng.normal(size=(count, 1))
            table = table + rng.normal(size=(count, 60))
            samples[arm] = {run: [row] for run, row in enumerate(table)}
            values[arm] = {run: float(row.mean()) for run, row in enumerate(table)}
        task = {"t": TaskScores(values=values, samples=samples)}
        (row,) = analyse(task, "base", arms=["a"], band=0.0, groups=groups).tasks["t"].comparisons
        assert row.low_samples is not None
        assert row.high_samples is not None
        hits += row.low_samples <= 0 <= row.high_samples
    assert 0.935 <= hits / 1000 <= 0.985


@pytest.mark.parametrize("at_chance", [0, 9])
def test_tasks_that_cannot_move_make_no_average_practically_equal(at_chance: int) -> None:
    rng = np.random.default_rng(1)
    tasks = {}
    for number in range(10):
        is_stuck = number < at_chance
        noise = rng.normal(0, 0.002, (2, 5))
        rows = {arm: dict(enumerate(noise[i].tolist())) for i, arm in enumerate(("base", "a"))}
        tasks[f"t{number}"] = TaskScores(values=rows, band=0.0 if is_stuck else 0.005)
    average = analyse(tasks, "base", arms=["a"], band=0.0, primary="t9").average
    assert average is not None
    (row,) = average.comparisons
    assert row.band == pytest.approx(0.005 * (10 - at_chance) / 10)
    assert row.low90 is not None
    assert abs(row.low90) < 0.005
    assert (row.verdict == "practically equal") == (at_chance == 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["baseline 2 seeds and SD 3, 4 arms x 10", "one arm 2 seeds and SD 3, all others 10, 4 arms"],
)
def test_few_seeds_of_a_wide_arm_hold_what_is_stated(name: str) -> None:
    assert verdicts.simulate_layout(name, 400).held >= 91  # 93 less two standard errors
