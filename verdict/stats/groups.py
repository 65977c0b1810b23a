"""What each group of training pairs is worth, from runs on random halves of the groups. Pure.

The metric of a run is taken as linear in the shares that its samples have of G groups: metric =
shares·worth, where worth_g is that of a run on group g alone. Since shares sum to 1 there is no
intercept. (Scheffé, Experiments with mixtures, JRSS B 20, 1958; datamodels: Ilyas et al., arXiv
2202.00622, with an indicator of each sample in the place of shares of groups.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from clipmill.manifests.arrays import FloatArray
from clipmill.verdict.stats.comparison import ALPHA, Family, dunnett_critical

RUNS_PER_GROUP = 2  # fewer leave too little to tell the noise by


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its interval of 1 - ALPHA."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGroup:
    """A group of training pairs: what a view of a pool keeps.

    name: POOL/VIEW. folder: of the pool. rule: the view's rules as they are written. rows: kept.
    """

    name: str
    folder: str
    view: str
    rule: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEffect:
    """What a group does to the metric, in its unit and direction.

    base, arm: its share of the samples of the baseline and of the arm. effect: the change when the
    baseline is trained without it; intervals hold for all groups together. gain: its part of what
    the arm gained on the baseline; share: that part over the whole, None where the arm has no clear
    gain and where the groups do not predict the measured one.
    """

    group: PairGroup
    base: float
    arm: float
    effect: Estimate
    gain: Estimate
    share: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCheck:
    """An arm's gain on its baseline as the groups predict it, and as its own runs show it.

    seeds: of these. outside: the share of its samples that is in no group. ratio: predicted over
    that of the arm that is explained, measured_ratio: the same of the runs; None for that arm and
    where it has no clear gain.
    """

    arm: str
    seeds: int
    outside: float
    predicted: Estimate
    measured: Estimate | None
    ratio: Estimate | None
    measured_ratio: Estimate | None

    @property
    def differs(self) -> bool:
        """Whether the intervals of what is predicted and of what was measured are apart."""
        one, other = self.predicted, self.measured
        return other is not None and (one.high < other.low or other.high < one.low)

    @property
    def is_overshot(self) -> bool:
        """Whether the groups predict clearly more of the same sign than was measured."""
        one, other = self.predicted.value, self.measured
        return self.differs and other is not None and 0 < other.value * one < one * one


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Why an arm is better than the baseline, by groups of training pairs.

    p: of such values where no group differs from another. rank: Spearman's correlation of predicted
    and measured metric over the `judges` mixtures that were left out; NaN where too few are left.
    ceiling: what the noise of
    their runs allows, NaN where it is not known.
    """

    arm: str
    baseline: str
    task: str
    metric: str
    unit: str
    mixtures: int
    seeds: int
    effects: tuple[GroupEffect, ...]
    arms: tuple[ArmCheck, ...]
    p: float
    judges: int
    rank: float | None
    ceiling: float | None

    @property
    def matters(self) -> bool:
        """Whether the runs show that groups differ at all."""
        return self.p < ALPHA

    @property
    def misses(self) -> ArmCheck | None:
        """The gain of the arm where the groups do not predict it. Where they predict less, or the
        opposite, it comes from what the arm selects inside of them. Where they predict more, the
        arm's shares are further away than a line holds.
        """
        return next((each for each in self.arms if each.arm == self.arm and each.differs), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """G numbers that were estimated together. df: degrees of freedom of their covariance."""

    worth_G: FloatArray
    covariance_GG: FloatArray
    df: int

    def at(self, shares_NG: FloatArray) -> FloatArray:
        """The metric of N mixtures."""
        return shares_NG @ self.worth_G

    def estimates(self, contrasts_NG: FloatArray) -> list[Estimate]:
        """contrasts·worth with intervals that hold for all N together (Šidák)."""
        count = max(1, int(contrasts_NG.any(axis=1).sum()))
        critical = dunnett_critical(ALPHA, self.df, Family(count, 0.0))
        variance_N = np.einsum("ng,gh,nh->n", contrasts_NG, self.covariance_GG, contrasts_NG)
        half_N = critical * np.sqrt(np.maximum(variance_N, 0.0))
        rows = []
        for value, half in zip(self.at(contrasts_NG).tolist(), half_N.tolist(), strict=True):
            rows.append(Estimate(value=value, low=value - half, high=value + half))
        return rows

    def ratio(self, part_G: FloatArray, whole_G: FloatArray) -> Estimate | None:
        """part·worth over whole·worth with Fieller's interval; None where the whole is not clearly
        different from 0, which leaves the ratio without bounds.
        """
        squared = dunnett_critical(ALPHA, self.df, Family(1)) ** 2
        part, whole = float(part_G @ self.worth_G), float(whole_G @ self.worth_G)
        # The ratios r for which (part - r whole)² is at most squared · its variance.
        square = whole**2 - squared * float(whole_G @ self.covariance_GG @ whole_G)
        middle = part * whole - squared * float(part_G @ self.covariance_GG @ whole_G)
        constant = part**2 - squared * float(part_G @ self.covariance_GG @ part_G)
        if not square > 0:
            return None
        root = math.sqrt(max(0.0, middle**2 - square * constant))
        low, high = (middle - root) / square, (middle + root) / square
        return Estimate(value=part / whole, low=low, high=high)


def fit_groups(shares_RG: FloatArray, value_R: FloatArray) -> LinearFit:
    """The worth of G groups by least squares: the metric of a run on each alone, as far as a line
    reaches. The residual holds the noise of the R mixtures and what a line misses.

    ValueError for too few mixtures, and for shares that cannot tell the groups apart.
    """
    runs, groups = shares_RG.shape
    if runs < RUNS_PER_GROUP * groups:
        raise ValueError(
            f"{runs} mixtures are too few for {groups} groups; {RUNS_PER_GROUP * groups} are "
            f"needed, better {4 * groups}"
        )
    if np.linalg.matrix_rank(shares_RG) < groups:
        raise ValueError("two groups always came together: their worth cannot be told apart")
    inverse_GG = np.linalg.inv(shares_RG.T @ shares_RG)
    worth_G = inverse_GG @ (shares_RG.T @ value_R)
    residual_R = value_R - shares_RG @ worth_G
    variance = float(residual_R @ residual_R) / (runs - groups)
    return LinearFit(worth_G=worth_G, covariance_GG=variance * inverse_GG, df=runs - groups)


def changed_shares(base_G: FloatArray, rows_G: FloatArray) -> FloatArray:
    """(G, G) the change of shares when group g is left out of a mixture, and the others share its
    samples as they share theirs; when all its rows are added, where the mixture has none of it.
    """
    inside = float(rows_G[base_G > 0].sum())
    new_G = np.where(base_G > 0, 0.0, rows_G / (inside + rows_G))
    left_G = np.where(base_G < 1, (1 - new_G) / np.where(base_G < 1, 1 - base_G, 1.0), 1.0)
    change_GG = (left_G - 1)[:, None] * base_G
    np.fill_diagonal(change_GG, np.where(base_G < 1, new_G - base_G, 0.0))
    return np.asarray(change_GG)


def parts_of_gain(base_G: FloatArray, arm_G: FloatArray) -> FloatArray:
    """(G, G) contrasts whose rows add up to arm - base: what each group has of the gain.

    In the linear model a row of weight w in the arm moves the metric by (w - 1)(worth - that of
    the base). The group that keeps most of its rows is taken to keep all: it has no part.
    """
    there_G = base_G > 0
    most = float((arm_G[there_G] / base_G[there_G]).max()) if there_G.any() else 0.0
    change_G = arm_G - most * base_G
    return np.asarray(change_G[:, None] * (np.eye(len(base_G)) - base_G))


def spearman(first_N: FloatArray, second_N: FloatArray) -> float:
    """The rank correlation; NaN where one of them does not vary."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (first_N, second_N)]
    if min(np.ptp(each) for each in ranks) == 0:
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])
