"""The comparisons of an ablation in rounds: intervals that hold after every round, in words. Pure.

Every task has its own table, but all share the rounds: intervals that hold for all rounds together
hold whatever made the ablation stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from manifests.schema import Ablation
from train.ablation.rounds import End, Look, Study, Table, look_at, table_of
from train.stats import (
    Analysis,
    Comparison,
    Headline,
    LedgerEntry,
    SequentialComparison,
    TaskAnalysis,
    TaskScores,
    Verdict,
    fit_prior,
)

ALPHA = 0.05
P_LEVELS = (0.01, 0.001)  # below ALPHA, at which a p value is stated


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


def analysis_in_rounds(
    ablation: Ablation,
    analysis: Analysis,
    scores: Mapping[str, TaskScores],
    study: Study,
    ledger: Mapping[str, Sequence[LedgerEntry]] | None = None,
) -> Analysis:
    """The analysis with the intervals and verdicts of the rounds; controls and A/A stay.

    The smallest visible difference is that of a fixed number of seeds, so it is left out. Of the
    primary task an arm has its last look. ValueError for scores without a task of the analysis.
    """
    tables = {}
    for task in analysis.tasks:
        if task not in scores:
            raise ValueError(f"there are no scores of task {task!r}")
        prior = fit_prior((ledger or {}).get(task, ()))
        tables[task] = table_of(ablation, scores[task].values, _groups(scores[task]), prior)
    tasks = {}
    for task, of_task in analysis.tasks.items():
        looks = study.looks if task == ablation.primary else _looks(ablation, tables[task])
        tasks[task] = _in_rounds(ablation, of_task, looks)
    average = analysis.average
    if average is not None:
        table = _average_table(ablation, list(tables.values()))
        average = _in_rounds(ablation, average, _looks(ablation, table))
    return Analysis(tasks=tasks, average=average)


def _groups(scores: TaskScores) -> dict[str, dict[int, tuple[np.ndarray, ...] | None]] | None:
    """The values per sample as groups."""
    if scores.samples is None:
        return None
    rows: dict[str, dict[int, tuple[np.ndarray, ...] | None]] = {}
    for arm, runs in scores.samples.items():
        rows[arm] = {}
        for seed, groups in runs.items():
            if isinstance(groups, np.ndarray):
                rows[arm][seed] = (groups,)
            else:
                rows[arm][seed] = None if groups is None else tuple(groups)
    return rows


def _looks(ablation: Ablation, table: Table) -> dict[str, Look]:
    looks = {}
    for arm, comparison in look_at(ablation, table).items():
        looks[arm] = Look(comparison=comparison, table=table)
    return looks


def _average_table(ablation: Ablation, tables: list[Table]) -> Table:
    """The means over tasks of the runs that have a value in every task."""
    values: dict[str, dict[int, float]] = {}
    for arm in ablation.arms:
        seeds = set(tables[0].values[arm])
        for table in tables[1:]:
            seeds &= set(table.values[arm])
        values[arm] = {}
        for seed in sorted(seeds):
            values[arm][seed] = float(np.mean([table.values[arm][seed] for table in tables]))
    drawing = {}
    for arm in ablation.arms:
        # Another task has other samples, so the variances add up.
        if all(arm in table.drawing_sd for table in tables):
            parts = [table.drawing_sd[arm] for table in tables]
            drawing[arm] = math.hypot(*parts) / len(tables)
    return replace(
        table_of(ablation, values, None),
        floor_sd=math.hypot(*(table.floor_sd for table in tables)) / len(tables),
        drawing_sd=drawing,
    )


def _in_rounds(
    ablation: Ablation, of_task: TaskAnalysis, looks: Mapping[str, Look]
) -> TaskAnalysis:
    rows = []
    for one in of_task.comparisons:
        if one.arm in looks:
            rows.append(_comparison(ablation, one, looks[one.arm]))
    return replace(of_task, comparisons=tuple(rows), mde=None)


def _comparison(ablation: Ablation, fixed: Comparison, look: Look) -> Comparison:
    """The comparison with what the rounds say in place of what a fixed number of seeds says."""
    one, table = look.comparison, look.table
    assert one.difference is not None
    assert one.residual_sd is not None
    over_seeds = look_at(ablation, table, drawing=False)[one.arm]
    with_samples = one.arm in table.drawing_sd and one.low is not None
    seeds = tuple(sorted(seed for seed in table.values[one.arm] if seed in table.order))
    p = _p(ablation, look)
    headline: Headline = "seeds and samples" if one.low != over_seeds.low else "seeds"
    return replace(
        fixed,
        seeds=seeds,
        n=len(seeds),
        difference=one.difference,
        sd=one.residual_sd * math.sqrt(2),
        df=one.df,
        headline=None if one.low is None else headline,
        low=one.low,
        high=one.high,
        low90=one.low,
        high90=one.high,
        low_seeds=over_seeds.low,
        high_seeds=over_seeds.high,
        low_samples=one.low if with_samples else None,
        high_samples=one.high if with_samples else None,
        low_tasks=None,
        high_tasks=None,
        p=p,
        p_adjusted=p,
        adjustment="sequential",
        p_equal=None,
        verdict=_verdict(one),
    )


def _verdict(one: SequentialComparison) -> Verdict:
    if one.state == "open" or one.state == "hopeless":
        return "not distinguishable"
    return one.state


def _excludes_zero(one: SequentialComparison) -> bool:
    return one.low is not None and one.high is not None and not one.low <= 0 <= one.high


def _p(ablation: Ablation, look: Look) -> float:
    """The smallest of a few levels at which the interval of the look excludes 0; 1 for none."""
    if not _excludes_zero(look.comparison):
        return 1.0
    p = ALPHA
    for level in P_LEVELS:
        if not _excludes_zero(look_at(ablation, look.table, level)[look.comparison.arm]):
            break
        p = level
    return p


# --- in words -------------------------------------------------------------------------------------


def arm_rounds(
    ablation: Ablation, study: Study, comparisons: Sequence[Comparison]
) -> tuple[ArmRounds, ...]:
    """One row per arm, the baseline first. comparisons: of the arms on the primary task."""
    verdicts = {one.arm: one.verdict for one in comparisons}
    rows = []
    total = len(ablation.seeds)
    for arm in dict.fromkeys([ablation.baseline, *ablation.arms]):
        seeds, end = study.seeds[arm], study.ends.get(arm)
        if arm == ablation.baseline:
            reason = "the baseline, as many as any other arm"
        elif end == "decided":
            reason = f"decided: {verdicts[arm]}"
        elif end == "hopeless":
            reason = f"given up, as {total - seeds} more would hardly have decided it"
        else:
            reason = "not decided"
        rows.append(ArmRounds(arm=arm, seeds=seeds, of=total, end=end, reason=reason))
    return tuple(rows)


def rounds_note(ablation: Ablation) -> str:
    """What the intervals of an ablation in rounds hold for, in plain words."""
    text = (
        "Seeds were run in rounds until the comparisons were decided: the intervals hold for all "
        "arms and all rounds together."
    )
    if ablation.controls.random_like or ablation.controls.a_a:
        text += " Those of the controls and of A/A do not count the rounds."
    return text
