"""Which blend of sources is best: a law of mixtures fitted to many small runs, and what it leaves
open. Pure.

The loss of a run on the shares x of S sources is taken as floor + exp(w·x) (the mixing law of Ye et
al. 2024, arXiv 2403.16952, with its factor inside w, because shares sum to 1). Nothing is predicted
outside of what was run: every candidate is an average of mixtures that a run had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # of the slopes; one is chosen by cross-validation
FOLDS = 8
STARTS = (0.05, 0.3, 1.0)  # the floor below the least loss, in parts of the losses' range
CANDIDATES = 20_000
RESAMPLES = 200
SPARE_RUNS = 2  # that a law needs beyond the number of sources


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingLaw:
    """loss(x) = floor + span · exp(x·slopes). slopes_S: of the sources; ridge: its penalty.

    predicted_R: of each run by a law of the other folds.
    """

    floor: float
    span: float
    slopes_S: FloatArray
    ridge: float
    predicted_R: FloatArray

    def at(self, shares_NS: FloatArray) -> FloatArray:
        """The losses of N mixtures."""
        return self.floor + self.span * np.exp(shares_NS @ self.slopes_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMixture:
    """The mixture whose loss is least in the mean over refitted laws.

    shares_S: of the sources. loss, low, high: its predicted loss, mean over the targets, with a
    95 % interval over runs. regret, regret_high: how far its loss may be above that of the best
    candidate, in the mean and with 95 %.
    """

    shares_S: FloatArray
    loss: float
    low: float
    high: float
    regret: float
    regret_high: float


def fit_law(shares_RS: FloatArray, loss_R: FloatArray) -> MixingLaw:
    """The law of R runs. ValueError for fewer runs than sources and two, and for losses that are
    all the same.
    """
    runs, sources = shares_RS.shape
    if runs < sources + SPARE_RUNS:
        raise ValueError(
            f"{runs} runs are too few for {sources} sources; a law needs {sources + SPARE_RUNS} at "
            f"least, better {2 * sources} to {4 * sources}"
        )
    if not np.ptp(loss_R) > 0:
        raise ValueError("all runs have the same value")
    fold_R = np.arange(runs) % min(FOLDS, runs)
    trials = []
    for ridge in RIDGES:
        predicted_R = np.empty(runs)
        for fold in range(fold_R.max() + 1):
            left_out_R = fold_R == fold
            law = _fit(shares_RS[~left_out_R], loss_R[~left_out_R], ridge, STARTS[1:2])
            predicted_R[left_out_R] = law.at(shares_RS[left_out_R])
        trials.append((float(np.square(predicted_R - loss_R).sum()), ridge, predicted_R))
    _, ridge, predicted_R = min(trials, key=lambda trial: trial[0])
    law = _fit(shares_RS, loss_R, ridge, STARTS)
    return MixingLaw(
        floor=law.floor,
        span=law.span,
        slopes_S=law.slopes_S,
        ridge=ridge,
        predicted_R=predicted_R,
    )


def _fit(
    shares_RS: FloatArray, loss_R: FloatArray, ridge: float, starts: Sequence[float]
) -> MixingLaw:
    """Penalised least squares in the losses themselves, from several floors."""
    from scipy.optimize import least_squares

    runs, sources = shares_RS.shape
    least, span = float(loss_R.min()), float(np.ptp(loss_R)) or 1.0
    root = np.sqrt(ridge)
    centred_SS = root * (np.eye(sources) - 1 / sources)

    def residuals(values: FloatArray) -> FloatArray:
        below, slopes_S = np.exp(values[0]), values[1:]
        of_runs = (least - loss_R) / span - below + np.exp(shares_RS @ slopes_S)
        return np.concatenate([of_runs, centred_SS @ slopes_S, [root * values[0]]])

    def jacobian(values: FloatArray) -> FloatArray:
        derivatives = np.zeros((runs + sources + 1, sources + 1))
        derivatives[:runs, 0] = -np.exp(values[0])
        derivatives[:runs, 1:] = np.exp(shares_RS @ values[1:])[:, None] * shares_RS
        derivatives[runs:-1, 1:] = centred_SS
        derivatives[-1, 0] = root
        return derivatives

    solutions = []
    for below in starts:
        # The law is linear in the logarithm of the loss above its floor, weighted by that loss.
        above_R = (loss_R - least) / span + below
        weighted_RS, middle = shares_RS * above_R[:, None], float(np.log(above_R).mean())
        normal_SS = weighted_RS.T @ weighted_RS + 0.01 * np.eye(sources)
        slopes_S = np.linalg.solve(
            normal_SS, weighted_RS.T @ ((np.log(above_R) - middle) * above_R)
        )
        start = np.concatenate([[np.log(below)], middle + slopes_S])
        solutions.append(least_squares(residuals, start, jac=jacobian, max_nfev=100))
    best = min(solutions, key=lambda solution: float(solution.cost))
    return MixingLaw(
        floor=least - span * float(np.exp(best.x[0])),
        span=span,
        slopes_S=best.x[1:],
        ridge=ridge,
        predicted_R=np.empty(0),
    )


def candidates_of(
    shares_RS: FloatArray, caps_S: FloatArray | None = None, seed: int = 0
) -> FloatArray:
    """Averages of mixtures that were run, the runs themselves too; within `caps_S`, the largest
    share of each source. ValueError where no average is.
    """
    random = np.random.default_rng(seed)
    distinct_RS = np.unique(shares_RS, axis=0)
    runs, sources = distinct_RS.shape
    members = min(runs, sources)
    chosen_CM = random.integers(0, runs, (CANDIDATES, members))
    weights_CM = random.dirichlet(np.full(members, 0.5), CANDIDATES)
    averages_CS = np.einsum("cm,cms->cs", weights_CM, distinct_RS[chosen_CM])
    candidates_CS = np.concatenate([distinct_RS, averages_CS])
    if caps_S is None:
        return candidates_CS
    within_C = (candidates_CS <= caps_S + 1e-9).all(axis=1)
    if not within_C.any():
        raise ValueError(
            "no average of the mixtures that were run keeps every source below its largest share; "
            "allow more repeats, or fewer samples"
        )
    return candidates_CS[within_C]


def refitted(
    laws: Sequence[MixingLaw], shares_RS: FloatArray, losses_TR: FloatArray, seed: int = 0
) -> list[tuple[MixingLaw, ...]]:
    """The laws of the targets in a bootstrap over mixtures: runs of one mixture stay together. The
    ridges are those of `laws`.
    """
    random = np.random.default_rng(seed)
    _, group_R = np.unique(shares_RS, axis=0, return_inverse=True)
    groups = int(group_R.max()) + 1
    resamples = []
    for _ in range(RESAMPLES):
        drawn = random.integers(0, groups, groups)
        rows = np.concatenate([np.flatnonzero(group_R == group) for group in drawn])
        resamples.append(
            tuple(
                _fit(shares_RS[rows], loss_R[rows], law.ridge, STARTS[1:2])
                for law, loss_R in zip(laws, losses_TR, strict=True)
            )
        )
    return resamples


def mean_losses(laws: Sequence[MixingLaw], shares_NS: FloatArray) -> FloatArray:
    """The losses of N mixtures, mean over the laws of the targets."""
    losses: FloatArray = np.mean([law.at(shares_NS) for law in laws], axis=0)
    return losses


def best_mixture(
    resamples: Sequence[Sequence[MixingLaw]], candidates_CS: FloatArray
) -> BestMixture:
    """The best candidate over all resamples, which a law that fits by chance does not decide."""
    losses_BC = np.stack([mean_losses(laws, candidates_CS) for laws in resamples])
    best = int(np.argmin(losses_BC.mean(axis=0)))
    regrets_B = losses_BC[:, best] - losses_BC.min(axis=1)
    low, high = np.quantile(losses_BC[:, best], [0.025, 0.975])
    return BestMixture(
        shares_S=candidates_CS[best],
        loss=float(losses_BC[:, best].mean()),
        low=float(low),
        high=float(high),
        regret=float(regrets_B.mean()),
        regret_high=float(np.quantile(regrets_B, 0.95)),
    )


def p_of_weights(shares_RS: FloatArray, loss_R: FloatArray) -> float:
    """The probability of values that follow a line in the shares so well where the shares do not
    matter (F test of a linear model with S - 1 slopes).
    """
    from scipy.stats import f as f_distribution

    runs, sources = shares_RS.shape
    free = runs - sources
    if free < 1:
        return 1.0
    solution, *_ = np.linalg.lstsq(shares_RS, loss_R, rcond=None)
    left = float(np.square(loss_R - shares_RS @ solution).sum())
    whole = float(np.square(loss_R - loss_R.mean()).sum())
    if left <= 0:
        return 0.0
    ratio = (whole - left) / (sources - 1) / (left / free)
    return float(f_distribution.sf(ratio, sources - 1, free))
