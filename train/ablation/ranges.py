"""Where the scores of a task lie in the range of its metric, at chance, near an end or with room to
move; and the band that counts as equal there. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from manifests.schema import Ablation
from train.ablation import wording
from train.evaluation import METRICS, chance_of
from train.stats import TaskScores

# Differences up to this are practically equal where the manifest states no equivalence: half a
# point, but at most a fiftieth of the room between the baseline and the ends of the metric.
DEFAULT_BAND, BAND_OF_ROOM = 0.005, 0.02
# Nearer to an end than so many bands, a metric can hardly move: nothing is called equal there.
NEAR_BANDS = 10
CHANCE_ERRORS = 2.0  # standard errors of random guesses


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task's number of samples, and the headline metric of random guesses."""

    samples: int
    chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRange:
    """Where the scores lie in the range of a task's metric.

    best: the mean of the best arm. chance: of random answers; None where it is not known. near: the
    end that the metric is so close to that it can hardly move. at_chance: no arm is above chance by
    more than two standard errors. band: differences inside ± it are practically equal; 0: nothing
    is called equal.
    """

    task: str
    metric: str
    unit: str
    best: float
    chance: float | None
    near: Literal["floor", "ceiling"] | None
    at_chance: bool
    band: float

    @property
    def sentence(self) -> str:
        """How near the scores are to an end; without a full stop."""
        best = wording.in_unit(self.best, self.unit)
        if self.at_chance:
            chance = wording.in_unit(self.chance, self.unit)
            return (
                f"No model is above chance on {self.task}: the best arm has {best}, chance {chance}"
            )
        of_chance = ""
        if self.near == "floor" and self.chance is not None:
            of_chance = f", chance gives {wording.in_unit(self.chance, self.unit)}"
        return f"{self.metric} is near its {self.near} on {self.task}: {best} at best{of_chance}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerScore:
    """What the scorer that an ablation trained reaches on the primary task.

    view: what it was trained on. chance: of random answers; None where it is not known. at_chance:
    it is not above chance by more than two standard errors of the test set.
    """

    view: str
    task: str
    metric: str
    unit: str
    value: float
    chance: float | None
    at_chance: bool

    @property
    def sentence(self) -> str:
        """Its score, beside chance where that is known; without a full stop."""
        chance = "" if self.chance is None else f"; chance is {self._in_unit(self.chance)}"
        value = self._in_unit(self.value)
        return (
            f"The scorer, trained on {self.view}, has {self.metric} {value} on {self.task}{chance}"
        )

    @property
    def caution(self) -> str:
        """What the headline adds where the scorer is at chance; otherwise empty."""
        if not self.at_chance:
            return ""
        value, chance = self._in_unit(self.value), self._in_unit(self.chance)
        return (
            f" The scorer is at chance on {self.task} ({value} against {chance}): what it filtered "
            "says little about CLIP-score filtering."
        )

    def _in_unit(self, value: float | None) -> str:
        return wording.in_unit(value, self.unit)


def scorer_score(view: str, task: str, metric: str, value: float, facts: TaskFacts) -> ScorerScore:
    """The score of a scorer, beside chance."""
    chance = chance_of(metric, facts.chance)
    return ScorerScore(
        view=view,
        task=task,
        metric=metric,
        unit=METRICS[metric].unit,
        value=value,
        chance=chance,
        at_chance=_is_at_chance(metric, value, chance, facts.samples),
    )


def _is_at_chance(metric: str, value: float, chance: float | None, samples: int) -> bool:
    """Whether a share is not above chance by more than CHANCE_ERRORS standard errors of guesses."""
    kind = METRICS[metric]
    if kind.unit != "share" or not kind.higher_is_better or chance is None or not samples:
        return False
    return value <= chance + CHANCE_ERRORS * math.sqrt(chance * (1 - chance) / samples)


def largest_of(metric: str) -> float:
    """The largest value of a metric whose least value is 0; infinite for one without bounds."""
    return 1.0 if METRICS[metric].unit == "share" else math.inf


def range_of(
    ablation: Ablation, task: str, metric: str, scores: TaskScores, facts: TaskFacts | None
) -> TaskRange | None:
    """Where the scores of a task lie in the range of its metric; None without a finished run of the
    baseline. Only shares have ends; for another unit nothing is equal unless the manifest says so.
    """
    means = {
        arm: float(np.mean(list(runs.values()))) for arm, runs in scores.values.items() if runs
    }
    if ablation.baseline not in means:
        return None
    kind, stated = METRICS[metric], ablation.equivalence
    of_baseline = means[ablation.baseline]
    best = max(means.values()) if kind.higher_is_better else min(means.values())
    chance = None if facts is None else chance_of(metric, facts.chance)
    near: Literal["floor", "ceiling"] | None = None
    band = stated or 0.0
    at_chance = _is_at_chance(metric, best, chance, facts.samples if facts else 0)
    if kind.unit == "share":
        wanted = DEFAULT_BAND if stated is None else stated
        least = chance or 0.0
        if kind.higher_is_better:
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
        task=task,
        metric=metric,
        unit=kind.unit,
        best=best,
        chance=chance,
        near="floor" if at_chance else near,
        at_chance=at_chance,
        band=0.0 if at_chance or near else band,
    )
