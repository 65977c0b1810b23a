"""Many arms against one baseline: critical values and adjusted p values after Dunnett. Pure.

The statistics T_i = (√(1 − λ_i²) X_i + λ_i Z) / s have the correlations λ_i λ_j and one shared
standard deviation s (a chi over the root of its degrees of freedom). Both the common factor Z and
s are integrated by Gauss-Legendre quadrature; the error is below 1e-10.
Source: Dunnett, A multiple comparison procedure for comparing several treatments with a control,
JASA 50 (1955) and New tables, Biometrics 20 (1964).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

Array = np.ndarray

FACTOR_END = 8.8  # the normal density beyond it holds 1e-18
PANEL = 16  # Gauss-Legendre nodes in each panel
TABLE_END = 9.5  # a normal variable exceeds it with probability 1e-21
PANEL_WIDTH = 0.6  # of log s
FACTOR_PANEL = 2.2  # of z
MOST_ARMS = 1000
LARGE_DF = 1e7  # beyond it, the normal distribution is exact to 1e-8 of p


def equal_loadings(arms: int, correlation: float = 0.5) -> tuple[float, ...]:
    """The loadings λ of `arms` comparisons that all have one correlation (0.5: equal numbers).

    ValueError for a correlation outside 0..1 or no arm.
    """
    if arms < 1:
        raise ValueError(f"a comparison needs at least 1 arm beside the baseline; got {arms}")
    if not 0 <= correlation < 1:
        raise ValueError(f"a correlation of comparisons is in 0..1 (1 excluded); got {correlation}")
    return (math.sqrt(correlation),) * arms


def dunnett_p(t: float, df: float, loadings: Sequence[float], *, sides: int = 2) -> float:
    """Adjusted p: the probability that the largest of the statistics exceeds `t`.

    t: the statistic, a difference over its standard error; two-sided tests use |t|.
    df: degrees of freedom of the shared variance, 1 to infinity.
    loadings: λ of every comparison of the family, in -1..1.
    ValueError for a df below 1, loadings outside the range, or a t that is not a number.
    """
    _check(df, loadings, sides)
    if math.isnan(t):
        raise ValueError("the statistic t is not a number")
    if sides == 2:
        t = abs(t)
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    return _exceedance(float(t), float(df), tuple(sorted(loadings)), sides)


@functools.lru_cache(maxsize=1024)
def _exceedance(t: float, df: float, loadings: tuple[float, ...], sides: int) -> float:
    s, weights, mass_below = chi_nodes(df, 1 + abs(t))
    above = _exceedance_normal(t * s, loadings, sides)
    total = float(weights @ above)
    if mass_below:  # below the first node, T is so small that its sign alone matters
        total += mass_below * float(_exceedance_normal(t * s[:1], loadings, sides)[0])
    return min(1.0, max(0.0, total))


@functools.lru_cache(maxsize=4096)
def dunnett_critical(alpha: float, df: float, loadings: tuple[float, ...], sides: int = 2) -> float:
    """The t that the largest statistic exceeds with probability alpha; half-width over its error.

    alpha: in 0..1; two-sided (sides=2) or one-sided (sides=1). The rest as in `dunnett_p`.
    """
    from scipy.optimize import brentq

    _check(df, loadings, sides)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is between 0 and 1; got {alpha}")
    one = _student_quantile(alpha / sides, df)
    if len(loadings) == 1:
        return one
    # One comparison alone is a lower bound of the quantile, Bonferroni an upper one.
    most = _student_quantile(alpha / sides / len(loadings), df)
    ordered = tuple(sorted(loadings))

    # The inner integral is tabulated once for all degrees of freedom: its error, 1e-13, is small
    # beside an alpha, but not beside the smallest p values.
    coefficients = _exceedance_table(ordered, sides)
    s, weights, mass_below = chi_nodes(float(df), most)

    def excess(log_t: float) -> float:  # almost linear for few degrees of freedom
        x = np.minimum(math.exp(log_t) * s, TABLE_END)
        above = np.polynomial.chebyshev.chebval(x * (2 / TABLE_END) - 1, coefficients)
        return math.log((float(weights @ above) + mass_below * float(above[0])) / alpha)

    low, high = math.log(one * (1 - 1e-6)), math.log(most * (1 + 1e-6))
    return math.exp(brentq(excess, low, high, xtol=1e-11, rtol=1e-12))


def _student_quantile(tail: float, df: float) -> float:
    from scipy.special import ndtri, stdtrit

    if df > LARGE_DF:
        return float(-ndtri(tail))
    return float(-stdtrit(df, tail))


def _check(df: float, loadings: Sequence[float], sides: int) -> None:
    if not df >= 1:
        raise ValueError(f"degrees of freedom are at least 1; got {df}")
    if not 1 <= len(loadings) <= MOST_ARMS:
        raise ValueError(f"a family has 1 to {MOST_ARMS} comparisons; got {len(loadings)}")
    wrong = [x for x in loadings if not -1 < x < 1]
    if wrong:
        raise ValueError(f"a loading is between -1 and 1; got {wrong[0]}")
    if sides not in (1, 2):
        raise ValueError(f"a test has 1 or 2 sides; got {sides}")


@functools.lru_cache(maxsize=8)
def legendre(nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on -1..1."""
    return np.polynomial.legendre.leggauss(nodes)


def composite(low: float, high: float, panels: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on low..high in equal panels."""
    x, w = legendre(PANEL)
    edges = np.linspace(low, high, panels + 1)
    half = (high - low) / panels / 2
    nodes = (edges[:-1, None] + half) + half * x[None, :]
    return nodes.ravel(), np.tile(half * w, panels)


@functools.lru_cache(maxsize=512)
def chi_nodes(df: float, scale: float = 1.0) -> tuple[Array, Array, float]:
    """Nodes s, weights, and the mass below the first node, of s = χ/√df with `df` finite.

    The mean of f(s) is weights @ f(nodes) + mass × f(first node). The nodes are equal panels of
    log s, where the density is smooth down to 1 degree of freedom. `scale`: the largest |f'|.
    """
    from scipy.special import gammainc, gammainccinv, gammaincinv

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


@functools.lru_cache(maxsize=64)
def _exceedance_table(loadings: tuple[float, ...], sides: int) -> Array:
    """Chebyshev coefficients of `_exceedance_normal` on 0..TABLE_END."""
    degree = 150 if max(abs(loading) for loading in loadings) < 0.9 else 600
    points = np.cos(math.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    values = _exceedance_normal((points + 1) * (TABLE_END / 2), loadings, sides)
    orders = np.arange(degree + 1)[:, None] * (np.arange(degree + 1) + 0.5)
    coefficients: Array = 2 / (degree + 1) * np.cos(math.pi / (degree + 1) * orders) @ values
    coefficients[0] /= 2
    return coefficients


def _exceedance_normal(x: Array, loadings: tuple[float, ...], sides: int) -> Array:
    """P(largest statistic > x) where s is known to be 1, for an array x."""
    from scipy.special import log_ndtr, ndtr

    steepest = max(abs(loading) / math.sqrt(1 - loading * loading) for loading in loadings)
    panels = max(2, math.ceil(FACTOR_END * max(1.0, steepest) / FACTOR_PANEL))
    if steepest == 0:
        z, weights = np.zeros(1), np.ones(1)
    elif sides == 2:  # the integrand is even in z
        z, weights = composite(0.0, FACTOR_END, panels)
        weights = 2 * weights * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    else:
        z, weights = composite(-FACTOR_END, FACTOR_END, 2 * panels)
        weights = weights * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    log_inside = np.zeros((len(z), len(x)))
    with np.errstate(divide="ignore"):
        for loading, count in Counter(loadings).items():
            own = math.sqrt(1 - loading * loading)
            upper = (x[None, :] - loading * z[:, None]) / own
            if sides == 1:
                log_inside += count * log_ndtr(upper)
            else:
                outside = ndtr(-upper) + ndtr((-x[None, :] - loading * z[:, None]) / own)
                log_inside += count * np.log1p(-np.minimum(outside, 1.0))
    exceedance: Array = weights @ -np.expm1(log_inside)
    return exceedance
