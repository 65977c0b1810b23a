from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from train.stats.comparison import chi_nodes, dunnett_critical, dunnett_p, equal_loadings

INF = math.inf


def panels(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of `count` panels with 40 Gauss-Legendre nodes each."""
    x, weights = np.polynomial.legendre.leggauss(40)
    edges = np.linspace(low, high, count + 1)
    half = (high - low) / count / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), np.tile(half * weights, count)


def reference_p(t: float, df: float, loadings: tuple[float, ...]) -> float:
    """Gauss-Legendre of high order over the common factor and over s itself, not over log s."""
    z, z_weights = panels(-9, 9, 10)
    z_weights = z_weights * stats.norm.pdf(z)
    s, s_weights = np.ones(1), np.ones(1)
    if not math.isinf(df):
        end = stats.chi.isf(1e-15, df) / math.sqrt(df)
        s, s_weights = panels(0, end, 20)
        s_weights = s_weights * stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)
    product = np.ones((len(s), len(z)))
    for loading in loadings:
        own = math.sqrt(1 - loading**2)
        above = special.ndtr((t * s[:, None] - loading * z) / own)
        below = special.ndtr((-t * s[:, None] - loading * z) / own)
        product *= above - below
    return float(1 - s_weights @ product @ z_weights)


# published two-sided 5 % points for 1, 2, 3, 4, 5 arms beside the control
# (Dunnett 1964, table II)
TWO_SIDED = {
    5: (2.57, 3.03, 3.29, 3.48, 3.62),
    10: (2.23, 2.57, 2.76, 2.89, 2.99),
    20: (2.09, 2.38, 2.54, 2.65, 2.73),
    INF: (1.96, 2.21, 2.35, 2.44, 2.51),
}


@pytest.mark.parametrize("df", [5, 10, 20, INF])
def test_critical_values_are_those_of_the_published_tables(df: float) -> None:
    values = [dunnett_critical(0.05, df, equal_loadings(k)) for k in range(1, 6)]
    assert np.abs(np.array(values) - TWO_SIDED[df]).max() <= 0.0051


@pytest.mark.slow
@pytest.mark.parametrize(
    ("t", "df", "loadings"),
    [
        (2.5, 4.0, equal_loadings(3)),
        (1.0, 2.5, equal_loadings(5, 0.3)),
        (3.1, 11.7, (0.2, 0.6, 0.9)),
        (2.0, INF, equal_loadings(100)),
        (2.9, INF, (0.1, 0.95)),
    ],
)
def test_p_is_that_of_adaptive_quadrature_to_1e_9(
    t: float, df: float, loadings: tuple[float, ...]
) -> None:
    expected = reference_p(t, df, loadings)
    assert dunnett_p(t, df, loadings) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_p_is_that_of_arbitrary_precision() -> None:
    mp = pytest.importorskip("mpmath")
    # 3 arms, correlation 0.5, 3 degrees of freedom, t = 3
    with mp.workdps(20):
        half = mp.sqrt(mp.mpf(1) / 2)

        def inside(x: object) -> object:
            def over_factor(z: object) -> object:
                one = mp.ncdf((x - half * z) / half) - mp.ncdf((-x - half * z) / half)
                return mp.npdf(z) * one**3

            return 2 * mp.quad(over_factor, [0, 3, 9], maxdegree=3, method="gauss-legendre")

        def over_s(s: object) -> object:
            density = 2 * mp.mpf("1.5") ** mp.mpf("1.5") / mp.gamma(mp.mpf("1.5"))
            return density * s**2 * mp.exp(-mp.mpf("1.5") * s**2) * inside(3 * s)

        points = [0, 1.5, 5]
        expected = 1 - mp.quad(over_s, points, maxdegree=4, method="gauss-legendre")
    assert dunnett_p(3.0, 3.0, equal_loadings(3)) == pytest.approx(float(expected), abs=1e-10)


@pytest.mark.parametrize("df", [1.0, 1.5, 2.0, 3.7, 10.0, 1000.0, 1e6])
@pytest.mark.parametrize("t", [0.0, 0.4, 2.0, 12.0, 300.0])
def test_one_arm_has_students_t(t: float, df: float) -> None:
    assert dunnett_p(t, df, equal_loadings(1)) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-10)


def test_independent_arms_have_the_studentized_maximum_modulus() -> None:
    # without the shared s: (1 - p) to the power of the arms
    expected = 1 - (1 - 2 * stats.norm.sf(2.2)) ** 6
    assert dunnett_p(2.2, INF, equal_loadings(6, 0.0)) == pytest.approx(expected, abs=1e-14)
    # table of Stoline and Ury (1979): 3 arms, 10 degrees of freedom
    assert dunnett_critical(0.05, 10, equal_loadings(3, 0.0)) == pytest.approx(2.829, abs=6e-4)


def test_infinitely_many_degrees_of_freedom_are_the_limit_of_many() -> None:
    loadings = equal_loadings(4)
    limit = dunnett_p(2.3, INF, loadings)
    assert dunnett_p(2.3, 1e6, loadings) == pytest.approx(limit, abs=2e-6)
    assert dunnett_p(2.3, 2e7, loadings) == limit


@pytest.mark.parametrize(
    ("alpha", "df", "arms", "correlation"),
    [
        (0.05, 1.0, 100, 0.5),
        (0.001, 4.5, 8, 0.5),
        (0.1, INF, 20, 0.0),
        (0.05, 30.0, 2, 0.98),
    ],
)
def test_the_critical_value_is_the_inverse_of_p(
    alpha: float, df: float, arms: int, correlation: float
) -> None:
    loadings = equal_loadings(arms, correlation)
    critical = dunnett_critical(alpha, df, loadings)
    assert dunnett_p(critical, df, loadings) == pytest.approx(alpha, rel=1e-8)


@pytest.mark.parametrize("df", [1.0, 1.3, 2.0, 6.0, 80.0, 1e5])
def test_the_nodes_of_s_give_its_moments(df: float) -> None:
    s, weights, mass = chi_nodes(df, 3.0)
    assert weights.sum() + mass == pytest.approx(1.0, abs=1e-13)
    assert weights @ s**2 == pytest.approx(1.0, abs=1e-11)
    assert weights @ s == pytest.approx(stats.chi.mean(df) / math.sqrt(df), abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dunnett_p(2.0, 0.5, equal_loadings(2)), "degrees of freedom are at least 1"),
        (lambda: dunnett_p(math.nan, 5, equal_loadings(2)), "not a number"),
        (lambda: dunnett_p(2.0, 5, ()), "1 to 1000 comparisons; got 0"),
        (lambda: dunnett_critical(1.0, 5, (0.5,)), "alpha is between 0 and 1; got 1.0"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_infinite_statistic_has_p_zero() -> None:
    assert dunnett_p(-INF, 4, equal_loadings(2)) == 0.0
