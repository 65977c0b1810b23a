"""The anytime-valid t test of one coefficient of a linear model: numbers in, numbers out. Pure.

The e-process is a likelihood ratio of invariant statistics: a normal mixture over the coefficient
in residual SDs, against 0, with right-Haar priors on the residual SD and on the nuisance columns
(Lindon, Ham, Tingley and Bojinov 2022, arXiv 2210.08589; Wang and Ramdas 2023 for one mean). Under
the null its mean is 1 after any number of rows, and the probability that it ever reaches 1/alpha
is at most alpha, for any number of rows. That holds for normal residuals and a design that does
not depend on the data.
"""

from __future__ import annotations

import math


def mixture_precision(effect: float) -> float:
    """Precision of the mixture for a coefficient of about `effect` residual SDs.

    It has to be fixed before the first row. ValueError for an effect that is not above 0.
    """
    if not effect > 0:
        raise ValueError(f"the effect of interest is {effect} residual SDs; it must be above 0")
    return 1 / effect**2


def log_e_value(t: float, df: float, information: float, precision: float) -> float:
    """Natural logarithm of the e-value of a t statistic.

    `df` are the residual degrees of freedom. `information` is the squared length of the column
    after the nuisance columns are projected out, so that the standard error of the coefficient is
    residual SD / sqrt(information). With 0 degrees of freedom there is no evidence: the result
    is 0. ValueError for a negative df, or an information or precision that is not above 0.
    """
    _check(df, information, precision)
    if df == 0:
        return 0.0
    shrinkage = precision / (precision + information)
    ratio = t**2 / df
    tail = math.log1p(shrinkage * ratio) - math.log1p(ratio)
    return 0.5 * math.log(shrinkage) - 0.5 * (df + 1) * tail


def e_radius(df: float, information: float, precision: float, alpha: float) -> float:
    """The |t| at which the e-value is 1/alpha: half the width of the confidence sequence, in
    standard errors.

    Infinite where no t statistic reaches 1/alpha: too few degrees of freedom for this alpha.
    """
    _check(df, information, precision)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; it must lie between 0 and 1")
    if df == 0:
        return math.inf
    shrinkage = precision / (precision + information)
    power = (shrinkage * alpha**2) ** (1 / (df + 1))
    if power <= shrinkage:
        return math.inf
    return math.sqrt(df * (1 - power) / (power - shrinkage))


def _check(df: float, information: float, precision: float) -> None:
    if df < 0:
        raise ValueError(f"there are {df} degrees of freedom; there cannot be fewer than 0")
    if not (information > 0 and precision > 0):
        raise ValueError(
            f"information is {information} and precision {precision}; both must be above 0"
        )
