"""What arms change on a task by class, by group and by sample, from the predictions of their runs.

A part of the test samples is a class, a group of the task's column `group`, or a cluster. Their
intervals hold for all parts and all arms together: every part is a task of its own to the
statistics of `clipmill.verdict.stats`, with Bonferroni over the parts and Dunnett over the arms.
Shown samples are drawn at random with a fixed seed, never picked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.arrays import FloatArray, Integers, Mask
from clipmill.manifests.schema import TaskSpec
from clipmill.study.arms import AnyRun, GivenRun, GivenTask
from clipmill.study.data import data_uri
from clipmill.train.eval_data.samples import Samples
from clipmill.train.evaluation.tasks import read_samples
from clipmill.verdict.conclusions import StudyResults
from clipmill.verdict.pages.schema import ArmChanges, ConfusionChange, Disagreement, PartChange
from clipmill.verdict.stats.analysis import comparable, differences, pair_noise, shared_noise
from clipmill.verdict.stats.comparison import NO_PENALTY, Comparison, Penalty, dunnett_family
from clipmill.verdict.stats.model import Values

EXTREMES = 8  # classes with the largest gains, and as many with the largest losses
CONFUSIONS = 10
NONE: Mapping[int, str] = {}
WHOLE = "all"  # the kind of the part that all samples are
SHOWN = 6  # samples of each direction, a dozen in all
SEED = 20240229


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The predictions of one arm: a row per seed, a column per sample, classes by number."""

    seeds: tuple[int, ...]
    predicted: Integers  # (seeds, samples)
    correct: Mask  # (seeds, samples)

    @property
    def right(self) -> FloatArray:
        """(samples,) the share of the seeds that have the sample right."""
        share: FloatArray = self.correct.mean(axis=0)
        return share

    def answer(self, sample: int) -> int:
        """The most frequent answer to a sample; the lowest class of several."""
        classes, counts = np.unique(self.predicted[:, sample], return_counts=True)
        return int(classes[counts.argmax()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Test samples in parts. of_sample: (samples,) the number of each one's part, -1: in none."""

    kind: Literal["class", "group", "cluster"]
    names: tuple[str, ...]
    of_sample: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswers:
    """The predictions of all arms on one task; all have the samples in the same order.

    groups: of the column `group`; None where the task has none.
    """

    task: str
    samples: pa.Array
    label: Integers  # (samples,)
    classes: tuple[str, ...]
    arms: dict[str, Answers]
    groups: Partition | None

    def partitions(self) -> list[Partition]:
        """By class and, where there are some, by group."""
        by_class = Partition(kind="class", names=self.classes, of_sample=self.label)
        return [by_class, *([self.groups] if self.groups is not None else [])]


def penalty_of(results: StudyResults, task: str) -> Penalty:
    """For what the verdicts on a task are adjusted beside the number of arms and of tasks."""
    rows = results.tasks[task].comparisons
    return Penalty(rounds=rows[0].rounds, looks=rows[0].looks) if rows else NO_PENALTY


def collect_changes(
    runs: Sequence[AnyRun], task: TaskSpec, baseline: str, penalty: Penalty = NO_PENALTY
) -> tuple[ArmChanges, ...]:
    """The changes of every arm against the baseline, from its finished runs.

    penalty: for what the ablation's verdicts are adjusted beside the number of arms. Empty for a
    task without labels, such as retrieval, and where the samples of two runs differ.
    """
    answers = read_answers(runs, task)
    if answers is None or baseline not in answers.arms:
        return ()
    parts = PartDifferences(answers, baseline, answers.partitions(), penalty)
    drawn = {}
    for arm in answers.arms:
        if arm != baseline:
            drawn[arm] = _draw_disagreements(answers, arm, baseline)
    wanted = sorted({row for rows in drawn.values() for row in rows})
    images = _read_images(task, answers.samples, wanted)
    changes = []
    for arm, rows in drawn.items():
        changes.append(arm_changes(parts, arm, rows, images))
    return tuple(changes)


# --- reading -------------------------------------------------------------------------------------


def read_answers(runs: Sequence[AnyRun], task: TaskSpec) -> TaskAnswers | None:
    """The predictions of some runs. None without labels, and where samples or labels differ."""
    by_arm: dict[str, list[pa.Table]] = {}
    seeds: dict[str, list[int]] = {}
    names: Sequence[str] = ()
    reader = GivenTask(task.name)
    for run in runs:
        path = run.predictions(task.name)
        if not isinstance(run, GivenRun):
            names = disk.read_metadata(path).get("classes", ())
        try:
            by_arm.setdefault(run.arm, []).append(reader.read(path))
        except ValueError:
            return None
        seeds.setdefault(run.arm, []).append(run.seed)
    if not runs:
        return None
    first = by_arm[runs[0].arm][0]
    label, predicted, classes = _numbered(first, by_arm, names)
    arms = {}
    for arm, tables in by_arm.items():
        correct = np.stack([table["correct"].to_numpy() for table in tables])
        arms[arm] = Answers(
            seeds=tuple(seeds[arm]), predicted=np.stack(predicted[arm]), correct=correct
        )
    return TaskAnswers(
        task=task.name,
        samples=first["sample"].combine_chunks(),
        label=label,
        classes=classes,
        arms=arms,
        groups=_groups(runs[0].predictions(task.name)),
    )


def _groups(path: str) -> Partition | None:
    """The column `group` of predictions, in the order of their rows."""
    if "group" not in disk.read_schema(path).names:
        return None
    column = disk.read_parquet(path, ["group"])["group"].cast(pa.string()).combine_chunks()
    names = pc.unique(column.drop_null()).sort()
    numbers = pc.fill_null(pc.index_in(column, value_set=names), -1).to_numpy()
    return Partition(
        kind="group", names=tuple(names.to_pylist()), of_sample=numbers.astype(np.int64)
    )


def _numbered(
    first: pa.Table, by_arm: Mapping[str, Sequence[pa.Table]], names: Sequence[str]
) -> tuple[Integers, dict[str, list[Integers]], tuple[str, ...]]:
    """Labels and predictions as numbers of classes, and the names of the classes."""
    columns = [first["label"]]
    for tables in by_arm.values():
        columns += [table["predicted"] for table in tables]
    if names and all(pa.types.is_integer(column.type) for column in columns):
        predicted = {}
        for arm, tables in by_arm.items():
            predicted[arm] = [table["predicted"].to_numpy().astype(np.int64) for table in tables]
        return first["label"].to_numpy().astype(np.int64), predicted, tuple(map(str, names))
    texts = [column.cast(pa.string()).combine_chunks() for column in columns]
    classes = pc.unique(pa.chunked_array(texts)).sort()
    label, *others = (_index(column, classes) for column in texts)
    rest = iter(others)
    predicted = {arm: [next(rest) for _ in tables] for arm, tables in by_arm.items()}
    return label, predicted, tuple(classes.to_pylist())


def _index(column: pa.ChunkedArray | pa.Array, classes: pa.Array) -> Integers:
    rows: Integers = pc.index_in(column, value_set=classes).to_numpy(zero_copy_only=False)
    return rows.astype(np.int64)


def _read_images(task: TaskSpec, samples: pa.Array, rows: Sequence[int]) -> dict[int, str]:
    """Some images as data URIs by sample; none where the task's data cannot be read here."""
    if not task.data or not rows:
        return {}
    try:
        data: Samples = read_samples(task)
    except (ValueError, OSError):
        return {}
    numbers = pc.index_in(samples.take(pa.array(rows)), value_set=pa.array(data.files))
    images = {}
    for row, number in zip(rows, numbers.to_pylist(), strict=True):
        if number is None:
            continue
        try:
            images[row] = data_uri(data.images.readers(number, number + 1)[0]())
        except (ValueError, OSError):
            continue
    return images


def cluster_samples(answers: TaskAnswers, task: TaskSpec, model: str, clusters: int) -> Partition:
    """The test samples by k-means of their embeddings. A cluster has the name of its most frequent
    classes.

    model: as of clipmill evaluate. It must be none of the compared runs: what a run has wrong lies
    together in its own embedding, so that others look better there. ValueError for a task whose
    data cannot be read here, and for more clusters than samples.
    """
    from scipy.cluster.vq import kmeans2

    from clipmill.manifests.late import torch
    from clipmill.train.evaluation.tasks import Encoder
    from clipmill.train.formats.model_files import load_model

    images: Samples = read_samples(task)
    if not 2 <= clusters <= len(answers.label):
        raise ValueError(f"--clusters is {clusters}; it must be 2 to {len(answers.label):,}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = Encoder(model=load_model(model).to(device).eval(), device=device)
    with torch.inference_mode():
        vectors = encoder.map_images(images.images, task.name, lambda rows, _: {"x": rows.numpy()})
    row = pc.index_in(answers.samples, value_set=pa.array(images.files))
    if row.null_count:
        raise ValueError(f"{task.data} has other images than the predictions of {task.name!r}")
    points = vectors["x"][row.to_numpy()].astype(np.float64)
    _, of_sample = kmeans2(points, clusters, minit="++", rng=np.random.default_rng(SEED))
    names = []
    for number in range(clusters):
        counts = np.bincount(answers.label[of_sample == number], minlength=len(answers.classes))
        most = [answers.classes[n] for n in np.argsort(-counts, kind="stable")[:3] if counts[n]]
        names.append(f"{number}: {', '.join(most)}")
    return Partition(kind="cluster", names=tuple(names), of_sample=of_sample.astype(np.int64))


# --- by part -------------------------------------------------------------------------------------


class PartDifferences:
    """Arms against the baseline on each part of the test samples."""

    def __init__(
        self,
        answers: TaskAnswers,
        baseline: str,
        partitions: Sequence[Partition],
        penalty: Penalty,
    ) -> None:
        self.answers, self.baseline, self.partitions = answers, baseline, partitions
        self._members: dict[tuple[str, str], Integers] = {}
        for partition in partitions:
            order = np.argsort(partition.of_sample, kind="stable")
            starts = np.searchsorted(
                partition.of_sample[order], np.arange(len(partition.names) + 1)
            )
            for number, name in enumerate(partition.names):
                members = order[starts[number] : starts[number + 1]]
                if len(members):
                    self._members[partition.kind, name] = members
        self.penalty = penalty
        self._compared: dict[tuple[str, str], dict[str, Comparison]] = {}

    def whole(self, arm: str) -> PartChange:
        """The change over all samples."""
        every = np.arange(len(self.answers.label))
        return self.with_interval(arm, self._change(arm, (WHOLE, "all samples"), every))

    def changes(self, arm: str) -> list[PartChange]:
        """Every part without its interval, the largest gain first."""
        changes = [self._change(arm, key, members) for key, members in self._members.items()]
        return sorted(changes, key=lambda one: one.baseline - one.arm)

    def _change(self, arm: str, key: tuple[str, str], members: Integers) -> PartChange:
        of_arm, of_baseline = (self.answers.arms[name].right for name in (arm, self.baseline))
        before, after = float(of_baseline[members].mean()), float(of_arm[members].mean())
        return PartChange(
            kind=key[0], name=key[1], samples=len(members), baseline=before, arm=after
        )

    def with_interval(self, arm: str, change: PartChange) -> PartChange:
        """A change with its interval; as it is where no two runs say how it varies."""
        key = (change.kind, change.name)
        if key not in self._compared:
            is_whole = change.kind == WHOLE
            members = np.arange(len(self.answers.label)) if is_whole else self._members[key]
            parts = 1 if is_whole else len(self._members)
            rows = self._compare(members, replace(self.penalty, tasks=parts))
            self._compared[key] = {row.arm: row for row in rows}
        row = self._compared[key].get(arm)
        if row is None:
            return change
        return replace(change, low=row.low, high=row.high, verdict=row.verdict)

    def _compare(self, members: Integers, penalty: Penalty) -> Iterable[Comparison]:
        values: Values = {}
        samples: dict[str, dict[int, list[Mask]]] = {}
        for arm, answers in self.answers.arms.items():
            of_seeds = dict(zip(answers.seeds, answers.correct[:, members], strict=True))
            values[arm] = {seed: float(right.mean()) for seed, right in of_seeds.items()}
            samples[arm] = {seed: [right] for seed, right in of_seeds.items()}
        others = [arm for arm in values if arm != self.baseline]
        noise = shared_noise(values, (self.baseline, *others))
        pairs = comparable(values, [(arm, self.baseline) for arm in others])
        if noise is None or not pairs:
            return ()
        noises = [
            pair_noise(samples, pair, layout) if len(members) > 1 else None
            for pair, layout in pairs.items()
        ]
        rows = differences(values, noise, [*pairs], noises, one_baseline=True, limit=1.0)
        return dunnett_family(rows, noise.fit.least_correlation([*pairs]), 0.0, penalty)


# --- by sample -----------------------------------------------------------------------------------


def _draw_disagreements(answers: TaskAnswers, arm: str, baseline: str) -> list[int]:
    gained, lost = _disagreements(answers, arm, baseline)
    generator = np.random.default_rng(SEED)
    rows: list[int] = []
    for samples in (gained, lost):
        rows += generator.permutation(samples)[:SHOWN].tolist()
    return rows


def _disagreements(answers: TaskAnswers, arm: str, baseline: str) -> tuple[Integers, Integers]:
    """Samples that most seeds of one have right and most seeds of the other wrong."""
    of_arm, of_baseline = answers.arms[arm].right, answers.arms[baseline].right
    gained = np.flatnonzero((of_arm > 0.5) & (of_baseline < 0.5))
    lost = np.flatnonzero((of_arm < 0.5) & (of_baseline > 0.5))
    return gained, lost


def arm_changes(
    parts: PartDifferences, arm: str, rows: Sequence[int] = (), images: Mapping[int, str] = NONE
) -> ArmChanges:
    """The changes of an arm. rows: samples that are shown, with their images."""
    answers, baseline, whole = parts.answers, parts.baseline, parts.whole(arm)
    is_clear = whole.verdict in ("better", "worse")
    gained, lost = _disagreements(answers, arm, baseline)
    counts: dict[str, int] = {}
    shown = []
    for partition in parts.partitions:
        of_kind = [one for one in parts.changes(arm) if one.kind == partition.kind]
        counts[partition.kind] = len(of_kind)
        for one in _extremes(of_kind):
            part = (one.arm - one.baseline) * one.samples / whole.samples
            share = part / (whole.arm - whole.baseline) if is_clear else None
            shown.append(replace(parts.with_interval(arm, one), share=share))
    return ArmChanges(
        arm=arm,
        task=answers.task,
        whole=whole,
        parts=counts,
        changes=tuple(shown),
        confusions=_confusion_changes(answers, arm, baseline),
        gained=len(gained),
        lost=len(lost),
        shown=tuple(_disagreement(answers, arm, baseline, row, images.get(row)) for row in rows),
    )


def _extremes(parts: Sequence[PartChange]) -> Sequence[PartChange]:
    """The largest gains and the largest losses; all parts where they are few."""
    if len(parts) <= 2 * EXTREMES:
        return parts
    return (*parts[:EXTREMES], *parts[-EXTREMES:])


def _confusion_changes(
    answers: TaskAnswers, arm: str, baseline: str
) -> tuple[ConfusionChange, ...]:
    """The pairs of classes whose number of confusions changed most."""
    size = len(answers.classes)
    keys, counts = [], []
    for name, sign in ((baseline, -1.0), (arm, 1.0)):
        predicted = answers.arms[name].predicted
        key = answers.label[None, :] * size + predicted
        pairs, number = np.unique(key[predicted != answers.label[None, :]], return_counts=True)
        keys.append(pairs)
        counts.append(sign * number / len(predicted))
    pairs, where = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.bincount(where, weights=np.concatenate(counts), minlength=len(pairs))
    before = np.zeros(len(pairs))
    before[where[: len(keys[0])]] = -counts[0]
    order = np.argsort(-np.abs(sums), kind="stable")[:CONFUSIONS]
    changes = []
    for number in order.tolist():
        label, predicted_class = divmod(int(pairs[number]), size)
        change = ConfusionChange(
            label=answers.classes[label],
            predicted=answers.classes[predicted_class],
            baseline=float(before[number]),
            arm=float(before[number] + sums[number]),
        )
        changes.append(change)
    return tuple(change for change in changes if change.arm != change.baseline)


def _disagreement(
    answers: TaskAnswers, arm: str, baseline: str, row: int, image: str | None
) -> Disagreement:
    of_arm, of_baseline = answers.arms[arm], answers.arms[baseline]
    return Disagreement(
        sample=str(answers.samples[row].as_py()),
        label=answers.classes[answers.label[row]],
        arm_answer=answers.classes[of_arm.answer(row)],
        baseline_answer=answers.classes[of_baseline.answer(row)],
        arm_right=float(of_arm.right[row]),
        baseline_right=float(of_baseline.right[row]),
        image=image,
    )
