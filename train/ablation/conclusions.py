"""Comparisons, controls, A/A and the verdict in words, from the metrics of the runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manifests import disk
from manifests.schema import Ablation, TaskSpec
from train.ablation import stats, wording
from train.ablation.arms import A_A, RANDOM_LIKE
from train.evaluation import kind_of

Values = Mapping[str, Mapping[int, float]]  # {arm: {seed of the ablation: headline metric}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison(stats.Comparison):
    """A comparison on a task, and its sentence."""

    task: str
    metric: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that ended without a result."""

    arm: str
    seed: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """What the runs show.

    comparisons: every arm against the baseline, primary task first, Holm over the arms of a task.
    controls: arms against the random subset of their size; aa: equal data in another order. Both
    are on the primary task, and each is a family of its own.
    headline: one sentence. verdict: the headline, then one line for each comparison and each gap.
    """

    headline: str
    verdict: str
    comparisons: tuple[TaskComparison, ...]
    controls: tuple[TaskComparison, ...]
    aa: TaskComparison | None
    failed: tuple[FailedRun, ...]
    incomplete: dict[str, tuple[int, ...]]  # arm -> seeds without a result


def compare_with_baseline(
    values: Values, arms: Sequence[str], baseline: str, band: float
) -> list[stats.Comparison]:
    """The arms that share two seeds with the baseline, compared with it; Holm over them."""
    of_baseline = values.get(baseline, {})
    enough = []
    for arm in arms:
        shared = set(values.get(arm, {})) & set(of_baseline)
        if arm != baseline and len(shared) >= 2:
            enough.append(arm)
    if not enough:
        return []
    return stats.compare({arm: values[arm] for arm in [baseline, *enough]}, baseline, band)


def conclude(
    ablation: Ablation,
    values: Mapping[str, Values],
    failed: Sequence[FailedRun] = (),
    incomplete: Mapping[str, tuple[int, ...]] | None = None,
    runs: int = 0,
) -> Conclusions:
    """All comparisons and the verdict, from {task: values}. `failed` are of `runs` runs."""
    tasks = sorted(ablation.evaluate, key=lambda task: task.name != ablation.primary)
    comparisons = []
    for task in tasks:
        names = [arm for arm in values[task.name] if arm != A_A]
        band = ablation.equivalence
        rows = compare_with_baseline(values[task.name], names, ablation.baseline, band)
        comparisons += [_on_task(task, row) for row in rows]
    primary = values[ablation.primary]
    controls = [_on_task(tasks[0], row) for row in _controls(ablation, primary)]
    aa = _a_a(ablation, primary, tasks[0])
    missing = dict(incomplete or {})
    on_primary = [row for row in comparisons if row.task == ablation.primary]
    headline = _headline(ablation, on_primary)
    lines = [headline, *(row.told for row in on_primary)]
    lines += [f"Against a random subset of its size: {row.told}" for row in controls]
    if aa is not None:
        lines.append(f"A/A, equal data in another order: {aa.told}")
        if aa.verdict in ("better", "worse"):
            lines.append("Equal data differ: do not believe a verdict above without more seeds.")
    lines += _gaps(failed, missing, runs)
    return Conclusions(
        headline=headline,
        verdict="\n".join(lines),
        comparisons=tuple(comparisons),
        controls=tuple(controls),
        aa=aa,
        failed=tuple(failed),
        incomplete=missing,
    )


def _controls(ablation: Ablation, primary: Values) -> list[stats.Comparison]:
    """Each arm against its random subset; Holm over these comparisons together."""
    rows = []
    for arm in ablation.controls.random_like:
        rows += compare_with_baseline(primary, [arm], RANDOM_LIKE + arm, ablation.equivalence)
    adjusted = stats.holm([row.p for row in rows])
    return [
        stats.adjust(row, p_holm, len(rows)) for row, p_holm in zip(rows, adjusted, strict=True)
    ]


def _a_a(ablation: Ablation, primary: Values, task: TaskSpec) -> TaskComparison | None:
    """The A/A runs against the runs of their arm from the same weights."""
    arm = ablation.controls.a_a
    if arm is None:
        return None
    rows = compare_with_baseline(primary, [A_A], arm, ablation.equivalence)
    return _on_task(task, rows[0]) if rows else None


def _on_task(task: TaskSpec, comparison: stats.Comparison) -> TaskComparison:
    row: TaskComparison = disk.from_plain(
        TaskComparison,
        {
            **disk.to_plain(comparison),
            "task": task.name,
            "metric": kind_of(task).headline,
            "told": wording.describe(comparison, task.name),
        },
    )
    return row


def _headline(ablation: Ablation, rows: Sequence[TaskComparison]) -> str:
    """One sentence about the arms of the manifest on the primary task, without the controls."""
    arms = [row for row in rows if row.arm in ablation.arms]
    if not arms:
        return "Nothing can be compared: no arm shares two finished seeds with the baseline."
    base, task = ablation.baseline, ablation.primary
    clear = [row for row in arms if row.verdict in ("better", "worse")]
    if not clear:
        equal = [row for row in arms if row.verdict == "practically equal"]
        if len(equal) == len(arms):
            names = ", ".join(row.arm for row in arms)
            return f"No difference on {task}: practically equal to {base} are {names}."
        return f"No difference to {base} was found on {task} ({_differences(arms)})."
    parts = []
    for word in ("better", "worse"):
        some = [row for row in clear if row.verdict == word]
        if some:
            parts.append(f"{word} than {base}: {_differences(some)}")
    text = "; ".join(parts)
    rest = len(arms) - len(clear)
    others = f"; no difference was found for {rest} of {len(arms)} arms" if rest else ""
    return f"On {task}, {text}{others}."


def _differences(rows: Sequence[TaskComparison]) -> str:
    texts = []
    for row in rows:
        difference = wording.interval(row.difference, row.low, row.high)
        texts.append(f"{row.arm} {difference} points")
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
            f"{first.arm} seed {first.seed}: {first.error}"
        )
    if incomplete:
        arms = []
        for arm, seeds in incomplete.items():
            arms.append(f"{arm} (without seed {', '.join(map(str, seeds))})")
        lines.append(f"Incomplete: {', '.join(arms)}. The other seeds are used.")
    return lines
