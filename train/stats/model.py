"""One model for all runs of an ablation: arm + seed + residual, with borrowed variances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# --------------------------------------------------------------------------------------------------
# One additive model for all runs of an ablation: value = arm + seed + residual. Pure.


Array = np.ndarray
Values = Mapping[str, Mapping[int, float]]  # {arm: {seed: value}}; cells may be missing

NULL_SPACE = 1e-10  # an eigenvalue this small beside the largest is rounding
RELATIVE_ZERO = 1e-12  # a residual this small beside the values is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveFit:
    """The least-squares fit of value = arm + seed + residual; all runs share one variance.

    variance: that of one run's residual, over df; (arms − 1)(seeds − 1) for a complete table. None
    where df is 0.
    effects: the arms' effects, defined up to a constant. covariance: (X'X)⁻ of the arms, a square
    matrix in the order of `arms`.
    """

    arms: tuple[str, ...]
    variance: float | None
    df: int
    effects: Array
    covariance: Array

    def estimate(self, arm: str, baseline: str) -> float:
        """The estimated difference arm − baseline."""
        contrast = self._contrast(arm, baseline)
        return float(contrast @ self.effects)

    def factor(self, arm: str, baseline: str) -> float:
        """Variance of the estimate over that of one run's residual; 2/seeds if complete."""
        contrast = self._contrast(arm, baseline)
        return float(contrast @ self.covariance @ contrast)

    def least_correlation(self, pairs: Sequence[tuple[str, str]]) -> float:
        """The smallest correlation of two estimates of (arm, baseline) pairs; 1 for one pair."""
        contrasts = np.array([self._contrast(*pair) for pair in pairs])
        joint = contrasts @ self.covariance @ contrasts.T
        sizes = np.sqrt(np.diag(joint))
        first, second = np.triu_indices(len(pairs), 1)
        if len(first) == 0:
            return 1.0
        return float((joint[first, second] / (sizes[first] * sizes[second])).min())

    def _contrast(self, arm: str, baseline: str) -> Array:
        contrast = np.zeros(len(self.arms))
        contrast[self.arms.index(arm)] += 1
        contrast[self.arms.index(baseline)] -= 1
        return contrast


def fit_additive(values: Values) -> AdditiveFit:
    """Fit arm and seed effects by least squares; the table {arm: {seed: value}} may have holes.

    An arm is compared with another through all runs that connect them by common seeds. Residuals
    that are rounding errors count as 0. ValueError for an empty table or a value that is not
    finite.
    """
    cells = [
        (arm, seed, float(value)) for arm, row in values.items() for seed, value in row.items()
    ]
    if not cells:
        raise ValueError("there is no run to fit: the table of values is empty")
    for arm, seed, value in cells:
        if not np.isfinite(value):
            raise ValueError(f"the value of {arm} seed {seed} is {value}; it must be finite")
    arms = tuple(dict.fromkeys(arm for arm, _, _ in cells))
    seeds = sorted({seed for _, seed, _ in cells})
    arm_number = {arm: i for i, arm in enumerate(arms)}
    seed_number = {seed: i for i, seed in enumerate(seeds)}
    of_arm = np.array([arm_number[arm] for arm, _, _ in cells])
    of_seed = np.array([seed_number[seed] for _, seed, _ in cells])
    y = np.array([value for _, _, value in cells])
    center = y.mean()
    # The seeds are eliminated: what is left to solve has the size of the arms. The full equations
    # would cost the cube of the number of seeds.
    table = np.zeros((len(arms), len(seeds)))
    table[of_arm, of_seed] = 1
    of_seeds = table / table.sum(axis=0)  # the mean over the runs of a seed
    means = np.bincount(of_seed, y - center) / table.sum(axis=0)
    left = np.diag(table.sum(axis=1)) - of_seeds @ table.T
    inverse = np.linalg.pinv(left, rcond=NULL_SPACE, hermitian=True)
    effects = inverse @ (np.bincount(of_arm, y - center) - table @ means)
    seed_effects = means - effects @ of_seeds
    residuals = y - center - effects[of_arm] - seed_effects[of_seed]
    residuals[np.abs(residuals) < RELATIVE_ZERO * max(1e-300, float(np.abs(y).max()))] = 0.0
    eigenvalues = np.linalg.eigvalsh(left)
    rank = int((eigenvalues > NULL_SPACE * eigenvalues.max()).sum())
    df = len(cells) - len(seeds) - rank
    return AdditiveFit(
        arms=arms,
        variance=float(residuals @ residuals) / df if df > 0 else None,
        df=df,
        effects=effects,
        covariance=inverse,
    )


def common_seeds(values: Values, arm: str, baseline: str) -> tuple[int, ...]:
    """The seeds with a value of both arms, in order."""
    return tuple(sorted(set(values.get(arm, {})) & set(values.get(baseline, {}))))


def paired_variance(values: Values, arm: str, baseline: str) -> float:
    """Sample variance (n − 1) of the differences over common seeds; rounding errors count as 0.

    ValueError for fewer than two common seeds.
    """
    seeds = common_seeds(values, arm, baseline)
    if len(seeds) < 2:
        raise ValueError(f"{arm} and {baseline} have {len(seeds)} seeds in common; 2 are needed")
    first = np.array([values[arm][seed] for seed in seeds])
    second = np.array([values[baseline][seed] for seed in seeds])
    differences = first - second
    scale = float(max(np.abs(first).max(), np.abs(second).max()))
    if float(np.ptp(differences)) < RELATIVE_ZERO * scale:
        return 0.0
    return float(differences.var(ddof=1))


# --------------------------------------------------------------------------------------------------
# Variances that borrow from each other: the arms of one ablation. Pure.
#
# limma's moderation (Smyth, Linear models and empirical Bayes methods, Stat. Appl. Genet. Mol.
# Biol. 3, 2004) estimates a prior's degrees of freedom, here from two or three log variances that
# share a baseline; `moderated_spreads` therefore has a fixed rule.


# Of `typical_raise`: a row for 1, 2, 4 and 8 arms, a column for 2, 3, 4, 5, 8 and 12 seeds.
_RAISE_ARMS = [math.log(arms) for arms in (1, 2, 4, 8)]
_RAISE_SEEDS = [math.log(seeds - 1) for seeds in (2, 3, 4, 5, 8, 12)]
_RAISE = (
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    (1.10, 1.07, 1.05, 1.04, 1.04, 1.03),
    (1.47, 1.20, 1.13, 1.10, 1.06, 1.05),
    (1.89, 1.32, 1.20, 1.15, 1.09, 1.06),
)
_RAISE_WITH_OTHERS = (
    (1.14, 1.11, 1.09, 1.08, 1.06, 1.05),
    (1.36, 1.19, 1.14, 1.11, 1.08, 1.06),
    (1.62, 1.26, 1.17, 1.14, 1.09, 1.06),
    (1.92, 1.34, 1.21, 1.16, 1.10, 1.07),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The variance of a mean difference, and its degrees of freedom."""

    variance: float
    df: float


def satterthwaite(parts: list[tuple[float, float]]) -> tuple[float, float]:
    """The sum of independent variances [(variance, df), ...] and its degrees of freedom.

    Satterthwaite's approximation; parts of variance 0 do not count. At least 1.
    """
    total = sum(variance for variance, _ in parts)
    below = sum(variance * variance / df for variance, df in parts if variance > 0)
    return total, (max(1.0, total * total / below) if below > 0 else math.inf)


def moderated_spreads(
    pooled: float, df: float, own: Sequence[float], own_df: Sequence[int]
) -> list[Spread]:
    """The variance of each contrast's single-seed difference, from all arms and from its own runs.

    pooled: 2 s², from the variance that all arms share; df: its degrees of freedom. own: the
    variance of the paired differences of each arm with one baseline; own_df: seeds − 1. The prior
    is `pooled`, raised half-way to the mean of `own` where that is larger (a baseline with a wide
    spread is in all of them); each contrast is the prior, raised half-way to its own variance where
    that is larger. With one contrast of a complete table, `pooled` is `own`, and nothing changes.

    A variance that was raised has the degrees of freedom of the sum of its parts (Satterthwaite),
    never more than `df`. docs/statistics.md has the simulated coverage.
    """
    if not own:
        return []
    mean, shared = float(np.mean(own)), [(pooled, df)]
    if mean > pooled:  # the baseline's noise is in every difference: its seeds alone tell it
        shared = [(pooled / 2, df), (mean / 2, min(own_df))]
    prior = sum(part for part, _ in shared)
    rows = []
    for variance, seeds in zip(own, own_df, strict=True):
        parts = shared
        if variance > prior:
            halves = [(part / 2, of_part) for part, of_part in shared]
            parts = [*halves, (variance / 2, seeds)]
        total, sum_df = satterthwaite(parts)
        rows.append(Spread(variance=total, df=min(df, sum_df)))
    return rows


def typical_raise(arms: int, seeds: int, *, others: bool) -> float:
    """The smallest visible difference under `moderated_spreads` over that under the pooled variance
    and its degrees of freedom, where all spreads are equal.

    others: runs outside of the family (A/A, controls) take part in the pooled variance.
    Interpolated between simulated values (40,000 tables each).
    """
    table = _RAISE_WITH_OTHERS if others else _RAISE
    by_seeds = [float(np.interp(math.log(seeds - 1), _RAISE_SEEDS, row)) for row in table]
    return float(np.interp(math.log(arms), _RAISE_ARMS, by_seeds))


# --------------------------------------------------------------------------------------------------
# What the samples of a test set add to the noise of a difference, from per-sample values. Pure.


Groups = Sequence[Array]  # per-sample values of a run, one array for each group of samples
SampleRuns = Mapping[int, Groups]  # {seed: groups}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNoise:
    """Variances of a difference of two arms that its samples cause.

    floor: the least variance of a single-seed difference, where samples err independently.
    drawing: the variance of the mean difference from drawing other samples.
    drawing_error: the squared standard error of `drawing`, halved: drawing²/drawing_error is its
    degrees of freedom.
    """

    floor: float
    drawing: float
    drawing_error: float


def sample_noise(arm: SampleRuns, baseline: SampleRuns) -> SampleNoise:
    """The noise that samples add to arm − baseline, from the runs with the same seeds.

    The table of differences, seeds × samples, has crossed random effects: seed + sample + residual.
    floor: mean square of the residual / N. drawing: (MS of samples − MS of residual) / (S N), at
    least 0. The mean of several groups (two directions of retrieval) has the mean of the groups'
    standard errors, which is exact if the groups are fully correlated and too wide otherwise.
    ValueError for fewer than two common seeds or for arrays that do not match.
    """
    seeds = sorted(set(arm) & set(baseline))
    if len(seeds) < 2:
        raise ValueError(f"the noise of samples needs at least 2 common seeds; got {len(seeds)}")
    _check_shapes([runs[seed] for runs in (arm, baseline) for seed in seeds])
    floors, drawings, errors = [], [], []
    for group in range(len(arm[seeds[0]])):
        n = len(arm[seeds[0]][group])
        residual, between = _mean_squares(
            [_difference(arm[seed][group], baseline[seed][group]) for seed in seeds]
        )
        floors.append(residual / n)
        drawings.append(max(0.0, between - residual) / (len(seeds) * n))
        error = between**2 / (n - 1) + residual**2 / ((n - 1) * (len(seeds) - 1))
        errors.append(error / (len(seeds) * n) ** 2)
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


def _square_sum(x: Array) -> float:
    """Without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", x, x))


def _mean_squares(rows: Sequence[Array]) -> tuple[float, float]:
    """Mean squares of the residual and of samples in a table with one row for each seed."""
    seeds, n = len(rows), len(rows[0])
    total = np.zeros(n)
    squares, row_squares = 0.0, 0.0
    for row in rows:
        total += row
        squares += _square_sum(row)
        row_squares += float(row.sum()) ** 2 / n
    correction = float(total.sum()) ** 2 / (seeds * n)
    samples = max(0.0, _square_sum(total) / seeds - correction)
    residual = max(0.0, squares - correction - samples - (row_squares - correction))
    if residual < 1e-12 * squares:
        residual = 0.0
    return residual / ((seeds - 1) * (n - 1)), samples / (n - 1)


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
