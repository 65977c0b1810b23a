"""Which blend of sources is best: a law of mixtures fitted to many small runs, and what it leaves
open. Pure.

The loss of a run on the shares x of S sources is taken as

    floor + span · exp(base + Σ slope_s · x_s^power)

With power 1 it is the mixing law of Ye et al. 2024 (arXiv 2403.16952), which is best at one source
alone. Below 1 the first samples of a source are worth more than its last ones, and the best blend
may hold several. Floor, power and the penalty of the slopes are those that predict runs best that
the law has not seen (leave one out), so a law is a few linear systems.
`benchmarks/studies/mixing_laws.py` compares the powers on RegMix's runs.

Nothing is predicted outside of what was run: every candidate is an average of mixtures that a run
had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from train.stats.comparison import ALPHA

FloatArray = NDArray[np.float64]

POWERS = (0.35, 0.5, 0.75, 1.0)
RIDGES = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # of the slopes
FLOORS = (0.05, 0.2, 0.5, 1.0, 3.0)  # below the least loss, in parts of the losses' range
COMMON_FLOOR = 0.3  # from which the errors of laws of all floors are compared, as logarithms
LARGEST_EXPONENT = 5.0  # far above every run: a bad extrapolation that does not overflow
CANDIDATES = 20_000
ROUNDS = 3  # of averages of the best candidates so far, a quarter as many in each
RESAMPLES = 200
SPARE_RUNS = 2  # that a law needs beyond the number of sources


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingLaw:
    """A law fitted to R mixtures of S sources.

    coefficients_K: base and slopes. least, span: smallest value and range of the losses. floor: in
    parts of `span`, below `least`. predicted_R: each loss by a law of the others. errors_R: those
    of the predictions, as logarithms of the loss above the floor.
    """

    power: float
    floor: float
    least: float
    span: float
    coefficients_K: FloatArray
    predicted_R: FloatArray
    errors_R: FloatArray

    def at(self, shares_NS: FloatArray, errors_N: FloatArray | float = 0.0) -> FloatArray:
        """The losses of N mixtures, with other errors in the logarithms if there are any."""
        exponents_N = _design(shares_NS, self.power) @ self.coefficients_K + errors_N
        above_N: FloatArray = np.exp(np.minimum(exponents_N, LARGEST_EXPONENT))
        return self.least + self.span * (above_N - self.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendChoice:
    """What a swarm says about its sources.

    shares: of the found blend. repeats: of each source's rows in a run of `samples` samples; None
    where rows or samples are not known. found, others: the mean of the targets that the blend and
    others are predicted to have. same_as: the named arms that have the found shares. measured: the
    mean of the runs of each named arm, also of those that are no mixture. regret, regret_high: how
    far the found blend may be from the best one, in the mean and with 95 %. skill: correlation of
    the values with their prediction by laws that had not seen them. p: of such values where the
    shares do not matter.
    """

    sources: tuple[str, ...]
    shares: tuple[float, ...]
    samples: int | None
    max_repeats: float | None
    repeats: tuple[float, ...] | None
    runs: int
    mixtures: int
    targets: tuple[str, ...]
    found: float
    others: dict[str, float]
    same_as: tuple[str, ...]
    measured: dict[str, float]
    regret: float
    regret_high: float
    skill: float
    p: float
    notes: tuple[str, ...]

    @property
    def matters(self) -> bool:
        """Whether the runs show that the shares matter at all."""
        return self.p < ALPHA


def _design(shares_NS: FloatArray, power: float) -> FloatArray:
    return np.hstack([np.ones((len(shares_NS), 1)), shares_NS**power])


def mean_of_seeds(shares_RS: FloatArray, losses_TR: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The M different mixtures of R runs as shares_MS, and losses_TM: means over runs of a mixture.

    Runs of one mixture are no further evidence of how the loss depends on the shares.
    """
    shares_MS, mixture_R = np.unique(shares_RS, axis=0, return_inverse=True)
    sums_TM = np.stack([np.bincount(mixture_R, weights=loss_R) for loss_R in losses_TR])
    return shares_MS, sums_TM / np.bincount(mixture_R)


def fit_laws(shares_RS: FloatArray, losses_BR: FloatArray) -> list[MixingLaw]:
    """The laws of B rows of losses of the same R different mixtures. ValueError for fewer mixtures
    than sources and two, and for losses that are all the same.
    """
    runs, sources = shares_RS.shape
    if runs < sources + SPARE_RUNS:
        raise ValueError(
            f"{runs} different mixtures are too few for {sources} sources; a law needs "
            f"{sources + SPARE_RUNS} at least, better {2 * sources} to {4 * sources}"
        )
    least_B1, span_B1 = losses_BR.min(axis=1, keepdims=True), np.ptp(losses_BR, axis=1)[:, None]
    if not (span_B1 > 0).all():
        raise ValueError("all mixtures have the same value")
    parts_BR = (losses_BR - least_B1) / span_B1
    wanted_BR = np.log(parts_BR + COMMON_FLOOR)
    lowest_B = np.full(len(losses_BR), np.inf)
    laws: list[MixingLaw | None] = [None] * len(losses_BR)
    for power, ridge, floor in product(POWERS, RIDGES, FLOORS):
        design_RK = _design(shares_RS, power)
        penalty_KK = ridge * np.diag([0.0] + [1.0] * sources)
        solver_KR = np.linalg.solve(design_RK.T @ design_RK + penalty_KK, design_RK.T)
        leverage_R = np.einsum("rk,kr->r", design_RK, solver_KR)
        target_BR = np.log(parts_BR + floor)
        coefficients_BK = target_BR @ solver_KR.T
        errors_BR = (target_BR - coefficients_BK @ design_RK.T) / (1 - leverage_R)
        predicted_BR = np.exp(np.minimum(target_BR - errors_BR, LARGEST_EXPONENT)) - floor
        misses_BR = np.log(np.maximum(predicted_BR + COMMON_FLOOR, 0.01)) - wanted_BR
        error_B = np.square(misses_BR).sum(axis=1)
        for b in np.flatnonzero(error_B < lowest_B):
            lowest_B[b] = error_B[b]
            least, span = float(least_B1[b, 0]), float(span_B1[b, 0])
            laws[b] = MixingLaw(
                power=power,
                floor=floor,
                least=least,
                span=span,
                coefficients_K=coefficients_BK[b],
                predicted_R=least + span * predicted_BR[b],
                errors_R=errors_BR[b],
            )
    return [law for law in laws if law is not None]


def refitted(
    laws: Sequence[MixingLaw], shares_RS: FloatArray, seed: int = 0
) -> list[tuple[MixingLaw, ...]]:
    """RESAMPLES refits of the laws of all targets, each to what they say of R mixtures with drawn
    errors. A mixture's errors of all targets are drawn together.
    """
    runs = len(shares_RS)
    drawn_BR = np.random.default_rng(seed).integers(0, runs, (RESAMPLES, runs))
    of_targets = []
    for law in laws:
        errors_R = law.errors_R - law.errors_R.mean()
        again_BR = np.stack([law.at(shares_RS, errors_R[drawn_R]) for drawn_R in drawn_BR])
        of_targets.append(fit_laws(shares_RS, again_BR))
    return list(zip(*of_targets, strict=True))


def losses_of(refits: Sequence[Sequence[MixingLaw]], shares_NS: FloatArray) -> FloatArray:
    """losses_BN: of N mixtures by B refits, mean over the laws of the targets."""
    return np.stack([np.mean([law.at(shares_NS) for law in laws], axis=0) for laws in refits])


def search(
    refits: Sequence[Sequence[MixingLaw]], candidates_CS: FloatArray, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """More candidates, averages of those that a refit or all together prefer, and losses_BC of all
    by the refits.
    """
    random = np.random.default_rng(seed)
    losses_BC = losses_of(refits, candidates_CS)
    for _ in range(ROUNDS):
        preferred = np.argsort(losses_BC.mean(axis=0))[: len(refits)]
        best = np.union1d(preferred, losses_BC.argmin(axis=1))
        more_CS = _averages(candidates_CS[best], 3, len(candidates_CS) // 4, random)
        candidates_CS = np.concatenate([candidates_CS, more_CS])
        losses_BC = np.hstack([losses_BC, losses_of(refits, more_CS)])
    return candidates_CS, losses_BC


def _averages(
    shares_NS: FloatArray, members: int, count: int, random: np.random.Generator
) -> FloatArray:
    """Averages of `members` mixtures each."""
    chosen_CM = random.integers(0, len(shares_NS), (count, members))
    weights_CM = random.dirichlet(np.full(members, 0.5), count)
    averages_CS: FloatArray = np.einsum("cm,cms->cs", weights_CM, shares_NS[chosen_CM])
    return averages_CS


def candidates_of(
    shares_RS: FloatArray, caps_S: FloatArray | None = None, seed: int = 0
) -> FloatArray:
    """Averages of mixtures that were run, the runs themselves too. `caps_S`: the largest share of
    each source; a candidate above it is drawn towards the average that is furthest below all caps,
    until it meets them. ValueError where no average is below them.
    """
    random = np.random.default_rng(seed)
    distinct_RS = np.unique(shares_RS, axis=0)
    averages_CS = _averages(distinct_RS, min(distinct_RS.shape), CANDIDATES, random)
    candidates_CS = np.concatenate([distinct_RS, averages_CS])
    if caps_S is None:
        return candidates_CS
    inside_S = _furthest_inside(distinct_RS, caps_S)
    ways_CS = candidates_CS - inside_S
    with np.errstate(divide="ignore", invalid="ignore"):
        steps_CS = np.where(ways_CS > 0, (caps_S - inside_S) / ways_CS, 1.0)
    steps_C1 = np.clip(steps_CS.min(axis=1, keepdims=True), 0, 1)
    within_CS: FloatArray = inside_S + steps_C1 * ways_CS
    return within_CS


def _furthest_inside(shares_RS: FloatArray, caps_S: FloatArray) -> FloatArray:
    """The average of mixtures whose largest share, in parts of its cap, is least."""
    from scipy.optimize import linprog

    runs, sources = shares_RS.shape
    solution = linprog(
        np.append(np.zeros(runs), 1.0),
        A_ub=np.hstack([shares_RS.T, -caps_S[:, None]]),
        b_ub=np.zeros(sources),
        A_eq=np.append(np.ones(runs), 0.0)[None],
        b_eq=[1.0],
    )
    if not solution.success or solution.x[-1] > 1:
        raise ValueError(
            "no average of the mixtures that were run keeps every source below its largest share; "
            "allow more repeats, or fewer samples"
        )
    inside_S: FloatArray = solution.x[:-1] @ shares_RS
    return inside_S


def p_of_weights(shares_RS: FloatArray, loss_R: FloatArray) -> float:
    """The probability of values that follow a line in the shares so well where the shares do not
    matter (F test of a linear model); 1 where there are too few runs to tell.
    """
    from scipy.stats import f as f_distribution

    solution, _, rank, _ = np.linalg.lstsq(shares_RS, loss_R, rcond=None)
    free = len(loss_R) - rank
    if free < 1 or rank < 2:
        return 1.0
    left = float(np.square(loss_R - shares_RS @ solution).sum())
    whole = float(np.square(loss_R - loss_R.mean()).sum())
    if left <= 0:
        return 0.0
    ratio = (whole - left) / (rank - 1) / (left / free)
    return float(f_distribution.sf(ratio, rank - 1, free))
