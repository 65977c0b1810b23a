"""Variances that borrow from each other: the arms of one ablation, and earlier ablations. Pure.

The shared variance of an ablation is combined with a prior from a ledger as in limma (Smyth, Linear
models and empirical Bayes methods, Stat. Appl. Genet. Mol. Biol. 3, 2004). Between the arms of one
ablation, limma's estimate of the prior's degrees of freedom rests on two or three log variances
that share a baseline; `moderated_variances` therefore has a fixed rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# One earlier ablation says nothing of how much ablations differ: they are then taken to differ as
# if the prior had these degrees of freedom (a factor of about 1.6 either way in variance), and
# this guess counts as much as this number of ablations.
GUESSED_DF = 8.0
GUESS_WEIGHT = 3.0
MOST_DF = 1e6
TYPICAL_RAISE = 1.09  # half-widths of `moderated_variances` over those of the pooled variance


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """The variance of one run's residual in an ablation, and its degrees of freedom."""

    variance: float
    df: float


def moderated_variances(pooled: float, own: Sequence[float]) -> list[float]:
    """The variance of each contrast's single-seed difference, from all arms and from its own runs.

    pooled: 2 s², from the variance that all arms share. own: the variance of the paired differences
    of each arm with one baseline. The prior is `pooled`, raised half-way to the mean of `own` where
    that is larger (a baseline with a wide spread is in all of them); each contrast is the prior,
    raised half-way to its own variance where that is larger. All have the pooled degrees of
    freedom. With one contrast of a complete table, `pooled` is `own`, and nothing changes.

    Simulated (20,000 tables each; 2, 4 and 8 arms beside the baseline × 2, 3 and 5 seeds), the
    coverage of nominal 95 % simultaneous intervals, and half-widths over those of `pooled` alone:

    | rule          | equal spreads | half-width | one arm 3 × | baseline 3 × |
    | pooled        | 94.8-95.1     | 1.00       | 88.7-93.7   | 77.5-92.4    |
    | limma (cap)   | 94.4-95.9     | 1.00-1.22  | 90.8-94.2   | 77.9-92.3    |
    | this          | 95.7-96.3     | 1.06-1.12  | 91.8-94.6   | 85.8-93.7    |
    | paired alone  | 82.3-94.3     | 1.20-6.36  | 82.1-94.2   | 85.1-95.3    |
    """
    if not own:
        return []
    prior = _half_way_up(pooled, float(np.mean(own)))
    return [_half_way_up(prior, variance) for variance in own]


def _half_way_up(prior: float, variance: float) -> float:
    return max(prior, (prior + variance) / 2)


def combine_with_prior(
    variance: float | None, df: float, prior: LedgerEntry | None
) -> tuple[float | None, float]:
    """The posterior variance and its degrees of freedom; both are weighted by their df."""
    if prior is None:
        return variance, df
    if variance is None or df <= 0:
        return prior.variance, prior.df
    total = prior.df + df
    return (prior.df * prior.variance + df * variance) / total, total


def fit_prior(entries: Sequence[LedgerEntry]) -> LedgerEntry | None:
    """One prior from earlier ablations of the same preset and task; None without entries.

    Moments of log variances (limma's fitFDist): an entry of df f is s0² times an F variable with
    (f, d0) degrees of freedom; the scatter of log variances beyond that of their own df gives d0.
    With few entries the scatter is drawn towards that of GUESSED_DF. d0 is at most the sum of the
    entries' df. Entries with variance 0 are left out: they come of coarse metrics.
    ValueError for a negative variance or a df that is not above 0.
    """
    for entry in entries:
        if not (math.isfinite(entry.variance) and entry.variance >= 0 and entry.df > 0):
            raise ValueError(
                f"a ledger entry has a variance of at least 0 and a df above 0; got {entry}"
            )
    used = [entry for entry in entries if entry.variance > 0]
    if not used:
        return None
    from scipy.special import digamma, polygamma

    half = np.array([entry.df for entry in used]) / 2
    logs = np.log([entry.variance for entry in used]) - digamma(half) + np.log(half)
    own_scatter = polygamma(1, half)
    guess = float(polygamma(1, GUESSED_DF / 2))
    # Weights: entries with few df say little of the location of log variance.
    weights = 1 / (own_scatter + guess)
    center = float(weights @ logs / weights.sum())
    excess = 0.0
    if len(used) > 1:
        excess = float(((logs - center) ** 2).sum() / (len(used) - 1) - own_scatter.mean())
    count = len(used) - 1
    scatter = (count * max(0.0, excess) + GUESS_WEIGHT * guess) / (count + GUESS_WEIGHT)
    total = float(sum(entry.df for entry in used))
    d0 = min(2 * trigamma_inverse(scatter), total)
    variance = math.exp(center + float(digamma(d0 / 2)) - math.log(d0 / 2))
    return LedgerEntry(variance=variance, df=d0)


def trigamma_inverse(y: float) -> float:
    """x with trigamma(x) = y, for y above 0: Newton's iterations on 1/trigamma, nearly linear."""
    from scipy.special import polygamma

    if not y > 0:
        raise ValueError(f"trigamma has positive values only; got {y}")
    if y > 1e7:
        return 1 / math.sqrt(y)
    if y < 1 / MOST_DF:
        return 1 / y
    x = 0.5 + 1 / y
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / y) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-12:
            break
    return x
