"""The table of task kinds, and the evaluation of a model: a row per sample and the metrics."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import torch

from manifests import disk
from manifests.schema import TaskSpec
from train.dist import Ranks, process_group
from train.evaluation.association import ASSOCIATION
from train.evaluation.embeddings import Encoder
from train.evaluation.linear_probe import LINEAR_PROBE
from train.evaluation.metrics import METRICS, mean_of_directions
from train.evaluation.retrieval import RETRIEVAL
from train.evaluation.sharing import ALONE
from train.evaluation.task_kind import BoolArray, Metrics, TaskKind
from train.evaluation.zero_shot import CLASSIFICATION
from train.model import CLIP
from train.task_data import ImageSource, Samples, image_hashes

# 2: log-probabilities, margins and losses. 1 had no version in its metadata.
PREDICTIONS_VERSION = 2
logger = logging.getLogger(__name__)
TASKS: dict[str, TaskKind] = {
    kind.name: kind for kind in (CLASSIFICATION, RETRIEVAL, LINEAR_PROBE, ASSOCIATION)
}


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
    if not task.data:
        raise ValueError(f"task {task.name!r} has no data; only predictions that exist need none")
    return kind.read(task)


def data_hash(samples: Samples, known: Mapping[ImageSource, tuple[str, ...]] | None = None) -> str:
    """Hash of a task's images and annotations: equal for equal data in any folder.

    `known`: the sha256 of images that were read already.
    """
    content = {"samples": samples.content(), "sha256": _hashes(samples.images, known)}
    if samples.train is not None:
        content["train"] = data_hash(samples.train, known)
    return disk.content_hash(content)


def _hashes(
    images: ImageSource, known: Mapping[ImageSource, tuple[str, ...]] | None
) -> tuple[str, ...]:
    if known is not None and images in known:
        return known[images]
    return image_hashes(images)


def evaluate(
    model: CLIP,
    tasks: Sequence[TaskSpec],
    out: str,
    *,
    tokenizer: str = "clip",
    device: str | torch.device = "cpu",
    ranks: Ranks = ALONE,
) -> dict[str, Metrics]:
    """The metrics of every task. out/TASK.parquet gets one row per sample, and the metrics.

    Every one of `ranks` computes its share of the batches; rank 0 writes. The files are the same,
    byte for byte, for any number of ranks with the same number of threads. ValueError for a task
    whose data cannot be read and for features that are not finite. The model stays on `device` and
    keeps its training mode.
    """
    encoder = Encoder(model=model, device=torch.device(device), tokenizer=tokenizer, ranks=ranks)
    was_training = model.training
    model.to(encoder.device).eval()
    try:
        with torch.inference_mode():
            return {task.name: _evaluate(encoder, task, out) for task in tasks}
    finally:
        model.train(was_training)


def _evaluate(encoder: Encoder, task: TaskSpec, out: str) -> Metrics:
    samples = read_samples(task)
    predicted = kind_of(task).predict(encoder, task, samples)
    if encoder.ranks.rank == 0:
        metadata = {
            **predicted.details,
            "version": PREDICTIONS_VERSION,
            "task": task,
            "metrics": predicted.metrics,
            "classes": samples.classes,
            "data_hash": data_hash(samples, encoder.hashes),
        }
        path = disk.join(out, f"{task.name}.parquet")
        disk.write_parquet(path, pa.table(predicted.columns), metadata)
    process_group.barrier(encoder.ranks)
    return predicted.metrics


def saved_metrics(out: str, task: TaskSpec) -> Metrics | None:
    """The metrics in out/TASK.parquet if they are of this task and of its present images.

    None, with a line in the log, for predictions of an older version: they have fewer columns.
    """
    path = disk.join(out, f"{task.name}.parquet")
    if not disk.exists(path):
        return None
    metadata = disk.read_metadata(path)
    if metadata.get("task") != disk.to_plain(task) or metadata.get("data_hash") != _present_hash(
        task
    ):
        return None
    version = metadata.get("version", 1)
    if version != PREDICTIONS_VERSION:
        logger.info(
            "%s is of version %s, not %d: it is made anew", path, version, PREDICTIONS_VERSION
        )
        return None
    metrics: Metrics = metadata["metrics"]
    return metrics


def _present_hash(task: TaskSpec) -> str:
    return data_hash(read_samples(task))


def deciding_metric(task: TaskSpec) -> str:
    """The metric that decides on a task: its own `metric`, else the headline of its kind.

    ValueError for a metric that there is not.
    """
    name = task.metric or kind_of(task).headline
    if name not in METRICS:
        raise ValueError(
            f"task {task.name!r}: there is no metric {name!r}{disk.did_you_mean(name, METRICS)}"
        )
    return name


def headline(correct: Sequence[BoolArray]) -> float:
    """The headline metric from the boolean arrays of a predictions table (see TaskKind.correct)."""
    return mean_of_directions(correct)
