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

The law has no term for two sources that need or spoil each other, and one power for all sources. So
what it says is compared with a wider model: beside the law each pair of sources adds a normal
coefficient times the product of their shares. Whether the runs ask for pairs is a test of the
variance of these coefficients (the restricted likelihood ratio of Crainiceanu and Ruppert 2004,
doi 10.1111/j.1467-9868.2004.00438.x). Whether they do or not, a bound on what a blend may be worse
than another one is taken from draws of the wider model, in which each source has a curve of its own
too, and all this adds as much to a mixture as the noise of a run at least: a test that finds
nothing in few runs is no evidence of a law without pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from clipmill.manifests.arrays import FloatArray, Integers
from clipmill.verdict.stats.comparison import ALPHA

POWERS = (0.35, 0.5, 0.75, 1.0)
RIDGES = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # of the slopes
FLOORS = (0.05, 0.2, 0.5, 1.0, 3.0)  # below the least loss, in parts of the losses' range
COMMON_FLOOR = 0.3  # from which the errors of laws of all floors are compared, as logarithms
LARGEST_EXPONENT = 5.0  # far above every run: a bad extrapolation that does not overflow
CANDIDATES = 20_000
ROUNDS = 3  # of averages of the best candidates so far, a quarter as many in each
RESAMPLES = 200
SPARE_RUNS = 2  # that a law needs beyond the number of sources

# The variance that pairs and curves of sources add to a mixture, in parts of the noise of a run.
ADDED = np.array([0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0])
LEAST_IN_BOUND = 1.0  # such a part is the least of a bound
IN_BOUND = 0.975  # of the draws of wider laws: 0.95 of them hold in 0.92 of simulated swarms
CURVES = (0.35, 1.0, 2.0)  # powers of the shares, each with a coefficient of its own
CLEAR = 0.95  # a probability
CENTRES = RESAMPLES // 10  # refits of the law with pairs and curves beside them
DRAWS = 10  # of each
NULL_DRAWS = 10_000
# Degrees of freedom that a test of the law needs: of the residuals, or of runs of one mixture.
LEAST_FREE = 8
LEAST_REPEATS = 4


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

    @property
    def bottom(self) -> float:
        """The loss that no mixture reaches."""
        return self.least - self.span * self.floor

    def at(self, shares_NS: FloatArray, errors_N: FloatArray | float = 0.0) -> FloatArray:
        """The losses of N mixtures, with other errors in the logarithms if there are any."""
        return self.bottom + self.height(shares_NS**self.power, errors_N)

    def height(self, powers_NS: FloatArray, errors_N: FloatArray | float = 0.0) -> FloatArray:
        """The losses above the bottom, of shares to the power of the law."""
        exponents_N = powers_NS @ self.coefficients_K[1:] + (self.coefficients_K[0] + errors_N)
        above_N: FloatArray = np.exp(np.minimum(exponents_N, LARGEST_EXPONENT))
        return self.span * above_N


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendChoice:
    """What a swarm says about its sources.

    shares: of the found blend. recommended: `found`, or the run whose mixture to take instead.
    best_run: the run with the best measured value within the limit on repeats, None where no run is
    within it; best_shares, best_value: its mixture, and the mean of the runs of that mixture.
    p_better: the probability that the found blend is better than it, by draws of the law with pairs
    and curves of sources beside it, which take from the measured value what choosing it adds.
    p_fit: the probability of what the law leaves over where it holds; fits: whether it is 0.05 or
    more. advice: what to take and why, in sentences.

    repeats: of each source's rows in a run of `samples` samples; None where rows or samples are not
    known. found, others: the mean of the targets that the blend and others are predicted to have.
    same_as: the named arms that have the found shares. measured: the mean of the runs of each named
    arm, also of those that are no mixture. regret, regret_high: how far the found blend may be from
    the best one, in the mean and with 95 %, by the law alone and by the wider one, whichever is
    more. p_fit, fits, regret and regret_high are None with
    too few runs to test the law. skill: correlation of the values with their prediction by laws
    that had not seen them. p: of such values where the shares do not matter. left_out: runs without
    a value.
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
    recommended: str
    best_run: str | None
    best_shares: tuple[float, ...] | None
    best_value: float | None
    p_better: float | None
    fits: bool | None
    p_fit: float | None
    advice: tuple[str, ...]
    regret: float | None
    regret_high: float | None
    skill: float
    p: float
    notes: tuple[str, ...]
    left_out: int = 0

    @property
    def matters(self) -> bool:
        """Whether the runs show that the shares matter at all, in a line or otherwise."""
        return self.p < ALPHA or self.fits is False


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderLaws:
    """B draws of a law with changes of its coefficients, and with E further terms beside it: the
    products of each two shares, and the powers `curves` of each share times `scale`.
    """

    law: MixingLaw
    changes_BK: FloatArray
    terms_BE: FloatArray
    curves: tuple[float, ...]
    scale: float

    def at(self, shares_NS: FloatArray) -> FloatArray:
        """losses_BN of N mixtures, linear in the changes and the terms."""
        powers_NS = shares_NS**self.law.power
        moved_BN = self.changes_BK[:, 1:] @ powers_NS.T + self.changes_BK[:, :1]
        moved_BN += self.terms_BE @ _terms(shares_NS, self.curves, self.scale).T
        return self.law.bottom + self.law.height(powers_NS) * (1 + moved_BN)


def _terms(shares_NS: FloatArray, curves: Sequence[float], scale: float) -> FloatArray:
    first_P, second_P = np.triu_indices(shares_NS.shape[1], 1)
    powers = [scale * shares_NS**power for power in curves]
    return np.hstack([shares_NS[:, first_P] * shares_NS[:, second_P], *powers])


def _design(shares_NS: FloatArray, power: float) -> FloatArray:
    return np.hstack([np.ones((len(shares_NS), 1)), shares_NS**power])


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureMeans:
    """The M different mixtures of R runs. losses_TM: means over the runs of a mixture. mixture_R:
    which one a run had. repeated: degrees of freedom of runs of one mixture. spread_T: the sum of
    their squares.

    Runs of one mixture are no further evidence of how the loss depends on the shares.
    """

    shares_MS: FloatArray
    losses_TM: FloatArray
    mixture_R: Integers
    repeated: int
    spread_T: FloatArray

    @property
    def runs_M(self) -> FloatArray:
        return np.bincount(self.mixture_R).astype(float)


def mean_of_seeds(shares_RS: FloatArray, losses_TR: FloatArray) -> MixtureMeans:
    """The different mixtures of R runs."""
    shares_MS, mixture_R = np.unique(shares_RS, axis=0, return_inverse=True)
    sums_TM = np.stack([np.bincount(mixture_R, weights=loss_R) for loss_R in losses_TR])
    losses_TM = sums_TM / np.bincount(mixture_R)
    return MixtureMeans(
        shares_MS=shares_MS,
        losses_TM=losses_TM,
        mixture_R=mixture_R,
        repeated=len(shares_RS) - len(shares_MS),
        spread_T=np.square(losses_TR - losses_TM[:, mixture_R]).sum(axis=1),
    )


def fit_laws(
    shares_RS: FloatArray,
    losses_BR: FloatArray,
    powers: Sequence[float] | None = None,
    floors: Sequence[float] | None = None,
) -> list[MixingLaw]:
    """The laws of B rows of losses of the same R different mixtures, of POWERS and FLOORS unless
    others are given. ValueError for fewer mixtures than sources and two, and for losses that are
    all the same.
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
    for power, ridge, floor in product(powers or POWERS, RIDGES, floors or FLOORS):
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
    powers = {power: shares_NS**power for power in {law.power for laws in refits for law in laws}}
    losses = []
    for laws in refits:
        of_laws = [law.bottom + law.height(powers[law.power]) for law in laws]
        losses.append(np.mean(of_laws, axis=0))
    return np.stack(losses)


def search(
    losses_at: Callable[[FloatArray], FloatArray], candidates_CS: FloatArray, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """More candidates, averages of those that one of B predictions or all together prefer, and
    losses_BC of all. losses_at: the losses_BN of N mixtures.
    """
    random = np.random.default_rng(seed)
    losses_BC = losses_at(candidates_CS)
    for _ in range(ROUNDS):
        preferred = np.argsort(losses_BC.mean(axis=0))[: len(losses_BC)]
        best = np.union1d(preferred, losses_BC.argmin(axis=1))
        more_CS = _averages(candidates_CS[best], 3, len(candidates_CS) // 4, random)
        candidates_CS = np.concatenate([candidates_CS, more_CS])
        losses_BC = np.hstack([losses_BC, losses_at(more_CS)])
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


# --- what the law leaves out ----------------------------------------------------------------------


class Misfit:
    """What M mixtures have beside a law: their residuals, as far as a change of its coefficients
    cannot explain them, seen along the directions in which pairs of sources, and curves of each of
    them if there are any, move them.

    free: degrees of freedom of the residuals left_M. terms: pairs and curves. Mixtures weigh as the
    number of their runs. Curves of all sources have the same part in mixtures as all pairs.
    """

    def __init__(
        self, law: MixingLaw, mixtures: MixtureMeans, target: int, curves: tuple[float, ...] = ()
    ) -> None:
        self._law, self._curves, self._scale = law, curves, 1.0
        shares_MS = mixtures.shares_MS
        weights_M = np.sqrt(mixtures.runs_M)
        self._left_M = weights_M * (mixtures.losses_TM[target] - law.at(shares_MS))
        height_M1 = (weights_M * law.height(shares_MS**law.power))[:, None]
        change_MK = height_M1 * _design(shares_MS, law.power)
        self._inverse_KM = np.linalg.pinv(change_MK, rcond=1e-9)
        explained_MM = change_MK @ self._inverse_KM
        self.free = len(shares_MS) - round(float(np.trace(explained_MM)))
        self._terms_ME = height_M1 * _terms(shares_MS, curves, 1.0)
        self.terms = self._terms_ME.shape[1]
        added_ME = self._terms_ME - explained_MM @ self._terms_ME
        pairs = self.terms - len(curves) * shares_MS.shape[1]
        of_pairs, of_curves = np.square(added_ME[:, :pairs]), np.square(added_ME[:, pairs:])
        if of_curves.sum():
            self._scale = math.sqrt(of_pairs.sum() / of_curves.sum())
            added_ME[:, pairs:] *= self._scale
            self._terms_ME[:, pairs:] *= self._scale
        self.left_M = left_M = self._left_M - explained_MM @ self._left_M
        self._along_MD, lengths_D, self._terms_DE = np.linalg.svd(added_ME, full_matrices=False)
        self._terms_DE *= lengths_D[:, None]
        self._mean = float(np.square(lengths_D).sum()) / max(self.free, 1)
        self._parts_D = np.square(lengths_D) / self._mean if self._mean else 0 * lengths_D
        self._squares_D = np.square(self._along_MD.T @ left_M)
        self._squares_D[self._parts_D < 1e-12] = 0.0
        self.squares = float(np.square(left_M).sum())
        self._spread = float(mixtures.spread_T[target])
        self._repeated = mixtures.repeated if self._spread else 0  # copies of a run say nothing

    def p(self) -> float | None:
        """The probability of such residuals where the law holds; None for too few to tell.

        With runs of one mixture it is the F test against their spread, which sees all that the law
        lacks; without them the test of pairs, whose null distribution is drawn.
        """
        from scipy.stats import f as f_distribution

        if self._repeated >= LEAST_REPEATS and self.free:
            ratio = self.squares / self.free / (self._spread / self._repeated)
            return float(f_distribution.sf(ratio, self.free, self._repeated))
        if self.free < LEAST_FREE:
            return None
        random = np.random.default_rng(0)
        drawn_ND = np.square(random.standard_normal((NULL_DRAWS, len(self._parts_D))))
        drawn_ND[:, self._parts_D < 1e-12] = 0.0
        # degrees of freedom that the terms do not move
        others = self.free - int((self._parts_D >= 1e-12).sum()) + self._repeated
        rest_N = random.chisquare(others, NULL_DRAWS) if others else np.zeros(NULL_DRAWS)
        null_N = self._ratio(drawn_ND, rest_N)
        own = self._ratio(self._squares_D[None], np.array([self._unmoved_squares()]))[0]
        return float((1 + (null_N >= own - 1e-9).sum()) / (1 + NULL_DRAWS))

    def draws(
        self, terms_BE: FloatArray, noise_BM: FloatArray, least: float, seed: int
    ) -> WiderLaws:
        """Draws from the posterior of the law's coefficients and those of the terms, made of
        standard normal ones. The variance that the terms add has equal prior weights on ADDED from
        `least` on.
        """
        random = np.random.default_rng(seed)
        level_B = random.uniform(size=len(terms_BE))
        freedom = self.free + self._repeated
        heavy_B = freedom / random.chisquare(freedom, len(terms_BE))
        squares_1D, rest_1 = self._squares_D[None], np.array([self._unmoved_squares()])
        allowed_Q = np.greater_equal(ADDED, least)
        likelihood_Q = self._likelihood(squares_1D, rest_1)[0][allowed_Q]
        weights_Q = np.exp(likelihood_Q - likelihood_Q.max())
        chosen_B = np.searchsorted(np.cumsum(weights_Q / weights_Q.sum()), level_B)
        part_B = ADDED[allowed_Q][np.minimum(chosen_B, len(weights_Q) - 1)]
        variance_B = heavy_B * self._variance(squares_1D, rest_1, part_B)[0]
        of_term_B = part_B / self._mean if self._mean else 0 * part_B
        terms_BE = np.sqrt(of_term_B * variance_B)[:, None] * terms_BE
        noise_BM = np.sqrt(variance_B)[:, None] * noise_BM
        # Matheron's rule: draws from the prior, moved by what the data says of their error.
        errors_BM = self._left_M - noise_BM - terms_BE @ self._terms_ME.T
        along_BD = errors_BM @ self._along_MD
        along_BD *= of_term_B[:, None] / (1 + part_B[:, None] * self._parts_D)
        moved_BE = along_BD @ self._terms_DE
        return WiderLaws(
            law=self._law,
            changes_BK=(errors_BM - moved_BE @ self._terms_ME.T) @ self._inverse_KM.T,
            terms_BE=terms_BE + moved_BE,
            curves=self._curves,
            scale=self._scale,
        )

    def _unmoved_squares(self) -> float:
        """The squares that the terms do not move."""
        return max(self.squares - float(self._squares_D.sum()), 0.0) + self._spread

    def _variance(
        self, squares_ND: FloatArray, rest_N: FloatArray, part_Q: FloatArray
    ) -> FloatArray:
        """variance_NQ of a run's noise, at Q parts."""
        along_NQ = squares_ND @ (1 / (1 + np.outer(self._parts_D, part_Q)))
        tiny = 1e-20 * self._law.span**2
        variance_NQ: FloatArray = (along_NQ + rest_N[:, None] + tiny) / (self.free + self._repeated)
        return variance_NQ

    def _likelihood(self, squares_ND: FloatArray, rest_N: FloatArray) -> FloatArray:
        """The restricted logarithmic likelihood_NQ at ADDED, at the best variance of each."""
        variance_NQ = self._variance(squares_ND, rest_N, ADDED)
        volume_Q = np.log1p(np.outer(self._parts_D, ADDED)).sum(axis=0)
        likelihood_NQ: FloatArray = -0.5 * (
            (self.free + self._repeated) * np.log(variance_NQ) + volume_Q
        )
        return likelihood_NQ

    def _ratio(self, squares_ND: FloatArray, rest_N: FloatArray) -> FloatArray:
        likelihood_NQ = self._likelihood(squares_ND, rest_N)
        ratio_N: FloatArray = likelihood_NQ.max(axis=1) - likelihood_NQ[:, 0]
        return ratio_N


def p_of_misfit(laws: Sequence[MixingLaw], mixtures: MixtureMeans) -> float | None:
    """The probability of what the laws of the targets leave over where all of them hold: the least
    of the targets, times their number. None where there are too few runs to test.
    """
    found = [Misfit(law, mixtures, target).p() for target, law in enumerate(laws)]
    known = [p for p in found if p is not None]
    return min(1.0, len(laws) * min(known)) if len(known) == len(laws) else None


def misfits(
    refits: Sequence[Sequence[MixingLaw]], mixtures: MixtureMeans
) -> list[tuple[Misfit, ...]]:
    """What mixtures have beside CENTRES of the refits of all targets, curves of each source too."""
    made = []
    for laws in refits[:: max(len(refits) // CENTRES, 1)]:
        made.append(tuple(Misfit(law, mixtures, t, CURVES) for t, law in enumerate(laws)))
    return made


def wider_laws(
    centres: Sequence[Sequence[Misfit]], least: float, seed: int = 0
) -> list[tuple[WiderLaws, ...]]:
    """DRAWS around each centre: laws of all targets with pairs and curves of sources beside them.
    The noise of the targets, and their terms, are correlated as the residuals of the centre are.
    """
    random = np.random.default_rng(seed)
    made = []
    for number, centre in enumerate(centres):
        terms_TBE = random.standard_normal((len(centre), DRAWS, centre[0].terms))
        noise_TBM = random.standard_normal((len(centre), DRAWS, len(centre[0].left_M)))
        of_targets = []
        for misfit, mixed_T in zip(centre, _root([one.left_M for one in centre]), strict=True):
            terms_BE = np.tensordot(mixed_T, terms_TBE, 1)
            noise_BM = np.tensordot(mixed_T, noise_TBM, 1)
            of_targets.append(misfit.draws(terms_BE, noise_BM, least, number))
        made.append(tuple(of_targets))
    return made


def losses_of_wider(drawn: Sequence[Sequence[WiderLaws]], shares_NS: FloatArray) -> FloatArray:
    """losses_BN: of N mixtures by all draws around all centres, mean over the targets."""
    return np.concatenate([np.mean([laws.at(shares_NS) for laws in one], axis=0) for one in drawn])


def _root(residuals: Sequence[FloatArray]) -> FloatArray:
    """root_TT whose square is the correlation of T rows of residuals."""
    left_TM = np.stack(residuals)
    lengths_T1 = np.sqrt(np.square(left_TM).sum(axis=1, keepdims=True))
    parts_TM = left_TM / np.where(lengths_T1 > 0, lengths_T1, 1.0)
    correlation_TT = parts_TM @ parts_TM.T
    np.fill_diagonal(correlation_TT, 1.0)
    values_T, vectors_TT = np.linalg.eigh(correlation_TT)
    root_TT: FloatArray = (vectors_TT * np.sqrt(np.maximum(values_T, 0.0))) @ vectors_TT.T
    return root_TT


def p_of_better(
    centres: Sequence[Sequence[Misfit]], shares_S: FloatArray, other_S: FloatArray
) -> float:
    """The probability that a mixture is better than another one, by the wider laws. The value of a
    run is a part of their evidence, so the best of many measured values is not taken at its word.
    """
    losses_B2 = losses_of_wider(wider_laws(centres, least=0.0), np.stack([shares_S, other_S]))
    gain_B = losses_B2[:, 1] - losses_B2[:, 0]
    return float(np.mean(gain_B > 0) + np.mean(gain_B == 0) / 2)


def regrets(
    centres: Sequence[Sequence[Misfit]],
    candidates_CS: FloatArray,
    losses_BC: FloatArray,
) -> tuple[float, float]:
    """How far the candidate that the refits prefer is from the best average of candidates, in the
    mean and with 95 %: by the law alone, whose refits say losses_BC, or by the wider ones, whatever
    is more. The first candidates are the mixtures that were run.
    """
    best = int(np.argmin(losses_BC.mean(axis=0)))
    # The runs, and a part of the averages; the last ones are near to what the refits prefer.
    runs_CS, averages_CS = np.split(candidates_CS, [len(centres[0][0].left_M)])
    some_CS = np.concatenate([runs_CS, averages_CS[::4], candidates_CS[[best]]])
    losses_at = partial(losses_of_wider, wider_laws(centres, LEAST_IN_BOUND))
    wider_BC = search(losses_at, some_CS)[1]
    of_law_B = losses_BC[:, best] - losses_BC.min(axis=1)
    of_wider_B = wider_BC[:, len(some_CS) - 1] - wider_BC.min(axis=1)
    mean = max(float(of_law_B.mean()), float(of_wider_B.mean()))
    high = max(float(np.quantile(of_law_B, 0.95)), float(np.quantile(of_wider_B, IN_BOUND)))
    return mean, max(mean, high)


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
