"""What arms change on a task, by class and by sample, from the predictions of their runs.

Shown samples are drawn at random with a fixed seed, never picked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manifests import disk
from manifests.schema import TaskSpec
from train.ablation import AnyRun, GivenRun
from train.evaluation import BoolArray, Samples, read_samples
from train.reporting.gallery import data_uri
from train.reporting.schema import ArmChanges, ClassChange, ConfusionChange, Disagreement

COLUMNS = ["sample", "label", "predicted", "correct"]
EXTREMES = 8  # classes with the largest gains, and as many with the largest losses
CONFUSIONS = 10
SHOWN = 6  # samples of each direction, a dozen in all
SEED = 20240229
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The predictions of one arm: a row per seed, a column per sample, classes by number."""

    predicted: IntArray  # (seeds, samples)
    correct: BoolArray  # (seeds, samples)

    @property
    def right(self) -> NDArray[np.float64]:
        """(samples,) the share of the seeds that have the sample right."""
        share: NDArray[np.float64] = self.correct.mean(axis=0)
        return share

    def answer(self, sample: int) -> int:
        """The most frequent answer to a sample; the lowest class of several."""
        classes, counts = np.unique(self.predicted[:, sample], return_counts=True)
        return int(classes[counts.argmax()])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswers:
    """The predictions of all arms on one task; all have the samples in the same order."""

    task: str
    samples: pa.Array
    label: IntArray  # (samples,)
    classes: tuple[str, ...]
    arms: dict[str, Answers]


def collect_changes(
    runs: Sequence[AnyRun], task: TaskSpec, baseline: str
) -> tuple[ArmChanges, ...]:
    """The changes of every arm against the baseline, from its finished runs.

    Empty for a task without labels, such as retrieval, and where the samples of two runs differ.
    """
    answers = read_answers(runs, task)
    if answers is None or baseline not in answers.arms:
        return ()
    drawn = {}
    for arm in answers.arms:
        if arm != baseline:
            drawn[arm] = _draw(answers, arm, baseline)
    wanted = sorted({row for rows in drawn.values() for row in rows})
    images = _read_images(task, answers.samples, wanted)
    changes = []
    for arm, rows in drawn.items():
        changes.append(_changes(answers, arm, baseline, rows, images))
    return tuple(changes)


# --- reading -------------------------------------------------------------------------------------


def read_answers(runs: Sequence[AnyRun], task: TaskSpec) -> TaskAnswers | None:
    """The predictions of some runs. None without labels, and where samples or labels differ."""
    by_arm: dict[str, list[pa.Table]] = {}
    names: Sequence[str] = ()
    first: pa.Table | None = None
    for run in runs:
        path = run.predictions(task.name)
        if not set(COLUMNS) <= set(disk.read_schema(path).names):
            return None
        table = disk.read_parquet(path, COLUMNS)
        if not isinstance(run, GivenRun):
            names = disk.read_metadata(path).get("classes", ())
        first = table if first is None else first
        ordered = _in_order_of(first, table)
        if ordered is None:
            return None
        by_arm.setdefault(run.arm, []).append(ordered)
    if first is None:
        return None
    label, predicted, classes = _numbered(first, by_arm, names)
    arms = {}
    for arm, tables in by_arm.items():
        correct = np.stack([np.asarray(table["correct"].to_numpy()) for table in tables])
        arms[arm] = Answers(predicted=np.stack(predicted[arm]), correct=correct.astype(bool))
    samples = first["sample"].combine_chunks()
    return TaskAnswers(task=task.name, samples=samples, label=label, classes=classes, arms=arms)


def _in_order_of(first: pa.Table, table: pa.Table) -> pa.Table | None:
    """The rows in the order of the first table; None where they are of other samples or labels."""
    if table["sample"].type != first["sample"].type or len(table) != len(first):
        return None
    if not table["sample"].equals(first["sample"]):
        rows = pc.index_in(first["sample"], value_set=table["sample"].combine_chunks())
        if rows.null_count:
            return None
        table = table.take(rows)
    same = pc.equal(_as_text(table["label"]), _as_text(first["label"]))
    return table if pc.all(same).as_py() else None


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string())


def _numbered(
    first: pa.Table, by_arm: Mapping[str, Sequence[pa.Table]], names: Sequence[str]
) -> tuple[IntArray, dict[str, list[IntArray]], tuple[str, ...]]:
    """Labels and predictions as numbers of classes, and the names of the classes."""
    columns = [first["label"]]
    for tables in by_arm.values():
        columns += [table["predicted"] for table in tables]
    if names and all(pa.types.is_integer(column.type) for column in columns):
        predicted = {}
        for arm, tables in by_arm.items():
            predicted[arm] = [table["predicted"].to_numpy().astype(np.int64) for table in tables]
        return first["label"].to_numpy().astype(np.int64), predicted, tuple(map(str, names))
    texts = [_as_text(column).combine_chunks() for column in columns]
    classes = pc.unique(pa.chunked_array(texts)).sort()
    predicted = {}
    for arm, tables in by_arm.items():
        predicted[arm] = [_index(_as_text(table["predicted"]), classes) for table in tables]
    return _index(texts[0], classes), predicted, tuple(classes.to_pylist())


def _index(column: pa.ChunkedArray | pa.Array, classes: pa.Array) -> IntArray:
    rows: IntArray = pc.index_in(column, value_set=classes).to_numpy(zero_copy_only=False)
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


# --- by class and by sample ----------------------------------------------------------------------


def _draw(answers: TaskAnswers, arm: str, baseline: str) -> list[int]:
    gained, lost = _disagreements(answers, arm, baseline)
    generator = np.random.default_rng(SEED)
    rows: list[int] = []
    for samples in (gained, lost):
        rows += generator.permutation(samples)[:SHOWN].tolist()
    return rows


def _disagreements(answers: TaskAnswers, arm: str, baseline: str) -> tuple[IntArray, IntArray]:
    """Samples that most seeds of one have right and most seeds of the other wrong."""
    of_arm, of_baseline = answers.arms[arm].right, answers.arms[baseline].right
    gained = np.flatnonzero((of_arm > 0.5) & (of_baseline < 0.5))
    lost = np.flatnonzero((of_arm < 0.5) & (of_baseline > 0.5))
    return gained, lost


def _changes(
    answers: TaskAnswers, arm: str, baseline: str, rows: Sequence[int], images: Mapping[int, str]
) -> ArmChanges:
    classes = _class_changes(answers, arm, baseline)
    gained, lost = _disagreements(answers, arm, baseline)
    return ArmChanges(
        arm=arm,
        task=answers.task,
        classes_in_all=len(classes),
        classes=_extremes(classes),
        confusions=_confusion_changes(answers, arm, baseline),
        gained=len(gained),
        lost=len(lost),
        shown=tuple(_disagreement(answers, arm, baseline, row, images.get(row)) for row in rows),
    )


def _class_changes(answers: TaskAnswers, arm: str, baseline: str) -> list[ClassChange]:
    """Every class that has samples, the largest gain first."""
    size = len(answers.classes)
    samples = np.bincount(answers.label, minlength=size)
    weights = [answers.arms[name].right for name in (baseline, arm)]
    sums = [np.bincount(answers.label, weights=each, minlength=size) for each in weights]
    changes = []
    for number in np.flatnonzero(samples).tolist():
        change = ClassChange(
            name=answers.classes[number],
            samples=int(samples[number]),
            baseline=float(sums[0][number] / samples[number]),
            arm=float(sums[1][number] / samples[number]),
        )
        changes.append(change)
    return sorted(changes, key=lambda change: change.baseline - change.arm)


def _extremes(classes: Sequence[ClassChange]) -> tuple[ClassChange, ...]:
    """The largest gains and the largest losses; all classes where they are few."""
    if len(classes) <= 2 * EXTREMES:
        return tuple(classes)
    return (*classes[:EXTREMES], *classes[-EXTREMES:])


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
