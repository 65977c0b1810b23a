"""Critical values of a group-sequential design: several arms against one baseline, one look after
each seed. Pure.

The largest |t| over the arms (Dunnett's correlation, residual SD shared by all arms) is compared
with one critical value per look. The error is spent over the looks by an alpha-spending function
of Lan and DeMets (1983). The critical values come from a simulation of the joint distribution of
all t statistics, which depends on no unknown parameter, so that small degrees of freedom are
exact but for the noise of the simulation. Inverted, they give repeated confidence intervals
(Jennison and Turnbull): simultaneous over arms and over looks, up to the maximum number of seeds.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import numpy as np

Spending = Literal["pocock", "obrien-fleming", "hwang-shih-decani"]

DRAWS = 400_000  # standard error of a family-wise error of 5 %: 0.03 points
_SEED = 20221016
HSD_GAMMA = -1.0  # of Hwang, Shih and DeCani: between Pocock (1) and O'Brien-Fleming (-4)


def spent(fraction: float, alpha: float, spending: Spending) -> float:
    """The error spent when `fraction` of the maximum information is there.

    pocock: alpha · ln(1 + (e − 1) · fraction), early stops are cheap. obrien-fleming:
    2 − 2Φ(z / sqrt(fraction)) with z the quantile of 1 − alpha/2, most is kept for the end.
    hwang-shih-decani: alpha · (1 − e^(−g · fraction)) / (1 − e^(−g)) with g = −1, between them.
    Both sides share one function: programs that spend alpha/2 on each side keep more for the end.
    ValueError for a fraction or alpha outside 0…1 or an unknown spending function.
    """
    from scipy.stats import norm

    if not (0 < fraction <= 1 and 0 < alpha < 1):
        raise ValueError(
            f"the fraction is {fraction} and alpha {alpha}; both must lie between 0 and 1"
        )
    if spending == "pocock":
        return alpha * math.log(1 + (math.e - 1) * fraction)
    if spending == "obrien-fleming":
        return float(2 * norm.sf(norm.isf(alpha / 2) / math.sqrt(fraction)))
    if spending == "hwang-shih-decani":
        return alpha * math.expm1(-HSD_GAMMA * fraction) / math.expm1(-HSD_GAMMA)
    raise ValueError(
        f"spending is {spending!r}; it is 'pocock', 'obrien-fleming' or 'hwang-shih-decani'"
    )


def largest_t(
    arms: int, maximum: int, draws: int, generator: np.random.Generator, prior_df: float = 0.0
) -> np.ndarray:
    """Simulated largest |t| over `arms` null arms against a baseline, after 2, 3, … `maximum`
    seeds: array of shape [draws, maximum − 1], each row one study.

    The residual SD of a look has arms · (seeds − 1) degrees of freedom, and `prior_df` more
    where earlier runs estimate it too.
    """
    mean = np.zeros((draws, arms + 1))  # of the seeds so far, minus the mean over the arms
    squares = generator.chisquare(prior_df, draws) if prior_df > 0 else np.zeros(draws)
    largest = np.empty((draws, maximum - 1))
    for seeds in range(1, maximum + 1):
        row = generator.standard_normal((draws, arms + 1))
        row -= row.mean(axis=1, keepdims=True)
        row -= mean
        squares += (seeds - 1) / seeds * np.einsum("da,da->d", row, row)
        mean += row / seeds
        if seeds > 1:
            error = np.sqrt(squares / (arms * (seeds - 1) + prior_df) * 2 / seeds)
            largest[:, seeds - 2] = np.abs(mean[:, 1:] - mean[:, :1]).max(axis=1) / error
    return largest


@functools.lru_cache(maxsize=64)
def critical_values(
    arms: int,
    minimum: int,
    maximum: int,
    alpha: float,
    spending: Spending,
    prior_df: float = 0.0,
) -> tuple[float, ...]:
    """Critical values of the largest |t| for the looks after minimum, minimum + 1, … maximum seeds.

    One look (minimum = maximum) is Dunnett's test. Rounded up to 3 decimals. ValueError for no
    arm, fewer than 2 seeds or a maximum below the minimum.
    """
    if arms < 1:
        raise ValueError(f"{arms} arms are compared with the baseline; at least 1 is needed")
    if not 2 <= minimum <= maximum:
        raise ValueError(
            f"the looks go from {minimum} to {maximum} seeds; the first needs at least 2 seeds"
        )
    generator = np.random.default_rng(_SEED)
    largest = largest_t(arms, maximum, DRAWS, generator, prior_df)[:, minimum - 2 :]
    crossed = 0
    criticals = []
    for look in range(maximum - minimum + 1):
        budget = spent((minimum + look) / maximum, alpha, spending)
        # At most `budget` of all studies may have crossed up to this look.
        allowed = max(1, math.floor(budget * DRAWS) - crossed)
        alive = largest[:, look]
        critical = math.ceil(float(np.partition(alive, -allowed)[-allowed]) * 1000) / 1000
        criticals.append(critical)
        stays = alive <= critical
        crossed += int((~stays).sum())
        largest = largest[stays]
    return tuple(criticals)
