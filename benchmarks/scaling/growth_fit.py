"""The exponent with which a cost grows, beside a fixed cost, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LARGEST_EXPONENT = 1.05
GRID = np.round(np.arange(0.0, 2.501, 0.01), 2)  # of the exponent
DRAWS = 200
FLAT = 1 / 3  # plain exponent of twice the cost for 8 times the work
Floats = np.ndarray[Any, np.dtype[np.float64]]


def exponent_of(counts: Floats, seconds: Floats) -> tuple[float, float]:
    """(exponent, fixed cost in seconds) of `fixed + slope * count ** exponent`.

    Relative errors are least; neither the fixed cost nor the slope is below 0.
    """
    shape_GN = (counts / counts[0]) ** GRID[:, None]
    of_fixed_N, of_slope_GN = 1 / seconds, shape_GN / seconds
    # Least squares with one or two columns, in closed form for every exponent of the grid.
    ff, fs_G = of_fixed_N @ of_fixed_N, of_slope_GN @ of_fixed_N
    ss_G, f1, s1_G = (of_slope_GN**2).sum(1), of_fixed_N.sum(), of_slope_GN.sum(1)
    determinant_G = ff * ss_G - fs_G**2
    is_singular_G = determinant_G <= 1e-12 * ff * ss_G
    determinant_G[is_singular_G] = 1.0
    fixed_G = (f1 * ss_G - s1_G * fs_G) / determinant_G
    slope_G = (ff * s1_G - fs_G * f1) / determinant_G
    error_G = ((fixed_G[:, None] * of_fixed_N + slope_G[:, None] * of_slope_GN - 1) ** 2).sum(1)
    error_G[is_singular_G | (fixed_G < 0) | (slope_G < 0)] = np.inf
    alone_G = (((s1_G / ss_G)[:, None] * of_slope_GN - 1) ** 2).sum(1)
    best = (float(((f1 / ff * of_fixed_N - 1) ** 2).sum()), 0.0, float(f1 / ff))
    columns = (GRID.tolist(), error_G.tolist(), fixed_G.tolist(), alone_G.tolist())
    for exponent, error, fixed, alone in zip(*columns, strict=True):
        if error < best[0] - 1e-9:
            best = (error, exponent, fixed)
        if alone < best[0] - 1e-9:
            best = (alone, exponent, 0.0)
    return best[1], best[2]


def plain_exponent(counts: Floats, seconds: Floats) -> float:
    """Slope of the line of least squares through the logarithms."""
    return float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])


def fitted(seconds: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """Exponent with its range (2.5 % to 97.5 % of the draws), fixed cost, and plain exponent.

    `seconds` has the repeats of each count. ValueError: fewer than three counts.
    """
    if len(seconds) < 3:
        raise ValueError(f"an exponent beside a fixed cost needs three sizes, not {len(seconds)}")
    counts = np.array(list(seconds), np.float64)
    repeats = [np.maximum(np.array(values, np.float64), 1e-4) for values in seconds.values()]
    medians = np.array([np.median(values) for values in repeats])
    exponent, fixed = exponent_of(counts, medians)
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        again = [np.median(random.choice(values, len(values))) for values in repeats]
        drawn.append(exponent_of(counts, np.array(again))[0])
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {
        "exponent": round(exponent, 3),
        "exponent_range": [round(float(low), 3), round(float(high), 3)],
        "fixed_s": round(fixed, 4),
        "plain": round(plain_exponent(counts, medians), 3),
    }


def verdict(result: Mapping[str, Any]) -> str:
    """Whether the exponent is at most LARGEST_EXPONENT, above it, or not decided by the repeats.

    Where 8 times the work costs less than twice the time and the range is wide, a fixed cost hides
    the rest.
    """
    low, high = result["exponent_range"]
    if result["plain"] < FLAT and high > LARGEST_EXPONENT > low:
        return "a fixed cost hides it"
    if result["exponent"] <= LARGEST_EXPONENT:
        return "within"
    if result["sort"]:
        return "a sort"
    # Without a fixed cost the exponent would be `plain`, which is lower: a fixed cost explains it.
    sure = low > LARGEST_EXPONENT and result["plain"] > LARGEST_EXPONENT
    return "ABOVE" if sure else "not decided"
