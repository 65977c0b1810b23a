"""One model for all runs of an ablation: arm + group + residual, with borrowed variances."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clipmill.manifests.arrays import Array

# --------------------------------------------------------------------------------------------------
# One additive model for all runs: value = arm + group + residual. Pure.
#
# A group holds the runs that share an effect. With `groups` None a run number is a seed and its own
# group: runs of one seed are paired. One group for all runs is the one-way layout, in which nothing
# is paired; several groups are blocks, with one run of an arm in each or with replicates.


Values = dict[str, dict[int, float]]  # {arm: {run or seed: value}}; cells may be missing
RunGroups = Mapping[int, int]  # {run: its group}, for all arms

NULL_SPACE = 1e-10  # an eigenvalue this small beside the largest is rounding
RELATIVE_ZERO = 1e-12  # a residual this small beside the values is rounding
BEYOND = 1 + 1e-9  # times as large as another variance: equal ones differ by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveFit:
    """The least-squares fit of value = arm + group + residual; all runs share one variance.

    variance: that of one run's residual, over df; (arms − 1)(seeds − 1) for a complete table of
    seeds, runs − arms for a single group. None where df is 0.
    effects: the arms' effects, defined up to a constant. covariance: (X'X)⁻ of the arms, a square
    matrix in the order of `arms`. runs: [arms, groups] numbers of runs. squares: [arms] sums of the
    squared residuals of their runs.
    """

    arms: tuple[str, ...]
    variance: float | None
    df: int
    effects: Array
    covariance: Array
    runs: Array
    squares: Array

    def estimate(self, arm: str, baseline: str) -> float:
        """The estimated difference arm − baseline."""
        contrast = self._contrast(arm, baseline)
        return float(contrast @ self.effects)

    def factor(self, arm: str, baseline: str) -> float:
        """Variance of the estimate over that of one run's residual; 2/seeds if complete, and
        1/n + 1/m for n and m runs in a single group.
        """
        contrast = self._contrast(arm, baseline)
        return float(contrast @ self.covariance @ contrast)

    def run_variances(self) -> Array:
        """[arms] the variance of a run of each arm from its own residuals, without bias where the
        other arms have the shared one; the shared one for an arm without a residual. With a single
        group it is the sample variance. Hasler and Hothorn (Biom. J. 50, 2008) put such variances
        into Dunnett's intervals.
        """
        shared, sizes, variances = self.variance or 0.0, self.runs.sum(axis=0), []
        for number, runs in enumerate(self.runs):
            unit = -self.runs / sizes
            unit[number] += 1
            # The residuals are (1 − B) y. B of two runs of the arm, in groups g and h, is
            # unit_g (X'X)⁻ unit_h, and 1 / size more where g is h.
            fitted = self.covariance @ unit
            own, joint = (unit * fitted).sum(axis=0), fitted @ (runs * unit).T
            square = (runs**2 / sizes * (1 / sizes + 2 * own)).sum() + (joint * joint.T).sum()
            df = runs.sum() - (runs * (1 / sizes + own)).sum()
            kept = 2 * df - runs.sum() + square  # of the arm's variance, in its own squares
            excess = (self.squares[number] - df * shared) / kept if kept > NULL_SPACE else 0.0
            variances.append(max(0.0, shared + float(excess)))
        return np.array(variances)

    def own_variance(self, arm: str, baseline: str, of_runs: Array) -> float:
        """The variance of a single-run difference, from that of the estimate where each arm has
        its own variance of a run, as `run_variances` gives them.
        """
        contrast = self.covariance @ self._contrast(arm, baseline)
        of_run = contrast[:, None] - contrast @ (self.runs / self.runs.sum(axis=0))
        of_estimate = float((self.runs * of_run**2).sum(axis=1) @ of_runs)
        return 2 * of_estimate / self.factor(arm, baseline)

    def least_correlation(self, pairs: Sequence[tuple[str, str]]) -> float:
        """The smallest correlation of two estimates of (arm, baseline) pairs; 0.5 for a complete
        table, for fewer pairs, and at most: a baseline of few runs has more only as far as it
        varies as the arms do.
        """
        contrasts = np.array([self._contrast(*pair) for pair in pairs]).reshape(-1, len(self.arms))
        joint = contrasts @ self.covariance @ contrasts.T
        sizes = np.sqrt(np.diag(joint))
        first, second = np.triu_indices(len(pairs), 1)
        return float((joint[first, second] / (sizes[first] * sizes[second])).min(initial=0.5))

    def _contrast(self, arm: str, baseline: str) -> Array:
        contrast = np.zeros(len(self.arms))
        contrast[self.arms.index(arm)] += 1
        contrast[self.arms.index(baseline)] -= 1
        return contrast


def group_of(run: int, groups: RunGroups | None) -> int:
    """The group of a run; the run's own number without `groups`. ValueError if it has none."""
    if groups is None:
        return run
    if run not in groups:
        raise ValueError(f"run {run} is in no group; every run of every arm needs one")
    return groups[run]


def fit_additive(values: Values, groups: RunGroups | None = None) -> AdditiveFit:
    """Fit arm and group effects by least squares; the table {arm: {run: value}} may have holes.

    An arm is compared with another through all runs that connect them by common groups. Residuals
    that are rounding errors count as 0. ValueError for an empty table, a value that is not finite
    or a run without a group.
    """
    cells = [(arm, run, float(value)) for arm, row in values.items() for run, value in row.items()]
    if not cells:
        raise ValueError("there is no run to fit: the table of values is empty")
    for arm, run, value in cells:
        if not np.isfinite(value):
            raise ValueError(f"the value of {arm} seed {run} is {value}; it must be finite")
    arms = tuple(dict.fromkeys(arm for arm, _, _ in cells))
    cell_groups = [group_of(run, groups) for _, run, _ in cells]
    arm_number = {arm: i for i, arm in enumerate(arms)}
    group_number = {group: i for i, group in enumerate(sorted(set(cell_groups)))}
    of_arm = np.array([arm_number[arm] for arm, _, _ in cells])
    of_group = np.array([group_number[group] for group in cell_groups])
    y = np.array([value for _, _, value in cells])
    center = y.mean()
    # The groups are eliminated: what is left to solve has the size of the arms. The full equations
    # would cost the cube of the number of seeds.
    table = np.zeros((len(arms), len(group_number)))  # numbers of runs
    np.add.at(table, (of_arm, of_group), 1)
    of_groups = table / table.sum(axis=0)  # the mean over the runs of a group
    means = np.bincount(of_group, y - center) / table.sum(axis=0)
    left = np.diag(table.sum(axis=1)) - of_groups @ table.T
    inverse = np.linalg.pinv(left, rcond=NULL_SPACE, hermitian=True)
    effects = inverse @ (np.bincount(of_arm, y - center) - table @ means)
    group_effects = means - effects @ of_groups
    residuals = y - center - effects[of_arm] - group_effects[of_group]
    residuals[np.abs(residuals) < RELATIVE_ZERO * max(1e-300, float(np.abs(y).max()))] = 0.0
    eigenvalues = np.linalg.eigvalsh(left)
    rank = int((eigenvalues > NULL_SPACE * eigenvalues.max()).sum())
    df = len(cells) - len(group_number) - rank
    return AdditiveFit(
        arms=arms,
        variance=float(residuals @ residuals) / df if df > 0 else None,
        df=df,
        effects=effects,
        covariance=inverse,
        runs=table,
        squares=np.bincount(of_arm, residuals**2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLayout:
    """How the runs of an arm and of its baseline lie in the groups that both have runs in.

    groups: these, in order. runs: {group: runs} of the arm and of the baseline, in the order given.
    weights: 2 n m / (n + m) for n and m runs in a group, in the order of `groups`; 1 for a pair.
    The estimate of the difference is the mean of the groups' differences with these weights, and
    its variance is 2 s² / their sum. shares: so many times the variance of a run of the arm, and of
    the baseline, is the variance of a single-run difference; 1 each for equal numbers, 2 together.
    """

    groups: tuple[int, ...]
    runs: tuple[dict[int, list[int]], dict[int, list[int]]]
    weights: Array
    shares: tuple[float, float]

    @property
    def df_within(self) -> tuple[int, int]:
        """Degrees of freedom of arm and baseline inside of the groups; 0 for pairs."""
        first, second = (sum(len(runs) - 1 for runs in of.values()) for of in self.runs)
        return first, second

    @property
    def df(self) -> int:
        """All degrees of freedom of the pair's own residual: those inside, and groups − 1."""
        return sum(self.df_within) + len(self.groups) - 1

    @property
    def seeds(self) -> tuple[int, ...]:
        """The runs that are paired: () unless every group has one run of both, of one number."""
        first, second = ([of[group] for group in self.groups] for of in self.runs)
        is_paired = first == second and all(len(runs) == 1 for runs in first)
        return tuple(runs[0] for runs in first) if is_paired else ()


def pair_layout(
    arm: Iterable[int], baseline: Iterable[int], groups: RunGroups | None = None
) -> PairLayout:
    """The layout of the runs of two arms, from their run numbers."""
    if groups is None:
        return _seed_layout(tuple(arm), tuple(baseline))
    by_group: tuple[dict[int, list[int]], ...] = ({}, {})
    for of_arm, runs in zip(by_group, (arm, baseline), strict=True):
        for run in runs:
            of_arm.setdefault(group_of(run, groups), []).append(run)
    common = tuple(sorted(set(by_group[0]) & set(by_group[1])))
    first, second = ({group: of_arm[group] for group in common} for of_arm in by_group)
    n = np.array([len(first[group]) for group in common], dtype=float)
    m = np.array([len(second[group]) for group in common], dtype=float)
    weights = 2 * n * m / (n + m)
    share = float((weights**2 / n).sum() / weights.sum()) if common else 1.0
    return PairLayout(
        groups=common, runs=(first, second), weights=weights, shares=(share, 2 - share)
    )


@functools.lru_cache(maxsize=4096)  # the tasks of a table have the same runs
def _seed_layout(arm: tuple[int, ...], baseline: tuple[int, ...]) -> PairLayout:
    """`pair_layout` of runs that are seeds."""
    common = tuple(sorted(set(arm) & set(baseline)))
    runs = {seed: [seed] for seed in common}
    return PairLayout(
        groups=common, runs=(runs, runs), weights=np.ones(len(common)), shares=(1.0, 1.0)
    )


def paired_variance(
    values: Values, arm: str, baseline: str, groups: RunGroups | None = None
) -> float:
    """Sample variance (n − 1) of the differences over common seeds; rounding errors count as 0.

    With `groups`, of the differences of the groups' means, each with its weight in `PairLayout`: an
    estimate of the same variance of a single-run difference. ValueError for fewer than two common
    seeds or groups.
    """
    layout = pair_layout(values.get(arm, {}), values.get(baseline, {}), groups)
    if len(layout.groups) < 2:
        kind = "seeds" if groups is None else "groups"
        raise ValueError(
            f"{arm} and {baseline} have {len(layout.groups)} {kind} in common; 2 are needed"
        )
    if groups is None:
        first, second = (
            np.array([values[name][seed] for seed in layout.groups]) for name in (arm, baseline)
        )
    else:
        first, second = (
            np.array([np.mean([values[name][run] for run in of[group]]) for group in layout.groups])
            for name, of in zip((arm, baseline), layout.runs, strict=True)
        )
    differences = first - second
    scale = float(max(np.abs(first).max(), np.abs(second).max()))
    if float(np.ptp(differences)) < RELATIVE_ZERO * scale:
        return 0.0
    deviations = differences - np.average(differences, weights=layout.weights)
    return float((layout.weights * deviations**2).sum() / (len(differences) - 1))


def own_spread(values: Values, arm: str, baseline: str, groups: RunGroups | None = None) -> Spread:
    """The variance of a single-run difference from the runs of these two arms alone.

    Paired seeds: `paired_variance`. A single group: the arm's own variance plus the baseline's,
    each weighted by the other's number of runs as in the difference of their means, with Welch's
    degrees of freedom. Blocks with replicates: both, weighted by their degrees of freedom.
    ValueError where the pair leaves no residual.
    """
    layout = pair_layout(values.get(arm, {}), values.get(baseline, {}), groups)
    if layout.df < 1:
        raise ValueError(f"the runs of {arm} and {baseline} in common groups leave no residual")
    within = []
    for name, of in zip((arm, baseline), layout.runs, strict=True):
        square, largest = 0.0, 0.0
        for runs in of.values() if groups is not None else ():  # one run has no spread
            x = np.array([values[name][run] for run in runs])
            deviations = x - x.mean()
            largest = max(largest, float(np.abs(x).max()))
            deviations[np.abs(deviations) < RELATIVE_ZERO * largest] = 0.0
            square += float(deviations @ deviations)
        within.append(square)
    between = paired_variance(values, arm, baseline, groups) if len(layout.groups) > 1 else 0.0
    return _own_of_parts(layout, within, between)


def _own_of_parts(layout: PairLayout, within: Sequence[float], between: float) -> Spread:
    """The variance of a single-run difference: `within` are sums of squares of arm and baseline
    inside of the groups, `between` the variance from the groups' differences.
    """
    parts: list[tuple[Spread, int]] = []
    df = layout.df_within
    if min(df) > 0:
        own = [s * of / n for s, of, n in zip(layout.shares, within, df, strict=True)]
        total = satterthwaite([(own[0], df[0]), (own[1], df[1])])
        parts.append((Spread(*total), sum(df)))
    if len(layout.groups) > 1:
        parts.append((Spread(variance=between, df=len(layout.groups) - 1), len(layout.groups) - 1))
    if not parts:  # one of the two has one run: it is taken to vary as the other one
        return Spread(variance=2 * math.fsum(within) / sum(df), df=sum(df))
    if len(parts) == 1:
        return parts[0][0]
    count = sum(weight for _, weight in parts)
    return Spread(*satterthwaite([(one.variance * w / count, one.df) for one, w in parts]))


# --------------------------------------------------------------------------------------------------
# Variances that borrow from each other: the arms of one ablation. Pure.
#
# limma's moderation (Smyth, Linear models and empirical Bayes methods, Stat. Appl. Genet. Mol.
# Biol. 3, 2004) estimates a prior's degrees of freedom, here from two or three log variances that
# share a baseline; `moderated_spreads` therefore has a fixed rule.


# Of `typical_raise`: a row for each number of arms, a column for 2, 3, 4, 5, 8 and 12 seeds.
_RAISE_ARMS = [math.log(arms) for arms in (1, 2, 4, 8, 16, 32, 64)]
_RAISE_SEEDS = [math.log(seeds - 1) for seeds in (2, 3, 4, 5, 8, 12)]
_RAISE = (
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    (1.10, 1.07, 1.05, 1.04, 1.04, 1.03),
    (1.47, 1.20, 1.13, 1.10, 1.06, 1.05),
    (1.89, 1.32, 1.20, 1.15, 1.09, 1.06),
    (2.21, 1.41, 1.25, 1.18, 1.10, 1.07),
    (2.44, 1.48, 1.29, 1.21, 1.12, 1.08),
    (2.68, 1.55, 1.33, 1.23, 1.14, 1.09),
)
_RAISE_WITH_OTHERS = (
    (1.14, 1.11, 1.09, 1.08, 1.06, 1.05),
    (1.36, 1.19, 1.14, 1.11, 1.08, 1.06),
    (1.62, 1.26, 1.17, 1.14, 1.09, 1.06),
    (1.92, 1.34, 1.21, 1.16, 1.10, 1.07),
    (2.20, 1.42, 1.26, 1.19, 1.11, 1.08),
    (2.39, 1.49, 1.28, 1.21, 1.12, 1.08),
    (2.63, 1.54, 1.32, 1.23, 1.13, 1.09),
)
_RAISE_UNPAIRED = (
    (1.00, 1.00, 1.00, 1.00, 1.00, 1.00),
    (1.07, 1.04, 1.03, 1.03, 1.02, 1.02),
    (1.24, 1.09, 1.06, 1.05, 1.03, 1.02),
    (1.46, 1.17, 1.11, 1.08, 1.05, 1.04),
    (1.67, 1.24, 1.14, 1.10, 1.06, 1.04),
    (1.84, 1.28, 1.18, 1.12, 1.07, 1.05),
    (1.95, 1.32, 1.19, 1.14, 1.08, 1.05),
)
_RAISE_UNPAIRED_WITH_OTHERS = (
    (1.10, 1.07, 1.06, 1.05, 1.04, 1.03),
    (1.20, 1.10, 1.08, 1.06, 1.05, 1.04),
    (1.33, 1.14, 1.10, 1.08, 1.05, 1.04),
    (1.50, 1.19, 1.12, 1.09, 1.06, 1.04),
    (1.67, 1.24, 1.15, 1.11, 1.07, 1.05),
    (1.81, 1.28, 1.17, 1.13, 1.08, 1.05),
    (1.94, 1.32, 1.20, 1.14, 1.08, 1.06),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of a mean difference, and its degrees of freedom."""

    variance: float
    df: float


def satterthwaite(parts: list[tuple[float, float]]) -> tuple[float, float]:
    """The sum of independent variances [(variance, df), ...] and its degrees of freedom.

    Satterthwaite's approximation; parts of variance 0 do not count. At least 1.
    """
    total = math.fsum(variance for variance, _ in parts)
    below = math.fsum(variance * variance / df for variance, df in parts if variance > 0)
    return total, (max(1.0, total * total / below) if below > 0 else math.inf)


def moderated_spreads(
    pooled: float,
    df: float,
    own: Sequence[float],
    own_df: Sequence[float],
    runs: Sequence[int] = (),
    most: int = 0,
) -> list[Spread]:
    """The variance of each contrast's single-run difference, from all arms and from its own runs.

    pooled: 2 s², from the variance that all arms share; df: its degrees of freedom. own, own_df:
    `own_spread` of each arm with one baseline; seeds − 1 degrees of freedom for pairs. The prior
    is `pooled`, raised half-way to the mean of `own` where that is larger (a baseline with a wide
    spread is in all of them); each contrast is the prior, raised half-way to its own variance where
    that is larger. With one contrast of a complete table, `pooled` is `own`, and nothing changes.

    A variance that was raised has the degrees of freedom of the sum of its parts (Satterthwaite),
    never more than `df`. runs: of each contrast; its own variance is no mean for others where they
    have more. Where some arm has more (`most`), the runs of the contrast tell all but half of the
    shared variance, raised or not: few runs may show less than there is. docs/statistics.md has the
    simulated coverage.
    """
    if not own:
        return []
    runs = runs or [most] * len(own)
    full = [number for number, count in enumerate(runs) if count == max(runs)]
    mean, shared = float(np.mean([own[number] for number in full])), [(pooled, df)]
    if mean > pooled * BEYOND:  # the baseline's noise is in every difference: its seeds tell it
        shared = [(pooled / 2, df), (mean / 2, min(own_df[number] for number in full))]
    prior = math.fsum(part for part, _ in shared)
    rows = []
    for variance, seeds, count in zip(own, own_df, runs, strict=True):
        parts = shared
        if variance > prior * BEYOND or count < most:
            halves = [(part / 2, of_part) for part, of_part in shared]
            parts = [*halves, (max(variance, prior) / 2, seeds)]
            if count < most:  # one part: the same runs tell the mean and its own variance
                parts = [halves[0], (math.fsum(part for part, _ in parts[1:]), seeds)]
        total, sum_df = satterthwaite(parts)
        rows.append(Spread(variance=total, df=min(df, sum_df)))
    return rows


def typical_raise(arms: int, seeds: int, *, others: bool, paired: bool = True) -> float:
    """The smallest visible difference under `moderated_spreads` over that under the pooled variance
    and its degrees of freedom, where all spreads are equal.

    others: runs outside of the family (A/A, controls) take part in the pooled variance. paired: by
    seed; otherwise runs of a single group, each arm with so many. Interpolated between simulated
    values (40,000 tables each).
    """
    if paired:
        table = _RAISE_WITH_OTHERS if others else _RAISE
    else:
        table = _RAISE_UNPAIRED_WITH_OTHERS if others else _RAISE_UNPAIRED
    by_seeds = [float(np.interp(math.log(seeds - 1), _RAISE_SEEDS, row)) for row in table]
    return float(np.interp(math.log(arms), _RAISE_ARMS, by_seeds))


# --------------------------------------------------------------------------------------------------
# What the samples of a test set add to the noise of a difference, from per-sample values. Pure.


Groups = Sequence[Array]  # per-sample values of a run, one array for each group of samples
SampleRuns = Mapping[int, Groups]  # {run: groups}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNoise:
    """Variances of a difference of two arms that its samples cause.

    floor: the least variance of a single-run difference, where samples err independently.
    drawing: the variance of the mean difference from drawing other samples.
    drawing_error: the squared standard error of `drawing`, halved: drawing²/drawing_error is its
    degrees of freedom.
    """

    floor: float
    drawing: float
    drawing_error: float


def sample_noise(
    arm: SampleRuns, baseline: SampleRuns, groups: RunGroups | None = None
) -> SampleNoise:
    """The noise that samples add to arm − baseline, from the runs in common groups.

    The table of paired differences, seeds × samples, has crossed random effects: seed + sample +
    residual. floor: mean square of the residual / N. drawing: (MS of samples − MS of residual) /
    (S N), at least 0.

    Runs that are not paired have the same two parts. The residual is run × sample inside of an arm
    and a group, put together as `own_spread` puts the variances of runs together: its expectation
    is that of a single-run difference, twice the error of one answer. The differences of the arms'
    mean vectors, weighted over groups by `PairLayout`, vary over samples by what is drawn plus
    residual / W, with W the sum of the weights: S for pairs, 2 n m / (n + m) for a single group.

    The mean of several groups of samples (two directions of retrieval) has the mean of their
    standard errors, which is exact if they are fully correlated and too wide otherwise.
    ValueError for runs that leave no residual or for arrays that do not match.
    """
    layout = pair_layout(arm, baseline, groups)
    if layout.df < 1:
        kind = "seeds" if groups is None else "groups"
        raise ValueError(
            f"the noise of samples needs at least 2 common {kind}; got {len(layout.groups)}"
        )
    of_arms = tuple(zip((arm, baseline), layout.runs, strict=True))
    _check_shapes([values[run] for values, of in of_arms for runs in of.values() for run in runs])
    size = float(layout.weights.sum())
    floors, drawings, errors = [], [], []
    for number, first in enumerate(arm[layout.runs[0][layout.groups[0]][0]]):
        n = len(first)
        rows, within = [], [0.0, 0.0]
        for group in layout.groups:
            means = []
            for side, (values, of) in enumerate(of_arms):
                vectors = [values[run][number] for run in of[group]]
                means.append(_mean_vector(vectors))
                within[side] += _residual_square(vectors, means[side])
            rows.append(_difference(means[0], means[1]))
        between_groups, between = _mean_squares(rows, layout.weights)
        of_one = _own_of_parts(layout, [square / (n - 1) for square in within], between_groups)
        residual = of_one.variance
        floors.append(residual / n)
        drawings.append(max(0.0, between - residual) / (size * n))
        error = between**2 / (n - 1) + residual**2 / ((n - 1) * of_one.df)
        errors.append(error / (size * n) ** 2)
    drawing = float(np.mean(np.sqrt(drawings))) ** 2
    # The relative error of the mean is at most that of the worst group, its error at most the mean
    # of theirs: a group in which hardly anything is drawn has a large relative error of next to
    # nothing.
    shares = [e / d**2 for e, d in zip(errors, drawings, strict=True) if d > 0]
    of_errors = float(np.mean(np.sqrt(errors))) ** 2
    return SampleNoise(
        floor=float(np.mean(np.sqrt(floors))) ** 2,
        drawing=drawing,
        drawing_error=min(drawing**2 * max(shares, default=0.0), of_errors),
    )


def _difference(first: Array, second: Array) -> Array:
    """first − second as float64, also for booleans."""
    difference: Array = np.subtract(first, second, dtype=np.float64)
    return difference


def _mean_vector(vectors: Sequence[Array]) -> Array:
    """The mean of runs, sample by sample; a single run as it is."""
    if len(vectors) == 1:
        return vectors[0]
    mean: Array = np.asarray(np.mean(vectors, axis=0, dtype=np.float64))
    return mean


def _residual_square(vectors: Sequence[Array], mean: Array) -> float:
    """The sum of squares of run × sample, the runs' own means taken out."""
    if len(vectors) == 1:
        return 0.0
    total, squares = 0.0, 0.0
    for vector in vectors:
        row = _difference(vector, mean)
        total += max(0.0, _square_sum(row) - float(row.sum()) ** 2 / len(row))
        squares += _square_sum(np.asarray(vector, dtype=np.float64))
    return 0.0 if total < 1e-12 * squares else total


def _square_sum(x: Array) -> float:
    """Without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", x, x))


def _mean_squares(rows: Sequence[Array], weights: Array) -> tuple[float, float]:
    """Mean squares of the residual and of samples in a table with one weighted row for each group;
    a residual of 0 for a single one.
    """
    count, size, n = len(rows), float(weights.sum()), len(rows[0])
    total = np.zeros(n)
    squares, row_squares = 0.0, 0.0
    for row, weight in zip(rows, weights.tolist(), strict=True):
        total += weight * row
        squares += weight * _square_sum(row)
        row_squares += weight * float(row.sum()) ** 2 / n
    correction = float(total.sum()) ** 2 / (size * n)
    samples = max(0.0, _square_sum(total) / size - correction)
    residual = max(0.0, squares - correction - samples - (row_squares - correction))
    if count == 1 or residual < 1e-12 * squares:
        return 0.0, samples / (n - 1)
    return residual / ((count - 1) * (n - 1)), samples / (n - 1)


def _check_shapes(runs: Sequence[Groups]) -> None:
    """ValueError unless all runs have the same groups of at least 2 samples."""
    shapes = [tuple(np.shape(group) for group in groups) for groups in runs]
    for shape in shapes:
        if shape != shapes[0]:
            raise ValueError(
                f"runs of one task need the same samples; the numbers are {shapes[0]} and {shape}"
            )
    if not shapes[0]:
        raise ValueError("a run has no group of samples; leave its samples out (None)")
    for size in shapes[0]:
        if len(size) != 1 or size[0] < 2:
            raise ValueError(
                f"a group of samples is an array of at least 2 values; its shape is {size}"
            )
