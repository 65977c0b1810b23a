"""Comparisons, controls, A/A and the verdict in words, from the scores of the runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from manifests import disk
from manifests.schema import Ablation
from train.ablation import wording
from train.ablation.arms import A_A, RANDOM_LIKE
from train.ablation.round_intervals import ArmRounds, analysis_in_rounds, arm_rounds, rounds_note
from train.ablation.rounds import Study
from train.evaluation import METRICS, deciding_metric
from train.stats import (
    Analysis,
    Comparison,
    LedgerEntry,
    TaskAnalysis,
    TaskScores,
    Verdict,
    analyse,
    seeds_needed,
)

OPPOSITE: dict[Verdict, Verdict] = {
    "better": "worse",
    "worse": "better",
    "practically equal": "practically equal",
    "not distinguishable": "not distinguishable",
}
Ledger = Mapping[str, Sequence[LedgerEntry]]  # by task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison(Comparison):
    """A comparison on a task, the unit of its metric, and its sentence."""

    task: str
    metric: str
    unit: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNoise:
    """The noise of a task's metric, shared by all arms, as standard deviations of one run.

    own_sd, own_df: of these runs alone. prior: of earlier ablations, from the ledger. sd, df: of
    both. floor_sd: what the samples of the test set leave at least. drawing_sd: what another test
    set would add to a difference, however many seeds there are. mde: the smallest true difference
    that 80 % of such ablations call better or worse.
    """

    task: str
    metric: str
    unit: str
    own_sd: float | None
    own_df: float
    prior: LedgerEntry | None
    sd: float | None
    df: float | None
    floor_sd: float | None
    drawing_sd: float | None
    mde: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended without a result."""

    arm: str
    seed: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """What the runs show.

    comparisons: every arm of the manifest against the baseline, primary task first; the intervals
    of a task hold together (Dunnett). average: the same for the mean over tasks; empty for one
    task. controls, on the primary task: arms against the random subset of their size, and the
    subsets against the baseline (Holm). aa: the A/A arm against the arm that it repeats.
    noise: of each task, primary first.
    headline: one sentence. verdict: the headline, then one line for each comparison and each gap.
    rounds: of an ablation with `stop`, how many seeds each arm was run with, and why no more.
    """

    headline: str
    verdict: str
    comparisons: tuple[TaskComparison, ...]
    average: tuple[TaskComparison, ...]
    controls: tuple[TaskComparison, ...]
    aa: TaskComparison | None
    noise: tuple[TaskNoise, ...]
    failed: tuple[FailedRun, ...]
    incomplete: dict[str, tuple[int, ...]]  # arm -> seeds without a result
    rounds: tuple[ArmRounds, ...] = ()


def conclude(
    ablation: Ablation,
    scores: Mapping[str, TaskScores],
    failed: Sequence[FailedRun] = (),
    incomplete: Mapping[str, tuple[int, ...]] | None = None,
    runs: int = 0,
    ledger: Ledger | None = None,
    study: Study | None = None,
) -> Conclusions:
    """All comparisons and the verdict, from the scores by task. `failed` are of `runs` runs, which
    are those that the rounds of `study` asked for; the ledger is then that of the first round.
    """
    tasks = sorted(ablation.evaluate, key=lambda task: task.name != ablation.primary)
    metrics = {task.name: deciding_metric(task) for task in tasks}
    analysis = analyse(
        {task.name: scores[task.name] for task in tasks},
        ablation.baseline,
        arms=[arm for arm in ablation.arms if arm != ablation.baseline],
        band=ablation.equivalence,
        one_models=[name for name, arm in ablation.arms.items() if arm.is_one_model],
        controls=_control_pairs(ablation),
        a_a=(A_A, ablation.controls.a_a) if ablation.controls.a_a else None,
        ledger=None if study is not None else ledger,
    )
    if study is not None:
        analysis = analysis_in_rounds(ablation, analysis, scores, study, ledger)
    comparisons: list[TaskComparison] = []
    for name, of_task in analysis.tasks.items():
        comparisons += _on_task(of_task, of_task.comparisons, metrics[name])
    primary = analysis.tasks[ablation.primary]
    decides = metrics[ablation.primary]
    controls = _on_task(primary, primary.controls, decides)
    aa = _on_task(primary, [primary.a_a], decides)[0] if primary.a_a else None
    average = _on_average(analysis, metrics, decides)
    missing = dict(incomplete or {})
    on_primary = [row for row in comparisons if row.task == ablation.primary]
    headline = _headline(ablation, on_primary, primary)
    lines = [headline, *(row.sentence for row in on_primary)]
    lines += _control_lines(controls, aa)
    if primary.prior is not None:
        lines.append(_prior_line(primary, len((ledger or {})[ablation.primary]), decides))
    rounds = () if study is None else arm_rounds(ablation, study, on_primary)
    if rounds:
        lines += [rounds_note(ablation), *(row.sentence for row in rounds)]
    lines += _gaps(failed, missing, runs)
    noise = [_noise(of_task, metrics[name]) for name, of_task in analysis.tasks.items()]
    return Conclusions(
        headline=headline,
        verdict="\n".join(lines),
        comparisons=tuple(comparisons),
        average=tuple(average),
        controls=tuple(controls),
        aa=aa,
        noise=tuple(noise),
        failed=tuple(failed),
        incomplete=missing,
        rounds=rounds,
    )


def _on_average(
    analysis: Analysis, metrics: Mapping[str, str], decides: str
) -> list[TaskComparison]:
    """The comparisons over all tasks; [] where their metrics have different units."""
    units = {METRICS[metric].unit for metric in metrics.values()}
    if analysis.average is None or len(units) > 1:
        return []
    return _on_task(analysis.average, analysis.average.comparisons, decides)


def _control_lines(controls: Sequence[TaskComparison], aa: TaskComparison | None) -> list[str]:
    """The controls and the A/A arm, with a warning where equal data differ."""
    lines = [f"Control: {row.sentence}" for row in controls]
    if aa is not None:
        lines.append(f"A/A, equal data in another order: {aa.sentence}")
        if aa.verdict in ("better", "worse"):
            lines.append(
                "Equal data differ: by chance alone this happens in 1 of 20 ablations; "
                "do not believe a verdict above without more seeds."
            )
    return lines


def _control_pairs(ablation: Ablation) -> list[tuple[str, str]]:
    """Each arm with its random subsets, then the random subsets with the baseline."""
    arms = ablation.controls.random_like
    pairs = [(arm, RANDOM_LIKE + arm) for arm in arms]
    return pairs + [(RANDOM_LIKE + arm, ablation.baseline) for arm in arms]


def _on_task(
    of_task: TaskAnalysis, comparisons: Sequence[Comparison], metric: str
) -> list[TaskComparison]:
    unit = METRICS[metric].unit
    rows = []
    for one in comparisons:
        comparison = one
        if not METRICS[metric].higher_is_better:
            comparison = replace(one, verdict=OPPOSITE[one.verdict])
        sentence = wording.describe(comparison, of_task.task, unit, of_task.mde)
        fields = {"task": of_task.task, "metric": metric, "unit": unit, "sentence": sentence}
        plain = {**disk.to_plain(comparison), **fields}
        rows.append(disk.from_plain(TaskComparison, plain))
    return rows


def _noise(of_task: TaskAnalysis, metric: str) -> TaskNoise:
    return TaskNoise(
        task=of_task.task,
        metric=metric,
        unit=METRICS[metric].unit,
        own_sd=of_task.own_sd,
        own_df=of_task.own_df,
        prior=of_task.prior,
        sd=of_task.sd,
        df=of_task.df,
        floor_sd=of_task.floor_sd,
        drawing_sd=of_task.drawing_sd,
        mde=of_task.mde,
    )


# --- the headline ---------------------------------------------------------------------------------


def _headline(ablation: Ablation, rows: Sequence[TaskComparison], primary: TaskAnalysis) -> str:
    """One sentence about the arms of the manifest on the primary task, without the controls."""
    if not rows:
        return "Nothing can be compared: no arm shares two finished seeds with the baseline."
    base, task = ablation.baseline, ablation.primary
    clear = [row for row in rows if row.verdict in ("better", "worse")]
    if not clear:
        equal = [row for row in rows if row.verdict == "practically equal"]
        if len(equal) == len(rows):
            names = ", ".join(row.arm for row in rows)
            return f"No difference on {task}: practically equal to {base} are {names}."
        power = _power(rows[0], primary)
        return f"No difference to {base} found on {task}: {_differences(rows)}{power}."
    parts = []
    for word in ("better", "worse"):
        some = [row for row in clear if row.verdict == word]
        if some:
            parts.append(f"{word} than {base}: {_differences(some)}")
    text = "; ".join(parts)
    rest = len(rows) - len(clear)
    others = f"; no difference was found for {rest} of {len(rows)} arms" if rest else ""
    return f"On {task}, {text}{others}."


def _prior_line(primary: TaskAnalysis, ablations: int, metric: str) -> str:
    """What earlier ablations said of the noise, beside what these runs say."""
    assert primary.prior is not None
    unit = METRICS[metric].unit
    earlier = wording.percent(primary.prior.variance**0.5, unit)
    own = wording.percent(primary.own_sd, unit)
    return (
        f"Noise of one run: {own} in these runs, {earlier} in {ablations} earlier "
        f"ablation{'s' if ablations > 1 else ''}, which count as {primary.prior.df:.0f} degrees of "
        "freedom (`ledger: false` leaves them out)."
    )


def _power(row: TaskComparison, primary: TaskAnalysis) -> str:
    """What these runs could have shown, and how many seeds would show half of that."""
    if primary.mde is None or primary.sd is None:
        return ""
    text = f"; these runs could only have seen {wording.percent(primary.mde, row.unit)} or more"
    half = primary.mde / 2
    drawing = (primary.drawing_sd or 0.0) ** 2
    seeds = seeds_needed(
        half,
        primary.sd,
        arms=len(primary.comparisons),
        floor_sd=primary.floor_sd or 0.0,
        drawing=(drawing, float("inf")),
        prior_df=primary.prior.df if primary.prior else 0.0,
    )
    shown = wording.percent(half, row.unit)
    if seeds is None:
        return f"{text}; no number of seeds would show {shown} on this test set"
    return f"{text}; {seeds} seeds would see {shown}"


def _differences(rows: Sequence[TaskComparison]) -> str:
    texts = []
    for row in rows:
        difference = wording.interval(row.difference, row.low, row.high, row.unit)
        texts.append(f"{row.arm} {difference} {wording.unit_of_difference(row.unit)}")
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
