"""One additive model for all runs of an ablation: value = arm + seed + residual. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
        return self.joint_factor(arm, baseline, arm, baseline)

    def joint_factor(self, arm: str, baseline: str, other: str, others_baseline: str) -> float:
        """Covariance of two estimates over the variance of one run's residual."""
        first, second = self._contrast(arm, baseline), self._contrast(other, others_baseline)
        return float(first @ self.covariance @ second)

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
