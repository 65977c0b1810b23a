"""The report of an ablation's folder, from its results and runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from clipmill.manifests import disk
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.metrics import deciding_metric
from clipmill.manifests.records import RunRecord, read_document
from clipmill.manifests.schema import Ablation, Blend, TaskSpec
from clipmill.study import data, history
from clipmill.study.arms import (
    AnyRun,
    Run,
    all_runs,
    arm_names,
    missing_views,
)
from clipmill.study.changes import collect_changes, penalty_of
from clipmill.study.data import ArmView, open_views
from clipmill.study.pair_groups import best_arm, explain_study
from clipmill.study.results import FileHashes, Study, scale_decisions
from clipmill.train.identity import SEEDS, shared_part
from clipmill.verdict import wording
from clipmill.verdict.conclusions import (
    StudyResults,
    looks_line,
    metric_tables,
)
from clipmill.verdict.decide.blends import choose_blend, swarm_of_study
from clipmill.verdict.measurements import Measurements
from clipmill.verdict.pages.schema import (
    ArmReport,
    Contract,
    ContractRow,
    Curve,
    Provenance,
    Report,
    RunRow,
    SeedValues,
)
from clipmill.verdict.stats.analysis import mean_sd
from clipmill.verdict.stats.groups import Attribution
from clipmill.verdict.stats.mixing import BlendChoice

# --------------------------------------------------------------------------------------------------
# What all runs of an ablation share: settings, model, device, versions. And what they do not.


# Settings that a reader asks for first, with their names on the page.
MAIN = {
    "model": "model",
    "parameters": "parameters",
    "samples_seen": "samples seen of a run",
    "steps": "steps",
    "batch_size": "batch size",
    "lr": "learning rate",
    "schedule": "schedule",
    "warmup": "warm-up steps",
    "weight_decay": "weight decay",
    "precision": "precision",
    "tokenizer": "tokenizer",
    "init": "initial weights",
    "device": "device",
    "world": "processes of a run",
}


Records = Mapping[str, Sequence[RunRecord]]  # arm -> those of its finished runs


def read_records(runs: Sequence[Run]) -> Records:
    """run.json of the finished runs, by arm. ValueError for a damaged one."""
    records: dict[str, list[RunRecord]] = {}
    for run in runs:
        record = read_document(RunLayout(run.out).run_json, RunRecord)
        records.setdefault(run.arm, []).append(record)
    return records


def collect_contract(records: Records) -> Contract | None:
    """The settings of the finished runs; None without a run."""
    if not records:
        return None
    hashes, names = set(), set()
    by_arm: dict[str, list[dict[str, object]]] = {}
    for arm, of_arm in records.items():
        by_arm[arm] = [_facts(record) for record in of_arm]
        hashes |= {disk.content_hash(_shared(record)) for record in of_arm}
        names |= {name for facts in by_arm[arm] for name in facts}
    rows = [_row(name, by_arm) for name in dict.fromkeys([*MAIN, *sorted(names)])]
    return Contract(
        runs=sum(map(len, records.values())),
        config_hash=hashes.pop() if len(hashes) == 1 else None,
        rows=tuple(row for row in rows if row is not None),
        blends={arm: of_arm[0].blend_hash for arm, of_arm in records.items()},
    )


def _shared(record: RunRecord) -> dict[str, object]:
    """What all runs have to share: the identity but for data and seeds, with the weights that were
    loaded at the start.
    """
    return {**shared_part(record.identity), "start": record.identity.get("initial_weights")}


def _facts(record: RunRecord) -> dict[str, object]:
    """The settings of a run, the versions that decide its samples, and what it ran on."""
    facts = {name: value for name, value in record.config.items() if name not in SEEDS}
    if facts.get("init") is not None:  # the path may be the same and the weights others
        sha256 = str(record.identity.get("initial_weights"))[:12]
        facts["init"] = f"{facts['init']} (sha256 {sha256})"
    facts["version of the order"] = record.identity.get("order", {}).get("version")
    facts["version of the pixels"] = record.identity["pixels"]
    facts["device"] = record.device
    facts |= {"world": record.world, "parameters": record.parameters, "steps": record.steps}
    for name, version in record.versions.items():
        facts[f"version of {name}"] = version
    return facts


def _row(name: str, by_arm: Mapping[str, Sequence[Mapping[str, object]]]) -> ContractRow | None:
    """A setting over all runs; None where no run names a value."""
    texts: dict[str, str] = {}
    different: set[str] = set()
    for arm, of_arm in by_arm.items():
        values = dict.fromkeys(_setting_text(facts.get(name)) for facts in of_arm)
        texts[arm] = ", ".join(values)
        different |= set(values)
    if different == {""}:
        return None
    same = len(different) == 1
    return ContractRow(
        setting=MAIN.get(name, name),
        value=different.pop() if same else None,
        by_arm={} if same else {arm: text or "none" for arm, text in texts.items()},
        main=name in MAIN or not same,
    )


def _setting_text(value: object) -> str:
    """A value for a person to read; empty for none."""
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------------------------------------------
# What single runs tell: their scores with the noise of the test samples, curves, device time.


SHARE_OF_SAMPLES = ("accuracy", "accuracy5")  # metrics that are a share of independent samples


def run_rows(
    runs: Sequence[AnyRun], measurements: Measurements, task: TaskSpec
) -> tuple[RunRow, ...]:
    """The finished runs with their deciding metric on a task."""
    from scipy.stats import binomtest

    metric = deciding_metric(task)
    scores = measurements.scores(task.name, metric)
    samples, rows = scores.test_samples, []
    for run in runs:
        value = scores.values[run.arm][run.seed]
        low = high = None
        if metric in SHARE_OF_SAMPLES and samples:
            counted = binomtest(round(value * samples), samples)
            low, high = (float(limit) for limit in counted.proportion_ci(method="wilson"))
        config = run.config if isinstance(run, Run) else None
        row = RunRow(
            arm=run.arm,
            seed=run.seed,
            model=None if config is None else config.model,
            batch_size=None if config is None else config.batch_size,
            samples_seen=None if config is None else config.samples_seen,
            value=value,
            low=low,
            high=high,
        )
        rows.append(row)
    return tuple(rows)


def device_seconds(records: Sequence[RunRecord]) -> float | None:
    """Seconds of one run times its processes, the mean over some runs; None for no run."""
    if not records:
        return None
    return math.fsum(record.seconds["whole"] * record.world for record in records) / len(records)


def read_curves(runs: Sequence[Run], hashes: FileHashes) -> tuple[Curve, ...]:
    """The log of every run that has one, without points that are not finite."""
    curves = []
    for run in runs:
        path = RunLayout(run.out).log
        if not disk.exists(path):
            continue
        points = []
        hashes.add(path)
        for line in disk.read_bytes(path).decode().splitlines():
            numbers = json.loads(line)
            point = (numbers["samples"], numbers["loss"], numbers["accuracy"])
            if all(map(math.isfinite, point)):
                points.append(point)
        curves.append(Curve(arm=run.arm, seed=run.seed, points=tuple(points)))
    return tuple(curves)


def costs_of(path: str) -> tuple[tuple[str, float], ...]:
    """The seconds of each stage from costs.json; empty where there is none."""
    if not disk.exists(path):
        return ()
    costs: Mapping[str, float] = disk.read_json(path)
    return tuple((name, float(seconds)) for name, seconds in costs.items())


# --------------------------------------------------------------------------------------------------
# The report of an ablation's folder: results.json, and what the arms and runs were made of.


def collect_report(out: str) -> Report:
    """The report of an ablation's folder.

    ValueError where results.json is missing or older than the runs. Runs without a result are
    left out and named; so are views that are gone: the results stand without their data.
    """
    layout = AblationLayout(out)
    study = Study.open(out)
    ablation, results, measurements = study.ablation, study.results, study.measurements
    hashes = FileHashes(folder=out, sha256=dict(measurements.files))
    drawn = ablation.drawn_arms
    every = all_runs(ablation, out)
    runs = [run for run in every if run.arm not in drawn]
    trained = [run for run in runs if isinstance(run, Run)]
    with_result = [run for run in runs if (run.arm, run.seed) in measurements.runs]
    finished = [run for run in with_result if isinstance(run, Run)]
    records = read_records(finished)
    primary = ablation.primary_task
    views, gone = _open_views(trained)
    sources, _ = _open_views([run for run in every if run.arm in drawn and isinstance(run, Run)])
    samples = data.sample_pools(views)
    looks = history.looks(out)
    samples_seen = trained[0].config.samples_seen if trained else None
    scales, not_compared = scale_decisions(ablation, out)
    attribution, blend, not_fitted = _of_mixtures(study, samples_seen)
    return Report(
        ablation=ablation,
        results=results,
        samples_seen=samples_seen,
        arms=tuple(_arm(arm, study, records, views) for arm in arm_names(runs)),
        runs=run_rows(with_result, measurements, primary),
        changes=collect_changes(
            with_result, primary, ablation.baseline, penalty_of(results, primary.name)
        ),
        contract=collect_contract(records),
        signals=metric_tables(ablation, measurements),
        looks=looks_line(results.earlier_looks) if results.earlier_looks else "",
        scales=scales,
        attribution=attribution,
        blend=blend,
        gaps=(
            *_gaps(results),
            *_missing_data(gone),
            *_null_gap(out, ablation),
            *not_compared,
            *not_fitted,
        ),
        redesigns=tuple(change.sentence for change in history.changes(looks)),
        metrics_were_fixed=history.metrics_were_fixed(looks),
        test_data=_of_predictions(finished, ablation) | history.hashes_of_data(looks),
        curves=read_curves(finished, hashes),
        funnels=data.funnels(views),
        histograms=(*data.histograms(views), *data.other_histograms(samples)),
        rules=data.rule_effects(views),
        categories=data.categories(samples),
        duplicates=data.duplicate_groups(samples),
        safety=data.safety_rates(samples),
        gallery=data.examples([*views, *sources], ablation.baseline),
        overlap=data.overlap(views),
        null_web=_null_web(out, ablation),
        costs=costs_of(layout.costs_json),
        settings=_settings(ablation, views),
        provenance=_provenance(layout, records, hashes),
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


def _of_mixtures(
    study: Study, samples: int | None
) -> tuple[Attribution | None, BlendChoice | None, list[str]]:
    """What mixtures were run for: what groups of pairs are worth, or the best blend for a run of so
    many samples; and a line where runs are missing.
    """
    ablation = study.ablation
    if ablation.mixtures is None:
        return None, None, []
    try:
        if ablation.mixtures.draw == "halves":
            return explain_study(study, best_arm(study)), None, []
        if samples is not None and ablation.part is not None:
            samples = round(samples / ablation.part)  # that repeat all rows as often
        swarm = swarm_of_study(ablation, study.measurements, study.folder)
        return None, choose_blend(swarm, samples), []
    except ValueError as error:
        return None, None, [f"mixtures of {', '.join(ablation.mixtures.sources)}: {error}"]


def seed_values(values: dict[str, float]) -> SeedValues:
    """Mean and SD of {seed: value}, and the values."""
    if not values:
        return SeedValues(mean=None, sd=None, values={})
    mean, sd = mean_sd(list(values.values()))
    return SeedValues(mean=mean, sd=sd, values=values)


# --- arms and tasks ------------------------------------------------------------------------------


def _arm(arm: str, study: Study, records: Records, views: Sequence[ArmView]) -> ArmReport:
    of_arm = [view for view in views if view.arm == arm]
    rows = sum(view.document.kept for view in of_arm)
    stored = sum(int(view.stored.sum()) for view in of_arm)
    drawn = None
    for record in records.get(arm, ())[:1]:
        drawn = sum(source["drawn"] for source in record.sources.values())
    metrics = {}
    for task in study.ablation.evaluate:
        values = study.measurements.values(task.name, deciding_metric(task)).get(arm, {})
        metrics[task.name] = seed_values({str(seed): value for seed, value in values.items()})
    return ArmReport(
        arm=arm,
        role=study.ablation.role_of(arm),
        view=" + ".join(f"{view.pool}/{view.view}" for view in of_arm),
        rows=rows,
        share=rows / max(1, stored),
        drawn=drawn,
        repeats=None if drawn is None else drawn / max(1, rows),
        metrics=metrics,
        missing=study.results.incomplete.get(arm, ()),
        device_seconds=device_seconds(records.get(arm, ())),
    )


def _gaps(results: StudyResults) -> tuple[str, ...]:
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


def _null_gap(out: str, ablation: Ablation) -> list[str]:
    """One line where the ablation asks for a null web that was not run."""
    null = ablation.controls.null_web
    if null is None or disk.exists(AblationLayout(AblationLayout(out).null).results_json):
        return []
    return [f"controls.null_web was not run: {null}; clipmill build ABLATION runs it"]


def _null_web(out: str, ablation: Ablation) -> Report | None:
    folder = AblationLayout(out).null
    exists = disk.exists(AblationLayout(folder).ablation_json)
    return collect_report(folder) if ablation.controls.null_web and exists else None


# --- settings, provenance ------------------------------------------------------------------------


def _settings(ablation: Ablation, views: Sequence[ArmView]) -> dict[str, str]:
    """The arms, the rules of their views, the hashes of their rows and the training settings as
    YAML.
    """
    rules: dict[str, list[object]] = {}
    thresholds: dict[str, dict[str, float]] = {}
    hashes: dict[str, str] = {}
    for view in views:
        name = f"{view.pool}/{view.view}"
        if view.document.rows_sha256 is not None:
            hashes[name] = view.document.rows_sha256
        rules[name] = [
            disk.to_plain(rule) if rule.where is None else {rule.name: rule.where}
            for rule in view.document.rules
        ]  # as a recipe spells them
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


def _yaml(value: object) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text


def _of_predictions(runs: Sequence[Run], ablation: Ablation) -> dict[str, str]:
    """The hash of each task's data, where the predictions of the runs have one and the same."""
    hashes = {}
    for task in ablation.evaluate:
        stated = {disk.read_metadata(run.predictions(task.name)).get("data_hash") for run in runs}
        if len(stated) == 1 and (one := stated.pop()):
            hashes[task.name] = str(one)
    return hashes


def _provenance(layout: AblationLayout, records: Records, hashes: FileHashes) -> Provenance:
    facts = {"ablation": disk.content_hash(disk.read_json(layout.ablation_json))}
    every = [record for of_arm in records.values() for record in of_arm]
    if every:
        settings = {disk.content_hash(shared_part(record.identity)) for record in every}
        facts["training settings without the seed"] = ", ".join(sorted(settings))
        facts["device"] = every[0].device
        for name, version in every[0].versions.items():
            facts[f"version of {name}"] = version
    # The command that made the whole folder, or the one that made its runs.
    command = f"clipmill ablate {layout.ablation_json} --out {layout.root}"
    if disk.exists(layout.command_json):
        command = str(disk.read_json(layout.command_json))
    facts["run again with"] = command
    hashes.add(layout.results_json)
    hashes.add(layout.measurements)
    return Provenance(facts=facts, files=tuple(sorted(hashes.sha256.items())))
