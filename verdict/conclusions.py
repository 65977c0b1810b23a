"""Comparisons, controls, A/A and the verdict in words, from the scores of the runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clipmill.manifests.metrics import (
    METRICS,
    Metrics,
    can_be_averaged,
    chance_of,
    deciding_metric,
)
from clipmill.manifests.schema import Ablation
from clipmill.verdict import wording
from clipmill.verdict.names import A_A, controls_of
from clipmill.verdict.ranges import TaskFacts, is_at_chance, metric_scores, scores_in_range
from clipmill.verdict.rounds import (
    ArmRounds,
    Study,
    arm_rounds,
    compare_in_round,
    round_sizes,
    rounds_note,
)
from clipmill.verdict.stats.analysis import Analysis, ScorerScore, TaskResult, TaskScores, analyse
from clipmill.verdict.stats.comparison import MOST_SEEDS, Comparison
from clipmill.verdict.stats.signals import MetricSignal, metric_signals


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
        at_chance=is_at_chance(metric, value, chance, facts.samples),
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
class Results:
    """results.json: what the runs show, every metric of every finished run, and their files.

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
    incomplete: {arm: seeds without a result}. runs: {arm: {seed: {task: metrics}}}.
    overlap, near_overlap: evaluation images of each task that a pool stores too, by bytes and by
    hash. arm_overlap: {task: {arm: of both, those that the arm's training data show}}.
    files: path inside the folder -> sha256, of all files that a number was read from.
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
    runs: dict[str, dict[str, dict[str, Metrics]]] = field(default_factory=dict)
    overlap: dict[str, int] = field(default_factory=dict)
    near_overlap: dict[str, int] = field(default_factory=dict)
    arm_overlap: dict[str, dict[str, int]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

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
    scores: Mapping[str, TaskScores],
    failed: Sequence[FailedRun] = (),
    incomplete: Mapping[str, tuple[int, ...]] | None = None,
    runs: int = 0,
    study: Study | None = None,
    facts: Mapping[str, TaskFacts] | None = None,
    others: Mapping[str, TaskScores] | None = None,
    earlier: Sequence[EarlierLook] = (),
    scorer: ScorerScore | None = None,
) -> Results:
    """All comparisons and the verdict, from the scores by task. `failed` are of `runs` runs, which
    are those that the rounds of `study` asked for. facts: of the tasks; without them no chance is
    known. others: the scores of the primary task by its other metrics. earlier: see
    `Results.earlier_looks`.
    """
    tasks = sorted(ablation.evaluate, key=lambda task: task.name != ablation.primary)
    metrics = {task.name: deciding_metric(task) for task in tasks}
    asked, ranges = {}, {}
    for name, metric in metrics.items():
        known_of = (facts or {}).get(name)
        asked[name], ranges[name] = scores_in_range(ablation, metric, scores[name], known_of)
    looks = 1 + len(earlier)
    analysis = _analyse(
        ablation,
        asked,
        looks,
        controls=_control_pairs(ablation),
        a_a=(A_A, ablation.controls.a_a) if ablation.controls.a_a else None,
        primary=ablation.primary,
        average=can_be_averaged(list(metrics.values())),
    )
    if study is not None:
        analysis.tasks[ablation.primary] = _at_last_looks(
            ablation, analysis.tasks[ablation.primary], study, looks
        )
    results = {}
    for name, one in analysis.tasks.items():
        known = (facts or {}).get(name)
        if known is not None:
            chance = chance_of(one.metric, known.chance)
            one = replace(one, samples=known.samples, chance=chance)
        results[name] = replace(one, range=ranges[name])
    primary = results[ablation.primary]
    by_others: tuple[TaskResult, ...] = ()
    if primary.range is not None and primary.range.near is not None and others:
        named = {f"{ablation.primary} by {m}": metric_scores(m, one) for m, one in others.items()}
        by_others = tuple(_analyse(ablation, named, looks, average=False).tasks.values())
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
    rounds: tuple[ArmRounds, ...] = ()
    if study is not None:
        rounds = arm_rounds(ablation, study, {row.arm: row for row in primary.comparisons})
        lines += [rounds_note(ablation), *(row.sentence for row in rounds)]
    if earlier:
        lines.append(looks_line(earlier))
    rows = primary.comparisons
    is_open = any(row.verdict == "not distinguishable" and row.low is not None for row in rows)
    if study is None and is_open:
        lines.append(MORE_SEEDS)
    lines += _gaps(failed, missing, runs)
    return Results(
        headline=headline,
        verdict="\n".join(lines),
        tasks=results,
        average=analysis.average,
        other_metrics=by_others,
        failed=tuple(failed),
        incomplete=missing,
        rounds=rounds,
        earlier_looks=tuple(earlier),
        scorer=scorer,
    )


def _analyse(
    ablation: Ablation, scores: Mapping[str, TaskScores], looks: int, **asked: Any
) -> Analysis:
    """The arms of the manifest on some scores; those that `mixtures` draws are no question, they
    show the noise. asked: the other arguments of `analyse`.
    """
    without = {ablation.baseline, *(ablation.mixtures.arms() if ablation.mixtures else ())}
    return analyse(
        scores,
        ablation.baseline,
        arms=[arm for arm in ablation.arms if arm not in without],
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
        "ablations, not 5 %; `stop` in a new manifest keeps 5 %."
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


def _at_last_looks(ablation: Ablation, primary: TaskResult, study: Study, looks: int) -> TaskResult:
    """The analysis with the comparison of each arm from its last look, by the range it had there.

    The smallest visible difference is that of one number of seeds, so it is left out.
    """
    rows = []
    for row in primary.comparisons:
        seen = study.scores.get(row.arm)
        if seen is not None:
            row = compare_in_round(ablation, seen, looks, study.facts)[row.arm]
        rows.append(row)
    return replace(primary, comparisons=tuple(rows), power=None)


def _control_pairs(ablation: Ablation) -> list[tuple[str, str]]:
    """Each arm with its random subsets, then the random subsets with the baseline."""
    random = [(control, arm) for control, arm in controls_of(ablation).items() if control != A_A]
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
#
# The runs of an ablation are {arm: {seed: {task: {metric: value}}}}, as results.json has them.


RunMetrics = Mapping[str, Mapping[str, Mapping[str, Metrics]]]  # arm, seed, task
Table = dict[str, dict[int, float]]  # {arm: {seed: value}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSignals:
    """The metrics of a task by signal over noise, most first. deciding: that of the verdict."""

    task: str
    deciding: str
    rows: tuple[MetricSignal, ...]


def metric_tables(ablation: Ablation, runs: RunMetrics) -> tuple[TaskSignals, ...]:
    """Signal and noise of all metrics of every task, in the order of the manifest, without controls
    and single models; a task without any is left out.
    """
    lower = [name for name in METRICS if not METRICS[name].higher_is_better]
    tables = []
    for task in ablation.evaluate:
        values = {metric: _table(ablation, runs, task.name, metric) for metric in METRICS}
        rows = tuple(metric_signals(values, lower))
        if rows:
            tables.append(TaskSignals(task=task.name, deciding=deciding_metric(task), rows=rows))
    return tuple(tables)


def _table(ablation: Ablation, runs: RunMetrics, task: str, metric: str) -> Table:
    """The values of the arms of the manifest that have seeds."""
    table: Table = {}
    for name, arm in ablation.arms.items():
        if arm.is_one_model:
            continue
        table[name] = {}
        for seed, of_seed in runs.get(name, {}).items():
            value = of_seed.get(task, {}).get(metric)
            if value is not None and np.isfinite(value):
                table[name][int(seed)] = float(value)
    return table
