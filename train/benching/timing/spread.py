"""Mean, standard deviation, extremes and percentiles of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Statistics of at least one value."""

    count: int
    mean: float
    sd: float | None  # of a sample (divided by count - 1); None for one value
    min: float
    max: float


def spread_of(values: Sequence[float]) -> Spread:
    """The statistics of some values. ValueError for none."""
    if not values:
        raise ValueError("there are no values to take the mean of")
    return Spread(
        count=len(values),
        mean=statistics.fmean(values),
        sd=statistics.stdev(values) if len(values) > 1 else None,
        min=min(values),
        max=max(values),
    )


def spread_figures(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The statistics by name: NAME_mean, NAME_sd, NAME_min, NAME_max."""
    spread = spread_of(values)
    return {
        f"{name}_mean": spread.mean,
        f"{name}_sd": spread.sd,
        f"{name}_min": spread.min,
        f"{name}_max": spread.max,
    }


def percentile_figures(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """NAME_p50, NAME_p90, NAME_p95 and NAME_p99, with straight lines between the values.

    Of one value every percentile is that value; of few values the high ones are near the largest.
    """
    points = np.percentile(np.asarray(values, np.float64), PERCENTILES)
    return {f"{name}_p{p}": float(point) for p, point in zip(PERCENTILES, points, strict=True)}
