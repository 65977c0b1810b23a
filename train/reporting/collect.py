"""The report of an ablation's folder: results.json, and what the arms and runs were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from manifests import disk
from manifests.run_layout import AblationLayout, RunLayout
from manifests.schema import Ablation, Blend, TaskSpec
from train.ablation import (
    A_A,
    AnyRun,
    Run,
    TaskComparison,
    all_runs,
    arm_names,
    missing_views,
    wording,
)
from train.evaluation import METRICS, deciding_metric
from train.reporting import distributions, gallery
from train.reporting.changes import collect_changes
from train.reporting.contract import collect_contract
from train.reporting.results import FileHashes, read_results
from train.reporting.runs import costs_of, device_seconds, power_of, read_curves, run_rows
from train.reporting.schema import (
    ArmReport,
    BaselineDifference,
    Histogram,
    Power,
    Provenance,
    Report,
    Results,
    Role,
    SeedValues,
    TaskReport,
    TaskRow,
)
from train.reporting.tables import scaling_curves, signal_rows
from train.reporting.views import ArmView, open_views
from train.stats import mean_sd


def collect_report(out: str) -> Report:
    """The report of an ablation's folder.

    ValueError where results.json is missing or older than the runs. Runs without a result are
    left out and named; so are views that are gone: the results stand without their data.
    """
    layout = AblationLayout(out)
    ablation: Ablation = disk.from_plain(Ablation, disk.read_json(layout.ablation_json))
    results = read_results(ablation, out)
    hashes = FileHashes(folder=out, sha256=dict(results.files))
    runs = all_runs(ablation, out)
    trained = [run for run in runs if isinstance(run, Run)]
    with_result = [run for run in runs if str(run.seed) in results.arms[run.arm].runs]
    finished = [run for run in with_result if isinstance(run, Run)]
    primary = next(task for task in ablation.evaluate if task.name == ablation.primary)
    views, gone = _open_views(trained)
    samples = distributions.sample_pools(views)
    values = {task.name: _values(runs, results, task) for task in ablation.evaluate}
    return Report(
        name=ablation.name,
        question=ablation.question,
        baseline=ablation.baseline,
        primary=ablation.primary,
        equivalence=ablation.equivalence,
        seeds=ablation.seeds,
        samples_seen=trained[0].config.samples_seen if trained else None,
        headline=results.headline,
        verdict=results.verdict,
        arms=_arms(runs, ablation, finished, values, results, views),
        tasks=_tasks(ablation, values, results),
        comparisons=results.comparisons,
        average=results.average,
        noise=results.noise,
        controls=results.controls,
        aa=results.aa,
        power=_power(ablation, results),
        runs=run_rows(runs, results, primary),
        changes=collect_changes(with_result, primary, ablation.baseline),
        rounds=results.rounds,
        contract=collect_contract(finished),
        signals=signal_rows(ablation, results),
        scaling=scaling_curves(ablation, results),
        gaps=(*_gaps(results), *_missing_data(gone)),
        curves=read_curves(finished, hashes),
        funnels=gallery.funnels(views),
        histograms=_histograms(views, samples),
        rules=gallery.rule_effects(views),
        categories=distributions.categories(samples),
        duplicates=distributions.duplicate_groups(samples),
        safety=distributions.safety_rates(samples),
        gallery=gallery.examples(views, ablation.baseline),
        overlap=gallery.overlap(views),
        evaluation_overlap=results.overlap,
        near_evaluation_overlap=results.near_overlap,
        dropped=results.dropped,
        null_web=_null_web(out, ablation),
        costs=costs_of(layout.costs_json),
        settings=_settings(ablation, views),
        provenance=_provenance(layout, finished, hashes),
    )


def _open_views(runs: Sequence[Run]) -> tuple[list[ArmView], dict[str, list[str]]]:
    """The views of each arm that has all of them, and the views that are gone, by arm.

    Of a random control they are those of the first seed.
    """
    blends: dict[str, Blend] = {}
    for run in runs:
        blends.setdefault(run.arm, run.blend)
    gone = {arm: missing_views(blend) for arm, blend in blends.items()}
    return open_views({arm: blend for arm, blend in blends.items() if not gone[arm]}), gone


def _tasks(
    ablation: Ablation, values: Mapping[str, Mapping[str, Mapping[int, float]]], results: Results
) -> tuple[TaskReport, ...]:
    tasks = []
    for task in ablation.evaluate:
        tasks.append(_task(task, values[task.name], results, ablation.baseline))
    return tuple(tasks)


def _histograms(
    views: Sequence[ArmView], samples: Sequence[distributions.PoolSample]
) -> tuple[Histogram, ...]:
    return (*distributions.histograms(views), *distributions.other_histograms(samples))


def _values(
    runs: Sequence[AnyRun], results: Results, task: TaskSpec
) -> dict[str, dict[int, float]]:
    """{arm: {seed of the ablation: headline metric}}."""
    values: dict[str, dict[int, float]] = {arm: {} for arm in arm_names(runs)}
    for run in runs:
        metrics = results.arms[run.arm].runs.get(str(run.seed), {}).get(task.name)
        if metrics is not None:
            values[run.arm][run.seed] = metrics[deciding_metric(task)]
    return values


def seed_values(values: Mapping[int, float]) -> SeedValues:
    """Mean and SD of {seed: value}, and the values."""
    by_seed = {str(seed): value for seed, value in values.items()}
    if not values:
        return SeedValues(mean=None, sd=None, values={})
    over_seeds = mean_sd(list(values.values()))
    return SeedValues(mean=over_seeds.mean, sd=over_seeds.sd, values=by_seed)


def _difference(comparison: TaskComparison | None) -> BaselineDifference | None:
    if comparison is None:
        return None
    return BaselineDifference(
        mean=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        low_seeds=comparison.low_seeds,
        high_seeds=comparison.high_seeds,
        p=comparison.p,
        p_adjusted=comparison.p_adjusted,
        verdict=comparison.verdict,
    )


def _of(results: Results, task: str, arm: str, baseline: str) -> TaskComparison | None:
    """The comparison of an arm or a control with the baseline."""
    for comparison in (*results.comparisons, *results.controls):
        key = (comparison.task, comparison.arm, comparison.baseline)
        if key == (task, arm, baseline):
            return comparison
    return None


# --- arms and tasks ------------------------------------------------------------------------------


def _arms(
    runs: Sequence[AnyRun],
    ablation: Ablation,
    finished: Sequence[Run],
    values: Mapping[str, Mapping[str, Mapping[int, float]]],
    results: Results,
    views: Sequence[ArmView],
) -> tuple[ArmReport, ...]:
    seconds = device_seconds(finished)
    arms = []
    for name in arm_names(runs):
        arm = _arm(name, ablation, finished, values, results, views)
        arms.append(replace(arm, device_seconds=seconds.get(name)))
    return tuple(arms)


def _arm(
    arm: str,
    ablation: Ablation,
    finished: Sequence[Run],
    values: Mapping[str, Mapping[str, Mapping[int, float]]],
    results: Results,
    views: Sequence[ArmView],
) -> ArmReport:
    of_arm = [view for view in views if view.arm == arm]
    rows = sum(view.document.kept for view in of_arm)
    stored = sum(int(view.stored.sum()) for view in of_arm)
    drawn = None
    for run in finished:
        if run.arm == arm:
            sources = disk.read_json(RunLayout(run.out).run_json)["sources"]
            drawn = sum(source["drawn"] for source in sources.values())
            break
    comparison = (
        results.aa if arm == A_A else _of(results, ablation.primary, arm, ablation.baseline)
    )
    return ArmReport(
        arm=arm,
        role=_role(arm, ablation),
        view=" + ".join(f"{view.pool}/{view.view}" for view in of_arm),
        rows=rows,
        share=rows / max(1, stored),
        drawn=drawn,
        repeats=None if drawn is None else drawn / max(1, rows),
        metrics={task: seed_values(by_arm[arm]) for task, by_arm in values.items()},
        difference=_difference(comparison),
        missing=results.incomplete.get(arm, ()),
    )


def _role(arm: str, ablation: Ablation) -> Role:
    if arm == A_A:
        return "a_a"
    if arm == ablation.baseline:
        return "baseline"
    return "arm" if arm in ablation.arms else "random"


def _task(
    task: TaskSpec,
    values: Mapping[str, Mapping[int, float]],
    results: Results,
    baseline: str,
) -> TaskReport:
    rows = []
    for arm, by_seed in values.items():
        over_seeds = seed_values(by_seed)
        row = TaskRow(
            arm=arm,
            mean=over_seeds.mean,
            sd=over_seeds.sd,
            values=over_seeds.values,
            difference=_difference(_of(results, task.name, arm, baseline)),
            mcnemar=results.mcnemar[task.name].get(arm),
        )
        rows.append(row)
    facts = results.tasks[task.name]
    return TaskReport(
        task=task.name,
        kind=task.kind,
        metric=deciding_metric(task),
        unit=METRICS[deciding_metric(task)].unit,
        samples=facts.samples,
        chance=facts.chance,
        rows=tuple(rows),
    )


def _power(ablation: Ablation, results: Results) -> Power | None:
    """What the runs could have seen on the primary task."""
    compared = [row for row in results.comparisons if row.task == ablation.primary]
    for noise in results.noise:
        if noise.task == ablation.primary:
            return power_of(noise, len(compared))
    return None


def _gaps(results: Results) -> tuple[str, ...]:
    """Failed runs, each with its error; then incomplete arms."""
    lines = []
    for run in results.failed:
        name = wording.run_name(run.arm, run.seed)
        lines.append(f"{name} ended without a result: {run.error}")
    for arm, seeds in results.incomplete.items():
        lines.append(f"{arm} is incomplete: {wording.without(seeds)}")
    return tuple(lines)


def _missing_data(gone: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each view that is gone, with the arms that were trained on it."""
    arms: dict[str, list[str]] = {}
    for arm, names in gone.items():
        for name in names:
            arms.setdefault(name, []).append(arm)
    return [
        f"the view {name} is gone, so the data of {', '.join(of_view)} are not shown"
        for name, of_view in arms.items()
    ]


def _null_web(out: str, ablation: Ablation) -> Report | None:
    folder = AblationLayout(out).null
    exists = disk.exists(AblationLayout(folder).ablation_json)
    return collect_report(folder) if ablation.controls.null_web and exists else None


# --- settings, provenance ------------------------------------------------------------------------


def _settings(ablation: Ablation, views: Sequence[ArmView]) -> dict[str, str]:
    """The arms, the rules of their views, the hashes of their rows and the training settings as
    YAML.
    """
    rules: dict[str, Any] = {}
    thresholds: dict[str, Any] = {}
    hashes: dict[str, str] = {}
    for view in views:
        name = f"{view.pool}/{view.view}"
        if view.document.rows_sha256 is not None:
            hashes[name] = view.document.rows_sha256
        rules[name] = [_rule(rule) for rule in view.document.rules]
        for call, threshold in view.document.thresholds.items():
            thresholds.setdefault(name, {})[call] = threshold.value
    plain = disk.to_plain(ablation)
    design = {key: plain[key] for key in ("arms", "baseline", "seeds", "controls", "evaluate")}
    return {
        title: _yaml(value)
        for title, value in (
            ("Arms and tasks", design),
            ("Rules of the views", rules),
            ("Resolved thresholds", thresholds),
            ("Hashes of the views' rows", hashes),
            ("Training", plain["train"]),
        )
        if value
    }


def _rule(rule: Mapping[str, Any]) -> Any:
    """A rule as a recipe spells it."""
    filled = {key: value for key, value in rule.items() if value is not None}
    if set(filled) - {"seed"} == {"name", "where"}:
        return {str(filled["name"]): filled["where"]}
    return filled


def _yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text


def _command(layout: AblationLayout) -> str:
    """The command that made the whole folder, or the one that made its runs."""
    if disk.exists(layout.command_json):
        return str(disk.read_json(layout.command_json))
    return f"python train/ablate.py {layout.ablation_json} --out {layout.root}"


def _provenance(layout: AblationLayout, runs: Sequence[Run], hashes: FileHashes) -> Provenance:
    facts: dict[str, Any] = {
        "ablation": disk.content_hash(disk.read_json(layout.ablation_json)),
    }
    records = [disk.read_json(RunLayout(run.out).run_json) for run in runs]
    if records:
        settings = set()
        for record in records:
            settings.add(disk.content_hash({**record["config"], "seed": None}))
        facts["training settings without the seed"] = ", ".join(sorted(settings))
        facts["device"] = records[0]["device"]
        for name, version in records[0]["versions"].items():
            facts[f"version of {name}"] = version
    facts["run again with"] = _command(layout)
    hashes.add(layout.results_json)
    return Provenance(facts=facts, files=tuple(sorted(hashes.sha256.items())))
