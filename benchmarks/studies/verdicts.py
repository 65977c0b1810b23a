#!/usr/bin/env python3
"""How often the verdicts of an ablation are wrong: simulated tables of runs, without training.

example: python benchmarks/studies/verdicts.py --tables 20000

Nothing differs in any table: every arm has the baseline's mean. The intervals are those of
`train.stats.analyse`, written for many tables at once; a test compares both on single tables. A
design is a number of arms, seeds and extra runs (A/A, controls), and the spread of each. The
designs were fixed before the first simulation. Written: benchmarks/results/verdicts.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from manifests import console, disk
from train.stats.comparison import Family, dunnett_critical

RESULT = ROOT / "benchmarks" / "results" / "verdicts.json"
TABLES = 20_000
SEEDS = (2, 3, 5, 10)
ARMS = (1, 2, 4, 8)
LARGEST_DF = 1000.0
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


def critical(alpha: float, arms: int, df: Array) -> Array:
    """Dunnett's critical values for an array of degrees of freedom, interpolated in their logs."""
    grid = np.geomspace(1.0, LARGEST_DF, 80)
    table = np.log([dunnett_critical(alpha, float(one), Family(arms)) for one in grid])
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


# --- what is shown --------------------------------------------------------------------------------


def lines(rows: Sequence[Row], looks: Sequence[Looks], tasks: Sequence[Tasks]) -> Iterator[str]:
    """Tables of Markdown."""
    yield "| spreads | arms | " + " | ".join(f"{seeds} seeds" for seeds in SEEDS) + " |"
    yield "|---|---|" + "---|" * len(SEEDS)
    for name in DESIGNS:
        for arms in ARMS:
            of = [row for row in rows if (row.design, row.arms) == (name, arms)]
            cells = []
            for row in of:
                called = "" if row.control_called is None else f", {row.control_called:.1f}"
                cells.append(f"{row.held:.1f}, {row.half_width:.2f}{called}")
            yield f"| {name} | {arms} | {' | '.join(cells)} |"
    for one in looks:
        shares = f"{one.same:.1f} %, halved {one.halved:.1f} %"
        yield f"{one.arms} arms, looks after {one.seeds}: {shares}"
    for task in tasks:
        yield (
            f"{task.tasks} tasks: alone {task.alone:.1f} %, together {task.together:.1f} %, "
            f"primary apart {task.primary:.1f} %"
        )


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/studies/verdicts.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tables", type=int, default=TABLES, help=f"default: {TABLES}")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    rows = []
    for name in DESIGNS:
        for arms in ARMS:
            rows += [simulate(name, arms, seeds, args.tables) for seeds in SEEDS]
    plans = ((1, (3, 12)), (1, (3, 12, 24, 48)), (4, (3, 12)), (4, (3, 12, 24, 48)))
    plans += ((1, (2, 3, 4, 5, 6, 8, 10)), (4, (2, 3, 4, 5, 6, 8, 10)))
    looks = [simulate_looks(arms, seeds, args.tables) for arms, seeds in plans]
    tasks = [simulate_tasks(count, args.tables) for count in (2, 5, 38)]
    command = f"python benchmarks/studies/verdicts.py --tables {args.tables}"
    disk.write_json(RESULT, {"command": command, "rows": rows, "looks": looks, "tasks": tasks})
    print("\n".join(lines(rows, looks, tasks)))
    return 0


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args))


if __name__ == "__main__":
    raise SystemExit(main())
