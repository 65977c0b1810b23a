"""Mean and SD over an arm's seeds, and the comparison of two runs sample by sample. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSd:
    """One arm over its seeds: n values, their mean and sample SD (n − 1); no SD for one value."""

    n: int
    mean: float
    sd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discordance:
    """Samples that only one of two runs got right, and McNemar's exact two-sided p."""

    only_first: int
    only_second: int
    p: float


def mean_sd(values: Sequence[float]) -> MeanSd:
    """Mean and sample SD over seeds. ValueError without a value."""
    if not values:
        raise ValueError("a mean needs at least 1 seed; there are 0")
    x = np.asarray(values, dtype=np.float64)
    sd = float(x.std(ddof=1)) if len(x) > 1 else None
    return MeanSd(n=len(x), mean=float(x.mean()), sd=sd)


def mcnemar(first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray) -> Discordance:
    """Two runs on the same samples, correct or not: the discordant ones under an exact binomial.

    It is about these two models, not about their data: the noise of another seed is not in it.
    ValueError for lists of different lengths.
    """
    from scipy.stats import binomtest

    if len(first) != len(second):
        raise ValueError(f"{len(first)} samples cannot be paired with {len(second)}")
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    discordant = only_first + only_second
    p = float(binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0
    return Discordance(only_first=only_first, only_second=only_second, p=p)
