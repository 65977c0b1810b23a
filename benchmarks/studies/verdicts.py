#!/usr/bin/env python3
"""How often the verdicts of an ablation are wrong: simulated tables of runs, without training.

example: python benchmarks/studies/verdicts.py              # all tables of the page, 4 CPU minutes
         python benchmarks/studies/verdicts.py --share 0.01  # a trial, which writes nothing
         python benchmarks/studies/verdicts.py --page        # writes the page from the result again

Nothing differs in any table: every arm has the baseline's mean. The intervals are those of
`clipmill.verdict.stats.analyse`, written for many tables at once; a test compares both on single
tables. A design is a number of arms, seeds and extra runs (A/A, controls), and the spread of each.
Runs that no seed pairs go through `analyse` itself, as do models without seeds. The designs were
fixed before the first simulation. One run simulates all of them, writes
benchmarks/results/verdicts.json and puts its tables into docs/statistics.md. `--page` simulates
nothing: it writes the page from that file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from clipmill.manifests import console, disk
from clipmill.verdict.stats.analysis import TaskResult, TaskScores, analyse
from clipmill.verdict.stats.blocks import interaction
from clipmill.verdict.stats.comparison import Family, StudyNoise, dunnett_critical
from clipmill.verdict.stats.scales import agreement_of, gaps_of

PAGE = ROOT / "docs" / "statistics.md"
RESULT = ROOT / "benchmarks" / "results" / "verdicts.json"
TABLES = 20_000
LAYOUT_TABLES = 1000
UNLIKE_TABLES = 10_000
MODEL_TABLES = 1000  # and of scales
FOUND_TABLES = 4000
SORTED_TABLES = 100  # of a single group: through `analyse`, also with their rows sorted
SEEDS = (2, 3, 5, 10)
ARMS = (1, 2, 4, 8)
ARMS_SHOWN = (1, 4)  # on the page
LARGEST_DF = 1000.0
LEAST_HELD = 93.0  # intervals of 95 % that hold less often are marked
COMMAND = "benchmarks/studies/verdicts.py"
# Spreads of the baseline, one arm, the other arms, and the extra runs (None: there are none).
DESIGNS: dict[str, tuple[float, float, float, tuple[float, ...]]] = {
    "equal, A/A and a control": (1, 1, 1, (1, 1)),
    "equal": (1, 1, 1, ()),
    "one arm 3x, quiet A/A and control": (1, 3, 1, (1, 1)),
    "one arm 3x": (1, 3, 1, ()),
    "baseline 3x": (3, 1, 1, ()),
    "baseline 3x, its A/A 3x, quiet control": (3, 1, 1, (3, 1)),
}
Array = np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one design shows, in %: tables in which all intervals hold, half-widths over those of
    the pooled variance with all degrees of freedom, and tables in which a control is called
    different (the last extra run against the baseline).
    """

    design: str
    arms: int
    seeds: int
    held: float
    half_width: float
    control_called: float | None


def critical(alpha: float, arms: int, df: Array, correlation: float = 0.5) -> Array:
    """Dunnett's critical values for an array of degrees of freedom, interpolated in their logs."""
    grid = np.geomspace(1.0, LARGEST_DF, 80)
    family = Family(arms, correlation)
    table = np.log([dunnett_critical(alpha, float(one), family) for one in grid])
    found: Array = np.exp(np.interp(np.log(df), np.log(grid), table))
    return found


def residual_variance(values: Array) -> Array:
    """(tables,) the variance of arm + seed + residual over (arms − 1)(seeds − 1); values are
    (tables, arms, seeds)."""
    _, arms, seeds = values.shape
    rest = values - values.mean(2, keepdims=True) - values.mean(1, keepdims=True)
    rest += values.mean((1, 2), keepdims=True)
    variance: Array = (rest**2).sum((1, 2)) / ((arms - 1) * (seeds - 1))
    return variance


def half_widths(values: Array, arms: int, alpha: float = 0.05) -> Array:
    """(tables, arms) half-widths of the arms' intervals; row 0 is the baseline, rows after the arms
    are extra runs.
    """
    _, rows, seeds = values.shape
    inside = residual_variance(values[:, : arms + 1])
    pooled = 2 * np.maximum(residual_variance(values), inside)[:, None]
    df = float(min((rows - 1) * (seeds - 1), 2 * arms * (seeds - 1)))
    own = (values[:, 1 : arms + 1] - values[:, :1]).var(2, ddof=1)
    mean = own.mean(1, keepdims=True)
    # Parts of the variance: the shared one, the mean of the pairs, the pair's own.
    wide = mean > pooled
    shared, of_mean = np.where(wide, pooled / 2, pooled), np.where(wide, mean / 2, 0.0)
    raised = own > shared + of_mean
    shared, of_mean = np.where(raised, shared / 2, shared), np.where(raised, of_mean / 2, of_mean)
    of_own = np.where(raised, own / 2, 0.0)
    variance = shared + of_mean + of_own
    below = shared**2 / df + (of_mean**2 + of_own**2) / (seeds - 1)
    used = np.clip(variance**2 / below, 1.0, df)
    half: Array = critical(alpha, arms, used) * np.sqrt(variance / seeds)
    return half


def paired_half_width(values: Array, row: int, alpha: float = 0.05) -> Array:
    """(tables,) of a control against the baseline: that of a paired t test, or of the shared
    variance of all runs where it is wider."""
    from scipy.special import stdtrit

    _, rows, seeds = values.shape
    own = (values[:, row] - values[:, 0]).var(1, ddof=1)
    df = float((rows - 1) * (seeds - 1))
    shared = -stdtrit(df, alpha / 2) * np.sqrt(2 * residual_variance(values) / seeds)
    paired = -stdtrit(seeds - 1, alpha / 2) * np.sqrt(own / seeds)
    widest: Array = np.maximum(shared, paired)
    return widest


def simulate(name: str, arms: int, seeds: int, tables: int) -> Row:
    """One design with so many arms and seeds."""
    baseline, first, others, extra = DESIGNS[name]
    spread = np.array([baseline, first, *[others] * (arms - 1), *extra])
    generator = np.random.default_rng([arms, seeds, len(name)])
    values = generator.standard_normal((tables, len(spread), seeds)) * spread[:, None]
    means = values.mean(2)
    half = half_widths(values, arms)
    holds = (np.abs(means[:, 1 : arms + 1] - means[:, :1]) <= half).all(1)
    df = float((len(spread) - 1) * (seeds - 1))
    pooled = critical(0.05, arms, np.array([df])) * np.sqrt(2 * residual_variance(values) / seeds)
    control = None
    if extra:
        last = len(spread) - 1
        called = np.abs(means[:, last] - means[:, 0]) > paired_half_width(values, last)
        control = 100 * float(called.mean())
    return Row(
        design=name,
        arms=arms,
        seeds=seeds,
        held=100 * float(holds.mean()),
        half_width=float(half.mean() / pooled.mean()),
        control_called=control,
    )


# --- looks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Studies in which nothing differs and seeds are added while nothing is found: the share, in %,
    that calls some arm different at one of the looks.

    same: every look has an error of 5 %. halved: each has half the error of the one before.
    """

    arms: int
    seeds: tuple[int, ...]
    same: float
    halved: float


def simulate_looks(arms: int, seeds: Sequence[int], tables: int) -> Looks:
    """Looks after these numbers of seeds."""
    generator = np.random.default_rng([arms, *seeds])
    values = generator.standard_normal((tables, arms + 1, max(seeds)))
    shares = []
    for shrink in (1.0, 2.0):
        called = np.zeros(tables, bool)
        for look, count in enumerate(seeds):
            so_far = values[:, :, :count]
            means = so_far.mean(2)
            half = half_widths(so_far, arms, 0.05 / shrink**look)
            called |= (np.abs(means[:, 1:] - means[:, :1]) > half).any(1)
        shares.append(100 * float(called.mean()))
    return Looks(arms=arms, seeds=tuple(seeds), same=shares[0], halved=shares[1])


# --- tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """Ablations on several independent tasks, three arms and three seeds, nothing differs: the
    share, in %, in which some arm is called different on some task.

    alone: every task has an error of 5 %. together: all tasks have. primary: the first has 5 % and
    all others together have 5 %.
    """

    tasks: int
    alone: float
    together: float
    primary: float


def simulate_tasks(count: int, tables: int) -> Tasks:
    generator = np.random.default_rng(count)
    arms, seeds = 3, 3
    called = {name: np.zeros(tables, bool) for name in ("alone", "together", "primary")}
    for task in range(count):
        values = generator.standard_normal((tables, arms + 1, seeds))
        means = values.mean(2)
        largest = np.abs(means[:, 1:] - means[:, :1])
        shares = {"alone": 1, "together": count, "primary": 1 if task == 0 else count - 1}
        for name, share in shares.items():
            called[name] |= (largest > half_widths(values, arms, 0.05 / share)).any(1)
    return Tasks(tasks=count, **{name: 100 * float(one.mean()) for name, one in called.items()})


# --- runs that no seed pairs ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A design of runs in groups.

    runs: of the baseline and of each arm. spreads: of each of them; () for 1. blocks: the runs of
    an arm are dealt out over so many blocks, which differ by 5 standard deviations of a run; 1: a
    single group. pairs: seeds pair the runs inside of the blocks. interaction: standard deviation
    of the effect of an arm in a block; its mean over the blocks is 0 for each arm. samples: right
    or wrong on so many test samples; 0: values alone. tasks: of the average, where there are
    several. models: arms of one run are models without seeds. varied: every table draws its
    spreads, their logarithms from the standard normal law. law: of a run's noise. felt: the first
    arm feels a seed so many times as much as the others do, where it has a standard deviation of a
    run.
    """

    runs: tuple[int, ...]
    spreads: tuple[float, ...] = ()
    blocks: int = 1
    pairs: bool = False
    interaction: float = 0.0
    samples: int = 0
    tasks: int = 1
    varied: bool = False
    law: str = "normal"
    felt: float = 0.0
    models: bool = False


LAWS = {
    "normal": lambda generator, count: generator.standard_normal(count),
    "t": lambda generator, count: generator.standard_t(1.5, count),
    "lognormal": lambda generator, count: np.exp(1.5 * generator.standard_normal(count)),
    "some low": lambda generator, count: (
        generator.standard_normal(count) - 10 * (generator.random(count) < 0.1)
    ),
}


LAYOUTS: dict[str, Layout] = {
    "1 arm, 3 runs each": Layout(runs=(3,) * 2),
    "1 arm, 5 runs": Layout(runs=(5,) * 2),
    "1 arm, 10 runs": Layout(runs=(10,) * 2),
    "4 arms, 5 runs": Layout(runs=(5,) * 5),
    "4 arms, 10 runs": Layout(runs=(10,) * 5),
    "baseline 2 runs, arms 5 and 9": Layout(runs=(2, 5, 9)),
    "baseline 5 runs, arms 2 and 9": Layout(runs=(5, 2, 9)),
    "baseline 9 runs, arms 2 and 5": Layout(runs=(9, 2, 5)),
    "4 arms, 5 runs, the baseline varies 3 times as much": Layout(
        runs=(5,) * 5, spreads=(3, 1, 1, 1, 1)
    ),
    "4 arms, 5 runs, one arm varies 3 times as much": Layout(
        runs=(5,) * 5, spreads=(1, 3, 1, 1, 1)
    ),
    "4 arms, 5 runs, average of 3 tasks": Layout(runs=(5,) * 5, tasks=3),
    "1 arm, 3 runs, 200 test samples": Layout(runs=(3,) * 2, samples=200),
    "4 arms, 5 runs, 200 test samples": Layout(runs=(5,) * 5, samples=200),
    "arms of 9, 2 and 5 runs, 200 test samples": Layout(runs=(9, 2, 5), samples=200),
    "3 blocks of 1 run, 3 arms": Layout(runs=(3,) * 4, blocks=3),
    "3 blocks of 3 runs, 3 arms": Layout(runs=(9,) * 4, blocks=3),
    "3 blocks of 3 seeds, 3 arms": Layout(runs=(9,) * 4, blocks=3, pairs=True),
    "3 blocks of 1 run, 3 arms, interaction": Layout(runs=(3,) * 4, blocks=3, interaction=1.0),
    "3 blocks of 3 runs, 3 arms, interaction": Layout(runs=(9,) * 4, blocks=3, interaction=1.0),
    "3 blocks of 3 seeds, 3 arms, interaction": Layout(
        runs=(9,) * 4, blocks=3, pairs=True, interaction=1.0
    ),
}


def _seeds(runs: Sequence[int], spreads: Sequence[float] = (), **more: Any) -> Layout:
    return Layout(runs=tuple(runs), spreads=tuple(spreads), pairs=True, **more)


# Runs that seeds pair, unlike in number, spread or law, and models without seeds.
UNLIKE: dict[str, Layout] = {
    **{f"equal, {k} arms x {n}": _seeds([n] * (k + 1)) for k, n in ((1, 3), (4, 3), (4, 5))},
    **{f"equal, 30 arms x {n}": _seeds([n] * 31) for n in (2, 3, 5)},
    "4 arms x 3, one feels a seed 3 times as much": _seeds([3] * 5, felt=3.0),
    **{f"baseline 2 seeds, {k} arms x 10": _seeds([2] + [10] * k) for k in (1, 4, 10)},
    **{
        f"baseline 2 seeds and SD 3, {k} arms x 10": _seeds([2] + [10] * k, [3] + [1] * k)
        for k in (1, 4, 10)
    },
    **{
        f"baseline {n} seeds and SD {sd}, {k} arms x 10": _seeds([n] + [10] * k, [sd] + [1] * k)
        for n, sd, k in ((2, 3, 2), (2, 10, 4), (3, 1, 4), (3, 3, 2), (3, 3, 4), (3, 10, 4),
                         (5, 1, 4), (5, 3, 4))
    },
    **{
        f"one arm {n} seeds and SD {sd}, all others 10, {k} arms": _seeds(
            [10, n] + [10] * (k - 1), [1, sd] + [1] * (k - 1)
        )
        for n, sd, k in ((2, 3, 1), (2, 3, 2), (2, 10, 2), (2, 1, 4), (2, 3, 4), (2, 10, 4),
                         (2, 3, 10), (3, 1, 4), (3, 3, 4), (3, 10, 2), (3, 10, 4))
    },
    "baseline 5 seeds, 6 arms of 2, 3, 4, 6, 8, 10": _seeds([5, 2, 3, 4, 6, 8, 10]),
    "baseline 5 seeds, 6 arms of 2 to 10, that of 2 has SD 3": _seeds(
        [5, 2, 3, 4, 6, 8, 10], [1, 3, 1, 1, 1, 1, 1]
    ),
    "baseline 2 runs, 4 arms x 10, no seeds": Layout(runs=(2, 10, 10, 10, 10)),
    **{
        f"baseline {n} runs and SD {sd}, 4 arms x 10, no seeds": Layout(
            runs=(n, 10, 10, 10, 10), spreads=(sd, 1, 1, 1, 1)
        )
        for n, sd in ((2, 3), (2, 10), (3, 1), (3, 3))
    },
    "one arm 2 runs and SD 3, all others 10, 4 arms, no seeds": Layout(
        runs=(10, 2, 10, 10, 10), spreads=(1, 3, 1, 1, 1)
    ),
    **{
        f"baseline 5 x, {k} arms x {n}": _seeds([n] * (k + 1), [5] + [1] * k)
        for k in (4, 30) for n in (2, 3, 5)
    },
    **{
        f"one arm 10 x, 4 arms x {n}": _seeds([n] * 5, [1, 10, 1, 1, 1]) for n in (2, 3, 5)
    },
    **{f"SDs lognormal(1), 8 arms x {n}": _seeds([n] * 9, varied=True) for n in (2, 3, 5)},
    **{
        f"half of 30 arms 5 x, x {n}": _seeds([n] * 31, [1] * 16 + [5] * 15) for n in (2, 3)
    },
    "t of 1.5 df, 4 arms x 5": _seeds([5] * 5, law="t"),
    "lognormal 1.5, 4 arms x 5": _seeds([5] * 5, law="lognormal"),
    "10 % of runs 10 SD low, 4 arms x 3": _seeds([3] * 5, law="some low"),
    "one model, baseline 5 seeds": _seeds([5, 1], models=True, felt=1.0),
    "one model and 3 arms, 5 seeds": _seeds([5, 5, 5, 5, 1], models=True, felt=1.0),
    "4 models, baseline 5 seeds": _seeds([5, 1, 1, 1, 1], models=True, felt=1.0),
    "4 models that vary 3 x, baseline 5 seeds": _seeds(
        [5, 1, 1, 1, 1], [1, 3, 3, 3, 3], models=True, felt=1.0
    ),
}  # fmt: skip


# On the page, beside all whose intervals hold too rarely.
UNLIKE_SHOWN = (
    "equal, 1 arms x 3",
    "equal, 4 arms x 3",
    "equal, 4 arms x 5",
    "baseline 2 seeds and SD 3, 4 arms x 10",
    "baseline 5 x, 4 arms x 5",
    "one arm 10 x, 4 arms x 5",
    "t of 1.5 df, 4 arms x 5",
    "10 % of runs 10 SD low, 4 arms x 3",
    "one model, baseline 5 seeds",
)
ALL_LAYOUTS = {**LAYOUTS, **UNLIKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """What one layout shows, in % of the tables.

    held: all intervals hold, over runs and test samples where there are samples. called: some arm
    is called different. held_seeds: the intervals over runs alone hold the differences on this test
    set; with samples only. by_place: some arm is called different where the rows of each arm are
    sorted by score and paired by their places; single groups of equal numbers only. interaction:
    the test of arm x block is below 5 %; blocks with several runs only. half_width: the mean over
    arms and tables, in standard deviations of a run; median: of the same.
    """

    layout: str
    tables: int
    held: float
    called: float
    held_seeds: float | None
    by_place: float | None
    interaction: float | None
    half_width: float | None = None
    median: float | None = None


def layout_tables(
    layout: Layout, generator: np.random.Generator
) -> tuple[dict[str, TaskScores], dict[str, float]]:
    """The tables of the tasks, and each arm's difference to the baseline on this test set."""
    shared = [generator.standard_normal(count) * (layout.tasks > 1) for count in layout.runs]
    of_blocks = 5 * generator.standard_normal(layout.blocks)
    of_seeds = 5 * generator.standard_normal(max(layout.runs)) * layout.pairs
    if layout.felt:
        of_seeds /= 5
    effects = layout.interaction * generator.standard_normal((len(layout.runs), layout.blocks))
    effects -= effects.mean(1, keepdims=True)
    easiness = generator.standard_normal(layout.samples)
    tasks, truth = {}, {}
    for task in range(layout.tasks):
        values: dict[str, dict[int, float]] = {}
        samples: dict[str, dict[int, Sequence[Array]]] = {}
        for number, count in enumerate(layout.runs):
            noise = LAWS[layout.law](generator, count)
            if layout.spreads:
                noise = noise * layout.spreads[number]
            if layout.varied:
                noise = noise * np.exp(generator.standard_normal())
            name = f"a{number}"
            if layout.samples:
                from scipy.special import ndtr

                likely = easiness + 0.5 * generator.standard_normal(layout.samples)
                luck = generator.standard_normal((count, layout.samples))
                right = likely + 0.8 * luck + 0.05 * noise[:, None] > 0
                samples[name] = {run: [row] for run, row in enumerate(right)}
                values[name] = dict(enumerate(right.mean(1).tolist()))
                truth[name] = float(ndtr(likely / np.hypot(0.8, 0.05)).mean())
                continue
            block = np.arange(count) * layout.blocks // count
            noise = noise + shared[number] + of_blocks[block] + effects[number, block]
            noise = noise + (layout.felt if layout.felt and number == 1 else 1.0) * (
                generator.standard_normal(1) if layout.models and count == 1 else of_seeds[:count]
            )
            values[name] = dict(enumerate(noise.tolist()))
            truth[name] = 0.0
        tasks[f"t{task}"] = TaskScores(values=values, samples=samples)
    return tasks, {name: value - truth["a0"] for name, value in truth.items()}


def sorted_rows(tasks: Mapping[str, TaskScores]) -> dict[str, TaskScores]:
    """The runs of each arm in the order of their mean over the tasks."""
    rows: dict[str, TaskScores] = {}
    for task, scores in tasks.items():
        values: dict[str, dict[int, float]] = {}
        samples: dict[str, dict[int, Sequence[Array]]] = {}
        for arm, of_arm in scores.values.items():
            order = sorted(of_arm, key=lambda run: sum(t.values[arm][run] for t in tasks.values()))
            values[arm] = {place: of_arm[run] for place, run in enumerate(order)}
            if of_samples := scores.samples.get(arm):
                samples[arm] = {place: of_samples[run] for place, run in enumerate(order)}
        rows[task] = replace(scores, values=values, samples=samples)
    return rows


def simulate_single_group(name: str, tables: int) -> LayoutRow:
    """A layout of a single group and one task without samples, all tables at once; the first ones
    also through `analyse`, in the order of their rows and sorted.
    """
    simulate_layout(name, min(tables, SORTED_TABLES))
    layout = LAYOUTS[name]
    row, generator = simulate_unlike(name, tables), _generator(name)
    if len(set(layout.runs)) > 1:
        return row
    values = unlike_values(layout, generator, tables).reshape(tables, len(layout.runs), -1)
    values = np.sort(values, axis=2)
    means = values.mean(2)
    far = np.abs(means[:, 1:] - means[:, :1]) > half_widths(values, len(layout.runs) - 1)
    return replace(row, by_place=100 * float(far.any(1).mean()))


def _is_plain(layout: Layout) -> bool:
    """A single group and one task without samples."""
    return (layout.blocks, layout.pairs, layout.samples, layout.tasks) == (1, False, 0, 1)


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng([*ALL_LAYOUTS[name].runs, *name.encode()])


def simulate_layout(name: str, tables: int) -> LayoutRow:
    """One layout. AssertionError if rows that are sorted give another number."""
    layout = ALL_LAYOUTS[name]
    generator = np.random.default_rng([*layout.runs, len(name)])
    block_of = {run: run * layout.blocks // max(layout.runs) for run in range(max(layout.runs))}
    groups = None if layout.pairs else block_of
    models = [f"a{n}" for n, runs in enumerate(layout.runs) if layout.models and runs == 1]
    arms = [f"a{number}" for number in range(1, len(layout.runs))]
    is_equal = layout.blocks == 1 and len(set(layout.runs)) == 1
    held, called, seeds, by_place, crossed, widths = [], [], [], [], [], list[float]()

    def result_of(given: Mapping[str, TaskScores], of_runs: Mapping[int, int] | None) -> TaskResult:
        analysis = analyse(given, "a0", arms=arms, band=0.0, groups=of_runs, one_models=models)
        return analysis.average or analysis.tasks["t0"]

    for _ in range(tables):
        tasks, truth = layout_tables(layout, generator)
        result = result_of(tasks, groups)
        rows = result.comparisons
        expected = dict.fromkeys(arms, 0.0)
        held.append(all(_holds(row.low, expected[row.arm], row.high) for row in rows))
        called.append(any(row.is_clear for row in rows))
        seeds.append(all(_holds(row.low_seeds, truth[row.arm], row.high_seeds) for row in rows))
        assert len(rows) == len(arms)
        widths += [row.high - row.difference for row in rows if row.high is not None]
        if layout.blocks == 1 and not layout.pairs:
            turned = sorted_rows(tasks)
            assert result == result_of(turned, groups), "the order of the rows changes a number"
            if is_equal:
                of_places = result_of(turned, None)
                by_place.append(any(row.is_clear for row in of_places.comparisons))
        elif layout.blocks > 1:
            both = interaction(tasks["t0"].values, block_of, "a0", groups)
            if both is not None and both.p is not None:
                crossed.append(both.p < 0.05)

    def share(of: Sequence[bool]) -> float | None:
        return 100 * float(np.mean(of)) if of else None

    return LayoutRow(
        layout=name,
        tables=tables,
        held=100 * float(np.mean(held)),
        called=100 * float(np.mean(called)),
        held_seeds=share(seeds) if layout.samples else None,
        by_place=share(by_place),
        interaction=share(crossed),
        half_width=float(np.mean(widths)),
        median=float(np.median(widths)),
    )


def _holds(low: float | None, value: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= value <= high


# --- runs that are unlike ------------------------------------------------------------------------


def unlike_values(layout: Layout, generator: np.random.Generator, tables: int) -> Array:
    """(tables, all runs) of the arms in order, the baseline first; of seeds only what one arm feels
    more than the others, as the rest is in no difference.
    """
    spreads = layout.spreads or (1.0,) * len(layout.runs)
    seeds = generator.standard_normal((tables, max(layout.runs)))
    rows = []
    for number, (count, spread) in enumerate(zip(layout.runs, spreads, strict=True)):
        noise = LAWS[layout.law](generator, tables * count).reshape(tables, count) * spread
        if layout.varied:
            noise = noise * np.exp(generator.standard_normal((tables, 1)))
        if layout.felt and number == 1:
            noise = noise + (layout.felt - 1) * seeds[:, :count]
        rows.append(noise)
    return np.concatenate(rows, axis=1)


def unlike_half_widths(values: Array, runs: Sequence[int], pairs: bool) -> tuple[Array, Array]:
    """(tables, arms) differences to the baseline and half-widths of their intervals, of values as
    `unlike_values` gives them; pairs: by seed, otherwise a single group.
    """
    count, of_arm = len(runs), np.repeat(np.arange(len(runs)), runs)
    group = np.concatenate([np.arange(n) * pairs for n in runs])
    design = np.hstack([np.eye(count)[of_arm], np.eye(max(runs))[group]])
    inverse = np.linalg.pinv(design)
    maker = np.eye(len(design)) - design @ inverse
    contrasts = inverse[1:count] - inverse[0]
    residuals = values @ maker
    df = float(round(np.trace(maker)))
    shared = (residuals**2).sum(1) / df
    by_arm = [values[:, of_arm == arm] for arm in range(count)]
    fewest = np.minimum(runs[0], runs[1:])
    if pairs:
        own = [(by_arm[a][:, :n] - by_arm[0][:, :n]).var(1, ddof=1) for a, n in _counted(fewest)]
        own_df = np.tile(fewest - 1.0, (len(values), 1))
    else:
        own, own_df = [], np.ones((len(values), count - 1))
        for arm in range(1, count):
            n, m = runs[arm], runs[0]
            first = by_arm[arm].var(1, ddof=1) * 2 * m / (n + m)
            second = by_arm[0].var(1, ddof=1) * 2 * n / (n + m)
            own.append(first + second)
            own_df[:, arm - 1] = own[-1] ** 2 / (first**2 / (n - 1) + second**2 / (m - 1))
    variance, factor = np.array(own).T, (contrasts**2).sum(1)
    few = fewest < max(runs)
    if few.any():
        of_runs, weights = [], []
        for arm in range(count):
            inside = of_arm == arm
            kept = (maker[np.ix_(inside, inside)] ** 2).sum()
            leaked = (maker[np.ix_(inside, ~inside)] ** 2).sum()
            square = (residuals[:, inside] ** 2).sum(1)
            of_runs.append(np.maximum(0.0, (square - leaked * shared) / kept))
            weights.append((contrasts[:, inside] ** 2).sum(1) * 2 / factor)
        variance = np.where(few, np.array(of_runs).T @ np.array(weights), variance)
        own_df = np.where(few, np.minimum(own_df, fewest - 1), own_df)
    used, variance = _moderated(2 * shared[:, None], df, variance, own_df, fewest, few)
    joint = contrasts @ contrasts.T / np.sqrt(np.outer(factor, factor))
    correlation = max(0.0, min(0.5, float(joint.min()))) if count > 2 else 0.5
    quantiles = critical(0.05, count - 1, used, round(correlation, 9))
    return values @ contrasts.T, quantiles * np.sqrt(variance * factor / 2)


def _counted(fewest: Array) -> list[tuple[int, int]]:
    return list(enumerate(fewest.tolist(), start=1))


def _moderated(
    pooled: Array, df: float, own: Array, own_df: Array, fewest: Array, few: Array
) -> tuple[Array, Array]:
    """(tables, arms) degrees of freedom and variances of `moderated_spreads`."""
    full = fewest == fewest.max()
    mean = own[:, full].mean(1, keepdims=True)
    mean_df = own_df[:, full].min(1, keepdims=True)
    wide = mean > pooled
    shared, of_mean = np.where(wide, pooled / 2, pooled), np.where(wide, mean / 2, 0.0)
    prior = shared + of_mean
    raised = (own > prior) | few
    shared, of_mean = np.where(raised, shared / 2, shared), np.where(raised, of_mean / 2, of_mean)
    of_own = np.where(raised, np.maximum(own, prior) / 2, 0.0)
    variance = shared + of_mean + of_own
    below = np.where(
        few,
        (of_mean + of_own) ** 2 / own_df,
        of_mean**2 / mean_df + of_own**2 / own_df,
    )
    return np.clip(variance**2 / (shared**2 / df + below), 1.0, df), variance


def simulate_unlike(name: str, tables: int) -> LayoutRow:
    """One design of runs that are unlike; models without seeds go through `analyse`."""
    layout = ALL_LAYOUTS[name]
    if layout.models:
        return simulate_layout(name, tables)
    values = unlike_values(layout, _generator(name), tables)
    differences, half = unlike_half_widths(values, layout.runs, layout.pairs)
    held = 100 * float((np.abs(differences) <= half).all(1).mean())
    return LayoutRow(
        layout=name,
        tables=tables,
        held=held,
        called=100 - held,
        held_seeds=None,
        by_place=None,
        interaction=None,
        half_width=float(half.mean()),
        median=float(np.median(half)),
    )


# --- the smallest visible difference --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One arm differs by the smallest visible difference, that 80 % of such ablations are said to
    find: the share of the tables, in %, that call it different.
    """

    arms: int
    seeds: int
    tables: int
    found: float


def simulate_found(arms: int, seeds: int, tables: int) -> Found:
    noise = StudyNoise(run_sd=1.0, seeds=seeds, arms=arms, df=float(arms * (seeds - 1)))
    values = np.random.default_rng([arms, seeds]).standard_normal((tables, arms + 1, seeds))
    values[:, 1] += noise.smallest_visible()
    means = values.mean(2)
    found = np.abs(means[:, 1] - means[:, 0]) > half_widths(values, arms)[:, 0]
    return Found(arms=arms, seeds=seeds, tables=tables, found=100 * float(found.mean()))


# --- the interval of a share of pairs of arms -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Arms that are drawn from many, and the share of pairs that two scales order alike: how often,
    in %, its interval holds the share of all pairs of the many, and how often it is "0 to 1".

    law: how an arm's mean at the large scale follows from that at the small one.
    """

    law: str
    arms: int
    tables: int
    held: float
    unknown: float


def _at_large(law: str, small: Array, generator: np.random.Generator) -> Array:
    """The means at the large scale."""
    if law == "alike, noise of 0.5":
        return small + 0.5 * generator.standard_normal(len(small))
    if law == "no order":
        return generator.standard_normal(len(small))
    kept = generator.random(len(small)) >= 0.1
    return np.where(kept, small, -small) + 0.05 * generator.standard_normal(len(small))


AGREEMENTS = ("alike, noise of 0.5", "no order", "one arm in ten reverses")


def simulate_agreement(law: str, arms: int, tables: int) -> Agreement:
    generator = np.random.default_rng([arms, len(law)])
    many = generator.standard_normal(4000)
    right = gaps_of(many) * gaps_of(_at_large(law, many, generator)) > 0
    truth = float(right.sum()) / (len(many) * (len(many) - 1))
    held, unknown = [], []
    for _ in range(tables):
        small = generator.standard_normal(arms)
        order = gaps_of(small) * gaps_of(_at_large(law, small, generator))
        one = agreement_of(order > 0, order != 0)
        assert one is not None
        held.append(one.share.low <= truth <= one.share.high)
        unknown.append((one.share.low, one.share.high) == (0.0, 1.0))
    return Agreement(
        law=law,
        arms=arms,
        tables=tables,
        held=100 * float(np.mean(held)),
        unknown=100 * float(np.mean(unknown)),
    )


# --- what is shown --------------------------------------------------------------------------------


def layout_lines(rows: Sequence[LayoutRow]) -> Iterator[str]:
    """A table of Markdown."""
    yield (
        "| runs | all intervals hold | an arm is called different | sorted and paired by place | "
        "over runs alone | arm x block below 5 % |"
    )
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        cells = [row.layout, f"{row.held:.1f} %", f"{row.called:.1f} %"]
        for one in (row.by_place, row.held_seeds, row.interaction):
            cells.append("" if one is None else f"{one:.1f} %")
        yield f"| {' | '.join(cells)} |"


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A table of Markdown."""
    yield "| spreads | arms | " + " | ".join(f"{seeds} seeds" for seeds in SEEDS) + " |"
    yield "|---|---|" + "---|" * len(SEEDS)
    for name in DESIGNS:
        for arms in ARMS_SHOWN:
            of = [row for row in rows if (row.design, row.arms) == (name, arms)]
            cells = []
            for row in of:
                called = "" if row.control_called is None else f", {row.control_called:.1f}"
                cells.append(f"{row.held:.1f}, {row.half_width:.2f}{called}")
            yield f"| {name} | {arms} | {' | '.join(cells)} |"


def looks_lines(rows: Sequence[Looks]) -> Iterator[str]:
    """A table of Markdown."""
    yield "| arms, seeds at the looks | 5 % at each look | each look half the error of the last |"
    yield "|---|---|---|"
    for row in rows:
        name = f"{row.arms} arm{'s' * (row.arms > 1)}, {', '.join(map(str, row.seeds[:-1]))}"
        yield f"| {name} and {row.seeds[-1]} | {row.same:.1f} % | {row.halved:.1f} % |"


def tasks_lines(rows: Sequence[Tasks]) -> Iterator[str]:
    """A table of Markdown."""
    yield "| tasks | 5 % for each task | the primary task apart | all tasks together |"
    yield "|---:|---:|---:|---:|"
    for row in rows:
        shares = f"{row.alone:.1f} % | {row.primary:.1f} % | {row.together:.1f} %"
        yield f"| {row.tasks} | {shares} |"


def unlike_lines(rows: Sequence[LayoutRow]) -> Iterator[str]:
    """A table of Markdown: designs of every kind, and each that holds too rarely."""
    yield "| runs | all intervals hold | an arm is called different | half-width in SDs |"
    yield "|---|---:|---:|---:|"
    for row in rows:
        if row.held >= LEAST_HELD and row.layout not in UNLIKE_SHOWN:
            continue
        held = f"{row.held:.1f} %" if row.held >= LEAST_HELD else f"**{row.held:.1f} %**"
        yield f"| {row.layout} | {held} | {row.called:.1f} % | {row.half_width:.2f} |"


def found_lines(rows: Sequence[Found]) -> Iterator[str]:
    """A sentence."""
    least, most = min(row.found for row in rows), max(row.found for row in rows)
    arms, seeds = [row.arms for row in rows], [row.seeds for row in rows]
    yield (
        f"{least:.1f} to {most:.1f} %, with {min(arms)} to {max(arms)} arms "
        f"and {min(seeds)} to {max(seeds)} seeds."
    )


def agreement_lines(rows: Sequence[Agreement]) -> Iterator[str]:
    """A table of Markdown."""
    counts = sorted({row.arms for row in rows})
    yield f"| arms | {' | '.join(f'{count} arms' for count in counts)} |"
    yield "|---|" + "---:|" * len(counts)
    for law in AGREEMENTS:
        cells = [f"{row.held:.1f} %, {row.unknown:.0f} %" for row in rows if row.law == law]
        yield f"| {law} | {' | '.join(cells)} |"


def page_tables(study: Mapping[str, Any]) -> dict[str, list[str]]:
    """{name of the table: its lines} of a result."""
    return {
        "spreads": list(lines([Row(**row) for row in study["rows"]])),
        "layouts": list(layout_lines([LayoutRow(**row) for row in study["layouts"]])),
        "unlike": list(unlike_lines([LayoutRow(**row) for row in study["unlike"]])),
        "found": list(found_lines([Found(**row) for row in study["found"]])),
        "looks": list(looks_lines([Looks(**row) for row in study["looks"]])),
        "tasks": list(tasks_lines([Tasks(**row) for row in study["tasks"]])),
        "agreements": list(agreement_lines([Agreement(**row) for row in study["agreements"]])),
    }


def page_of(text: str, study: Mapping[str, Any]) -> str:
    """The page with the tables of a result."""
    for name, rows in page_tables(study).items():
        begin, end = f"<!-- {name} of {COMMAND} -->", f"<!-- end of {name} -->"
        before, after = text.index(begin) + len(begin), text.index(end)
        text = "\n".join([text[:before], *rows, text[after:]])
    return text


def study_of(share: float, workers: int | None) -> dict[str, Any]:
    """All that the page shows, from this share of the tables, as plain numbers."""

    def part(tables: int) -> int:
        return max(1, round(tables * share))

    cells = [(name, arms, seeds) for name in DESIGNS for arms in ARMS for seeds in SEEDS]
    counts = (3, 12), (3, 12, 24, 48), (2, 3, 4, 5, 6, 8, 10)
    plans = [(arms, seeds) for arms in (1, 4) for seeds in counts]
    found = [(arms, seeds) for arms in (1, 2, 4, 8, 16, 30, 60) for seeds in SEEDS]
    scales = [(law, arms) for law in AGREEMENTS for arms in (4, 6, 12, 30)]
    of_unlike = [MODEL_TABLES if one.models else UNLIKE_TABLES for one in UNLIKE.values()]
    with ProcessPoolExecutor(workers) as pool:
        futures = {
            "layouts": [
                pool.submit(
                    simulate_single_group if _is_plain(layout) else simulate_layout,
                    name,
                    part(LAYOUT_TABLES),
                )
                for name, layout in LAYOUTS.items()
            ],
            "unlike": [
                pool.submit(simulate_unlike, name, part(tables))
                for name, tables in zip(UNLIKE, of_unlike, strict=True)
            ],
            "rows": [pool.submit(simulate, *cell, part(TABLES)) for cell in cells],
            "looks": [pool.submit(simulate_looks, *plan, part(TABLES)) for plan in plans],
            "tasks": [pool.submit(simulate_tasks, n, part(TABLES)) for n in (2, 5, 38)],
            "found": [pool.submit(simulate_found, *cell, part(FOUND_TABLES)) for cell in found],
            "agreements": [
                pool.submit(simulate_agreement, *cell, part(MODEL_TABLES)) for cell in scales
            ],
        }
        study = {name: [asdict(one.result()) for one in of] for name, of in futures.items()}
    plain: dict[str, Any] = json.loads(json.dumps({"command": f"python {COMMAND}", **study}))
    return plain


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/studies/verdicts.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--share", type=float, help="of the tables: a trial that writes nothing")
    parser.add_argument("--workers", type=int, help="processes; default: one for each CPU")
    parser.add_argument("--page", action="store_true", help="write the tables of the page")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    if args.share is not None:
        for rows in page_tables(study_of(args.share, args.workers)).values():
            print("\n".join(rows))
        return 0
    if not args.page:
        disk.write_json(RESULT, study_of(1.0, args.workers))
    PAGE.write_text(page_of(PAGE.read_text(), json.loads(RESULT.read_text())))
    print(f"{PAGE}: its tables are written anew")
    return 0


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args))


if __name__ == "__main__":
    raise SystemExit(main())
