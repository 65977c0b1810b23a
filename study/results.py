"""results.json: metrics from the per-sample predictions, and the conclusions. Computed once, here.

`clipmill ablate` ends with `collect_results`; the report reads the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clipmill.manifests import disk, identity
from clipmill.manifests.layout import AblationLayout, RunLayout
from clipmill.manifests.metrics import (
    DIRECTIONS,
    HEADLINES,
    METRICS,
    BoolArray,
    Metrics,
    deciding_metric,
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
    arm_names,
    finished_metrics,
    missing_seeds,
    scorer_run,
    stale_because,
)
from clipmill.train.evaluation.overlap import SharedImages
from clipmill.train.evaluation.tasks import TASKS, headline
from clipmill.verdict.conclusions import FailedRun, Results, conclude, scorer_score
from clipmill.verdict.names import primary_task
from clipmill.verdict.ranges import TaskFacts
from clipmill.verdict.rounds import ReadScore, Score, Study, replay, task_scores
from clipmill.verdict.stats.analysis import ScorerScore, TaskScores, mcnemar

RunKey = tuple[str, int]  # arm, seed
ROUNDING = 1e-6  # metrics are means of up to a million float64 values


@dataclass(slots=True, kw_only=True)
class FileHashes:
    """The sha256 of each file that a number was read from, by its path inside a folder."""

    folder: str
    sha256: dict[str, str] = field(default_factory=dict)

    def add(self, path: str) -> str:
        """Hash a file. Returns the path."""
        data = disk.read_bytes(path)
        self.sha256[self.relative(path)] = hashlib.sha256(data).hexdigest()
        return path

    def relative(self, path: str) -> str:
        return path.removeprefix(self.folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One task of one run: right or wrong per sample and direction, and the metrics.

    values: those of the deciding metric per sample and direction; None if it is no mean over
    samples.
    """

    correct: list[BoolArray]
    values: list[NDArray[np.float64]] | None
    metrics: Metrics
    chance: float


def collect_results(
    ablation: Ablation,
    out: str,
    failed: Sequence[FailedRun] = (),
    shared: SharedImages | None = None,
) -> Results:
    """The results of an ablation's folder, without the failed runs.

    With `stop`, the runs are those that the rounds asked for.

    ValueError for a run that has neither failed nor left its predictions.
    """
    runs = all_runs(ablation, out)
    failures = [*failed, *_missing_files(runs)]
    without = {(run.arm, run.seed) for run in failures}
    hashes = FileHashes(folder=out)
    readers = {task.name: TaskReader(task, hashes) for task in ablation.evaluate}
    earlier = history.earlier_looks(ablation, history.looks(out))
    study = _study(ablation, runs, without, readers[ablation.primary], 1 + len(earlier))
    if study is not None:
        runs = tuple(run for run in runs if (run.arm, run.seed) in study.asked)
        failures = [run for run in failures if (run.arm, run.seed) in study.asked]
    finished = [run for run in runs if (run.arm, run.seed) not in without]
    by_task = {task: reader.read_all(finished) for task, reader in readers.items()}
    for run in finished:
        if not isinstance(run, GivenRun):
            layout = RunLayout(run.out)
            hashes.add(layout.run_json if isinstance(run, Run) else layout.model_json)
    scores = {}
    for name, reader in readers.items():
        scores[name] = _scores(runs, by_task[name], reader)
    incomplete = missing_seeds(runs, scores[ablation.primary].values)
    facts = {task: _facts(predictions.values()) for task, predictions in by_task.items()}
    results = conclude(
        ablation,
        scores,
        failures,
        incomplete,
        len(runs),
        study,
        facts,
        _other_metrics(runs, by_task[ablation.primary], ablation),
        earlier,
        _scorer(ablation, out, hashes),
    )
    tasks = {}
    for name, one in results.tasks.items():
        tasks[name] = replace(one, mcnemar=_mcnemar(runs, by_task[name], ablation))
    overlap, near_overlap = _overlaps(ablation, shared)
    return replace(
        results,
        tasks=tasks,
        ablation_hash=identity.ablation_hash(ablation),
        runs={arm: _arm_runs(runs, arm, by_task) for arm in arm_names(runs)},
        overlap=overlap,
        near_overlap=near_overlap,
        arm_overlap={} if shared is None else shared.arms,
        files=hashes.sha256,
    )


def _scorer(ablation: Ablation, out: str, hashes: FileHashes) -> ScorerScore | None:
    """The score of the ablation's scorer; None where there is none, and where it has no score."""
    run = scorer_run(ablation, out)
    task = primary_task(ablation)
    if ablation.scorer is None or run is None or finished_metrics(run, [task]) is None:
        return None
    one, metric = TaskReader(task, hashes).read(run), deciding_metric(task)
    value = one.metrics[metric]
    return scorer_score(ablation.scorer.view, task.name, metric, value, _facts([one]))


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


def _overlaps(
    ablation: Ablation, shared: SharedImages | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Counts of shared images; near ones only if every pool could be searched for them."""
    if shared is None:
        return {}, {}
    near = {} if shared.without_phash else shared.count_files(ablation.evaluate, near=True)
    return shared.count_files(ablation.evaluate, near=False), near


class TaskReader:
    """The predictions of runs on a task. Each file is read once."""

    def __init__(self, task: TaskSpec, hashes: FileHashes) -> None:
        self.task, self.hashes = task, hashes
        self._given = GivenTask(task.name)
        self._read: dict[RunKey, Predictions] = {}

    def read(self, run: AnyRun) -> Predictions:
        """The predictions of a run. ValueError where its file is missing or contradicts itself."""
        key = (run.arm, run.seed)
        if key not in self._read:
            self._read[key] = self._read_file(run)
        return self._read[key]

    def score(self, run: AnyRun) -> Score:
        """The deciding metric of a run, and its values per sample."""
        one = self.read(run)
        samples = None if one.values is None else tuple(one.values)
        value = one.metrics[deciding_metric(self.task)]
        return Score(value=value, samples=samples, facts=_facts([one]))

    def read_all(self, runs: Sequence[AnyRun]) -> dict[RunKey, Predictions]:
        """The predictions of all runs, by arm and seed."""
        predictions = {(run.arm, run.seed): self.read(run) for run in runs}
        _check_sizes(predictions, self.task)
        return predictions

    def _read_file(self, run: AnyRun) -> Predictions:
        task, path = self.task, run.predictions(self.task.name)
        if not disk.exists(path):
            raise ValueError(f"{path} does not exist; {_remedy(self.hashes.folder)}")
        self.hashes.add(path)
        if not isinstance(run, GivenRun):
            return read_predictions(disk.read_parquet(path), disk.read_metadata(path), task, path)
        correct = [self._given.read(path)["correct"].to_numpy()]
        metric = deciding_metric(task)
        if metric != HEADLINES[task.kind]:
            raise ValueError(
                f"task {task.name!r} is decided by {metric}, but the predictions of arm "
                f"{run.arm!r} tell right and wrong only"
            )
        return Predictions(
            correct=correct,
            values=[correct[0].astype(np.float64)],
            metrics={metric: headline(correct)},
            chance=1 / max(1, self._given.classes),
        )


def saved_scores(ablation: Ablation, out: str) -> ReadScore:
    """Reads the score of a run on the primary task; None where it is stale or not finished."""
    runs = {(run.arm, run.seed): run for run in all_runs(ablation, out)}
    task = primary_task(ablation)
    reader = TaskReader(task, FileHashes(folder=out))

    def read(arm: str, seed: int) -> Score | None:
        run = runs[arm, seed]
        if isinstance(run, GivenRun):
            return None if _missing_files([run]) else reader.score(run)
        if stale_because(run) or finished_metrics(run, ablation.evaluate) is None:
            return None
        return reader.score(run)

    return read


def _study(
    ablation: Ablation,
    runs: Sequence[AnyRun],
    without: Collection[RunKey],
    reader: TaskReader,
    looks: int,
) -> Study | None:
    """The rounds of an ablation with `stop`, replayed from the finished runs."""
    if ablation.stop is None:
        return None
    by_key = {(run.arm, run.seed): run for run in runs}

    def read(arm: str, seed: int) -> Score:
        return reader.score(by_key[arm, seed])

    return replay(ablation, read, without, looks)


def _check_sizes(predictions: Mapping[RunKey, Predictions], task: TaskSpec) -> None:
    """ValueError where two runs have different numbers of samples: they are not comparable."""
    sizes: dict[tuple[int, ...], RunKey] = {}
    for key, one in predictions.items():
        sizes.setdefault(tuple(len(samples) for samples in one.correct), key)
    if len(sizes) > 1:
        parts = []
        for size, (arm, seed) in sizes.items():
            parts.append(f"{arm} seed {seed} has {' + '.join(f'{count:,}' for count in size)}")
        raise ValueError(
            f"task {task.name!r}: the runs are of different samples: {', '.join(parts)}"
        )


def read_predictions(
    table: pa.Table, metadata: Mapping[str, object], task: TaskSpec, path: str
) -> Predictions:
    """The content of a predictions file; the headline metric is computed again from the samples.

    ValueError where it is not the metric that the file states.
    """
    kind = TASKS[task.kind]
    correct, name = kind.correct(table), HEADLINES[task.kind]
    stated = metadata["metrics"]
    assert isinstance(stated, dict)
    computed = headline(correct)
    if not abs(computed - stated[name]) < ROUNDING:
        raise ValueError(
            f"{path} states {name} {stated[name]}, but its samples give "
            f"{computed}; remove the file and run clipmill ablate again"
        )
    metrics = {**stated, name: computed}
    decides = deciding_metric(task)
    if decides not in metrics:
        raise ValueError(
            f"{path} has no metric {decides} (it has {', '.join(sorted(metrics))}), which decides "
            f"on task {task.name!r}"
        )
    values = None
    if METRICS[decides].values is not None:
        values = metric_values(table, decides)
        metrics[decides] = float(np.mean([samples.mean() for samples in values]))
    chance = kind.chance(metadata, len(correct[0]))
    return Predictions(correct=correct, values=values, metrics=metrics, chance=chance)


def _scores(
    runs: Sequence[AnyRun], predictions: Mapping[RunKey, Predictions], reader: TaskReader
) -> TaskScores:
    """The deciding metric of the finished runs, and its values per sample; the arms in order."""
    scores: dict[str, dict[int, Score]] = {arm: {} for arm in arm_names(runs)}
    for run in runs:
        if (run.arm, run.seed) in predictions:
            scores[run.arm][run.seed] = reader.score(run)
    return task_scores(scores)


def _other_metrics(
    runs: Sequence[AnyRun], predictions: Mapping[RunKey, Predictions], ablation: Ablation
) -> dict[str, TaskScores]:
    """The primary task by the other metrics that all finished runs have, of both directions."""
    task = primary_task(ablation)
    found: dict[str, TaskScores] = {}
    for metric in METRICS:
        values: dict[str, dict[int, float]] = {arm: {} for arm in arm_names(runs)}
        for (arm, seed), one in predictions.items():
            if metric in one.metrics:
                values[arm][seed] = one.metrics[metric]
        complete = sum(map(len, values.values())) == len(predictions) > 0
        one_direction = metric.startswith(DIRECTIONS)
        if complete and metric != deciding_metric(task) and not one_direction:
            found[metric] = TaskScores(values=values)
    return found


def _arm_runs(
    runs: Sequence[AnyRun], arm: str, by_task: Mapping[str, Mapping[RunKey, Predictions]]
) -> dict[str, dict[str, Metrics]]:
    seeds: dict[str, dict[str, Metrics]] = {}
    for run in runs:
        for task, predictions in by_task.items():
            if run.arm == arm and (run.arm, run.seed) in predictions:
                seeds.setdefault(str(run.seed), {})[task] = predictions[run.arm, run.seed].metrics
    return seeds


def _facts(predictions: Iterable[Predictions]) -> TaskFacts:
    for one in predictions:
        return TaskFacts(samples=len(one.correct[0]), chance=one.chance)
    return TaskFacts(samples=0, chance=0.0)


def _mcnemar(
    runs: Sequence[AnyRun], predictions: Mapping[RunKey, Predictions], ablation: Ablation
) -> dict[str, float]:
    """McNemar's p of each arm against the baseline, for the first seed that both have finished."""
    p_values: dict[str, float] = {}
    for run in runs:  # of an arm in the order of the seeds
        one = predictions.get((run.arm, run.seed))
        other = predictions.get((ablation.baseline, run.seed))
        if run.arm not in (ablation.baseline, *p_values) and one and other:
            samples = (np.concatenate(one.correct), np.concatenate(other.correct))
            p_values[run.arm] = mcnemar(*samples)
    return p_values


def _remedy(out: str) -> str:
    path = AblationLayout(out).ablation_json
    return f"run clipmill ablate {path} --out {out} first"


def read_folder(folder: str) -> tuple[Ablation, Results]:
    """The ablation of a folder and its results. ValueError where it has none."""
    path = AblationLayout(folder).ablation_json
    if not disk.exists(path):
        raise ValueError(
            f"{folder} is no folder of an ablation, it has no ablation.json: give the --out of "
            "`clipmill ablate`"
        )
    ablation: Ablation = disk.from_plain(Ablation, disk.read_json(path))
    return ablation, read_results(ablation, folder)


def read_results(ablation: Ablation, out: str) -> Results:
    """results.json of an ablation's folder.

    ValueError where it is missing, of another ablation, or older than a view or a run.
    """
    layout = AblationLayout(out)
    if not disk.exists(layout.results_json):
        raise ValueError(f"{layout.results_json} does not exist; {_remedy(out)}")
    try:
        results = read_document(layout.results_json, Results)
    except ValueError as error:  # of another version, or damaged
        raise ValueError(f"{error}; {_remedy(out)}") from None
    if results.ablation_hash != identity.ablation_hash(ablation):
        raise ValueError(f"{layout.results_json} is of another ablation; {_remedy(out)}")
    for path, sha256 in results.files.items():
        outside = disk.is_url(path) or os.path.isabs(path)  # predictions that were given
        full = path if outside else disk.join(out, path)
        if not disk.exists(full):
            raise ValueError(f"{full} is missing; {_remedy(out)}")
        if hashlib.sha256(disk.read_bytes(full)).hexdigest() != sha256:
            raise ValueError(f"{full} has changed since {layout.results_json}; {_remedy(out)}")
    for run in all_runs(ablation, out):
        if isinstance(run, GivenRun):
            continue
        if str(run.seed) in results.runs[run.arm] and (reasons := stale_because(run)):
            raise ValueError(f"{run.out} is stale ({reasons[0]}); {_remedy(out)}")
    return results
