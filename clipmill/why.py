"""`clipmill why`: why an arm is better than the baseline, by test samples and by training pairs."""

from __future__ import annotations

from collections.abc import Sequence

from clipmill.app import Json, make_app, print_json
from manifests import disk
from manifests.layout import AblationLayout, RunLayout
from manifests.schema import Ablation
from train.ablation import wording
from train.ablation.arms import all_runs
from train.ablation.conclusions import Results
from train.evaluation.metrics import METRICS
from train.reporting.changes import (
    cluster_samples,
    penalty_of,
    read_answers,
    task_changes,
)
from train.reporting.results import read_results
from train.reporting.schema import ArmChanges

WHY = make_app(
    "why",
    """
  clipmill why out/demo
  clipmill why out/demo clip30 --clusters 12

DIR is the --out of an ablation. Nothing is run.
""",
    {0: "the answer is printed, also where nothing is distinguishable"},
)


@WHY.default
def why(
    folder: str,
    arm: str | None = None,
    /,
    *,
    task: str | None = None,
    clusters: int | None = None,
    model: str | None = None,
    as_json: Json = False,
) -> int:
    """Say which classes, groups and clusters of the test samples an arm gained or lost on against
    the baseline, what share of its gain each has, and what was taken for what. The intervals hold
    for all of them and all arms together.

    Args:
        folder: The --out of an ablation.
        arm: An arm or a control (default: the best arm).
        task: A task with classes (default: the primary one).
        clusters: Divide the test images into so many clusters, too.
        model: Embeds the test images for the clusters: a run, a folder or open_clip:NAME/TAG; none
            of the compared runs (default: the ablation's scorer).
    """
    path = AblationLayout(folder).ablation_json
    if not disk.exists(path):
        raise ValueError(f"{folder} has no ablation.json; give the --out of `clipmill ablate`")
    ablation = disk.from_plain(Ablation, disk.read_json(path))
    results = read_results(ablation, folder)
    changes = changes_of_arm(ablation, folder, results, arm, task, clusters, model)
    print("\n".join(change_lines(changes, ablation.baseline)))
    print_json(changes, as_json)
    return 0


def changes_of_arm(
    ablation: Ablation,
    folder: str,
    results: Results,
    arm: str | None,
    task: str | None,
    clusters: int | None,
    model: str | None,
) -> ArmChanges:
    """What an arm changed on a task. ValueError for what was not run, and for a task without
    classes.
    """
    name = task or ablation.primary
    tasks = {each.name: each for each in ablation.evaluate}
    if name not in tasks:
        raise ValueError(f"there is no task {name!r}{disk.did_you_mean(name, list(tasks))}")
    drawn = ablation.mixtures.arms() if ablation.mixtures is not None else {}
    runs = []
    for run in all_runs(ablation, folder):
        if str(run.seed) in results.runs.get(run.arm, {}) and run.arm not in drawn:
            runs.append(run)
    arms = list(dict.fromkeys(run.arm for run in runs if run.arm != ablation.baseline))
    arm = arm or best_arm(ablation, results, arms)
    if arm not in arms:
        raise ValueError(f"arm {arm!r} has no runs{disk.did_you_mean(arm, arms)}")
    answers = read_answers(runs, tasks[name])
    if answers is None or ablation.baseline not in answers.arms:
        raise ValueError(
            f"the predictions on {name!r} have no classes, or are of different samples; name a "
            "classification task with --task"
        )
    partitions = answers.partitions()
    if clusters is not None:
        source = model or RunLayout(AblationLayout(folder).scorer).export
        if model is None and not disk.exists(source):
            raise ValueError(
                "--clusters needs a model that embeds the test images, and the ablation has no "
                "scorer; name one with --model, such as open_clip:ViT-B-32/laion2b_s34b_b79k"
            )
        partitions.append(cluster_samples(answers, tasks[name], source, clusters))
    elif model is not None:
        raise ValueError("--model goes with --clusters")
    penalty = penalty_of(results, name)
    (changes,) = (
        change
        for change in task_changes(answers, tasks[name], ablation.baseline, partitions, penalty)
        if change.arm == arm
    )
    return changes


def best_arm(ablation: Ablation, results: Results, arms: Sequence[str]) -> str:
    """The arm, no control, with the best mean on the primary task. ValueError where none has
    runs.
    """
    metric = results.tasks[ablation.primary].metric
    sign = 1 if METRICS[metric].higher_is_better else -1
    means = {}
    for arm in arms:
        if arm in ablation.arms:
            of_seeds = [seed[ablation.primary][metric] for seed in results.runs[arm].values()]
            means[arm] = sign * sum(of_seeds) / len(of_seeds)
    if not means:
        raise ValueError(f"no arm but the baseline {ablation.baseline!r} has runs")
    return max(means, key=lambda arm: means[arm])


def change_lines(changes: ArmChanges, baseline: str) -> list[str]:
    """The changes of an arm for a terminal."""
    whole = changes.whole
    gain = wording.interval(whole.arm - whole.baseline, whole.low, whole.high)
    lines = [
        f"{changes.arm} against {baseline} on {changes.task}: accuracy "
        f"{wording.percent(whole.baseline)} -> {wording.percent(whole.arm)} %, {gain} points: "
        f"{whole.verdict}"
    ]
    for kind, count in changes.parts.items():
        of_kind = [one for one in changes.changes if one.kind == kind]
        width = max(len(kind), *(len(one.name) for one in of_kind))
        which = f"{len(of_kind)} of {count:,}" if len(of_kind) < count else f"all {count:,}"
        lines += ["", f"By {kind} ({which}); the 95 % hold for all parts and all arms together:"]
        lines.append(
            f"{kind:<{width}}  samples  {baseline:>8}  {changes.arm:>8}  share of gain  points"
        )
        for one in of_kind:
            share = wording.DASH if one.share is None else f"{one.share:.0%}"
            points = wording.interval(one.arm - one.baseline, one.low, one.high)
            clear = f"  {one.verdict}" if one.verdict in ("better", "worse") else ""
            lines.append(
                f"{one.name:<{width}}  {one.samples:>7,}  {wording.percent(one.baseline):>8}  "
                f"{wording.percent(one.arm):>8}  {share:>13}  {points}{clear}"
            )
    if not any(one.verdict in ("better", "worse") for one in changes.changes):
        lines += ["", "Nothing is distinguishable: no part of the test samples is known to differ."]
    if changes.confusions:
        lines += ["", f"Taken for another class, samples of one run, {baseline} -> {changes.arm}:"]
    for confusion in changes.confusions:
        lines.append(
            f"  {confusion.label} taken for {confusion.predicted}: {confusion.baseline:.0f} -> "
            f"{confusion.arm:.0f}"
        )
    return lines
