"""Where the scores of a task lie in the range of its metric: at chance, near an end, or with room
to move, and up to which difference two arms are practically equal there. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from clipmill.manifests.metrics import METRICS, chance_of
from clipmill.manifests.schema import Ablation
from clipmill.verdict.stats.analysis import TaskRange, TaskScores

# Differences up to this are practically equal where the manifest states no equivalence: half a
# point, but at most a part of the room between the baseline and the ends of the metric.
DEFAULT_BAND = 0.005
BAND_OF_ROOM = 0.02  # the band of equality is at most this share of the room of the metric
# Nearer to an end than so many bands, a metric can hardly move: nothing is called equal there.
NEAR_BANDS = 10
CHANCE_ERRORS = 2.0  # standard errors of random guesses


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task's number of samples, and the headline metric of random guesses."""

    samples: int
    chance: float


def is_at_chance(metric: str, value: float, chance: float | None, samples: int) -> bool:
    """Whether a share is not above chance by more than CHANCE_ERRORS standard errors of guesses."""
    kind = METRICS[metric]
    if kind.unit != "share" or not kind.higher_is_better or chance is None or not samples:
        return False
    return value <= chance + CHANCE_ERRORS * math.sqrt(chance * (1 - chance) / samples)


def range_of(ablation: Ablation, scores: TaskScores, facts: TaskFacts | None) -> TaskRange | None:
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
    chance = None if facts is None else chance_of(scores.metric, facts.chance)
    near: Literal["floor", "ceiling"] | None = None
    band = stated or 0.0
    at_chance = is_at_chance(scores.metric, best, chance, facts.samples if facts else 0)
    if scores.unit == "share":
        wanted = DEFAULT_BAND if stated is None else stated
        least = chance or 0.0
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


def metric_scores(metric: str, scores: TaskScores) -> TaskScores:
    """The scores with what is known of their metric."""
    kind = METRICS[metric]
    return replace(
        scores,
        metric=metric,
        unit=kind.unit,
        higher_is_better=kind.higher_is_better,
        limit=1.0 if kind.unit == "share" else math.inf,
    )


def scores_in_range(
    ablation: Ablation, metric: str, scores: TaskScores, facts: TaskFacts | None
) -> tuple[TaskScores, TaskRange | None]:
    """The scores with what is known of their metric and the band of their range, and the range."""
    known = metric_scores(metric, scores)
    where = range_of(ablation, known, facts)
    return replace(known, band=where.band if where else 0.0), where
