"""How large an effect must be to be seen, and how many seeds a wanted effect needs. Pure."""

from __future__ import annotations

import functools
import math

from train.stats.dunnett import chi_nodes, dunnett_critical, equal_loadings
from train.stats.moderation import TYPICAL_RAISE

ALPHA = 0.05
POWER = 0.80
MOST_SEEDS = 1000


@functools.lru_cache(maxsize=1024)
def noncentrality(critical: float, df: float, power: float = POWER) -> float:
    """The true difference, in standard errors, that exceeds ±critical with this probability.

    The noncentral t is integrated over the sample standard deviation (a chi): scipy's nct gives
    NaN in the tails that two or three seeds need. The other arms do not matter for one arm's power.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    if not 0 < power < 1:
        raise ValueError(f"a power is between 0 and 1; got {power}")
    s, weights, mass = chi_nodes(df, critical)

    def missing(mean: float) -> float:
        tails = ndtr(mean - critical * s) + ndtr(-mean - critical * s)
        return float(weights @ tails) + mass * float(tails[0]) - power

    upper = 1.0
    if missing(0.0) >= 0:
        return 0.0
    while missing(upper) < 0:
        upper *= 2
    return float(brentq(missing, 0.0, upper, xtol=1e-12))


def satterthwaite(parts: list[tuple[float, float]]) -> tuple[float, float]:
    """The sum of independent variances [(variance, df), ...] and its degrees of freedom.

    Satterthwaite's approximation; parts of variance 0 do not count. At least 1.
    """
    total = sum(variance for variance, _ in parts)
    below = sum(variance * variance / df for variance, df in parts if variance > 0)
    return total, (max(1.0, total * total / below) if below > 0 else math.inf)


def smallest_visible(
    run_sd: float,
    *,
    seeds: int,
    arms: int,
    df: float,
    floor_sd: float = 0.0,
    drawing: tuple[float, float] = (0.0, math.inf),
    alpha: float = ALPHA,
    power: float = POWER,
) -> float:
    """The smallest true difference of one arm that `power` of such ablations call better or worse.

    run_sd: standard deviation of one run's residual. arms: those compared with the baseline.
    df: that of run_sd. floor_sd: what the samples leave of run_sd at least; its df is infinite.
    drawing: variance of a difference from drawing other samples, and its df. As the verdict takes
    the widest of its intervals, this is the largest figure that one of them gives.
    ValueError for fewer than 2 seeds or a negative SD.
    """
    if seeds < 2:
        raise ValueError(f"a comparison needs at least 2 seeds; got {seeds}")
    if not run_sd >= 0:
        raise ValueError(f"a standard deviation is at least 0; got {run_sd}")
    raised = TYPICAL_RAISE**2 if arms > 1 else 1.0
    loadings = equal_loadings(arms)
    spreads = []
    for part in ((2 * run_sd**2 * raised / seeds, df), (2 * floor_sd**2 / seeds, math.inf)):
        spreads += [part, satterthwaite([part, drawing])]
    figures = []
    for variance, used_df in spreads:
        if variance == 0:
            figures.append(0.0)
            continue
        critical = dunnett_critical(alpha, used_df, loadings)
        figures.append(noncentrality(critical, used_df, power) * math.sqrt(variance))
    return max(figures)


def seeds_needed(
    effect: float,
    run_sd: float,
    *,
    arms: int,
    floor_sd: float = 0.0,
    drawing: tuple[float, float] = (0.0, math.inf),
    prior_df: float = 0.0,
    alpha: float = ALPHA,
    power: float = POWER,
) -> int | None:
    """The seeds of every arm and the baseline with which `effect` is the smallest visible one.

    arms: those compared with the baseline. prior_df: degrees of freedom that a ledger adds. None
    where no number up to 1,000 suffices: the part of the samples (`drawing`) stays however many
    seeds there are. ValueError for an effect that is not above 0.
    """
    if not effect > 0:
        raise ValueError(f"the wanted effect is above 0; got {effect}")

    def visible(seeds: int) -> float:
        df = arms * (seeds - 1) + prior_df
        return smallest_visible(
            run_sd,
            seeds=seeds,
            arms=arms,
            df=df,
            floor_sd=floor_sd,
            drawing=drawing,
            alpha=alpha,
            power=power,
        )

    if visible(MOST_SEEDS) > effect:
        return None
    low, high = 1, MOST_SEEDS  # `high` suffices; `low` does not, or is no comparison
    while high - low > 1:
        middle = (low + high) // 2
        if visible(middle) > effect:
            low = middle
        else:
            high = middle
    return high
