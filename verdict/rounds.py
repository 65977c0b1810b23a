"""Seeds in rounds: which runs an ablation with `stop` needs, and why each arm got no more.

After a quarter, a half and all of the seeds (or so) the arms are compared as at any other time,
with the error divided by the number of these looks (Bonferroni), so that all looks together have
the error of one. An arm that is decided gets no more seeds and keeps that comparison.

`replay` starts at the first round whenever it is called and looks at the finished runs alone. So an
ablation that was killed continues as it would have, and a finished one needs no run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from clipmill.manifests.arrays import Array
from clipmill.manifests.metrics import deciding_metric
from clipmill.manifests.schema import Ablation
from clipmill.verdict.measurements import Measurement, Measurements, RunKey
from clipmill.verdict.ranges import scores_in_range
from clipmill.verdict.stats.analysis import TaskScores, analyse
from clipmill.verdict.stats.comparison import Comparison

End = Literal["decided", "out of seeds"]
logger = logging.getLogger(__name__)


# The deciding metric of a run on the primary task; None where the run is not finished
ReadRun = Callable[[str, int], Measurement | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The state of an ablation in rounds.

    asked: the runs that it has needed so far, with their controls, in the order of the rounds.
    complete: no further round is needed, and the arms' runs are there. seeds: by arm, how many
    seeds it was asked for. scores: what the last look at each arm saw; an arm that no look could
    compare has none. ends: by arm, why it stopped; empty until the rounds are complete.
    """

    asked: tuple[RunKey, ...]
    complete: bool
    seeds: dict[str, int]
    scores: dict[str, TaskScores]
    ends: dict[str, End]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRounds:
    """How many of the seeds an arm was run with, and why it stopped (None for the baseline)."""

    arm: str
    seeds: int
    of: int
    end: End | None
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.arm}: {self.seeds} of {self.of} seeds; {self.reason}."


def round_sizes(ablation: Ablation) -> tuple[int, ...]:
    """The seeds of an arm at each look: all of them, half, a quarter …, not below `at_least`.

    One look at all seeds for an ablation without `stop`.
    """
    sizes = [len(ablation.seeds)]
    if ablation.stop is not None:
        while (half := (sizes[0] + 1) // 2) >= ablation.stop.at_least and half < sizes[0]:
            sizes.insert(0, half)
    return tuple(sizes)


def replay(
    ablation: Ablation, read: ReadRun, failed: Collection[RunKey] = (), looks: int = 1
) -> Rounds:
    """All rounds up to the first that lacks a run.

    failed: runs that ended without a result; the rounds go on without them. looks: see
    `clipmill.verdict.stats.comparison.Penalty`. An arm that is decided stays so, whatever later
    rounds would say of it.
    """
    metric = deciding_metric(ablation.primary_task)
    waiting = [arm for arm in ablation.arms if arm != ablation.baseline]
    seeds = dict.fromkeys(ablation.arms, 0)
    rows: dict[str, list[Measurement]] = {arm: [] for arm in ablation.arms}
    asked: list[RunKey] = []
    seen: dict[str, TaskScores] = {}
    ends: dict[str, End] = {}
    before = 0
    for last in round_sizes(ablation):
        arms = (ablation.baseline, *waiting)
        keys = [(arm, seed) for seed in ablation.seeds[before:last] for arm in arms]
        before = last
        seeds |= dict.fromkeys(arms, last)
        asked += _with_controls(ablation, keys)
        for arm, seed in keys:
            row = None if (arm, seed) in failed else read(arm, seed)
            if row is not None:
                rows[arm].append(row)
            elif (arm, seed) not in failed:
                return Rounds(asked=tuple(asked), complete=False, seeds=seeds, scores=seen, ends={})
        table = Measurements.of(chain.from_iterable(rows.values()))
        scores = table.scores(ablation.primary, metric)
        compared = compare_in_round(ablation, scores, looks)
        seen |= {arm: scores for arm in waiting if arm in compared}
        for arm, one in compared.items():
            if arm in waiting and one.verdict != "not distinguishable":
                ends[arm] = "decided"
        waiting = [arm for arm in waiting if arm not in ends]
        if not waiting:
            break
    ends |= dict.fromkeys(waiting, "out of seeds")
    return Rounds(asked=tuple(asked), complete=True, seeds=seeds, scores=seen, ends=ends)


def compare_in_round(ablation: Ablation, scores: TaskScores, looks: int) -> dict[str, Comparison]:
    """By arm, the comparison with the baseline on the primary task at one of the looks. What is
    called equal depends on where these scores lie in the range of the metric, as in the verdict.
    """
    arms = [arm for arm in ablation.arms if arm != ablation.baseline]
    analysis = analyse(
        {ablation.primary: scores_in_range(ablation, scores)},
        ablation.baseline,
        arms=arms,
        band=0.0,
        rounds=len(round_sizes(ablation)),
        looks=looks,
    )
    return {one.arm: one for one in analysis.tasks[ablation.primary].comparisons}


def _with_controls(ablation: Ablation, keys: Sequence[RunKey]) -> list[RunKey]:
    """The runs with those of their random subsets and A/A arms."""
    rows = []
    for arm, seed in keys:
        rows.append((arm, seed))
        rows += [(control, seed) for control, of in ablation.control_arms.items() if of == arm]
    return rows


def expected_runs(
    ablation: Ablation, run_sd: float, effect: float = 0.0, studies: int = 100
) -> float:
    """The mean number of runs, controls included, of simulated studies in which every arm differs
    from the baseline by `effect`; `run_sd` is the SD of one run's residual. Both are shares.
    """
    generator = np.random.default_rng(20221016)
    arms, total = list(ablation.arms), 0
    name, metric = ablation.primary, deciding_metric(ablation.primary_task)
    shift = [0.0 if arm == ablation.baseline else effect for arm in arms]
    for _ in range(studies):
        noise = run_sd * generator.standard_normal((len(arms), len(ablation.seeds)))
        values = noise + np.array(shift)[:, None]

        def read(arm: str, seed: int, values: Array = values) -> Measurement:
            noise = float(values[arms.index(arm), ablation.seeds.index(seed)])
            value = 0.5 + noise  # in the middle of the range of a share
            return Measurement(arm=arm, seed=seed, task=name, metric=metric, value=value)

        total += len(replay(ablation, read).asked)
    return total / studies


# --- in words -------------------------------------------------------------------------------------


def arm_rounds(
    ablation: Ablation, rounds: Rounds, comparisons: Mapping[str, Comparison]
) -> tuple[ArmRounds, ...]:
    """One row per arm, the baseline first. comparisons: by arm, on the primary task."""
    rows = []
    for arm in dict.fromkeys([ablation.baseline, *ablation.arms]):
        end = rounds.ends.get(arm)
        if arm == ablation.baseline:
            reason = "the baseline, as many as any other arm"
        elif end == "decided":
            reason = f"decided: {comparisons[arm].verdict}"
        else:
            reason = "not decided"
        seeds, of = rounds.seeds[arm], len(ablation.seeds)
        rows.append(ArmRounds(arm=arm, seeds=seeds, of=of, end=end, reason=reason))
    return tuple(rows)


def rounds_note(ablation: Ablation) -> str:
    """What the intervals of an ablation in rounds hold for, in plain words."""
    sizes = ", ".join(str(size) for size in round_sizes(ablation))
    return (
        f"Seeds were run in rounds, with looks at {sizes} seeds of an arm that is not decided: the "
        "intervals hold for all arms and all looks together."
    )
