"""The table of task kinds, and the evaluation of a model: a row per sample and the metrics."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Sequence

import pyarrow as pa
import torch

from manifests import disk
from manifests.schema import TaskSpec
from train.evaluation.embeddings import Encoder
from train.evaluation.metrics import mean_of_directions
from train.evaluation.retrieval import RETRIEVAL
from train.evaluation.task_kind import BoolArray, Metrics, Samples, TaskKind
from train.evaluation.zero_shot import CLASSIFICATION
from train.model import CLIP

# 2: log-probabilities, margins and losses. 1 had no version in its metadata.
PREDICTIONS_VERSION = 2
logger = logging.getLogger(__name__)
TASKS: dict[str, TaskKind] = {kind.name: kind for kind in (CLASSIFICATION, RETRIEVAL)}


def kind_of(task: TaskSpec) -> TaskKind:
    """The table's entry of a task. ValueError names the nearest kind where there is none."""
    if task.kind not in TASKS:
        raise ValueError(
            f"task {task.name!r}: there is no kind {task.kind!r}"
            f"{disk.did_you_mean(task.kind, TASKS)} (of {', '.join(TASKS)})"
        )
    return TASKS[task.kind]


def read_samples(task: TaskSpec) -> Samples:
    """The images of a task with their classes or captions. ValueError names what is missing."""
    kind = kind_of(task)
    if not re.fullmatch(r"[\w.-]+", task.name):
        raise ValueError(
            f"task {task.name!r}: a task name is a file name of letters, digits, '.', '_' and '-'"
        )
    if not disk.exists(task.data):
        raise ValueError(f"task {task.name!r}: there is no folder {task.data}")
    return kind.read(task)


@functools.lru_cache(maxsize=32)
def file_hashes(folder: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """sha256 of each file, read once per process."""
    hashes = []
    for file in files:
        hashes.append(hashlib.sha256(disk.read_bytes(disk.join(folder, file))).hexdigest())
    return tuple(hashes)


def data_hash(task: TaskSpec) -> str:
    """Hash of a task's images and annotations: equal for equal data in any folder."""
    samples = read_samples(task)
    return disk.content_hash({"samples": samples, "sha256": file_hashes(task.data, samples.files)})


def evaluate(
    model: CLIP,
    tasks: Sequence[TaskSpec],
    out: str,
    *,
    tokenizer: str = "clip",
    device: str | torch.device = "cpu",
) -> dict[str, Metrics]:
    """The metrics of every task. out/TASK.parquet gets one row per sample, and the metrics.

    ValueError for a task whose folder cannot be read and for features that are not finite. The
    model stays on `device` and keeps its training mode.
    """
    encoder = Encoder(model=model, device=torch.device(device), tokenizer=tokenizer)
    was_training = model.training
    model.to(encoder.device).eval()
    try:
        with torch.inference_mode():
            return {task.name: _evaluate(encoder, task, out) for task in tasks}
    finally:
        model.train(was_training)


def _evaluate(encoder: Encoder, task: TaskSpec, out: str) -> Metrics:
    samples = read_samples(task)
    columns, metrics = kind_of(task).predict(encoder, task, samples)
    metadata = {
        "version": PREDICTIONS_VERSION,
        "task": task,
        "metrics": metrics,
        "classes": samples.classes,
        "data_hash": data_hash(task),
    }
    disk.write_parquet(disk.join(out, f"{task.name}.parquet"), pa.table(columns), metadata)
    return metrics


def saved_metrics(out: str, task: TaskSpec) -> Metrics | None:
    """The metrics in out/TASK.parquet if they are of this task and of its present images.

    None, with a line in the log, for predictions of an older version: they have fewer columns.
    """
    path = disk.join(out, f"{task.name}.parquet")
    if not disk.exists(path):
        return None
    metadata = disk.read_metadata(path)
    if metadata.get("task") != disk.to_plain(task) or metadata.get("data_hash") != data_hash(task):
        return None
    version = metadata.get("version", 1)
    if version != PREDICTIONS_VERSION:
        logger.info(
            "%s is of version %s, not %d: it is made anew", path, version, PREDICTIONS_VERSION
        )
        return None
    metrics: Metrics = metadata["metrics"]
    return metrics


def headline(correct: Sequence[BoolArray]) -> float:
    """The headline metric from the boolean arrays of a predictions table (see TaskKind.correct)."""
    return mean_of_directions(correct)
