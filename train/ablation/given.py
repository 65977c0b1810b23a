"""Runs whose predictions exist: files of other programs, judged like runs of this one.

A file has one row per sample, with at least the columns

* sample: text or whole number, different in every row; every file of a task has the same samples,
* label and predicted: the right class and the model's, text or whole number,
* correct: true or false (or 1 and 0); never true where label and predicted differ.

The rows may be in any order: they are put in the order of the first file that is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests import disk
from manifests.schema import Ablation
from train.evaluation import BoolArray

COLUMNS = ("sample", "label", "predicted", "correct")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRun:
    """A run of an arm of which only the predictions are known; `files` goes by task."""

    arm: str
    seed: int
    files: dict[str, str]

    def predictions(self, task: str) -> str:
        """The file with the predictions of a task."""
        return self.files[task]


def given_runs(ablation: Ablation) -> tuple[GivenRun, ...]:
    """The runs of every arm with predictions, the baseline first.

    ValueError for an arm of which no file exists. A single missing file is the reader's matter.
    """
    runs = []
    for name in dict.fromkeys([ablation.baseline, *ablation.arms]):
        pattern = ablation.arms[name].predictions
        if pattern is None:
            continue
        of_arm = []
        for seed in ablation.seeds:
            files = {}
            for task in ablation.evaluate:
                path = pattern.replace("{seed}", str(seed)).replace("{task}", task.name)
                files[task.name] = path
            of_arm.append(GivenRun(arm=name, seed=seed, files=files))
        paths = [path for run in of_arm for path in run.files.values()]
        if not any(disk.exists(path) for path in paths):
            raise ValueError(f"arm {name!r}: none of its predictions exists, as {paths[0]}")
        runs += of_arm
    return tuple(runs)


@dataclass(slots=True)
class GivenTask:
    """Reads the files of one task, all in the order of the first one."""

    task: str
    _samples: pa.Array | None = None
    _labels: list[Any] = field(default_factory=list)
    _first: str = ""

    def read(self, path: str) -> BoolArray:
        """Right or wrong per sample. ValueError names the file and what is wrong with it."""
        table = _read_columns(path)
        samples = table["sample"].combine_chunks()
        labels, correct = table["label"], _as_booleans(table["correct"], path)
        differs = pc.not_equal(_as_text(labels), _as_text(table["predicted"])).to_numpy()
        wrong = np.flatnonzero(correct & differs)
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"{path}: sample {samples[row].as_py()!r} is correct, but its label is "
                f"{labels[row].as_py()!r} and {table['predicted'][row].as_py()!r} was predicted"
            )
        if self._samples is None:
            self._samples, self._first = samples, path
            self._labels = _as_text(labels).to_pylist()
            return correct
        if samples.type != self._samples.type:
            raise ValueError(
                f"{path}: its samples are {samples.type}, those of {self._first} are "
                f"{self._samples.type}"
            )
        rows = pc.index_in(self._samples, value_set=samples)
        missing = pc.sum(pc.is_null(rows)).as_py()
        if missing or len(samples) != len(self._samples):
            raise ValueError(
                f"{path} has {len(samples):,} samples, of the {len(self._samples):,} of "
                f"{self._first} it lacks {missing:,}; all files of task {self.task!r} must be of "
                "the same samples"
            )
        order = rows.to_numpy()
        if _as_text(labels).take(rows).to_pylist() != self._labels:
            raise ValueError(f"{path} has other labels than {self._first} for the same samples")
        return np.asarray(correct[order])

    @property
    def classes(self) -> int:
        """Different labels of the files that were read."""
        return len(set(self._labels))


def _read_columns(path: str) -> pa.Table:
    """The four columns. ValueError where one is missing, has a hole, or a sample comes twice."""
    try:
        names = disk.read_parquet(path).column_names
        missing = [name for name in COLUMNS if name not in names]
        table = None if missing else disk.read_parquet(path, list(COLUMNS))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    if table is None:
        raise ValueError(
            f"{path} has no column {missing[0]!r} (it has {', '.join(names)}); predictions have "
            f"the columns {', '.join(COLUMNS)}"
        )
    if not table.num_rows:
        raise ValueError(f"{path} has no rows")
    for name in COLUMNS:
        if table[name].null_count:
            raise ValueError(f"{path}: column {name!r} has {table[name].null_count} empty values")
    for position, name in enumerate(COLUMNS[:3]):
        plain = _text_or_number(table[name], f"{path}: column {name!r}")
        table = table.set_column(position, name, plain)
    different = pc.count_distinct(table["sample"]).as_py()
    if different < table.num_rows:
        raise ValueError(
            f"{path}: {table.num_rows - different} rows repeat a sample; each sample has one row"
        )
    return table


def _text_or_number(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """A column as text or int64, whichever way it is stored. ValueError for anything else."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_text = is_text or pa.types.is_string_view(kind) or pa.types.is_binary(kind)
    if not (is_number or is_text):
        raise ValueError(f"{where} holds {kind}; it must hold text or whole numbers")
    try:
        return column.cast(pa.int64() if is_number else pa.string())
    except pa.ArrowException as error:  # NaN, a fraction, bytes that are no text
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{where} must hold text or whole numbers: {reason}") from None


def _as_booleans(column: pa.ChunkedArray, path: str) -> BoolArray:
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    values = column.to_numpy()
    if not (pa.types.is_boolean(kind) or (is_number and np.isin(values, (0, 1)).all())):
        raise ValueError(f"{path}: column 'correct' must hold true and false, or 1 and 0")
    return np.asarray(values).astype(bool)


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Labels as text, so that 3 and "3" are the same class."""
    return pc.cast(column, pa.string())
