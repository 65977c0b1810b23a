"""Comparisons, controls, A/A and the verdict in words, from the scores of the runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clipmill.manifests.metrics import (
    DIRECTIONS,
    HEADLINES,
    METRICS,
    can_be_averaged,
    deciding_metric,
)
from clipmill.manifests.schema import A_A, Ablation
from clipmill.verdict import wording
from clipmill.verdict.measurements import Measurement, Measurements
from clipmill.verdict.ranges import is_at_chance, scores_in_range
from clipmill.verdict.rounds import (
    ArmRounds,
    Rounds,
    arm_rounds,
    compare_in_round,
    round_sizes,
    rounds_note,
)
from clipmill.verdict.stats.analysis import (
    Analysis,
    ScorerScore,
    TaskResult,
    TaskScores,
    analyse,
    mcnemar,
)
from clipmill.verdict.stats.comparison import MOST_SEEDS, Comparison
from clipmill.verdict.stats.model import Values
from clipmill.verdict.stats.signals import MetricSignal, metric_signals


def scorer_score(view: str, row: Measurement) -> ScorerScore | None:
    """The score of a scorer, beside chance; None where it is no number."""
    if row.value is None:
        return None
    return ScorerScore(
        view=view,
        task=row.task,
        metric=row.metric,
        unit=METRICS[row.metric].unit,
        value=row.value,
        chance=row.chance,
        at_chance=is_at_chance(row.metric, row.value, row.chance, row.test_samples),
    )


# --- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended without a result."""

    arm: str
    seed: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLook:
    """A verdict with the same training settings on other seeds, another task or another metric."""

    date: str  # UTC, of the first such verdict
    seeds: tuple[int, ...]
    task: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResults:
    """results.json: what the measurements of a study show.

    tasks: by name, the primary one first: its comparisons hold together (Dunnett), those of all
    other tasks do (Bonferroni over the tasks). Controls, of the primary task: arms against the
    random subset of their size, and the subsets against the baseline. average: the arms on the mean
    over tasks; None for one task, and where the metrics differ in unit or direction.
    other_metrics: where the primary metric is near its floor or ceiling, the arms by the other
    metrics of the same predictions, over seeds; adjusted for their number.
    earlier_looks: the verdicts that were seen before this one with other seeds, task or metric.
    headline: one sentence. verdict: the headline, then one line for each comparison and each gap.
    rounds: of an ablation with `stop`, how many seeds each arm was run with, and why no more.
    scorer: of the scorer that the ablation trained; None without one.
    incomplete: {arm: seeds without a result}.
    overlap, near_overlap: evaluation images of each task that a pool stores too, by bytes and by
    hash. arm_overlap: {task: {arm: of both, those that the arm's training data show}}.
    measurements: sha256 of measurements.parquet, which all of this is computed from.
    """

    headline: str
    verdict: str
    tasks: dict[str, TaskResult]
    average: TaskResult | None
    other_metrics: tuple[TaskResult, ...]
    failed: tuple[FailedRun, ...]
    incomplete: dict[str, tuple[int, ...]]
    rounds: tuple[ArmRounds, ...]
    earlier_looks: tuple[EarlierLook, ...]
    scorer: ScorerScore | None
    ablation_hash: str = ""
    overlap: dict[str, int] = field(default_factory=dict)
    near_overlap: dict[str, int] = field(default_factory=dict)
    arm_overlap: dict[str, dict[str, int]] = field(default_factory=dict)
    measurements: str = ""

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The arms against the baseline on every task."""
        return tuple(row for task in self.tasks.values() for row in task.comparisons)

    def comparison(self, task: str, arm: str, baseline: str) -> Comparison | None:
        """An arm, a control or the A/A arm against the baseline of the ablation."""
        of_task = self.tasks[task]
        if arm == A_A:
            return of_task.a_a
        for one in (*of_task.comparisons, *of_task.controls):
            if (one.arm, one.baseline) == (arm, baseline):
                return one
        return None


def conclude(
    ablation: Ablation,
    measurements: Measurements,
    failed: Sequence[FailedRun] = (),
    incomplete: Mapping[str, tuple[int, ...]] | None = None,
    runs: int = 0,
    rounds: Rounds | None = None,
    earlier: Sequence[EarlierLook] = (),
    scorer: ScorerScore | None = None,
) -> StudyResults:
    """All comparisons and the verdict. `failed` are of `runs` runs, which are those that `rounds`
    asked for. earlier: see `StudyResults.earlier_looks`.
    """
    looks = 1 + len(earlier)
    analysis = analyse_study(ablation, measurements, looks)
    results = analysis.tasks
    for task in ablation.evaluate:
        p_values = _mcnemar(ablation, measurements.scores(task.name, HEADLINES[task.kind]))
        results[task.name] = replace(results[task.name], mcnemar=p_values)
    if rounds is not None:
        primary = _at_last_looks(ablation, results[ablation.primary], rounds, looks)
        results[ablation.primary] = primary
    primary = results[ablation.primary]
    is_near = primary.range is not None and primary.range.near is not None
    by_others: tuple[TaskResult, ...] = ()
    if is_near and (others := _other_metrics(ablation, measurements)):
        by_others = tuple(_analyse(ablation, others, looks, average=False).tasks.values())
    missing = dict(incomplete or {})
    headline = _headline(ablation, primary) + _caution(primary, by_others)
    if scorer is not None:
        headline += wording.scorer_caution(scorer)
    lines = [headline, *wording.sentences(primary)]
    for one in by_others:
        lines += [wording.describe(row) for row in one.comparisons if row.is_clear]
    lines += _control_lines(primary)
    if scorer is not None:
        lines.append(f"{wording.scorer_sentence(scorer)}.")
    of_arms: tuple[ArmRounds, ...] = ()
    if rounds is not None:
        of_arms = arm_rounds(ablation, rounds, {row.arm: row for row in primary.comparisons})
        lines += [rounds_note(ablation), *(row.sentence for row in of_arms)]
    if earlier:
        lines.append(looks_line(earlier))
    rows = primary.comparisons
    is_open = any(row.verdict == "not distinguishable" and row.low is not None for row in rows)
    if rounds is None and is_open:
        lines.append(MORE_SEEDS)
    lines += _gaps(failed, missing, runs)
    return StudyResults(
        headline=headline,
        verdict="\n".join(lines),
        tasks=results,
        average=analysis.average,
        other_metrics=by_others,
        failed=tuple(failed),
        incomplete=missing,
        rounds=of_arms,
        earlier_looks=tuple(earlier),
        scorer=scorer,
    )


def analyse_study(ablation: Ablation, measurements: Measurements, looks: int) -> Analysis:
    """All comparisons by the deciding metrics, the primary task first; without rounds."""
    tasks = sorted(ablation.evaluate, key=lambda task: task.name != ablation.primary)
    scores = {}
    for task in tasks:
        of_task = measurements.scores(task.name, deciding_metric(task))
        scores[task.name] = scores_in_range(ablation, of_task)
    return _analyse(
        ablation,
        scores,
        looks,
        controls=_control_pairs(ablation),
        a_a=(A_A, ablation.controls.a_a) if ablation.controls.a_a else None,
        primary=ablation.primary,
        average=can_be_averaged([of_task.metric for of_task in scores.values()]),
    )


def _analyse(
    ablation: Ablation, scores: Mapping[str, TaskScores], looks: int, **asked: Any
) -> Analysis:
    """The arms of the manifest on some scores; those that `mixtures` draws are no question, they
    show the noise. asked: the other arguments of `analyse`.
    """
    return analyse(
        scores,
        ablation.baseline,
        arms=ablation.asked_arms,
        band=0.0,
        one_models=[name for name, arm in ablation.arms.items() if arm.is_one_model],
        rounds=len(round_sizes(ablation)),
        looks=looks,
        **asked,
    )


def _caution(primary: TaskResult, by_others: Sequence[TaskResult]) -> str:
    """What the headline adds where the scores are at chance or at an end of the metric."""
    if primary.range is None or primary.range.near is None:
        return ""
    text = f" {wording.range_sentence(primary)}: nothing can be called equal by it"
    clear = []
    for one in by_others:
        clear += [row for row in one.comparisons if row.is_clear]
    if clear:
        metric = min(clear, key=lambda row: row.p_adjusted).metric
        words = [f"{row.arm} is {row.verdict}" for row in clear if row.metric == metric]
        text += f"; {metric} of the same predictions tells arms apart: {', '.join(words)}"
    elif any(one.comparisons for one in by_others):
        count = len(by_others)
        text += f"; none of the {count} other metrics of these predictions tells the arms apart"
    return f"{text}."


# --- looks ----------------------------------------------------------------------------------------

MORE_SEEDS = (
    "More seeds: in a new manifest, `stop: {at_least: 2}` runs them in rounds and ends with the "
    "round that decides an arm; all looks are planned. Seeds that are added to this one count as "
    "another look, with wider intervals."
)


def looks_line(earlier: Sequence[EarlierLook]) -> str:
    """Which verdicts were seen before this one, and what its intervals hold."""
    seen = []
    for one in earlier:
        seen.append(f"{len(one.seeds)} seeds by {one.metric} on {one.task} ({one.date[:10]})")
    looks = 1 + len(earlier)
    return (
        f"Look {looks} at these arms; verdicts were seen with {', with '.join(seen)}. A look has "
        f"half the error of the one before: these are intervals of {wording.level(looks)} for this "
        "look alone. Over all looks a difference that is not there is called in up to 10 % of "
        "ablations, not 5 %; a new manifest with `stop: {at_least: 2}`, which runs the seeds in "
        "rounds and plans a look after each, keeps 5 %."
    )


def _control_lines(primary: TaskResult) -> list[str]:
    """The controls and the A/A arm, with a warning where equal data differ."""
    lines = [f"Control: {wording.describe(row, primary.power)}" for row in primary.controls]
    aa = primary.a_a
    if aa is not None:
        sentence = wording.describe(aa, primary.power)
        lines.append(f"A/A, equal data in another order: {sentence}")
        if aa.is_clear:
            lines.append(
                "Equal data differ: by chance alone this happens in 1 of 20 ablations; "
                "do not believe a verdict above without more seeds."
            )
    return lines


def _mcnemar(ablation: Ablation, scores: TaskScores) -> dict[str, float]:
    """McNemar's p of each arm against the baseline, for the first seed that both have finished."""
    p_values: dict[str, float] = {}
    of_baseline = scores.samples.get(ablation.baseline, {})
    for arm, runs in scores.samples.items():
        for seed in runs:
            if arm not in (ablation.baseline, *p_values) and seed in of_baseline:
                own, other = (np.concatenate(groups) for groups in (runs[seed], of_baseline[seed]))
                p_values[arm] = mcnemar(own, other)
    return p_values


def _other_metrics(ablation: Ablation, measurements: Measurements) -> dict[str, TaskScores]:
    """The primary task by the other metrics that all finished runs have, of both directions."""
    task, others = ablation.primary_task, {}
    known = set(measurements.metrics(task.name)) - {deciding_metric(task)}
    for metric in (metric for metric in METRICS if metric in known):
        scores = measurements.scores(task.name, metric)
        values = [value for runs in scores.values.values() for value in runs.values()]
        is_complete = len(values) == len(measurements.runs) and np.isfinite(values).all()
        if is_complete and not metric.startswith(DIRECTIONS):
            scores = replace(scores, samples={}, test_samples=0, chance=None)
            others[f"{task.name} by {metric}"] = scores
    return others


def _at_last_looks(
    ablation: Ablation, primary: TaskResult, rounds: Rounds, looks: int
) -> TaskResult:
    """The analysis with the comparison of each arm from its last look, by the range it had there.

    The smallest visible difference is that of one number of seeds, so it is left out.
    """
    rows = []
    for row in primary.comparisons:
        seen = rounds.scores.get(row.arm)
        if seen is not None:
            row = compare_in_round(ablation, seen, looks)[row.arm]
        rows.append(row)
    return replace(primary, comparisons=tuple(rows), power=None)


def _control_pairs(ablation: Ablation) -> list[tuple[str, str]]:
    """Each arm with its random subsets, then the random subsets with the baseline."""
    random = [(control, arm) for control, arm in ablation.control_arms.items() if control != A_A]
    pairs = [(arm, control) for control, arm in random]
    return pairs + [(control, ablation.baseline) for control, _ in random]


# --- the headline ---------------------------------------------------------------------------------


def _headline(ablation: Ablation, primary: TaskResult) -> str:
    """One sentence about the arms of the manifest on the primary task, without the controls."""
    rows = primary.comparisons
    if not rows and ablation.mixtures is not None and ablation.mixtures.draw == "shares":
        return "One run of each blend compares no two: `clipmill mix` on this folder fits a law."
    if not rows:
        return "Nothing can be compared: no arm shares two finished seeds with the baseline."
    base, task = ablation.baseline, ablation.primary
    clear = [row for row in rows if row.is_clear]
    if not clear:
        if all(row.verdict == "practically equal" for row in rows):
            names = ", ".join(row.arm for row in rows)
            return f"No difference on {task}: practically equal to {base} are {names}."
        return f"No difference to {base} found on {task}: {_differences(rows)}{_power(primary)}."
    parts = []
    for word in ("better", "worse"):
        some = [row for row in clear if row.verdict == word]
        if some:
            parts.append(f"{word} than {base}: {_differences(some)}")
    text = "; ".join(parts)
    rest = len(rows) - len(clear)
    others = f"; no difference was found for {rest} of {len(rows)} arms" if rest else ""
    return f"On {task}, {text}{others}."


def _power(primary: TaskResult) -> str:
    """What these runs could have shown, and how many seeds would show half of that."""
    if primary.power is None:
        return ""
    text = f"; {wording.could_have_seen(primary.power, primary.unit)}"
    shown = wording.percent(primary.power.half, primary.unit)
    if primary.power.seeds_for_half is None:
        return f"{text}; no number of seeds up to {MOST_SEEDS:,} would see {shown}"
    return f"{text}; {primary.power.seeds_for_half} seeds would see {shown}"


def _differences(rows: Sequence[Comparison]) -> str:
    texts = [f"{r.arm} {wording.difference(r)} {wording.unit_of_difference(r.unit)}" for r in rows]
    return ", ".join(texts)


def _gaps(
    failed: Sequence[FailedRun], incomplete: Mapping[str, tuple[int, ...]], runs: int
) -> list[str]:
    """Which runs are missing, and which arms are therefore incomplete."""
    lines = []
    if failed:
        first = failed[0]
        lines.append(
            f"{len(failed)} of {runs} runs ended without a result; the first is "
            f"{wording.run_name(first.arm, first.seed)}: {first.error}"
        )
    if incomplete:
        arms = [f"{arm} ({wording.without(seeds)})" for arm, seeds in incomplete.items()]
        lines.append(f"Incomplete: {', '.join(arms)}. The other seeds are used.")
    return lines


# --------------------------------------------------------------------------------------------------
# Tables over whole ablations: which metric tells the arms apart. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSignals:
    """The metrics of a task by signal over noise, most first. deciding: that of the verdict."""

    task: str
    deciding: str
    rows: tuple[MetricSignal, ...]


def metric_tables(ablation: Ablation, measurements: Measurements) -> tuple[TaskSignals, ...]:
    """Signal and noise of all metrics of every task, in the order of the manifest, without controls
    and single models; a task without any is left out.
    """
    lower = [name for name in METRICS if not METRICS[name].higher_is_better]
    arms = [name for name, arm in ablation.arms.items() if not arm.is_one_model]
    tables = []
    for task in ablation.evaluate:
        by_metric: dict[str, Values] = {}
        for metric in METRICS:
            values = measurements.values(task.name, metric)
            by_metric[metric] = {
                arm: {seed: x for seed, x in values.get(arm, {}).items() if np.isfinite(x)}
                for arm in arms
            }
        if rows := tuple(metric_signals(by_metric, lower)):
            tables.append(TaskSignals(task=task.name, deciding=deciding_metric(task), rows=rows))
    return tuple(tables)
