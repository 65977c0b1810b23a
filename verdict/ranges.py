"""Where the scores of a task lie in the range of its metric: at chance, near an end, or with room
to move, and up to which difference two arms are practically equal there. Pure.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from clipmill.manifests.metrics import METRICS
from clipmill.manifests.schema import Ablation
from clipmill.verdict.stats.analysis import TaskRange, TaskScores

# Differences up to this are practically equal where the manifest states no equivalence: half a
# point, but at most a part of the room between the baseline and the ends of the metric.
DEFAULT_BAND = 0.005
BAND_OF_ROOM = 0.02  # the band of equality is at most this share of the room of the metric
# Nearer to an end than so many bands, a metric can hardly move: nothing is called equal there.
NEAR_BANDS = 10
CHANCE_ERRORS = 2.0  # standard errors of random guesses


def is_at_chance(metric: str, value: float, chance: float | None, samples: int) -> bool:
    """Whether a share is not above chance by more than CHANCE_ERRORS standard errors of guesses."""
    kind = METRICS[metric]
    if kind.unit != "share" or not kind.higher_is_better or chance is None or not samples:
        return False
    return value <= chance + CHANCE_ERRORS * math.sqrt(chance * (1 - chance) / samples)


def range_of(ablation: Ablation, scores: TaskScores) -> TaskRange | None:
    """Where the scores of a task lie in the range of its metric; None without a finished run of the
    baseline. Only shares have ends; for another unit nothing is equal unless the manifest says so.
    """
    means = {
        arm: float(np.mean(list(runs.values()))) for arm, runs in scores.values.items() if runs
    }
    if ablation.baseline not in means:
        return None
    stated = ablation.equivalence
    of_baseline = means[ablation.baseline]
    best = max(means.values()) if scores.higher_is_better else min(means.values())
    near: Literal["floor", "ceiling"] | None = None
    band = stated or 0.0
    at_chance = is_at_chance(scores.metric, best, scores.chance, scores.test_samples)
    if scores.unit == "share":
        wanted = DEFAULT_BAND if stated is None else stated
        least = scores.chance or 0.0
        if scores.higher_is_better:
            above, below = of_baseline - least, 1 - of_baseline
            at_floor, at_ceiling = best - least, below
        else:  # the floor of an error is not known
            above, below = math.inf, of_baseline
            at_floor, at_ceiling = math.inf, below
        if at_floor < NEAR_BANDS * wanted:
            near = "floor"
        elif at_ceiling < NEAR_BANDS * wanted:
            near = "ceiling"
        room = max(0.0, min(above, below))
        band = min(wanted, BAND_OF_ROOM * room) if stated is None else stated
    return TaskRange(
        best=best,
        near="floor" if at_chance else near,
        at_chance=at_chance,
        band=0.0 if at_chance or near else band,
    )


def scores_in_range(ablation: Ablation, scores: TaskScores) -> TaskScores:
    """The scores with their range, and with its band of equality."""
    where = range_of(ablation, scores)
    return replace(scores, range=where, band=where.band if where else 0.0)
