#!/usr/bin/env python3
"""How well small runs choose among large ones by a law of mixtures: RegMix's released runs.

example:
  python benchmarks/studies/mixing_laws.py regmix/data
  python benchmarks/studies/mixing_laws.py simulated

The folder is `data` of sail-sg/regmix, or one with its files beside each other: mixtures and Pile
losses of 512 runs of 1M parameters and of 64 of 1B. For each number of runs, `--draws` random
subsets of the 512 are what a lab had trained. The law is fitted to each of the 13 losses, and
chooses one of the 64 models. Written down: the rank correlation with the 64 losses, and how much
worse the chosen model is than the best, in SDs of the 64; mean and SD over draws. The same for the
law with power 1 alone (Ye et al. 2024), for the 1M runs that were not drawn, of which a law
chooses among 64 at a time, and for one loss, of Pile-CC. The powers were chosen by the 1M runs.

`simulated` draws swarms from laws that are known and counts how often the regret of the found blend
is below its stated bound of 95 %.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import spearmanr

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from manifests import console, disk
from train.stats import mixing
from train.stats.mixing import FloatArray

RESULT = ROOT / "benchmarks" / "results" / "mixing_laws.json"
RUNS = (24, 32, 64, 128)
DRAWS = 20
GROUP = 64
LAWS = {"power 1": (1.0,), "chosen power": mixing.POWERS}
SIMULATED = ((6, 24, 0.15), (6, 24, 0.5), (6, 24, 2.0), (6, 12, 0.3), (3, 12, 0.3))
SIMULATIONS = 200
SIMULATED_RESULT = RESULT.with_name("mixing_regret.json")
MEASURES = ("rho 1B", "regret 1B", "regret 1B pile_cc", "rho 1M", "regret 1M")


def table(folder: Path, name: str) -> tuple[list[str], FloatArray]:
    """Names and values of a file's columns without the first, wherever it lies in the folder."""
    files = sorted(folder.rglob(f"{name}.csv"))
    if not files:
        raise ValueError(f"{folder} has no {name}.csv; give the folder `data` of sail-sg/regmix")
    with files[0].open(newline="") as file:
        header, *rows = list(csv.reader(file))
    return header[1:], np.array([[float(cell) for cell in row[1:]] for row in rows])


def regret(predicted_N: FloatArray, loss_N: FloatArray) -> float:
    """How much worse the chosen one is than the best, in SDs."""
    return float((loss_N[np.argmin(predicted_N)] - loss_N.min()) / loss_N.std(ddof=1))


def one_draw(
    small: tuple[FloatArray, FloatArray],
    large: tuple[FloatArray, FloatArray],
    pile_cc: int,
    runs: int,
    draw: int,
) -> list[float]:
    """MEASURES, mean over targets."""
    (shares_RS, losses_RT), (large_NS, large_NT) = small, large
    random = np.random.default_rng([runs, draw])
    drawn = random.choice(len(shares_RS), runs, replace=False)
    left = random.permutation(np.setdiff1d(np.arange(len(shares_RS)), drawn))
    groups = left[: len(left) // GROUP * GROUP].reshape(-1, GROUP)
    measured = []
    for target in range(losses_RT.shape[1]):
        law = mixing.fit_laws(shares_RS[drawn], losses_RT[drawn, target][None])[0]
        compared_NS = np.concatenate([large_NS, shares_RS])
        refits = mixing.refitted([law], shares_RS[drawn])
        predicted_N = mixing.losses_of(refits, compared_NS).mean(axis=0)
        of_large_N, of_small_R = np.split(predicted_N, [len(large_NS)])
        large_N, small_R = large_NT[:, target], losses_RT[:, target]
        chosen = regret(of_large_N, large_N)
        measured.append(
            [
                spearmanr(of_large_N, large_N)[0],
                chosen,
                chosen if target == pile_cc else np.nan,
                spearmanr(of_small_R[left], small_R[left])[0],
                np.mean([regret(of_small_R[group], small_R[group]) for group in groups]),
            ]
        )
    return [float(value) for value in np.nanmean(measured, axis=0)]


def study(folder: Path, draws: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each law and number of runs: (mean, SD over draws) of each measure."""
    names, losses_RT = table(folder, "train_pile_loss_1m")
    small = (normalised(table(folder, "train_mixture_1m")[1]), losses_RT)
    large = (
        normalised(table(folder, "test_mixture_1B")[1]),
        table(folder, "test_pile_loss_1B")[1],
    )
    pile_cc = next(n for n, name in enumerate(names) if "pile_cc" in name)
    rows = []
    for runs in numbers:
        for law, powers in LAWS.items():
            with mock.patch.object(mixing, "POWERS", powers):
                values = [one_draw(small, large, pile_cc, runs, draw) for draw in range(draws)]
            means, sds = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
            rows.append({"law": law, "runs": runs})
            for name, mean, sd in zip(MEASURES, means, sds, strict=True):
                rows[-1][name] = [round(float(mean), 4), round(float(sd), 4)]
            print(line(rows[-1]), flush=True)
    return rows


def normalised(shares_RS: FloatArray) -> FloatArray:
    """Released with three decimals, shares do not sum to 1 exactly."""
    normal_RS: FloatArray = shares_RS / shares_RS.sum(axis=1, keepdims=True)
    return normal_RS


def simulate(sources: int, runs: int, noise: float) -> dict[str, Any]:
    """How often the bound of the regret holds; the regret and its bound in SDs of the true losses.
    `noise`: in the same unit. Half of the swarms have power 0.5, half power 1.
    """
    held, regrets, bounds = 0, [], []
    for seed in range(SIMULATIONS):
        random = np.random.default_rng([sources, runs, seed])
        shares_RS, slopes_S = random.dirichlet(np.ones(sources), runs), random.normal(size=sources)
        power = (0.5, 1.0)[seed % 2]
        true_R = np.exp(-(shares_RS**power) @ slopes_S)
        loss_R = true_R + random.normal(0, noise * true_R.std(), runs)
        refits = mixing.refitted(mixing.fit_laws(shares_RS, loss_R[None]), shares_RS)
        candidates_CS, losses_BC = mixing.search(refits, mixing.candidates_of(shares_RS))
        best, true_C = losses_BC.mean(axis=0).argmin(), np.exp(-(candidates_CS**power) @ slopes_S)
        regrets.append((true_C[best] - true_C.min()) / true_R.std())
        bounds.append(np.quantile(losses_BC[:, best] - losses_BC.min(axis=1), 0.95) / true_R.std())
        held += regrets[-1] <= bounds[-1]
    row = {"sources": sources, "runs": runs, "noise": noise, "held": held / SIMULATIONS}
    return row | {"regret": float(np.mean(regrets)), "bound": float(np.mean(bounds))}


def line(row: Mapping[str, Any]) -> str:
    """A row for a terminal."""
    cells = [f"{name} {row[name][0]:.3f} ± {row[name][1]:.3f}" for name in MEASURES]
    return f"{row['runs']:4} runs, {row['law']:12}  " + "  ".join(cells)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, help="the folder of RegMix's tables, or `simulated`")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"default: {DRAWS}")
    parser.add_argument("--runs", type=int, nargs="*", default=RUNS, help="default: 24 32 64 128")
    parser.add_argument("--out", help="the file of the result")
    args = parser.parse_args(argv)
    console.start_logging()

    def run() -> int:
        command = "python benchmarks/studies/mixing_laws.py"
        if str(args.tables) == "simulated":
            rows = [simulate(*each) for each in SIMULATED]
            document = {"command": f"{command} simulated", "swarms": SIMULATIONS, "rows": rows}
            disk.write_json(args.out or str(SIMULATED_RESULT), document)
            return 0
        rows = study(args.tables, args.draws, args.runs)
        document = {"command": f"{command} regmix/data", "draws": args.draws, "rows": rows}
        disk.write_json(args.out or str(RESULT), document)
        return 0

    return console.run_command(run)


if __name__ == "__main__":
    raise SystemExit(main())
