"""One difference with its intervals, p values and verdict, and families of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from clipmill.manifests.arrays import Array
from clipmill.verdict.stats.model import Spread, satterthwaite, typical_raise

# --------------------------------------------------------------------------------------------------
# Many arms against one baseline: critical values and adjusted p values after Dunnett. Pure.
#
# The statistics T_i = (√(1 − λ²) X_i + λ Z) / s have one correlation λ² and one shared standard
# deviation s (a chi over the root of its degrees of freedom). Both the common factor Z and s are
# integrated by Gauss-Legendre quadrature; the error is below 1e-10 (5e-9 at a correlation of 0.99).
# Source: Dunnett, A multiple comparison procedure for comparing several treatments with a control,
# JASA 50 (1955) and New tables, Biometrics 20 (1964).


FACTOR_END = 8.8  # the normal density beyond it holds 1e-18
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)  # of each panel, on -1..1
TABLE_END = 9.5  # a normal variable exceeds it with probability 1e-21
POINTS = 2048  # of the table up to it
PANEL_WIDTH = 0.6  # of log s
FACTOR_PANEL = 2.2  # of z
MOST_ARMS = 1000
LARGE_DF = 1e7  # beyond it, the normal distribution is exact to 1e-8 of p


@dataclass(frozen=True, slots=True)
class Family:
    """So many comparisons with one baseline, every two with this correlation (0.5: equal numbers).

    ValueError for a correlation outside 0..1, for no comparison and for more than MOST_ARMS.
    """

    arms: int
    correlation: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.arms <= MOST_ARMS:
            raise ValueError(f"a family has 1 to {MOST_ARMS} comparisons; got {self.arms}")
        if not 0 <= self.correlation < 1:
            raise ValueError(f"a correlation is in 0..1 (1 excluded); got {self.correlation}")


@functools.lru_cache(maxsize=1024)
def dunnett_p(t: float, df: float, family: Family) -> float:
    """Adjusted two-sided p: the probability that the largest |statistic| exceeds |t|.

    t: the statistic, a difference over its standard error.
    df: degrees of freedom of the shared variance, 1 to infinity.
    ValueError for a df below 1 or a t that is not a number.
    """
    if math.isnan(t):
        raise ValueError("the statistic t is not a number")
    if math.isinf(t):
        return 0.0
    t = abs(t)
    if family.arms == 1 and df >= 1:
        from scipy.special import ndtr, stdtr

        return 2 * float(ndtr(-t) if df > LARGE_DF else stdtr(df, -t))
    return min(1.0, max(0.0, _exceedance(t, _nodes_up_to(t, df), family)))


@functools.lru_cache(maxsize=4096)
def dunnett_critical(alpha: float, df: float, family: Family) -> float:
    """The t that the largest |statistic| exceeds with probability alpha; half-width over its error.

    alpha: in 0..1. The rest as in `dunnett_p`.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is between 0 and 1; got {alpha}")
    one = _student_quantile(alpha / 2, df)
    if family.arms == 1:
        return one
    # One comparison alone is a lower bound of the quantile, Bonferroni an upper one.
    most = _student_quantile(alpha / 2 / family.arms, df)

    nodes = _nodes_up_to(most, float(df))

    def excess(log_t: float) -> float:  # almost linear for few degrees of freedom
        return math.log(_exceedance(math.exp(log_t), nodes, family) / alpha)

    low, high = math.log(one * (1 - 1e-6)), math.log(most * (1 + 1e-6))
    return math.exp(root_of(excess, low, high, 1e-11))


def root_of(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Where a function that rises or falls from `low` to `high` is 0, to `tolerance`.

    False position with the halved end of Illinois (Dowell and Jarratt, BIT 11, 1971): four or five
    steps where it is almost a line. scipy.optimize, which has others, takes 0.25 s to import.
    ValueError where both ends have one sign.
    """
    at_low, at_high = function(low), function(high)
    if at_low * at_high > 0:
        raise ValueError(f"a function has one sign at {low:g} and {high:g}")
    best = low if abs(at_low) < abs(at_high) else high
    while at_low and at_high and abs(high - low) > tolerance:
        best = (low * at_high - high * at_low) / (at_high - at_low)
        if not min(low, high) < best < max(low, high):
            best = (low + high) / 2
        value = function(best)
        step = min(abs(best - low), abs(best - high))
        if value * at_high < 0:
            low, at_low = high, at_high
        else:
            at_low /= 2
        high, at_high = best, value
        if step < tolerance:
            break
    return best


def _student_quantile(tail: float, df: float) -> float:
    from scipy.special import ndtri, stdtrit

    if df > LARGE_DF:
        return float(-ndtri(tail))
    return float(-stdtrit(df, tail))


def composite(low: float, high: float, panels: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on low..high in equal panels."""
    edges = np.linspace(low, high, panels + 1)
    half = (high - low) / panels / 2
    nodes = (edges[:-1, None] + half) + half * NODES[None, :]
    return nodes.ravel(), np.tile(half * WEIGHTS, panels)


@functools.lru_cache(maxsize=512)
def chi_nodes(df: float, scale: float = 1.0) -> tuple[Array, Array, float]:
    """Nodes s, weights, and the mass below the first node, of s = χ/√df with `df` finite.

    The mean of f(s) is weights @ f(nodes) + mass × f(first node). The nodes are equal panels of
    log s, where the density is smooth down to 1 degree of freedom. `scale`: the largest |f'|.
    ValueError for a df below 1.
    """
    from scipy.special import gammainc, gammainccinv, gammaincinv

    if not df >= 1:
        raise ValueError(f"degrees of freedom are at least 1; got {df}")
    if math.isinf(df) or df > LARGE_DF:
        return np.ones(1), np.ones(1), 0.0
    below = (1e-14 / max(scale, 1.0)) ** (df / (df + 1))
    low = math.sqrt(float(gammaincinv(df / 2, below)) * 2 / df)
    high = math.sqrt(float(gammainccinv(df / 2, 1e-17)) * 2 / df)
    width = min(PANEL_WIDTH, 2 / math.sqrt(df))
    panels = math.ceil(math.log(high / low) / width)
    v, weights = composite(math.log(low), math.log(high), panels)
    weights = weights * np.exp(df * (v - np.expm1(2 * v) / 2))  # s^df exp(-df s²/2), over log s
    mass_below = float(gammainc(df / 2, df * low * low / 2))
    return np.exp(v), weights * ((1 - mass_below) / weights.sum()), mass_below


def _nodes_up_to(t: float, df: float) -> tuple[Array, Array, float]:
    """`chi_nodes` for statistics up to t, the same for many of them."""
    return chi_nodes(df, 2.0 ** math.ceil(math.log2(1 + t)))


def _exceedance(t: float, nodes: tuple[Array, Array, float], family: Family) -> float:
    """P(largest |statistic| > t): the table's values averaged over the nodes of `chi_nodes`.

    Between two points of the table, the logarithm is the cubic with its values and slopes there:
    the error is below 1e-10, and 5e-9 for a correlation of 0.99.
    """
    s, weights, mass_below = nodes
    if t * s[0] > TABLE_END:
        return float(weights @ _exceedance_normal(t * s, family)[0])
    steps = np.minimum(t * s, TABLE_END) * (POINTS / TABLE_END)
    left = np.minimum(steps.astype(np.intp), POINTS - 1)
    c0, c1, c2, c3 = _exceedance_table(family)[:, left]
    x = steps - left
    above = np.exp(c0 + x * (c1 + x * (c2 + x * c3)))
    # Below the first node, T is so small that its sign alone matters.
    return float(weights @ above) + mass_below * float(above[0])


@functools.lru_cache(maxsize=64)
def _exceedance_table(family: Family) -> Array:
    """The cubics of `_exceedance` (4 × POINTS) of equal steps on 0..TABLE_END."""
    above, density = _exceedance_normal(np.linspace(0, TABLE_END, POINTS + 1), family)
    value, slope = np.log(above), -density / above * (TABLE_END / POINTS)
    rise = np.diff(value)
    first, last = slope[:-1], slope[1:]
    return np.stack([value[:-1], first, 3 * rise - 2 * first - last, first + last - 2 * rise])


def _exceedance_normal(x: Array, family: Family) -> tuple[Array, Array]:
    """P(largest |statistic| > x) where s is known to be 1, and its density, for an array x."""
    from scipy.special import ndtr

    loading = math.sqrt(family.correlation)
    own = math.sqrt(1 - loading * loading)
    panels = max(2, math.ceil(FACTOR_END * max(1.0, loading / own) / FACTOR_PANEL))
    if loading == 0:
        z, weights = np.zeros(1), np.ones(1)
    else:  # the integrand is even in z
        z, weights = composite(0.0, FACTOR_END, panels)
        weights = 2 * weights * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    upper = (x[None, :] - loading * z[:, None]) / own
    lower = (-x[None, :] - loading * z[:, None]) / own
    with np.errstate(divide="ignore"):
        log_inside = np.log1p(-np.minimum(ndtr(-upper) + ndtr(lower), 1.0))
    both = np.exp(-upper * upper / 2) + np.exp(-lower * lower / 2)  # sides of one statistic
    both *= family.arms / own / math.sqrt(2 * math.pi) * np.exp((family.arms - 1) * log_inside)
    return weights @ -np.expm1(family.arms * log_inside), weights @ both


# --------------------------------------------------------------------------------------------------
# Adjusted p values for a family of comparisons that the user chose. Pure.


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values of Holm's step-down procedure (1979), in the order given.

    ValueError for a value that is not in 0..1.
    """
    wrong = [p for p in p_values if not 0 <= p <= 1]
    if wrong:
        raise ValueError(f"a p value is in 0..1; got {wrong[0]}")
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


# --------------------------------------------------------------------------------------------------
# How large an effect must be to be seen, and how many seeds a wanted effect needs. Pure.


ALPHA = 0.05
POWER = 0.80
MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What ablations like one that was run can see.

    smallest: the true difference that 80 % of them would call better or worse. possible: the
    largest difference to the baseline that there can be, None where the metric has no bounds; a
    `smallest` above it means that nothing can be seen. half: half of the smaller of the two.
    seeds_for_half: how many seeds see `half` under the same noise; None where no number up to 1,000
    does.
    """

    smallest: float
    half: float
    seeds_for_half: int | None
    possible: float | None = None


@functools.lru_cache(maxsize=1024)
def noncentrality(critical: float, df: float, power: float = POWER) -> float:
    """The true difference, in standard errors, that exceeds ±critical with this probability.

    The noncentral t is integrated over the sample standard deviation (a chi): scipy's nct gives
    NaN in the tails that two or three seeds need. The other arms do not matter for one arm's power.
    """
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
    return root_of(missing, 0.0, upper, 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyNoise:
    """The noise of runs, from which follows what they can see and what more would cost.

    run_sd: standard deviation of one run's residual; df: its degrees of freedom, which grow with
    the seeds. arms: those compared with the baseline. seeds: runs of each arm; paired: by seed.
    floor_sd: what the samples leave of run_sd at least; its df is infinite. drawing: variance of a
    difference from drawing other samples, and its df. alpha: the error of all comparisons together.
    ValueError for fewer than 2 seeds or a negative SD.
    """

    run_sd: float
    seeds: int
    arms: int
    df: float
    floor_sd: float = 0.0
    drawing: tuple[float, float] = (0.0, math.inf)
    alpha: float = ALPHA
    paired: bool = True

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"a comparison needs at least 2 seeds; got {self.seeds}")
        if not self.run_sd >= 0:
            raise ValueError(f"a standard deviation is at least 0; got {self.run_sd}")

    def smallest_visible(self) -> float:
        """The smallest true difference of one arm that 80 % of such studies call better or worse.

        As the verdict takes the widest of its intervals, this is the largest figure that one of
        them gives.
        """
        arms, seeds, family = self.arms, self.seeds, Family(self.arms)
        own_df = (arms if self.paired else arms + 1) * (seeds - 1)
        raised = typical_raise(arms, seeds, others=self.df > own_df, paired=self.paired) ** 2
        of_runs, of_floor = 2 * self.run_sd**2 * raised / seeds, 2 * self.floor_sd**2 / seeds
        figures = []
        for part in ((of_runs, self.df), (of_floor, math.inf)):
            for variance, df in (part, satterthwaite([part, self.drawing])):
                if variance == 0:
                    figures.append(0.0)
                    continue
                critical = dunnett_critical(self.alpha, df, family)
                figures.append(noncentrality(critical, df) * math.sqrt(variance))
        return max(figures)

    def seeds_for(self, effect: float) -> int | None:
        """The seeds of every arm and the baseline with which `effect` is the smallest visible one.

        None where no number up to 1,000 suffices: the part of the samples (`drawing`) stays however
        many seeds there are. ValueError for an effect that is not above 0.
        """
        if not effect > 0:
            raise ValueError(f"the wanted effect is above 0; got {effect}")
        df_per_seed = self.df / (self.seeds - 1)

        def is_hidden(seeds: int) -> bool:
            df = max(1.0, df_per_seed * (seeds - 1))
            return replace(self, seeds=seeds, df=df).smallest_visible() > effect

        if is_hidden(MOST_SEEDS):
            return None
        low, high = 1, MOST_SEEDS  # `high` suffices; `low` does not, or is no comparison
        while high - low > 1:
            middle = (low + high) // 2
            if is_hidden(middle):
                low = middle
            else:
                high = middle
        return high

    def power(self, possible: float | None = None) -> Power:
        """What these runs can see, and how many seeds see half of that: one noise for both."""
        smallest = self.smallest_visible()
        half = (smallest if possible is None else min(smallest, possible)) / 2
        seeds = self.seeds_for(half)
        return Power(smallest=smallest, half=half, seeds_for_half=seeds, possible=possible)


# --------------------------------------------------------------------------------------------------
# One difference with its intervals, p values and verdict, and families of them. Pure.


Verdict = Literal[
    "better", "worse", "higher", "lower", "practically equal", "not distinguishable",
    "nothing varies"
]  # fmt: skip
Adjustment = Literal["Dunnett", "Holm", "none"]
Headline = Literal["seeds", "seeds and samples"]
OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}  # less is better
NO_DIRECTION: dict[Verdict, Verdict] = {"better": "higher", "worse": "lower"}  # nobody says

STUDENT = Family(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An estimated difference and what is known of its noise, before any interval.

    seeds: those that are paired; () where no run is. runs: their number, or the smaller number of
    runs of the two; 0 for one model against runs.
    sd: standard deviation of a single-run difference. Several spreads are lower bounds of the
    noise (what the runs showed; what the samples leave at least): the widest interval counts.
    over_seeds: on this test set. over_samples: over seeds and samples; empty without per-sample
    values. over_tasks: over seeds and tasks; empty for a single task and for fewer than 3.
    limit: the largest difference that there can be (1 for a share); no interval goes beyond it.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    runs: int = 0
    difference: float
    sd: float
    over_seeds: tuple[Spread, ...]
    over_samples: tuple[Spread, ...] = ()
    over_tasks: tuple[Spread, ...] = ()
    limit: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A difference arm − baseline with intervals of (1 − alpha), two-sided p values, a verdict.

    seeds: those that are paired; () where no run is. n: their number, or the smaller number of runs
    of the two; 0 for one model against runs. sd: standard deviation of a single-run difference,
    from all arms.
    low_seeds, high_seeds: over seeds on this test set. low_samples, high_samples: over seeds and
    samples; None without per-sample values. low_tasks, high_tasks: over tasks as well (averages of
    at least 3 tasks). low, high: the headline, the wider of the first two; `headline` says which.
    df: that of the widest, None where the samples alone give it. low90, high90: the widest
    interval of 1 − 2 alpha, held against ± `band`. band: 0 where nothing can be called equal.
    p, p_adjusted, p_equal: the largest that a part of the headline gives, so that they agree with
    the intervals at every level; p_equal is of TOST, p is not adjusted.
    adjustment: `Dunnett` (intervals and p values are simultaneous over the family), `Holm` or
    `none`. tasks: intervals and adjusted p values hold for so many tasks together (Bonferroni).
    rounds, looks: for how many planned rounds and looks they are adjusted. task, metric, unit: what
    the difference is of. verdict: better, worse, practically equal, not distinguishable or nothing
    varies; higher or lower where nobody says whether more or less is better.
    Every interval is None where nothing varies.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...]
    n: int
    difference: float
    sd: float
    df: float | None
    adjustment: Adjustment
    band: float
    headline: Headline | None = None
    low: float | None = None
    high: float | None = None
    low90: float | None = None
    high90: float | None = None
    low_seeds: float | None = None
    high_seeds: float | None = None
    low_samples: float | None = None
    high_samples: float | None = None
    low_tasks: float | None = None
    high_tasks: float | None = None
    p: float = 1.0
    p_adjusted: float = 1.0
    p_equal: float | None = None
    verdict: Verdict = "not distinguishable"
    tasks: int = 1
    rounds: int = 1
    looks: int = 1
    task: str = ""
    metric: str = ""
    unit: str = "share"

    @property
    def is_clear(self) -> bool:
        """Better or worse; higher or lower where nobody says which is better."""
        return self.verdict in ("better", "worse", "higher", "lower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """What a comparison is adjusted for beside its own family.

    tasks: other tasks are looked at too; p values are multiplied by their number (Bonferroni).
    rounds: the planned looks at growing numbers of seeds; likewise.
    looks: 2 for the first verdict after seeds were added to those of an earlier one, and so on. The
    error of each look is half that of the look before, so that all looks together make a false call
    in at most 2 alpha of ablations; the first one has spent alpha already.
    """

    tasks: int = 1
    rounds: int = 1
    looks: int = 1

    def __post_init__(self) -> None:
        if min(self.tasks, self.rounds, self.looks) < 1:
            raise ValueError(f"there is at least 1 task, 1 round and 1 look; got {self}")

    @property
    def factor(self) -> float:
        """What multiplies a p value and divides alpha."""
        return self.tasks * self.rounds * 2.0 ** (self.looks - 1)


NO_PENALTY = Penalty()


def decide(
    difference: float,
    p_adjusted: float,
    low90: float | None,
    high90: float | None,
    band: float,
) -> Verdict:
    """The first rule that holds: p below ALPHA: better or worse by the sign of the difference; the
    interval of 1 − 2 ALPHA inside ±band: practically equal; otherwise not distinguishable. Without
    an interval the noise is not known, and the verdict is always the last one.
    """
    if low90 is None or high90 is None:
        return "not distinguishable"
    if p_adjusted < ALPHA:
        return "better" if difference > 0 else "worse"
    if -band < low90 and high90 < band:
        return "practically equal"
    return "not distinguishable"


def dunnett_family(
    differences: Sequence[Difference],
    correlation: float,
    band: float,
    penalty: Penalty = NO_PENALTY,
) -> tuple[Comparison, ...]:
    """Comparisons with one baseline: intervals and p values hold for all of them together.

    correlation: the smallest of any two comparisons, which is conservative for the others. band: 0
    where nothing can be called equal. ValueError for a band below 0.
    """
    if not differences:
        return ()
    family = Family(len(differences), min(0.99, max(0.0, round(correlation, 9))))
    return tuple(_compare(one, family, "Dunnett", band, penalty) for one in differences)


def single(one: Difference, band: float, penalty: Penalty = NO_PENALTY) -> Comparison:
    """A comparison that is in no family. ValueError for a band below 0."""
    return _compare(one, STUDENT, "none", band, penalty)


def holm_family(
    differences: Sequence[Difference],
    band: float,
    penalty: Penalty = NO_PENALTY,
) -> tuple[Comparison, ...]:
    """Comparisons that the user chose: p values after Holm, for differences and for equality.

    The interval of a comparison has the level ALPHA / (adjusted p / p), so that it excludes 0 if
    and only if the adjusted p is below ALPHA; the interval of 1 − 2 ALPHA agrees in the same way
    with p_equal. The intervals of the smallest p values are therefore the widest. ValueError for a
    band below 0.
    """
    plain = [_compare(one, STUDENT, "Holm", band, NO_PENALTY) for one in differences]
    factors = _holm_factors([one.p for one in plain])
    factors_equal = _holm_factors([1.0 if c.p_equal is None else c.p_equal for c in plain])
    rows = []
    for one, both in zip(differences, zip(factors, factors_equal, strict=True), strict=True):
        rows.append(_compare(one, STUDENT, "Holm", band, penalty, both))
    return tuple(rows)


def _holm_factors(p_values: Sequence[float]) -> list[float]:
    """Adjusted p over p, from 1 to the size of the family."""
    factors = []
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        factor = adjusted / p if p > 0 else float(len(p_values))
        factors.append(min(float(len(p_values)), max(1.0, factor)))
    return factors


def _compare(
    one: Difference,
    family: Family,
    adjustment: Adjustment,
    band: float,
    penalty: Penalty,
    factors: tuple[float, float] = (1.0, 1.0),
) -> Comparison:
    """`factors` and the penalty multiply p and p_equal, and divide alpha in the intervals."""
    if not band >= 0:
        raise ValueError(f"the equivalence band is {band}; it is at least 0")
    base = Comparison(
        arm=one.arm,
        baseline=one.baseline,
        seeds=one.seeds,
        n=len(one.seeds) or one.runs,
        difference=one.difference,
        sd=one.sd,
        df=one.over_seeds[0].df,
        adjustment=adjustment,
        band=band,
        tasks=penalty.tasks,
        rounds=penalty.rounds,
        looks=penalty.looks,
    )
    bounds = [spread for spread in one.over_seeds + one.over_samples if spread.variance > 0]
    if not bounds or not any(spread.variance > 0 for spread in one.over_seeds):
        return base
    different, equal = factors[0] * penalty.factor, factors[1] * penalty.factor
    level = ALPHA / different
    low_seeds, high_seeds = _interval(one.difference, one.over_seeds, family, level)
    low_samples, high_samples = _interval(one.difference, one.over_samples, family, level)
    low_tasks, high_tasks = _interval(one.difference, one.over_tasks, family, level)
    low, high = _interval(one.difference, bounds, family, level)
    low90, high90 = _interval(one.difference, bounds, family, 2 * ALPHA / equal)
    p_adjusted = min(1.0, different * _p_different(one.difference, bounds, family))
    widest = max(bounds, key=lambda spread: _half_width(spread, family, level))

    def possible(end: float | None) -> float | None:
        return None if end is None else max(-one.limit, min(one.limit, end))

    return replace(
        base,
        df=widest.df if math.isfinite(widest.df) else None,
        headline="seeds" if low == low_seeds else "seeds and samples",
        low=possible(low),
        high=possible(high),
        low90=possible(low90),
        high90=possible(high90),
        low_seeds=possible(low_seeds),
        high_seeds=possible(high_seeds),
        low_samples=possible(low_samples),
        high_samples=possible(high_samples),
        low_tasks=possible(low_tasks),
        high_tasks=possible(high_tasks),
        p=_p_different(one.difference, bounds, STUDENT),
        p_adjusted=p_adjusted,
        p_equal=min(1.0, equal * _p_equal(one.difference, bounds, family, band)) if band else None,
        verdict=decide(one.difference, p_adjusted, low90, high90, band),
    )


def _half_width(spread: Spread, family: Family, alpha: float) -> float:
    return dunnett_critical(alpha, spread.df, family) * math.sqrt(spread.variance)


def _interval(
    difference: float, spreads: Sequence[Spread], family: Family, alpha: float
) -> tuple[float, float] | tuple[None, None]:
    """The widest interval of the spreads."""
    if not spreads:
        return None, None
    half = max(_half_width(spread, family, alpha) for spread in spreads)
    return difference - half, difference + half


def _p_different(difference: float, spreads: Sequence[Spread], family: Family) -> float:
    """The largest two-sided p of the spreads, none of which has variance 0."""
    size = abs(difference)  # one key of the cache for both signs
    return max(dunnett_p(size / math.sqrt(one.variance), one.df, family) for one in spreads)


def _p_equal(difference: float, spreads: Sequence[Spread], family: Family, band: float) -> float:
    """The largest p of two one-sided tests, from the distance to the nearer bound of the band.

    Half the two-sided p, so that it is below alpha where the interval of 1 − 2 alpha is inside.
    """
    inside = band - abs(difference)
    half = _p_different(inside, spreads, family) / 2
    if inside > 0:
        return half
    return 1 - half  # at least a half: outside the band nothing speaks for equality
