#!/usr/bin/env python3
"""How often an ablation's intervals hold what 24 seeds say: resampled from real runs, old method
beside new.

example:
  clipmill demo manifests/ablations/cifar10_seeds.yaml --out out/seeds
  python benchmarks/studies/intervals.py collect out/seeds
  python benchmarks/studies/intervals.py study
  python benchmarks/studies/intervals.py example

`collect` keeps what each run predicted in benchmarks/results/cifar10_seeds.parquet. `study` draws
ablations of a few seeds from it, without replacement, and compares the differences of each with
those of all seeds. `example` writes the predictions of examples/cifar10_runs: seeds 0 to 4 of every
arm, as an ablation of given predictions reads them. The old method was a paired t interval for each
arm with Holm's p values.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from clipmill.manifests import console, disk
from clipmill.manifests.schema import Ablation
from clipmill.study.arms import expand_runs
from clipmill.verdict.stats.analysis import TaskScores, analyse
from clipmill.verdict.stats.comparison import (
    Comparison,
    Family,
    dunnett_critical,
    dunnett_p,
    holm,
    noncentrality,
)

DATA = ROOT / "benchmarks" / "results" / "cifar10_seeds.parquet"
RESULT = ROOT / "benchmarks" / "results" / "intervals.json"
EXAMPLE = ROOT / "examples" / "cifar10_runs"
EXAMPLE_SEEDS = 5
# An ablation of given predictions has no controls: these arms are called what they are.
EXAMPLE_NAMES = {"a_a": "other_order", "random_like_clip50": "random_half"}
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
BASELINE, A_A = "raw", "a_a"
SIZES = (2, 3, 5, 8)  # seeds of the drawn ablations
DRAWS = 1000
ALPHA = 0.05
BAND = 0.005
Runs = Mapping[str, Mapping[int, np.ndarray]]  # {arm: {seed: right or wrong per sample}}


# --- the data file --------------------------------------------------------------------------------


def collect(out: str) -> None:
    """Write what the runs of an ablation's folder predicted: a row per run, a byte per sample.

    An arm of which a run is not finished is left out.
    """
    ablation: Ablation = disk.from_plain(Ablation, disk.read_json(f"{out}/ablation.json"))
    rows: list[dict[str, Any]] = []
    labels = b""
    for run in expand_runs(ablation, out, built=False):
        if not disk.exists(run.predictions(ablation.primary)):
            continue
        table = disk.read_parquet(run.predictions(ablation.primary), ["label", "predicted"])
        labels = table["label"].to_numpy().astype(np.uint8).tobytes()
        predicted = table["predicted"].to_numpy().astype(np.uint8).tobytes()
        rows.append({"arm": run.arm, "seed": run.seed, "predicted": predicted})
    counts = Counter(row["arm"] for row in rows)
    rows = [row for row in rows if counts[row["arm"]] == len(ablation.seeds)]
    metadata = {b"labels": labels.hex().encode(), b"ablation": ablation.name.encode()}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
    pq.write_table(table, DATA, compression="zstd", compression_level=19)
    print(f"{len(rows)} runs of {len(labels):,} samples: {DATA.relative_to(ROOT)}")


def read_runs(path: Path = DATA) -> dict[str, dict[int, np.ndarray]]:
    """Right or wrong per sample of every run of the data file."""
    table = pq.read_table(path)
    labels = np.frombuffer(bytes.fromhex(table.schema.metadata[b"labels"].decode()), np.uint8)
    runs: dict[str, dict[int, np.ndarray]] = {}
    for row in table.to_pylist():
        predicted = np.frombuffer(row["predicted"], np.uint8)
        runs.setdefault(row["arm"], {})[row["seed"]] = (predicted == labels).astype(np.float64)
    return runs


def write_example() -> None:
    """A Parquet file for each arm and seed of the example, with readable classes."""
    table = pq.read_table(DATA)
    labels = np.frombuffer(bytes.fromhex(table.schema.metadata[b"labels"].decode()), np.int8)

    def named(numbers: np.ndarray) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(numbers), list(CLASSES))

    for row in table.to_pylist():
        if row["seed"] >= EXAMPLE_SEEDS:
            continue
        predicted = np.frombuffer(row["predicted"], np.int8)
        columns = {
            "sample": pa.array(np.arange(len(labels)), pa.int32()),
            "label": named(labels),
            "predicted": named(predicted),
            "correct": pa.array(predicted == labels),
        }
        arm = EXAMPLE_NAMES.get(row["arm"], row["arm"])
        path = EXAMPLE / arm / f"seed-{row['seed']}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table(columns),
            path,
            compression="zstd",
            use_dictionary=["label", "predicted"],
            column_encoding={"sample": "DELTA_BINARY_PACKED"},
        )


# --- the two methods ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One comparison of a drawn ablation: interval, smallest visible difference, whether it is
    called different.
    """

    arm: str
    difference: float
    low: float
    high: float
    mde: float
    called: bool


def old_method(values: Mapping[str, Sequence[float]], arms: Sequence[str]) -> list[Judged]:
    """A paired t interval for each arm; called different by Holm's p over the arms."""
    from scipy.stats import t as student

    rows, p_values = [], []
    for arm in arms:
        d = np.asarray(values[arm]) - np.asarray(values[BASELINE])
        n = len(d)
        error = max(float(d.std(ddof=1)) / math.sqrt(n), 1e-12)
        half = float(student.ppf(1 - ALPHA / 2, n - 1)) * error
        p_values.append(float(2 * student.sf(abs(d.mean()) / error, n - 1)))
        critical = float(student.ppf(1 - ALPHA / 2 / len(arms), n - 1))
        mde = noncentrality(critical, n - 1) * error
        rows.append((arm, float(d.mean()), half, mde))
    judged = []
    for (arm, mean, half, mde), p in zip(rows, holm(p_values), strict=True):
        judged.append(
            Judged(
                arm=arm,
                difference=mean,
                low=mean - half,
                high=mean + half,
                mde=mde,
                called=p < ALPHA,
            )
        )
    return judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A drawn ablation under the new method: over the seeds alone, the headline, and the A/A arm.

    Holding is judged with the intervals over seeds: the test set is the same for all 24.
    """

    over_seeds: list[Judged]
    headline: list[Judged]
    a_a: Comparison | None  # None where there are no A/A runs


def new_method(
    values: Mapping[str, Mapping[int, float]], samples: Runs, arms: Sequence[str]
) -> Drawn:
    groups = {arm: {run: [row] for run, row in runs.items()} for arm, runs in samples.items()}
    scores = TaskScores(values=values, samples=groups)
    pair = (A_A, BASELINE) if A_A in values else None
    analysis = analyse({"t": scores}, BASELINE, arms=arms, band=BAND, a_a=pair)
    of_task = analysis.tasks["t"]
    over_seeds, headline = [], []
    for row in of_task.comparisons:
        assert row.low is not None
        assert row.high is not None
        assert row.low_seeds is not None
        assert row.high_seeds is not None
        assert of_task.power is not None
        common = {"arm": row.arm, "difference": row.difference, "mde": of_task.power.smallest}
        outside = _excludes_zero(row.low_seeds, row.high_seeds)
        over_seeds.append(Judged(**common, low=row.low_seeds, high=row.high_seeds, called=outside))
        called = row.verdict in ("better", "worse")
        headline.append(Judged(**common, low=row.low, high=row.high, called=called))
    return Drawn(over_seeds=over_seeds, headline=headline, a_a=of_task.a_a)


# --- the study ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the drawn ablations of one size and one method show, as shares; widths in points.

    held: comparisons whose interval holds the difference of all seeds. held_all: ablations in which
    all do. a_a_called: A/A arms called different; which of a seed's two runs is the A/A one is
    drawn, so that their difference is 0 by design; None without A/A runs. The draws share seeds
    with what they are judged by, so that a nominal 95 % shows as `nominal` (the variance of k of K
    seeds is smaller by 1 − k/K).
    """

    method: str
    seeds: int
    held: float
    held_all: float
    nominal: float
    a_a_called: float | None
    half_width: float
    half_width_5_95: tuple[float, float]
    mde: float
    mde_5_95: tuple[float, float]


def nominal_coverage(seeds: int, of_all: int, df: float, arms: int) -> float:
    """The simultaneous coverage that a nominal 95 % has for k seeds drawn out of K."""
    family = Family(arms)
    critical = dunnett_critical(ALPHA, df, family)
    return 1 - dunnett_p(critical / math.sqrt(1 - seeds / of_all), df, family)


def study(runs: Runs, sizes: Sequence[int] = SIZES, draws: int = DRAWS) -> list[Row]:
    """Draw ablations of each size. Arms: all that are neither the baseline nor the A/A arm."""
    arms = [arm for arm in runs if arm not in (BASELINE, A_A)]
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    means = {arm: {seed: float(runs[arm][seed].mean()) for seed in seeds} for arm in runs}
    truth = {}
    for arm in arms:
        truth[arm] = float(np.mean([means[arm][seed] - means[BASELINE][seed] for seed in seeds]))
    rows = []
    for size in sizes:
        generator = np.random.default_rng(size)
        drawn = [
            sorted(generator.choice(seeds, size, replace=False).tolist()) for _ in range(draws)
        ]
        rows += _rows_of_size(runs, means, drawn, arms, truth, len(seeds))
        print(f"{size} seeds: {draws} ablations drawn", flush=True)
    return rows


def _rows_of_size(
    runs: Runs,
    means: Mapping[str, Mapping[int, float]],
    drawn: Sequence[Sequence[int]],
    arms: Sequence[str],
    truth: Mapping[str, float],
    of_all: int,
) -> Iterator[Row]:
    size = len(drawn[0])
    judged: dict[str, list[list[Judged]]] = {"old": [], "new": [], "new, headline": []}
    a_a: dict[str, list[bool]] = {name: [] for name in judged}
    swaps = np.random.default_rng(1000 + size).random((len(drawn), size)) < 0.5
    for seeds, swapped in zip(drawn, swaps, strict=True):
        lists = {arm: [means[arm][seed] for seed in seeds] for arm in means}
        judged["old"].append(old_method(lists, arms))
        values = {arm: {seed: means[arm][seed] for seed in seeds} for arm in means}
        samples = {arm: {seed: runs[arm][seed] for seed in seeds} for arm in runs}
        new = new_method(values, samples, arms)
        judged["new"].append(new.over_seeds)
        judged["new, headline"].append(new.headline)
        if A_A not in runs:
            continue
        for seed in np.asarray(seeds)[swapped].tolist():
            for table in (values, samples):
                table[BASELINE][seed], table[A_A][seed] = table[A_A][seed], table[BASELINE][seed]
        swapped_lists = {arm: list(values[arm].values()) for arm in (BASELINE, A_A)}
        a_a["old"].append(old_method(swapped_lists, [A_A])[0].called)
        of_swapped = new_method(values, samples, arms).a_a
        assert of_swapped is not None
        a_a["new"].append(_excludes_zero(of_swapped.low_seeds, of_swapped.high_seeds))
        a_a["new, headline"].append(of_swapped.verdict in ("better", "worse"))
    nominal = nominal_coverage(size, of_all, (len(means) - 1) * (size - 1), len(arms))
    for method, ablations in judged.items():
        holds = [[row.low <= truth[row.arm] <= row.high for row in rows] for rows in ablations]
        halves = [100 * (row.high - row.low) / 2 for rows in ablations for row in rows]
        mdes = [100 * row.mde for rows in ablations for row in rows]
        yield Row(
            method=method,
            seeds=size,
            held=float(np.mean(holds)),
            held_all=float(np.mean([all(row) for row in holds])),
            nominal=nominal,
            a_a_called=float(np.mean(a_a[method])) if a_a[method] else None,
            half_width=float(np.mean(halves)),
            half_width_5_95=_range(halves),
            mde=float(np.mean(mdes)),
            mde_5_95=_range(mdes),
        )


def _excludes_zero(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and (low > 0 or high < 0)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.05, 0.95])
    return float(low), float(high)


# --- what is shown --------------------------------------------------------------------------------


def table_lines(rows: Sequence[Row]) -> list[str]:
    """The rows as a table of Markdown."""
    lines = [
        "| seeds | method | intervals that hold, % | all of an ablation hold, % (nominal) | "
        "A/A called different, % | half-width, points [5 %, 95 %] | smallest visible difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        half = f"{row.half_width:.2f} [{row.half_width_5_95[0]:.2f}, {row.half_width_5_95[1]:.2f}]"
        mde = f"{row.mde:.2f} [{row.mde_5_95[0]:.2f}, {row.mde_5_95[1]:.2f}]"
        called = "?" if row.a_a_called is None else f"{100 * row.a_a_called:.1f}"
        lines.append(
            f"| {row.seeds} | {row.method} | {100 * row.held:.1f} | {100 * row.held_all:.1f} "
            f"({100 * row.nominal:.1f}) | {called} | {half} | {mde} |"
        )
    return lines


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/studies/intervals.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    collected = commands.add_parser("collect", help="keep what the runs of an ablation predicted")
    collected.add_argument("out", help="the --out of clipmill ablate")
    commands.add_parser("example", help="write the predictions of examples/cifar10_runs")
    studied = commands.add_parser("study", help="draw ablations from the kept runs")
    studied.add_argument("--draws", type=int, default=DRAWS, help=f"default: {DRAWS}")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    if args.command == "collect":
        collect(args.out)
        return 0
    if not DATA.exists():
        raise ValueError(
            f"{DATA} is not there; make it with benchmarks/studies/intervals.py collect OUT"
        )
    if args.command == "example":
        write_example()
        return 0
    runs = read_runs()
    rows = study(runs, draws=args.draws)
    counts = {arm: len(by_seed) for arm, by_seed in runs.items()}
    command = "python benchmarks/studies/intervals.py study"
    disk.write_json(RESULT, {"command": command, "draws": args.draws, "runs": counts, "rows": rows})
    print("\n".join(table_lines(rows)))
    return 0


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    console.start_logging()
    return console.run_command(lambda: run(args))


if __name__ == "__main__":
    raise SystemExit(main())
