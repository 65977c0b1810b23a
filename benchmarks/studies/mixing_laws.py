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
And of RegMix's test mixtures, which were run with 1M and 60M parameters: what the one that the law
prefers of those that were not drawn gains at 60M on the best run that was drawn, in SDs; and what
the advice of `clipmill mix` gains, and its gain by the probability that is stated.

`simulated` draws swarms whose truth is known, of TRUTHS, and has the blend chosen as `clipmill mix`
does: how often the bound of the regret is printed, and holds where it is; how often the law is said
not to fit; and how far the found blend, the run that was measured best and the recommended one of
them are from the best average of mixtures. The rules were fixed on other seeds before; a first
judgement, on 200 seeds from 50,000 on, had the bound hold in 89.5 to 95.5 % of swarms with pairs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from clipmill.manifests import console, disk
from clipmill.manifests.arrays import FloatArray
from clipmill.verdict.decide.blends import Swarm, choose_blend, is_found_taken
from clipmill.verdict.stats import mixing

RESULT = ROOT / "benchmarks" / "results" / "mixing_laws.json"
RUNS = (24, 32, 64, 128)
DRAWS = 20
GROUP = 64
LAWS = {"power 1": (1.0,), "chosen power": mixing.POWERS}
SIMULATIONS = 200
FIRST = 90_000
SIMULATED_RESULT = RESULT.with_name("mixing_regret.json")
TOLERANCE = 1e-3  # SD: shares are rounded to four digits
P_BETTER = ((0.0, 0.5), (0.5, 0.95), (0.95, 1.01))
ADVICE = ("fits", "gain", "gain of the advice", "gain below 0.5", "gain to 0.95", "gain above 0.95")
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


def advice(folder: Path, draws: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of runs of 1M of RegMix's test mixtures, mean over losses and draws:
    ADVICE of the one that the law prefers of those that were not drawn, at 60M.
    """
    shares_RS = normalised(table(folder, "test_mixture_1m")[1])
    losses_RT, larger_RT = (table(folder, f"test_pile_loss_{size}")[1] for size in ("1m", "60m"))
    rows = []
    for runs in numbers:
        measured = []
        for draw in range(draws):
            random = np.random.default_rng([runs, draw])
            drawn = random.choice(len(shares_RS), runs, replace=False)
            for loss_R, larger_R in zip(losses_RT.T, larger_RT.T, strict=True):
                measured.append(one_advice(shares_RS, loss_R, larger_R, drawn))
        rows.append({"runs": runs})
        for name, column in zip(ADVICE, np.array(measured, float).T, strict=True):
            known = column[np.isfinite(column)]
            rows[-1][name] = round(float(known.mean()), 4) if len(known) else None
        print(rows[-1], flush=True)
    return rows


def one_advice(
    shares_RS: FloatArray, loss_R: FloatArray, larger_R: FloatArray, drawn: NDArray[np.int64]
) -> list[float]:
    """ADVICE of one loss; NaN where nothing is said."""
    left = np.setdiff1d(np.arange(len(shares_RS)), drawn)
    means = mixing.mean_of_seeds(shares_RS[drawn], loss_R[None, drawn])
    laws = mixing.fit_laws(means.shares_MS, means.losses_TM)
    refits = mixing.refitted(laws, means.shares_MS)
    found = left[mixing.losses_of(refits, shares_RS[left]).mean(axis=0).argmin()]
    best = drawn[loss_R[drawn].argmin()]
    p_fit = mixing.p_of_misfit(laws, means)
    fits = np.nan if p_fit is None else float(p_fit >= mixing.ALPHA)
    centres = mixing.misfits(refits, means)
    p_better = mixing.p_of_better(centres, shares_RS[found], shares_RS[best])
    gain = float((larger_R[best] - larger_R[found]) / larger_R.std())
    parts = [gain if low <= p_better < high else np.nan for low, high in P_BETTER]
    return [fits, gain, gain if is_found_taken(p_better, p_fit) else 0.0, *parts]


def normalised(shares_RS: FloatArray) -> FloatArray:
    """Released with three decimals, shares do not sum to 1 exactly."""
    normal_RS: FloatArray = shares_RS / shares_RS.sum(axis=1, keepdims=True)
    return normal_RS


# --- swarms of a known truth ----------------------------------------------------------------------

Truth = Callable[[FloatArray], FloatArray]


def of_the_law(sources: int, random: np.random.Generator) -> Truth:
    """exp(Σ slope · x^power): a power from 0.35 to 1, and slopes that curve it little or much."""
    power, scale = random.uniform(0.35, 1), np.exp(random.uniform(np.log(0.3), np.log(2)))
    slopes_S = scale * random.standard_normal(sources)
    return lambda shares_NS: np.exp(-(shares_NS**power) @ slopes_S)


def of_a_line(sources: int, random: np.random.Generator) -> Truth:
    slopes_S = 0.5 * random.standard_normal(sources)
    return lambda shares_NS: shares_NS @ slopes_S


def of_pairs(sources: int, random: np.random.Generator) -> Truth:
    """A line, and each two sources need or spoil each other."""
    linear = of_a_line(sources, random)
    pairs_SS = random.standard_normal((sources, sources))
    pairs_SS = (pairs_SS + pairs_SS.T) / 2
    np.fill_diagonal(pairs_SS, 0)
    return lambda x_NS: linear(x_NS) + 3 * np.einsum("ns,ns->n", x_NS @ pairs_SS, x_NS)


def of_a_bowl(sources: int, random: np.random.Generator) -> Truth:
    """Every source has its own best share."""
    best_S, weights_S = random.dirichlet(np.full(sources, 3.0)), 0.5 + random.uniform(size=sources)
    return lambda shares_NS: np.square(shares_NS - best_S) @ weights_S


def of_a_spoiler(sources: int, random: np.random.Generator) -> Truth:
    """A line, and any share above 2 % of one source spoils."""
    linear, spoiler = of_a_line(sources, random), random.integers(sources)
    return lambda shares_NS: linear(shares_NS) + 0.5 * (shares_NS[:, spoiler] > 0.02)


def of_nothing(sources: int, random: np.random.Generator) -> Truth:
    return lambda shares_NS: np.zeros(len(shares_NS))


TRUTHS = {
    "the law": of_the_law,
    "a line": of_a_line,
    "pairs": of_pairs,
    "a bowl": of_a_bowl,
    "a spoiler": of_a_spoiler,
    "nothing": of_nothing,
}
# (truth, noise that is not normal, sources, mixtures, seeds of each, noise in SDs of the losses)
SIMULATED = (
    ("the law", "", 6, 24, 1, 0.15),
    ("the law", "", 6, 24, 1, 0.5),
    ("the law", "", 6, 24, 1, 2.0),
    ("the law", "", 6, 12, 1, 0.3),
    ("the law", "", 3, 12, 1, 0.3),
    ("the law", "", 10, 40, 1, 0.3),
    ("the law", "", 6, 12, 2, 0.3),
    ("pairs", "", 6, 24, 1, 0.5),
    ("pairs", "", 6, 24, 1, 0.15),
    ("pairs", "", 3, 12, 1, 0.3),
    ("pairs", "", 6, 12, 1, 0.3),
    ("pairs", "", 10, 40, 1, 0.3),
    ("pairs", "", 6, 12, 2, 0.3),
    ("a line", "Student's t of 2", 6, 24, 1, 0.5),
    ("a line", "five times with a source", 6, 24, 1, 0.5),
    ("a bowl", "", 6, 24, 1, 0.15),
    ("a bowl", "", 6, 24, 1, 0.5),
    ("a spoiler", "", 6, 24, 1, 0.15),
    ("a spoiler", "", 6, 24, 1, 0.5),
    ("nothing", "", 6, 24, 1, 0.5),
)


def simulate(
    truth: str, kind: str, sources: int, mixtures: int, seeds: int, noise: float, first: int
) -> dict[str, Any]:
    """SIMULATIONS swarms from seed `first` on. Regrets and bounds are in SDs of the true losses."""
    found = []
    for seed in range(first, first + SIMULATIONS):
        cell = [sources, mixtures, seeds, round(100 * noise), list(TRUTHS).index(truth), len(kind)]
        random = np.random.default_rng([*cell, seed])
        loss_at = TRUTHS[truth](sources, random)
        shares_RS = random.dirichlet(np.ones(sources), mixtures).round(4)
        shares_RS[:, -1] = np.maximum(1 - shares_RS[:, :-1].sum(axis=1), 0)
        shares_RS = np.repeat(shares_RS, seeds, axis=0)
        loss_R = loss_at(shares_RS)
        sd = float(loss_R.std()) or 1.0
        noise_R = random.standard_normal(len(loss_R))
        if kind == "Student's t of 2":
            noise_R = random.standard_t(2, len(loss_R))
        elif kind:
            noise_R *= (1 + 4 * shares_RS[:, 0] / shares_RS[:, 0].max()) / 2
        swarm = Swarm(
            sources=tuple(f"s{n}" for n in range(sources)),
            runs=tuple(map(str, range(len(loss_R)))),
            shares_RS=shares_RS,
            targets=("loss",),
            values_TR=(loss_R + noise * sd * noise_R)[None],
            higher=False,
            rows=None,
            notes=(),
        )
        choice = choose_blend(swarm)
        taken = choice.shares if choice.recommended == "found" else choice.best_shares
        ends_NS = np.array([choice.shares, choice.best_shares, taken])
        regrets_3 = (loss_at(ends_NS) - least_of(loss_at, shares_RS, random)) / sd
        bound = np.nan if choice.regret_high is None else choice.regret_high / sd
        law_fits = np.nan if choice.fits is None else float(choice.fits)
        found.append([*regrets_3, bound, law_fits, float(choice.recommended == "found")])
    of_found, of_best, of_taken, bound, fits, is_found = np.array(found).T
    printed = np.isfinite(bound)
    held = of_found[printed] <= bound[printed] + TOLERANCE
    row: dict[str, Any] = {"truth": truth, "noise_of": kind, "sources": sources}
    row |= {"mixtures": mixtures, "seeds": seeds, "noise": noise}
    row |= {"printed": float(printed.mean()), "held": float(held.mean()) if held.size else None}
    row |= {"bound": float(bound[printed].mean()) if held.size else None}
    row |= {"fits": float(fits[printed].mean()) if held.size else None}
    row |= {"regret": float(of_found.mean()), "regret_best_run": float(of_best.mean())}
    return row | {"regret_taken": float(of_taken.mean()), "found_taken": float(is_found.mean())}


def least_of(loss_at: Truth, shares_RS: FloatArray, random: np.random.Generator) -> float:
    """The least true loss of an average of mixtures, nearly."""
    candidates_CS = mixing.candidates_of(shares_RS)
    for _ in range(4):
        best_CS = candidates_CS[np.argsort(loss_at(candidates_CS))[:50]]
        members_CMS = best_CS[random.integers(0, len(best_CS), (5_000, 3))]
        weights_CM = random.dirichlet(np.full(3, 0.5), 5_000)
        more_CS = np.einsum("cm,cms->cs", weights_CM, members_CMS)
        candidates_CS = np.concatenate([best_CS, more_CS])
    return float(loss_at(candidates_CS).min())


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
    parser.add_argument("--first", type=int, default=FIRST, help="the first simulated seed")
    parser.add_argument("--out", help="the file of the result")
    args = parser.parse_args(argv)
    console.start_logging()

    def run() -> int:
        command = "python benchmarks/studies/mixing_laws.py"
        if str(args.tables) == "simulated":
            rows = []
            for cell in SIMULATED:
                rows.append(simulate(*cell, first=args.first))
                print(rows[-1], flush=True)
            document = {"command": f"{command} simulated", "swarms": SIMULATIONS, "rows": rows}
            disk.write_json(args.out or str(SIMULATED_RESULT), document)
            return 0
        rows = study(args.tables, args.draws, args.runs)
        document = {"command": f"{command} regmix/data", "draws": args.draws, "rows": rows}
        document["advice"] = advice(args.tables, args.draws, args.runs)
        disk.write_json(args.out or str(RESULT), document)
        return 0

    return console.run_command(run)


if __name__ == "__main__":
    raise SystemExit(main())
