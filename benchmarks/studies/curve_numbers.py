"""The numbers of benchmarks/studies/curves.py: losses from logs, means over windows, intervals of
differences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIFFERENCES = [
    "Order: ours visits each row once before any is visited twice, permutes rows over windows of 4 "
    "shards and deals"
    " them over 32 lanes; open_clip shuffles the shards by the seed, in one order for all passes, "
    "and rows in a buffer"
    " of 5,000 whose random numbers come of process id and time, so its runs do not repeat. It "
    "reads without"
    " replacement too, but leaves out the last rows of a pass that fill no batch.",
    "Start: the same distributions, other random numbers; equal seeds are not equal starts.",
    "Pictures: the same distribution of crops (90 to 100 % of the area, aspect 3/4 to 4/3), "
    "bicubic, the same mean and"
    " deviation; ours resizes the crop's box within the picture, open_clip cuts it out first, so "
    "pixels at its edges"
    " differ slightly. JPEGs are decoded by simplejpeg here and by Pillow there, to the same "
    "pixels.",
    "Captions: ours are token ids that a filter stored, cut to a batch's longest; open_clip makes "
    "them while it trains,"
    " padded to the model's context. The numbers and, in a causal tower, the vectors are the same.",
    "Token table: ours trains the rows that the captions use and gives all others their decay at "
    "the end; open_clip"
    " steps the whole table. The weights are the same.",
    "AdamW: torch's fused kernel here, its default there (the fused one with --peer-fused); they "
    "differ by rounding."
    " Weight decay spares the same tensors"
    " (decay_groups=open_clip: its releases to 3.3 let positions decay).",
    "Losses: both of the step's batch before the weights change, instantaneous; open_clip's are "
    "printed with five"
    " digits.",
]
PROGRAMS = {"ours": "clipmill", "theirs": "open_clip"}
LINE = re.compile(
    r"Train Epoch: (?P<epoch>\d+) \[\s*(?P<samples>\d+)/.*?\bLR:\s*(?P<lr>\S+) Logit Scale: "
    r"(?P<factor>\S+)"
    r".*?\bLoss: (?P<loss>\S+) \("
)
Losses = NDArray[np.float64]


def parse_log(text: str, batch_size: int) -> dict[str, list[float]]:
    """Loss, learning rate and factor of each step from open_clip's out.log, written with
    --log-every-n-steps 1.

    A line gives every loss as `Name: value (mean so far)`; the value of `Loss` is that of the step,
    summed over the losses there are. ValueError where a step is missing or written twice.
    """
    columns: dict[str, list[float]] = {"loss": [], "lr": [], "factor": []}
    for line in text.splitlines():
        if match := LINE.search(line):
            step, wanted = int(match["samples"]) / batch_size, len(columns["loss"]) + 1
            if step != wanted:
                raise ValueError(
                    f"open_clip's log goes on with step {step:g}; {wanted} was to come"
                )
            for name, values in columns.items():
                values.append(float(match[name]))
    return columns


def window_means(losses: Sequence[float], window: int) -> list[float]:
    """Means of consecutive windows. ValueError where they do not fill the run."""
    if not losses or len(losses) % window:
        raise ValueError(
            f"{len(losses)} steps are no whole number of windows of {window}; change --steps or "
            "--window"
        )
    means: list[float] = (
        np.asarray(losses, dtype=np.float64).reshape(-1, window).mean(axis=1).tolist()
    )
    return means


def welch_half(ours_SW: Losses, theirs_SW: Losses) -> Losses:
    """Half the width of the 95 % Welch interval of the difference of means over seeds S, per window
    W.
    """
    from scipy.stats import t

    parts = [x.var(axis=0, ddof=1) / len(x) for x in (ours_SW, theirs_SW)]
    error = parts[0] + parts[1]
    below = parts[0] ** 2 / (len(ours_SW) - 1) + parts[1] ** 2 / (len(theirs_SW) - 1)
    # Without any spread there is no interval; 1 stands for the undefined degrees of freedom and is
    # multiplied by 0.
    freedom = np.divide(error**2, below, out=np.ones_like(error), where=below > 0)
    half: Losses = t.ppf(0.975, freedom) * np.sqrt(error)
    return half


def compare(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Curves by seed and window -> what is reported. ValueError under two seeds of a program."""
    ours_SW, theirs_SW = (np.asarray(x, dtype=np.float64) for x in (ours, theirs))
    if min(len(ours_SW), len(theirs_SW)) < 2:
        raise ValueError("an SD between seeds needs at least 2 of them")
    difference_W = ours_SW.mean(axis=0) - theirs_SW.mean(axis=0)
    sd_W = np.sqrt((ours_SW.var(axis=0, ddof=1) + theirs_SW.var(axis=0, ddof=1)) / 2)
    half_W = welch_half(ours_SW, theirs_SW)
    run_S1, their_run_S1 = (x.mean(axis=1, keepdims=True) for x in (ours_SW, theirs_SW))
    absolute, sd = float(np.abs(difference_W).mean()), float(sd_W.mean())
    seeds = 2 / (1 / len(ours_SW) + 1 / len(theirs_SW))
    return {
        "mean_absolute_difference": absolute,
        "mean_signed_difference": float(difference_W.mean()),
        "mean_signed_difference_welch_half": float(welch_half(run_S1, their_run_S1)[0]),
        "seed_sd": sd,
        "seed_sd_ours": float(ours_SW.std(axis=0, ddof=1).mean()),
        "seed_sd_theirs": float(theirs_SW.std(axis=0, ddof=1).mean()),
        "ratio": absolute / sd if sd else math.inf if absolute else 0.0,
        "ratio_if_equal": math.sqrt(2 / seeds) * math.sqrt(2 / math.pi),
        "windows": len(difference_W),
        "windows_outside_welch": int((np.abs(difference_W) > half_W).sum()),
        "difference": difference_W.tolist(),
        "welch_half": half_W.tolist(),
    }


def table(result: Mapping[str, Any]) -> str:
    """Eight windows and the summary."""
    curves, summary = result["curves"], result["summary"]
    ours, theirs = (np.asarray(curves[name]) for name in PROGRAMS)
    lines = [
        f"{'steps to':>8}  {'ours, mean ± SD':>17}  {'open_clip':>17}  {'difference':>10}  95 % "
        "interval ±"
    ]
    for w in sorted({round(x) for x in np.linspace(0, len(ours[0]) - 1, 8)}):
        cells = [f"{x[:, w].mean():.4f} ± {x[:, w].std(ddof=1):.4f}" for x in (ours, theirs)]
        cells += [f"{curves['difference'][w]:+.4f}", f"{curves['welch_half'][w]:.4f}"]
        step = curves["last_step_of_window"][w]
        lines.append(f"{step:>8}  {cells[0]:>17}  {cells[1]:>17}  {cells[2]:>10}  {cells[3]:>15}")
    half = summary["mean_signed_difference_welch_half"]
    lines += [
        f"mean absolute difference {summary['mean_absolute_difference']:.4f}",
        f"SD between seeds {summary['seed_sd']:.4f}",
        f"their ratio {summary['ratio']:.2f} ({summary['ratio_if_equal']:.2f} where nothing "
        "differs)",
        f"mean signed difference {summary['mean_signed_difference']:+.4f} ± {half:.4f}",
        f"outside the 95 % interval: {summary['windows_outside_welch']} of {summary['windows']} "
        "windows",
    ]
    for name, title in PROGRAMS.items():
        if accuracy := summary.get(f"accuracy_{name}"):
            mean, sd = 100 * accuracy["mean"], 100 * accuracy["sd"]
            lines.append(f"zero-shot accuracy, {title}: {mean:.1f} ± {sd:.1f} %")
    return "\n".join(lines)
