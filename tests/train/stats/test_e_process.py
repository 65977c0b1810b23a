from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, linalg, stats

from train.stats.e_process import e_radius, log_e_value, mixture_precision


def t_paths(
    generator: np.random.Generator, studies: int, arms: int, seeds: int
) -> tuple[np.ndarray, list[int]]:
    """t of the first null arm after 2 … `seeds` seeds, from the residuals of complete tables."""
    table = generator.standard_normal((studies, arms + 1, seeds))
    table += 2 * generator.standard_normal((studies, 1, seeds))
    paths = []
    for n in range(2, seeds + 1):
        part = table[:, :, :n]
        means = part.mean(axis=2, keepdims=True)
        residuals = part - means - part.mean(axis=1, keepdims=True)
        residuals += part.mean(axis=(1, 2), keepdims=True)
        variance = (residuals**2).sum(axis=(1, 2)) / (arms * (n - 1))
        paths.append((means[:, 1, 0] - means[:, 0, 0]) / np.sqrt(variance * 2 / n))
    return np.stack(paths, axis=1), [arms * (n - 1) for n in range(2, seeds + 1)]


def test_the_e_value_is_the_likelihood_ratio_of_the_residual_contrasts() -> None:
    # Another route: contrasts that no nuisance column moves have, under the mixture and with the
    # scale integrated out, the density |S|^(-1/2) (u' S^-1 u)^(-m/2) with S = I + x x' / phi.
    generator = np.random.default_rng(3)
    arms, seeds, precision = 4, 3, 1 / 9
    arm, seed = np.divmod(np.arange(arms * seeds), seeds)
    x = (arm == 1).astype(float)
    nuisance = np.column_stack([seed == s for s in range(seeds)] + [arm == 2, arm == 3]).astype(
        float
    )
    y = generator.standard_normal(arms * seeds) + 0.8 * x
    contrasts = linalg.null_space(nuisance.T)
    u, ux = contrasts.T @ y, contrasts.T @ x
    spread = np.eye(len(u)) + np.outer(ux, ux) / precision
    expected = -0.5 * np.linalg.slogdet(spread)[1] - 0.5 * len(u) * math.log(
        u @ np.linalg.solve(spread, u) / (u @ u)
    )
    information = ux @ ux
    estimate = ux @ u / information
    df = len(u) - 1
    variance = ((u - ux * estimate) ** 2).sum() / df
    t = estimate / math.sqrt(variance / information)
    assert information == pytest.approx(seeds / 2, abs=1e-12)
    assert log_e_value(t, df, information, precision) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("df", "information", "effect"), [(4, 1, 2), (8, 1.5, 4), (16, 2.5, 3)])
def test_the_mean_under_the_null_is_one(df: int, information: float, effect: float) -> None:
    precision = mixture_precision(effect)

    def weighted(t: float) -> float:
        return math.exp(log_e_value(t, df, information, precision)) * stats.t.pdf(t, df)

    mean = 2 * integrate.quad(weighted, 0, np.inf, epsabs=1e-12, limit=500)[0]
    assert mean == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_the_radius_is_where_the_e_value_reaches_one_over_alpha(alpha: float) -> None:
    for df, information in ((4, 1.0), (8, 1.5), (36, 5.0)):
        radius = e_radius(df, information, 1 / 16, alpha)
        assert log_e_value(radius, df, information, 1 / 16) == pytest.approx(
            -math.log(alpha), abs=1e-9
        )
    # With 1 degree of freedom the e-value is at most sqrt((phi + z) / phi): 80 is out of reach.
    assert e_radius(1, 1.0, 1 / 16, 0.0125) == math.inf
    assert e_radius(0, 1.0, 1 / 16, alpha) == math.inf
    assert log_e_value(100.0, 0, 1.0, 1 / 16) == 0


@pytest.mark.slow
def test_it_is_a_supermartingale_under_the_null_and_rarely_reaches_twenty() -> None:
    paths, dfs = t_paths(np.random.default_rng(11), 20_000, arms=4, seeds=20)
    precision = mixture_precision(2.0)
    values = np.empty_like(paths)
    for look, df in enumerate(dfs):
        shrinkage = precision / (precision + (look + 2) / 2)
        tail = np.log1p(shrinkage * paths[:, look] ** 2 / df) - np.log1p(paths[:, look] ** 2 / df)
        values[:, look] = np.exp(0.5 * np.log(shrinkage) - 0.5 * (df + 1) * tail)
    assert values[5, 7] == pytest.approx(math.exp(log_e_value(paths[5, 7], dfs[7], 4.5, precision)))
    # The tail is heavy, so the bounds are one-sided, and increments are cut at 100.
    noise = values.std(axis=0) / math.sqrt(len(values))
    assert (values.mean(axis=0) - 1 < 3 * noise).all()
    for high in (True, False):
        before = values[:, :-1]
        chosen = (before < 100) & ((before > 1) == high)
        steps = np.where(chosen, np.minimum(values[:, 1:], 100) - before, 0.0)
        noise = steps.std(axis=0) / math.sqrt(len(values))
        assert (steps.mean(axis=0) < 3.5 * noise).all()
    assert (values.max(axis=1) >= 20).mean() <= 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, -1, 1.0, 1.0), "-1 degrees of freedom"),
        ((1.0, 3, 0.0, 1.0), "information is 0.0"),
        ((1.0, 3, 1.0, -2.0), "precision -2.0"),
    ],
)
def test_impossible_values_are_refused(
    arguments: tuple[float, float, float, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        log_e_value(*arguments)
    with pytest.raises(ValueError, match="effect of interest is 0 residual SDs"):
        mixture_precision(0)
    with pytest.raises(ValueError, match="alpha is 2"):
        e_radius(3, 1.0, 1.0, 2)
