"""`clipmill why`: why an arm is better than the baseline, by test samples and by training pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from clipmill.commands.app import Json, Whole, Words, make_app, print_result
from clipmill.manifests import disk, reader
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.schema import Ablation
from clipmill.study.arms import all_runs
from clipmill.study.changes import (
    PartDifferences,
    arm_changes,
    cluster_samples,
    penalty_of,
    read_answers,
)
from clipmill.study.pair_groups import (
    best_arm,
    confirming_ablation,
    explain_study,
)
from clipmill.study.results import Study
from clipmill.verdict import wording
from clipmill.verdict.decide.blends import kept_settings
from clipmill.verdict.pages.schema import ArmChanges
from clipmill.verdict.stats.groups import RUNS_PER_GROUP, Attribution, Estimate

if TYPE_CHECKING:
    from clipmill.study.influence import GradientAnswer

RULE = 70  # characters of a rule beside its group
OUTSIDE = 5e-4  # of an arm's samples; less is not mentioned
PAIRS = 8192  # of one run: a tenth of the mean size of an influence, for 1,000 pairs of a group

WHY = make_app(
    "why",
    """
  clipmill why out/demo
  clipmill why out/demo clip30 --clusters 12
  clipmill why plan out/demo clip30 --by host --to out/why
  clipmill why out/why_runs --confirm-to out/why/confirm.yaml
  clipmill why gradients out/demo clip30 --groups web/right web/wrong

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
    confirmed: str | None = None,
    confirm_to: str | None = None,
    as_json: Json = False,
) -> int:
    """Say which classes, groups and clusters of the test samples an arm gained or lost on against
    the baseline, what share of its gain each has, and what was taken for what. The intervals hold
    for all of them and all arms together.

    Of an ablation whose arms are mixtures of groups of training pairs (`clipmill why plan` writes
    one): what each group is worth, what share of the arm's gain it has, and how well the mixtures
    that were not fitted are predicted.

    Args:
        folder: The --out of an ablation.
        arm: An arm or a control (default: the best arm).
        task: A task with classes (default: the primary one).
        clusters: Divide the test images into so many clusters, too.
        model: Embeds the test images for the clusters: a run, a folder or open_clip:NAME/TAG; none
            of the compared runs (default: the ablation's scorer).
        confirmed: Of mixtures: the --out of an ablation with other runs of the arms, or with those
            that confirm a group.
        confirm_to: Of mixtures: write the ablation here that would confirm the largest part.
    """
    study = Study.open(folder)
    ablation = study.ablation
    is_of_groups = ablation.mixtures is not None
    of_groups = {"--confirmed": confirmed, "--confirm-to": confirm_to}
    of_samples = {"--task": task, "--clusters": clusters, "--model": model}
    for option, value in (of_samples if is_of_groups else of_groups).items():
        if value is not None:
            kind = "mixtures" if is_of_groups else "no mixtures"
            raise ValueError(f"{folder} is an ablation of {kind}, which {option} is not for")
    arm = arm or best_arm(study)
    if is_of_groups:
        answer = explain_study(study, arm, confirmed)
        lines = attribution_lines(answer)
        if confirm_to is not None:
            write_yaml(confirm_to, confirming_ablation(answer, ablation))
            lines += ["", f"to confirm: clipmill ablate {confirm_to} --out DIR"]
        return print_result(lines, answer, as_json)
    name = task or ablation.primary
    tasks = {each.name: each for each in ablation.evaluate}
    if name not in tasks:
        raise ValueError(f"there is no task {name!r}{disk.did_you_mean(name, list(tasks))}")
    every = all_runs(ablation, folder)
    runs = [run for run in every if (run.arm, run.seed) in study.measurements.runs]
    answers = read_answers(runs, tasks[name])
    if answers is None or ablation.baseline not in answers.arms:
        raise ValueError(
            f"the predictions on {name!r} have no classes, or are of different samples; name a "
            "classification task with --task"
        )
    if arm not in answers.arms or arm == ablation.baseline:
        near = disk.did_you_mean(arm, [each for each in answers.arms if each != ablation.baseline])
        raise ValueError(f"arm {arm!r} has no runs that differ from the baseline's{near}")
    partitions = answers.partitions()
    if clusters is not None:
        scorer = RunLayout(AblationLayout(folder).scorer).export
        if model is None and not disk.exists(scorer):
            raise ValueError(
                "--clusters needs a model that embeds the test images, and the ablation has no "
                "scorer; name one with --model, such as open_clip:ViT-B-32/laion2b_s34b_b79k"
            )
        partitions.append(cluster_samples(answers, tasks[name], model or scorer, clusters))
    elif model is not None:
        raise ValueError("--model goes with --clusters")
    penalty = penalty_of(study.results, name)
    parts = PartDifferences(answers, ablation.baseline, partitions, penalty)
    changes = arm_changes(parts, arm)
    return print_result(change_lines(changes, ablation.baseline), changes, as_json)


@WHY.command
def gradients(
    folder: str,
    arm: str | None = None,
    /,
    *,
    groups: Annotated[list[str] | None, Words] = None,
    pairs: Annotated[int, Whole] = PAIRS,
    device: str = "auto",
    as_json: Json = False,
) -> int:
    """Say what groups of training pairs have of an arm's gain, without training anything: by the
    gradients of the baseline's models, on a sample of pairs and all images of the primary task.
    Where five other arms or more were run, it says how well the gradients rank them.

    Args:
        folder: The --out of an ablation.
        arm: An arm or a control that is trained (default: the best arm).
        groups: Views that have no row in common, as POOL/VIEW (default: the sources of `mixtures`).
        pairs: Are drawn for each run of the baseline.
        device: auto, cpu, cuda or cuda:N.
    """
    from clipmill.study.influence import explain_by_gradients
    from clipmill.train.parallel.process_group import init_distributed

    study = Study.open(folder)
    answer = explain_by_gradients(
        study,
        arm or best_arm(study),
        groups or (),
        pairs=pairs,
        device=init_distributed(device).device,
    )
    return print_result(gradient_lines(answer), answer, as_json)


def write_yaml(path: str, document: dict[str, Any]) -> None:
    """Write a manifest. ValueError where another one is there, which may have been edited."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    if disk.exists(path) and disk.read_bytes(path) != text:
        raise ValueError(f"{path} is there and says something else; name another, or remove it")
    disk.write_bytes(path, text)


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


def attribution_lines(answer: Attribution) -> list[str]:
    """What groups of training pairs are worth, for a terminal."""

    def points(one: Estimate) -> str:
        return wording.interval(one.value, one.low, one.high, answer.unit)

    unit = wording.unit_of_difference(answer.unit)
    width = max(5, *(len(one.group.name) for one in answer.effects))
    base, arm = (max(8, len(name)) for name in (answer.baseline, answer.arm))
    lines = [
        f"{answer.arm} against {answer.baseline} on {answer.task} by {len(answer.effects)} groups "
        f"of pairs: {answer.metric} of {answer.mixtures} mixtures, {answer.seeds} runs each",
        "",
        f"{'group':<{width}}      rows  {answer.baseline:>{base}}  {answer.arm:>{arm}}  "
        f"{'without it, ' + unit:<24}  {'share of the gain':<20}  rule",
    ]
    for one in answer.effects:
        mark = "*" if one.effect.is_clear else " "
        lines.append(
            f"{one.group.name:<{width}}  {one.group.rows:>8,}  {one.base:>{base}.1%}  "
            f"{one.arm:>{arm}.1%}  {points(one.effect):<22} {mark}  {_share(one.share):<20}  "
            f"{one.group.rule[:RULE]}".rstrip()
        )
    lines += [
        "",
        "without it: the baseline when it is trained without the group, or with it where the "
        "baseline has none. * 0 is outside; the 95 % hold for all groups together.",
    ]
    if text := wording.missed_gain(answer):
        lines.append(text)
    if not answer.matters:
        lines.append(f"These runs do not show that the groups differ at all (p = {answer.p:.2g}).")
    if answer.rank is not None:
        allowed = "" if answer.ceiling is None else f"; the noise allows {answer.ceiling:.2f}"
        lines.append(
            f"{answer.judges} mixtures that a fit to the others had not seen: rank correlation "
            f"{answer.rank:.2f} of predicted and measured{allowed}."
        )
    lines += ["", f"Gain on the baseline, {unit}:"]
    for check in answer.arms:
        measured = wording.DASH if check.measured is None else points(check.measured)
        text = f"  {check.arm}: predicted {points(check.predicted)}, measured {measured}"
        text += f" ({check.seeds} seeds)"
        if check.ratio is not None or check.measured_ratio is not None:
            text += f"; of that of {answer.arm} {_share(check.ratio)}, "
            text += f"measured {_share(check.measured_ratio)}"
        if check.outside > OUTSIDE:
            text += f"; {check.outside:.1%} of its samples are in no group"
        lines.append(text)
    return lines


def _share(one: Estimate | None) -> str:
    if one is None:
        return wording.DASH
    return f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]"


def gradient_lines(answer: GradientAnswer) -> list[str]:
    """The answer for a terminal."""
    baseline, arm = answer.baseline, answer.arm
    models = f"{answer.runs} model{'s' if answer.runs > 1 else ''}"
    pairs = sum(group.pairs for group in answer.groups)
    lines = [
        f"{arm} against {baseline} on {answer.task}, by the gradients of {models} of {baseline}, "
        f"{pairs:,} pairs and every image of the task; nothing was trained.",
        "",
        "influence: of a pair of the group in the place of a mean one on the log-probability of "
        "the right class; 1 is the mean size. The 95 % hold for all groups together.",
    ]
    width = max(5, *(len(row.group.name) for row in answer.groups))
    columns = max(8, len(baseline), len(arm))
    lines.append(
        f"{'group':<{width}}  {baseline:>{columns}}  {arm:>{columns}}  {'influence':<20}  "
        "share of the gain"
    )
    for row in answer.groups:
        lines.append(
            f"{row.group.name:<{width}}  {row.base:>{columns}.1%}  {row.arm:>{columns}.1%}  "
            f"{_range(row.influence, '+'):<20}  {_share(row.part)}"
        )
    lines.append("")
    for name, outside in zip((baseline, arm), answer.outside, strict=True):
        if outside > OUTSIDE:
            lines.append(f"{outside:.1%} of the samples of {name} are in no group and left out.")
    if answer.gain is None:
        lines.append(f"{arm} has the groups' shares of {baseline}: nothing is attributed to them.")
    elif not answer.gain.is_clear:
        lines.append("Whether the change of shares helps is not distinguishable.")
    else:
        better = "better" if answer.gain.value > 0 else "worse"
        lines.append(f"By the gradients {arm} is expected to be {better} than {baseline}.")
    if not answer.judges:
        lines.append(f"{answer.others} other arms were run, too few to judge the gradients by.")
    for judge in answer.judges:
        lines.append(
            f"Over the {answer.others} other arms that were run, the rank correlation with the "
            f"measured {judge.metric} is {_range(judge.by_gradients)}; by the mean loss of the "
            f"groups' pairs alone {_range(judge.by_loss)}."
        )
    return lines


def _range(one: Estimate, sign: str = "") -> str:
    return f"{one.value:{sign}.2f} [{one.low:{sign}.2f}, {one.high:{sign}.2f}]"


# --- plan -----------------------------------------------------------------------------------------


@WHY.command
def plan(
    folder: str,
    arm: str | None = None,
    /,
    *,
    by: Annotated[list[str], Words],
    to: str,
    groups: Annotated[int, Whole] = 16,
    mixtures: Annotated[int, Whole] = 96,
    seeds: Annotated[int, Whole] = 2,
    samples_seen: str | None = None,
    as_json: Json = False,
) -> int:
    """Divide the training pairs of an arm and the baseline into groups, and write the ablation
    whose runs on random halves of the groups tell what each is worth.

    Args:
        folder: The --out of an ablation.
        arm: An arm that draws from the baseline's pool (default: the best arm).
        by: host, rule (of the arm's view) or columns of the pool, each inside of the one before it.
        to: The folder for why.yaml.
        groups: At most so many.
        mixtures: Halves of the groups to train on; a third of them judges the others.
        seeds: Runs of each.
        samples_seen: Of a run (default: that of the ablation).
    """
    from clipmill.commands.pool import WAIT_S
    from clipmill.pipeline.pair_groups import group_views
    from clipmill.pipeline.pool.lease import hold_lease
    from clipmill.study.plan import Hardware, plan_ablation, plan_lines

    study = Study.open(folder)
    ablation = study.ablation
    arm = arm or best_arm(study)
    if arm not in ablation.arms:
        raise ValueError(f"there is no arm {arm!r}{disk.did_you_mean(arm, list(ablation.arms))}")
    pool, views = views_of(ablation, arm)
    path = disk.absolute_path(ablation.pool_folder(folder, pool))
    with hold_lease(path, WAIT_S) as out:
        made = group_views(out, views, by, groups, views[-1])
    if mixtures < RUNS_PER_GROUP * len(made):
        raise ValueError(
            f"--mixtures is {mixtures}; {len(made)} groups need {RUNS_PER_GROUP * len(made)} at "
            f"least, and {6 * len(made)} to be judged well"
        )
    document = why_ablation(ablation, arm, pool, path, made)
    document["mixtures"]["number"] = mixtures
    document["seeds"] = list(range(seeds))
    if samples_seen is not None:
        document["train"]["samples_seen"] = samples_seen
    manifest = disk.join(disk.output_folder(to, "--to"), "why.yaml")
    write_yaml(manifest, document)
    planned = plan_ablation(reader.read_manifest(manifest, Ablation), to, Hardware())
    lines = [f"{view}  {what}" for view, what in made.items()]
    lines += ["", *plan_lines(planned), "", f"to run: clipmill ablate {manifest} --out DIR"]
    return print_result(lines, {"groups": made, "plan": planned}, as_json)


def views_of(ablation: Ablation, arm: str) -> tuple[str, list[str]]:
    """(pool, the views of the baseline and then of the arm). ValueError where these are not of one
    pool.
    """
    names = []
    for each in (ablation.baseline, arm):
        given = ablation.arms[each]
        if given.view is None and given.views is None:
            raise ValueError(f"arm {each!r} is not made of views of a pool, which groups need")
        names += [given.view] if given.view is not None else list(given.views or ())
    pools = sorted({name.partition("/")[0] for name in names})
    if len(pools) > 1:
        raise ValueError(
            f"{arm!r} and {ablation.baseline!r} draw from the pools {' and '.join(pools)}; groups "
            "are of one pool"
        )
    return pools[0], [name.partition("/")[2] for name in names]


def why_ablation(
    ablation: Ablation, arm: str, pool: str, folder: str, groups: Iterable[str]
) -> dict[str, Any]:
    """The ablation on random halves of groups: the arm, the baseline, an A/A arm and mixtures."""
    arms = {}
    for name in dict.fromkeys((ablation.baseline, arm)):
        arms[name] = disk.to_plain(ablation.arms[name], with_defaults=False)
    return {
        "name": f"{ablation.name}_why",
        "question": f"Which groups of pairs make {arm} differ from {ablation.baseline}?",
        "pools": {pool: {"out": folder}},
        "arms": arms,
        "baseline": ablation.baseline,
        "mixtures": {"sources": [f"{pool}/{view}" for view in groups], "draw": "halves"},
        "controls": {"a_a": ablation.baseline},
        **kept_settings(ablation),
    }
