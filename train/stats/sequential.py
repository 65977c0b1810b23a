"""Ablations that run their seeds in rounds: looks, spending, what is decided."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from train.stats.model import (
    AdditiveFit,
    LedgerEntry,
    Values,
    combine_with_prior,
    fit_additive,
    moderated_variances,
    paired_variance,
)

# --------------------------------------------------------------------------------------------------
# Critical values of a group-sequential design: several arms against one baseline, one look after
# each seed. Pure.
#
# The largest |t| over the arms (Dunnett's correlation, residual SD shared by all arms) is
# compared with one critical value per look. The error is spent over the looks by an alpha-
# spending function of Lan and DeMets (1983). The critical values come from a simulation of the
# joint distribution of all t statistics, which depends on no unknown parameter, so that small
# degrees of freedom are exact but for the noise of the simulation. Inverted, they give repeated
# confidence intervals (Jennison and Turnbull): simultaneous over arms and over looks, up to the
# maximum number of seeds.


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


@functools.lru_cache(maxsize=2)
def _simulated(arms: int, maximum: int, prior_df: float) -> np.ndarray:
    """`largest_t` of DRAWS studies, kept: several levels of error are asked of the same studies."""
    return largest_t(arms, maximum, DRAWS, np.random.default_rng(_SEED), prior_df)


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
    largest = _simulated(arms, maximum, prior_df)[:, minimum - 2 :]
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


# --------------------------------------------------------------------------------------------------
# Ablations that run their seeds in rounds: which comparisons are decided, which runs are still
# needed. Pure.
#
# The model is arm + seed + residual with one residual SD. After every round each arm has an
# interval for its difference to the baseline that is simultaneous over the arms and over all
# rounds, so a study may stop after any of them: repeated confidence intervals for a maximum
# number of seeds that is fixed before the first round (`spending.py`). They are not valid for
# seeds beyond the maximum.
#
# They are exact for normal residuals of one SD and tables in which every arm has every seed. An
# arm that stopped early leaves a smaller table: the critical value is then taken at the same
# level with the degrees of freedom that are there. Moderation, floor, fewer degrees of freedom
# under a baseline that varies more than the arms, and a prior that is dropped widen intervals
# only. docs/statistics.md has the simulated error rates, runs and power of several rules.


State = Literal["better", "worse", "practically equal", "open", "hopeless"]

PRIOR_CONFLICT = 0.80  # an own variance above this quantile, given the prior, switches it off
HOPELESS = 0.20  # a comparison with less conditional power than this is given up
# Where the variance of the paired differences is twice the shared one, it is that of the baseline,
# and known by the seeds alone.
OWN_SLOPE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """What is fixed before the first round.

    maximum: seeds per arm. band: a difference inside ±band is practically equal. smallest: the
    smallest difference of interest, for conditional power; band where it is None. prior: the
    residual variance of
    earlier ablations, counted as `df` residuals that were seen before; None switches it off. With a
    prior the guarantee holds if the earlier residuals have the same variance as these, or, on
    average over ablations, if the variances of ablations follow the scaled inverse chi-squared
    distribution of the prior; it does not hold for one ablation whose noise is unlike the ledger's.
    hopeless: a comparison whose conditional power is below it is given up.
    floor_sd: SD of one run's value that the test set's own sampling gives; the residual SD used is
    never below it.
    """

    maximum: int
    band: float
    minimum: int = 2
    smallest: float | None = None
    alpha: float = 0.05
    spending: Spending = "hwang-shih-decani"
    hopeless: float = HOPELESS
    prior: LedgerEntry | None = None
    moderate: bool = True
    floor_sd: float = 0.0

    def __post_init__(self) -> None:
        if not 2 <= self.minimum <= self.maximum:
            raise ValueError(
                f"seeds are run from {self.minimum} to {self.maximum}; "
                "the minimum is 2 and not above the maximum"
            )
        if not self.band > 0 or (self.smallest is not None and not self.smallest > 0):
            raise ValueError(
                f"band is {self.band} and the smallest difference of interest {self.smallest}; "
                "both must be above 0"
            )
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; it must lie between 0 and 1")
        if not 0 <= self.hopeless < 1:
            raise ValueError(f"hopeless is {self.hopeless}; it must lie in [0, 1)")
        if self.prior is not None and not (self.prior.variance > 0 and self.prior.df > 0):
            raise ValueError(f"a noise prior has a variance and a df above 0; got {self.prior}")
        if not self.floor_sd >= 0:
            raise ValueError(f"the floor of the SD is {self.floor_sd}; it cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialComparison:
    """One arm against the baseline after the last round that it took part in.

    low and high: the intersection of the intervals of all its rounds, None before the minimum and
    where identical scores give no noise. conflict: the intervals of two rounds do not overlap,
    which the model allows for at most alpha of all studies; the interval is then that before the
    conflict. decided_after: seeds at which the state first was better, worse or practically equal.
    conditional_power: the largest chance, over the effects looked at, that the seeds left decide
    it; None where nothing is left to decide or no noise is known.
    """

    arm: str
    baseline: str
    n: int
    difference: float | None
    residual_sd: float | None
    df: float
    low: float | None
    high: float | None
    state: State
    decided_after: int | None
    conditional_power: float | None
    conflict: bool = False
    prior_used: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialDecision:
    """The state of a study after a round. next_arms: arms that need a run with the next seed,
    baseline first, empty if the study stops."""

    rounds: int
    comparisons: tuple[SequentialComparison, ...]
    stop: bool
    next_arms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """The residual SD that is used for each arm at a look, and its degrees of freedom.

    df: of the intervals, fewer where the baseline varies more than the arms. pooled_df: of all
    runs.
    """

    sd: dict[str, float]
    df: float
    pooled_df: float
    prior_used: bool


def decide_study(
    values: Values,
    baseline: str,
    plan: SequentialPlan,
    seeds: Sequence[int] | None = None,
    drawing_sd: Mapping[str, float] | None = None,
) -> SequentialDecision:
    """The state of every comparison of {arm: {seed: value}} after the rounds that are done.

    seeds: the order of the rounds, ascending where it is None; the baseline has a value for each.
    drawing_sd: by arm, the SD that drawing another test set adds to its difference, however many
    seeds there are (0 where it is not named). The intervals are then over seeds and samples.
    All rounds are replayed, so the result depends on the values alone. An arm without a value in
    a round is not looked at in that round and keeps its interval. ValueError for an unknown
    baseline, no other arm, a value that is not finite, a seed that the baseline lacks, or more
    seeds than the maximum of the plan.
    """
    order = _round_order(values, baseline, plan, seeds)
    arms = [arm for arm in values if arm != baseline]
    states = {arm: _waiting(arm, baseline, len(values[arm])) for arm in arms}
    for rounds in range(plan.minimum, len(order) + 1):
        done = order[:rounds]
        # Sorted, so that the order of the arms changes no bit of the result.
        table = {arm: _only(values[arm], done) for arm in sorted(values)}
        present = [arm for arm in arms if done[-1] in values[arm] and len(table[arm]) > 1]
        if not present:
            continue
        fit = fit_additive(table)
        noise = _noise(table, fit, plan, baseline, present)
        for arm in present:
            drawing = 0.0 if drawing_sd is None else drawing_sd.get(arm, 0.0)
            n = len(table[arm])
            states[arm] = _look(states[arm], fit, noise, plan, rounds, len(arms), n, drawing)
    if len(order) >= plan.maximum:
        # A run that failed in the last round leaves its comparison open, and no seed is left.
        for arm in arms:
            if states[arm].state == "open":
                states[arm] = replace(states[arm], state="hopeless", conditional_power=None)
    waiting = [arm for arm in arms if states[arm].state == "open"]
    stop = not waiting
    return SequentialDecision(
        rounds=len(order),
        comparisons=tuple(states[arm] for arm in arms),
        stop=stop,
        next_arms=() if stop else (baseline, *waiting),
    )


def _only(of_arm: Mapping[int, float], seeds: Sequence[int]) -> dict[int, float]:
    return {seed: of_arm[seed] for seed in seeds if seed in of_arm}


def _round_order(
    values: Values,
    baseline: str,
    plan: SequentialPlan,
    seeds: Sequence[int] | None,
) -> list[int]:
    """The seeds of the rounds in order, checked."""
    if baseline not in values:
        raise ValueError(f"baseline {baseline!r} is not one of the arms {sorted(values)}")
    if len(values) < 2:
        raise ValueError(f"only the baseline {baseline!r} has values; there is nothing to compare")
    order = sorted(values[baseline]) if seeds is None else list(seeds)
    for arm, of_arm in values.items():
        wrong = [seed for seed, value in of_arm.items() if not math.isfinite(value)]
        if wrong:
            raise ValueError(f"{arm}, seed {wrong[0]}: the value is {of_arm[wrong[0]]}")
        unknown = sorted(set(of_arm) - set(order))
        if unknown:
            raise ValueError(f"{arm} has seed {unknown[0]}, which is not one of the rounds {order}")
    if len(set(order)) < len(order):
        raise ValueError(f"the rounds are {order}; each has a seed of its own")
    missing = [seed for seed in order if seed not in values[baseline]]
    if missing:
        raise ValueError(f"the baseline {baseline!r} has no run with seed {missing[0]}")
    if len(order) > plan.maximum:
        raise ValueError(
            f"{len(order)} seeds were run and the plan's maximum is {plan.maximum}; its intervals "
            "are not valid beyond it"
        )
    return order


def _waiting(arm: str, baseline: str, n: int) -> SequentialComparison:
    """A comparison before its first look."""
    return SequentialComparison(
        arm=arm,
        baseline=baseline,
        n=n,
        difference=None,
        residual_sd=None,
        df=0.0,
        low=None,
        high=None,
        state="open",
        decided_after=None,
        conditional_power=None,
    )


def _noise(
    table: Values, fit: AdditiveFit, plan: SequentialPlan, baseline: str, present: Sequence[str]
) -> _Noise:
    """The noise that is used: prior and moderation included, floor applied."""
    variance, df, prior = fit.variance, float(fit.df), plan.prior
    if prior is not None and fit.variance is not None:
        from scipy.special import fdtri

        if fit.variance > prior.variance * float(fdtri(fit.df, prior.df, PRIOR_CONFLICT)):
            prior = None
    variance, df = combine_with_prior(variance, df, prior)
    pooled = 0.0 if variance is None else variance
    variances = [2 * pooled] * len(present)
    reduced = df
    if plan.moderate:
        own = [paired_variance(table, arm, baseline) for arm in present]
        variances = moderated_variances(2 * pooled, own)
        least = min(len(table[arm]) for arm in present) - 1
        reduced = _reduced_df(df, least, 2 * pooled, sum(own) / len(own))
    return _Noise(
        sd={
            arm: max(math.sqrt(of_arm / 2), plan.floor_sd)
            for arm, of_arm in zip(present, variances, strict=True)
        },
        df=reduced,
        pooled_df=df,
        prior_used=prior is not None,
    )


def _reduced_df(df: float, least: int, pooled: float, own: float) -> float:
    """The degrees of freedom between those of all runs and `least`, those of the seeds alone.

    The mean variance of the paired differences, `own`, is above the shared one, `pooled`, where the
    baseline varies more than the arms: its noise is in every difference, and only its own seeds
    tell it.
    """
    if own <= 0 or df <= least:
        return df
    share = min(1.0, max(0.0, OWN_SLOPE * (own - pooled) / own))
    return df / (1 + share * (df / least - 1))


def _radius(plan: SequentialPlan, arms: int, rounds: int, df: float) -> float:
    """Half the width of the interval of this look, in standard errors."""
    if df == 0:
        return math.inf
    from scipy.special import stdtr, stdtrit

    prior_df = 0.0 if plan.prior is None else plan.prior.df
    criticals = critical_values(
        arms, plan.minimum, plan.maximum, plan.alpha, plan.spending, prior_df
    )
    critical = criticals[rounds - plan.minimum]
    complete_df = arms * (rounds - 1) + prior_df
    if df >= complete_df:
        return critical
    return -float(stdtrit(df, stdtr(complete_df, -critical)))


def _look(
    before: SequentialComparison,
    fit: AdditiveFit,
    noise: _Noise,
    plan: SequentialPlan,
    rounds: int,
    arms: int,
    n: int,
    drawing: float,
) -> SequentialComparison:
    """The comparison after one more round."""
    sd, df = noise.sd[before.arm], noise.df
    difference = fit.estimate(before.arm, before.baseline)
    information = 1 / fit.factor(before.arm, before.baseline)
    low, high, conflict = before.low, before.high, before.conflict
    if sd > 0:
        error = math.hypot(sd / math.sqrt(information), drawing)
        half = _radius(plan, arms, rounds, df) * error
        new_low = max(difference - half, -math.inf if low is None else low)
        new_high = min(difference + half, math.inf if high is None else high)
        conflict = conflict or new_low > new_high
        if not conflict and math.isfinite(half):
            low, high = new_low, new_high
    state, power = _state(low, high, plan.band), None
    decided_after = before.decided_after
    if state != "open":
        decided_after = rounds if decided_after is None else decided_after
    elif sd > 0 and rounds < plan.maximum:
        power = conditional_power(difference, sd, n, rounds, noise.pooled_df, plan, arms, drawing)
        state = "hopeless" if power < plan.hopeless else "open"
    return SequentialComparison(
        arm=before.arm,
        baseline=before.baseline,
        n=n,
        difference=difference,
        residual_sd=sd,
        df=df,
        low=low,
        high=high,
        state=state,
        decided_after=decided_after,
        conditional_power=power,
        conflict=conflict,
        prior_used=noise.prior_used,
    )


def _state(low: float | None, high: float | None, band: float) -> State:
    """The verdict that an interval allows; 0 outside comes before inside ±band."""
    if low is None or high is None:
        return "open"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    if -band < low and high < band:
        return "practically equal"
    return "open"


def conditional_power(
    difference: float,
    sd: float,
    n: int,
    rounds: int,
    df: float,
    plan: SequentialPlan,
    arms: int,
    drawing: float = 0.0,
) -> float:
    """The chance that the seeds left decide a comparison, at the most favourable of these truths.

    Better or worse: the true difference is the present estimate, or the smallest difference of
    interest on either side. Practically equal: it is the present estimate, or 0. The last round
    alone is looked at, with the interval that the present SD gives there and a t distribution for
    what the seeds left add: a guide for giving up, which no error rate depends on. `n` seeds give
    the present estimate. drawing: the SD that no seed takes away (see `decide_study`).
    """
    from scipy.special import stdtr

    left = plan.maximum - rounds
    total = n + left
    radius = _radius(plan, arms, plan.maximum, df + arms * left)
    radius *= math.hypot(sd * math.sqrt(2 / total), drawing)
    inside = plan.band - radius
    spread = sd * math.sqrt(2 * left) / total
    smallest = plan.band if plan.smallest is None else plan.smallest
    powers = []
    for truth in (difference, smallest, -smallest, 0.0):
        mean = (n * difference + left * truth) / total
        if truth != 0:
            tails = stdtr(df, [(mean - radius) / spread, (-mean - radius) / spread])
            powers.append(float(tails.sum()))
        if truth in (difference, 0.0) and inside > 0:
            edges = stdtr(df, [(inside - mean) / spread, (-inside - mean) / spread])
            powers.append(float(edges[0] - edges[1]))
    return max(powers)
