"""Rows that are drawn by chance: min(1, limit / count), as MetaCLIP balances its entries. Pure.

A draw of a balanced source looks at some candidates, rows that are next in its order, and takes the
first that chance accepts. A row is a candidate once an epoch. Where none is accepted, one is taken
by chance with the same weights. The number of candidates follows from the mean chance, so that this
happens in 1 of 100 draws at most (where 256 candidates are enough).

Source of the rule: Xu et al., "Demystifying CLIP data", ICLR 2024, section 3.4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from train.rng import Ints, uniforms

UNDECIDED = 0.01  # most draws of which no candidate is accepted
CANDIDATES = 256

Chances = NDArray[np.float64]


def candidates_for(mean_chance: float) -> int:
    """How many rows a draw looks at."""
    if mean_chance >= 1 - UNDECIDED:
        return 1 if mean_chance >= 1 else 2
    return min(CANDIDATES, math.ceil(math.log(UNDECIDED) / math.log1p(-mean_chance)))


def choose_candidates(chances: Chances, key: int, draw: Ints) -> Ints:
    """(draws,) the candidate that each draw takes.

    chances: (draws, candidates), above 0 and up to 1. key: of the source's random numbers.
    """
    count = chances.shape[1]
    random = uniforms(key, draw, 2 * count)
    accepted = random[:, :count] < chances
    # The first of clocks that run at the speed of the chances.
    by_weight = np.argmin(-np.log1p(-random[:, count:]) / chances, axis=1)
    chosen: Ints = np.where(accepted.any(axis=1), np.argmax(accepted, axis=1), by_weight)
    return chosen


def expected_unique(chances: Chances, rows: int, drawn: int) -> float:
    """About how many different rows come in so many draws.

    chances: (sample,) of rows that stand for all `rows`. Draws are taken as independent.
    """
    share = chances / chances.sum() * len(chances) / rows  # of the draws, for each row
    return float(rows * np.mean(-np.expm1(drawn * np.log1p(-np.minimum(share, 1 - 1e-12)))))
