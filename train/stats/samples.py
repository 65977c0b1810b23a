"""What the samples of a test set add to the noise of a difference, from per-sample values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Groups = Sequence[Array]  # per-sample values of a run, one array for each group of samples
SampleRuns = Mapping[int, Groups]  # {seed: groups}

MEAN_TOLERANCE = 1e-5  # a float32 mean of 50,000 values is exact to about 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNoise:
    """Variances of a difference of two arms that its samples cause.

    floor: the least variance of a single-seed difference, where samples err independently.
    drawing: the variance of the mean difference from drawing other samples.
    drawing_error: the squared standard error of `drawing`, halved: drawing²/drawing_error is its
    degrees of freedom.
    """

    floor: float
    drawing: float
    drawing_error: float


def sample_noise(arm: SampleRuns, baseline: SampleRuns) -> SampleNoise:
    """The noise that samples add to arm − baseline, from the runs with the same seeds.

    The table of differences, seeds × samples, has crossed random effects: seed + sample + residual.
    floor: mean square of the residual / N. drawing: (MS of samples − MS of residual) / (S N), at
    least 0. The mean of several groups (two directions of retrieval) has the mean of the groups'
    standard errors, which is exact if the groups are fully correlated and too wide otherwise.
    ValueError for fewer than two common seeds or for arrays that do not match.
    """
    seeds = sorted(set(arm) & set(baseline))
    if len(seeds) < 2:
        raise ValueError(f"the noise of samples needs at least 2 common seeds; got {len(seeds)}")
    _check_shapes([runs[seed] for runs in (arm, baseline) for seed in seeds])
    floors, drawings, errors = [], [], []
    for group in range(len(arm[seeds[0]])):
        n = len(arm[seeds[0]][group])
        residual, between = _mean_squares(
            [_difference(arm[seed][group], baseline[seed][group]) for seed in seeds]
        )
        floors.append(residual / n)
        drawings.append(max(0.0, between - residual) / (len(seeds) * n))
        error = between**2 / (n - 1) + residual**2 / ((n - 1) * (len(seeds) - 1))
        errors.append(error / (len(seeds) * n) ** 2)
    drawing = float(np.mean(np.sqrt(drawings))) ** 2
    # The relative error of the mean is at most that of the worst group.
    shares = [e / d**2 for e, d in zip(errors, drawings, strict=True) if d > 0]
    return SampleNoise(
        floor=float(np.mean(np.sqrt(floors))) ** 2,
        drawing=drawing,
        drawing_error=drawing**2 * max(shares, default=0.0),
    )


def _difference(first: Array, second: Array) -> Array:
    """first − second as float64, also for booleans."""
    difference: Array = np.subtract(first, second, dtype=np.float64)
    return difference


def _square_sum(x: Array) -> float:
    """Without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", x, x))


def _mean_squares(rows: Sequence[Array]) -> tuple[float, float]:
    """Mean squares of the residual and of samples in a table with one row for each seed."""
    seeds, n = len(rows), len(rows[0])
    total = np.zeros(n)
    squares, row_squares = 0.0, 0.0
    for row in rows:
        total += row
        squares += _square_sum(row)
        row_squares += float(row.sum()) ** 2 / n
    correction = float(total.sum()) ** 2 / (seeds * n)
    samples = max(0.0, _square_sum(total) / seeds - correction)
    residual = max(0.0, squares - correction - samples - (row_squares - correction))
    if residual < 1e-12 * squares:
        residual = 0.0
    return residual / ((seeds - 1) * (n - 1)), samples / (n - 1)


def _check_shapes(runs: Sequence[Groups]) -> None:
    """ValueError unless all runs have the same groups of at least 2 samples."""
    shapes = [tuple(np.shape(group) for group in groups) for groups in runs]
    for shape in shapes:
        if shape != shapes[0]:
            raise ValueError(
                f"runs of one task need the same samples; the numbers are {shapes[0]} and {shape}"
            )
    if not shapes[0]:
        raise ValueError("a run has no group of samples; leave its samples out (None)")
    for size in shapes[0]:
        if len(size) != 1 or size[0] < 2:
            raise ValueError(
                f"a group of samples is an array of at least 2 values; its shape is {size}"
            )


def check_mean(value: float, groups: Groups, name: str) -> None:
    """ValueError unless the mean over groups of the samples' means is the value of the run.

    Per-sample values that mean something else (percentages, another metric) would give an
    interval of the wrong width.
    """
    mean = float(np.mean([np.mean(group, dtype=np.float64) for group in groups]))
    if not abs(mean - value) <= MEAN_TOLERANCE * max(1.0, abs(value)):
        raise ValueError(
            f"{name}: the samples' mean is {mean:.6g}, but the value is {value:.6g}; give "
            "per-sample values whose mean is the metric, or none (None)"
        )
