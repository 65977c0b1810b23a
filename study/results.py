"""The results of a study: its measurements from the predictions of the runs, and the conclusions.

`clipmill ablate` ends with `collect_results`. Whoever reads a study opens it with `Study.open`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from clipmill.manifests import disk, identity
from clipmill.manifests.arrays import Array
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.metrics import (
    HEADLINES,
    METRICS,
    Metrics,
    chance_of,
    deciding_metric,
    mean_of_directions,
    metric_values,
)
from clipmill.manifests.records import read_document
from clipmill.manifests.schema import Ablation, TaskSpec
from clipmill.study import history
from clipmill.study.arms import (
    AnyRun,
    GivenRun,
    GivenTask,
    Run,
    all_runs,
    finished_metrics,
    missing_seeds,
    scorer_run,
    stale_because,
)
from clipmill.train.evaluation.overlap import SharedImages
from clipmill.train.evaluation.tasks import TASKS
from clipmill.verdict import wording
from clipmill.verdict.conclusions import (
    FailedRun,
    StudyResults,
    analyse_study,
    conclude,
    metric_tables,
    scorer_score,
)
from clipmill.verdict.decide.verdicts import Decision, Question, decide
from clipmill.verdict.measurements import SCHEMA, Measurement, Measurements, RunKey
from clipmill.verdict.rounds import ReadRun, replay
from clipmill.verdict.stats.analysis import ScorerScore
from clipmill.verdict.stats.scales import LEAST_ARMS, ScaleDecision
from clipmill.verdict.tables.account import Account, ColumnRole
from clipmill.verdict.tables.forms import STUDY_COLUMNS, STUDY_FORM
from clipmill.verdict.tables.reader import read_results

PerSample = dict[str, tuple[Array, ...]]  # {metric: values per sample}
OTHER_QUESTION = "the study asked another question, and its report answers that one"
ROUNDING = 1e-6  # metrics are means of up to a million float64 values


@dataclass(slots=True, kw_only=True)
class FileHashes:
    """The sha256 of each file that a number was read from, by its path inside a folder."""

    folder: str
    sha256: dict[str, str] = field(default_factory=dict)

    def add(self, path: str) -> str:
        """Hash a file. Returns the path inside the folder."""
        name = path.removeprefix(self.folder.rstrip("/") + "/")
        self.sha256[name] = disk.sha256_of(path)
        return name


# --- measuring ------------------------------------------------------------------------------------


def collect_results(
    ablation: Ablation,
    out: str,
    failed: Sequence[FailedRun] = (),
    shared: SharedImages | None = None,
) -> StudyResults:
    """The results of a study without the failed runs, from its measurements, which are written.

    With `stop`, the runs are those that the rounds asked for.

    ValueError for a run that has neither failed nor left its predictions.
    """
    runs = all_runs(ablation, out)
    failures = [*failed, *_missing_files(runs)]
    without = {(run.arm, run.seed) for run in failures}
    hashes = FileHashes(folder=out)
    scale = next((run.config.samples_seen for run in runs if isinstance(run, Run)), None)
    readers = [TaskReader(task, hashes, scale) for task in ablation.evaluate]
    earlier = history.earlier_looks(ablation, history.looks(out))
    rounds = None
    if ablation.stop is not None:
        by_key = {(run.arm, run.seed): run for run in runs}
        primary = next(reader for reader in readers if reader.task == ablation.primary_task)
        rounds = replay(
            ablation,
            lambda arm, seed: primary.deciding(by_key[arm, seed]),
            without,
            1 + len(earlier),
        )
        runs = tuple(run for run in runs if (run.arm, run.seed) in rounds.asked)
        failures = [run for run in failures if (run.arm, run.seed) in rounds.asked]
    finished = [run for run in runs if (run.arm, run.seed) not in without]
    rows = [row for run in finished for reader in readers for row in reader.read(run)]
    for run in finished:
        if not isinstance(run, GivenRun):
            layout = RunLayout(run.out)
            hashes.add(layout.run_json if isinstance(run, Run) else layout.model_json)
    scorer = _scorer(ablation, out, hashes)
    ablation_hash = identity.ablation_hash(ablation)
    measurements = Measurements.of(rows, ablation_hash=ablation_hash, files=hashes.sha256)
    results = conclude(
        ablation,
        measurements,
        failures,
        missing_seeds(runs, measurements.runs),
        len(runs),
        rounds,
        earlier,
        scorer,
    )
    path = AblationLayout(out).measurements
    measurements.write(path)
    results = replace(results, ablation_hash=ablation_hash, measurements=disk.sha256_of(path))
    if shared is None:
        return results
    tasks = ablation.evaluate  # near images count only if every pool could be searched for them
    return replace(
        results,
        overlap=shared.count_files(tasks, near=False),
        near_overlap={} if shared.without_phash else shared.count_files(tasks, near=True),
        arm_overlap=shared.arms,
    )


def saved_scores(ablation: Ablation, out: str) -> ReadRun:
    """Reads the deciding metric of a run on the primary task; None where the run is stale or not
    finished.
    """
    runs = {(run.arm, run.seed): run for run in all_runs(ablation, out)}
    reader = TaskReader(ablation.primary_task, FileHashes(folder=out))

    def read(arm: str, seed: int) -> Measurement | None:
        run = runs[arm, seed]
        if isinstance(run, GivenRun):
            return None if _missing_files([run]) else reader.deciding(run)
        if stale_because(run) or finished_metrics(run, ablation.evaluate) is None:
            return None
        return reader.deciding(run)

    return read


def _scorer(ablation: Ablation, out: str, hashes: FileHashes) -> ScorerScore | None:
    """The score of the ablation's scorer; None where there is none, and where it has no score."""
    run, task = scorer_run(ablation, out), ablation.primary_task
    if ablation.scorer is None or run is None or finished_metrics(run, [task]) is None:
        return None
    return scorer_score(ablation.scorer.view, TaskReader(task, hashes).deciding(run))


def _missing_files(runs: Sequence[AnyRun]) -> list[FailedRun]:
    """The given runs of which a file is missing."""
    missing = []
    for run in runs:
        if isinstance(run, GivenRun):
            paths = [path for path in run.files.values() if not disk.exists(path)]
            if paths:
                error = f"{paths[0]} does not exist"
                missing.append(FailedRun(arm=run.arm, seed=run.seed, error=error))
    return missing


class TaskReader:
    """The measurements of runs on a task, from their predictions. Each file is read once."""

    def __init__(self, task: TaskSpec, hashes: FileHashes, scale: int | None = None) -> None:
        self.task, self.hashes, self.scale = task, hashes, scale
        self._given = GivenTask(task.name)
        self._read: dict[RunKey, list[Measurement]] = {}
        self._first: tuple[RunKey, tuple[int, ...]] | None = None

    def read(self, run: AnyRun) -> list[Measurement]:
        """All metrics of a run. ValueError where its file is missing or contradicts itself."""
        key = (run.arm, run.seed)
        if key not in self._read:
            self._read[key] = self._measure(run)
        return self._read[key]

    def deciding(self, run: AnyRun) -> Measurement:
        """The deciding metric of a run."""
        metric = deciding_metric(self.task)
        return next(row for row in self.read(run) if row.metric == metric)

    def _measure(self, run: AnyRun) -> list[Measurement]:
        task, path = self.task, run.predictions(self.task.name)
        if not disk.exists(path):
            raise ValueError(f"{path} does not exist; {_remedy(self.hashes.folder)}")
        source = self.hashes.add(path)
        kind, name = TASKS[task.kind], HEADLINES[task.kind]
        if isinstance(run, GivenRun):
            if deciding_metric(task) != name:
                raise ValueError(
                    f"task {task.name!r} is decided by {deciding_metric(task)}, but the "
                    f"predictions of arm {run.arm!r} tell right and wrong only"
                )
            correct = self._given.read(path)["correct"].to_numpy().astype(np.float64)
            metrics: Metrics = {name: float(correct.mean())}
            per_sample: PerSample = {name: (correct,)}
            one_guess = 1 / max(1, self._given.classes)
        else:
            table, metadata = disk.read_with_metadata(path)
            metrics, per_sample = read_metrics(table, metadata["metrics"], task, path)
            one_guess = kind.chance(metadata, len(per_sample[name][0]))
        sizes = tuple(map(len, per_sample[name]))
        self._check_sizes(run, sizes)
        rows = []
        for metric, value in metrics.items():
            row = Measurement(
                arm=run.arm,
                seed=run.seed,
                scale=self.scale,
                task=task.name,
                metric=metric,
                value=value,
                test_samples=sizes[0],
                chance=chance_of(metric, one_guess) if metric in METRICS else None,
                per_sample=per_sample.get(metric),
                source=source,
                sha256=self.hashes.sha256[source],
            )
            rows.append(row)
        return rows

    def _check_sizes(self, run: AnyRun, sizes: tuple[int, ...]) -> None:
        """ValueError where two runs have different numbers of samples: they are not comparable."""
        self._first = self._first or ((run.arm, run.seed), sizes)
        if sizes != self._first[1]:
            parts = []
            for (arm, seed), own in (self._first, ((run.arm, run.seed), sizes)):
                parts.append(f"{arm} seed {seed} has {' + '.join(f'{count:,}' for count in own)}")
            raise ValueError(
                f"task {self.task.name!r}: the runs are of different samples: {', '.join(parts)}"
            )


def read_metrics(
    table: pa.Table, stated: Metrics, task: TaskSpec, path: str
) -> tuple[Metrics, PerSample]:
    """The metrics of predictions, and the values per sample of the headline metric and of the one
    that decides: these two are computed again from the samples.

    ValueError where the headline is not the metric that the file states.
    """
    name, decides = HEADLINES[task.kind], deciding_metric(task)
    per_sample = {name: tuple(metric_values(table, name))}
    computed = mean_of_directions(per_sample[name])
    if not abs(computed - stated[name]) < ROUNDING:
        raise ValueError(
            f"{path} states {name} {stated[name]}, but its samples give "
            f"{computed}; remove the file and run clipmill ablate again"
        )
    metrics = {**stated, name: computed}
    if decides not in metrics:
        raise ValueError(
            f"{path} has no metric {decides} (it has {', '.join(sorted(metrics))}), which decides "
            f"on task {task.name!r}"
        )
    if METRICS[decides].values is not None:
        per_sample[decides] = tuple(metric_values(table, decides))
        metrics[decides] = mean_of_directions(per_sample[decides])
    return metrics, per_sample


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study that was run: what was asked, what was measured and what that shows."""

    folder: str
    ablation: Ablation
    measurements: Measurements
    results: StudyResults

    @classmethod
    def open(cls, folder: str) -> Study:
        """The study of a folder. ValueError where there is none, and where its results are of
        another ablation, or older than a view or a run.
        """
        layout = AblationLayout(folder)
        if not disk.exists(layout.ablation_json):
            raise ValueError(
                f"{folder} is no folder of an ablation, it has no ablation.json: give the --out of "
                "`clipmill ablate`"
            )
        ablation: Ablation = disk.from_plain(Ablation, disk.read_json(layout.ablation_json))
        for path in (layout.results_json, layout.measurements):
            if not disk.exists(path):
                raise ValueError(f"{path} does not exist; {_remedy(folder)}")
        try:
            results = read_document(layout.results_json, StudyResults)
        except ValueError as error:  # of another version, or damaged
            raise ValueError(f"{error}; {_remedy(folder)}") from None
        if results.ablation_hash != identity.ablation_hash(ablation):
            raise ValueError(f"{layout.results_json} is of another ablation; {_remedy(folder)}")
        _check_content(layout, layout.measurements, results.measurements)
        measurements = Measurements.read(layout.measurements)
        for name, sha256 in measurements.files.items():
            outside = disk.is_url(name) or os.path.isabs(name)  # predictions that were given
            _check_content(layout, name if outside else disk.join(folder, name), sha256)
        for run in all_runs(ablation, folder):
            if isinstance(run, GivenRun) or (run.arm, run.seed) not in measurements.runs:
                continue
            if reasons := stale_because(run):
                raise ValueError(f"{run.out} is stale ({reasons[0]}); {_remedy(folder)}")
        return cls(folder=folder, ablation=ablation, measurements=measurements, results=results)


def decide_study(folder: str, question: Question) -> Decision | None:
    """The verdicts of a study as its report has them; None for a folder without results of one.

    Of another question than the study's, the verdicts are those on its table, as on anyone's.
    ValueError as of `Study.open`.
    """
    layout = AblationLayout(folder)
    if not (disk.exists(layout.ablation_json) and disk.exists(layout.results_json)):
        return None
    study = Study.open(folder)
    ablation, results, measurements = study.ablation, study.results, study.measurements
    task = question.task or ablation.primary
    result = results.tasks.get(task)
    asked = replace(question, baseline=None, task=None, metric=None, effect=None, units=None)
    if (
        result is None
        or question.baseline not in (None, ablation.baseline)
        or question.metric not in (None, result.metric)
        or asked != Question()
        or question.units
    ):
        decision = decide(read_results([folder]), question)
        return replace(decision, notes=(*decision.notes, OTHER_QUESTION))
    signals = {
        one.task: one.rows for one in metric_tables(ablation, measurements) if len(one.rows) > 1
    }
    sentences = wording.sentences(results.tasks[ablation.primary])  # which the table has
    lines = [line for line in results.verdict.splitlines() if line not in sentences]
    values = {name: measurements.values(name, one.metric) for name, one in results.tasks.items()}
    seeds = None
    if question.effect is not None:
        whole = Measurements.read(layout.measurements, SCHEMA.names)
        noise = analyse_study(ablation, whole, 1 + len(results.earlier_looks)).noises[task]
        seeds = noise.seeds_for(question.effect) if noise else None
    scales, without = scale_decisions(ablation, folder)
    rows = measurements.table.num_rows  # those that decide, and those of other metrics in signals
    return Decision(
        baseline=ablation.baseline,
        arms=(ablation.baseline, *ablation.asked_arms),
        task=task,
        metric=result.metric,
        result=result,
        values=values[task],
        tasks=results.tasks,
        task_values=values,
        signals=signals.get(task, ()),
        scales=scales,
        effect=question.effect,
        seeds_for_effect=seeds,
        refusals=() if result.comparisons else (results.headline.rstrip("."),),
        notes=(*lines, *without),
        account=Account(
            form=STUDY_FORM,
            columns=tuple(
                ColumnRole(name=name, role=name, reason="of a study") for name in STUDY_COLUMNS
            ),
            rows=rows,
            rows_used=rows,
            cells=rows,
            cells_used=rows,
        ),
    )


def scale_decisions(
    ablation: Ablation, out: str
) -> tuple[tuple[ScaleDecision, ...], tuple[str, ...]]:
    """How the smaller scales of a study's folder decide as its own, () where there are none; and a
    sentence where they cannot be compared.
    """
    if not disk.exists(AblationLayout(out).scales) or len(ablation.arms) < LEAST_ARMS:
        return (), ()
    question = Question(task=ablation.primary, metric=deciding_metric(ablation.primary_task))
    try:
        return decide(read_results([out]), question).scales, ()
    except ValueError as error:  # the runs are done, and their results stand
        return (), (f"The smaller scales are not compared: {error}",)


def _check_content(layout: AblationLayout, path: str, sha256: str) -> None:
    """ValueError for a file that is not the one that the results were made from."""
    if not disk.exists(path):
        raise ValueError(f"{path} is missing; {_remedy(layout.root)}")
    if disk.sha256_of(path) != sha256:
        raise ValueError(f"{path} has changed since {layout.results_json}; {_remedy(layout.root)}")


def _remedy(out: str) -> str:
    path = AblationLayout(out).ablation_json
    return f"run clipmill ablate {path} --out {out} first"
