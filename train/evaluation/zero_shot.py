"""The task kind `classification`: zero-shot, one folder of images per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from manifests import disk
from manifests.schema import TaskSpec
from train.evaluation.embeddings import BATCH_SIZE, Encoder, require_finite
from train.evaluation.metrics import TOP, calibration_error, mean_of_directions, metric_values
from train.evaluation.task_kind import (
    IMAGE_SUFFIXES,
    BoolArray,
    Columns,
    Metrics,
    Samples,
    TaskKind,
)


def read_class_folders(task: TaskSpec) -> Samples:
    """Images and labels from DATA/CLASS/IMAGE. Folders are sorted; `classes` gives display names.

    ValueError for fewer than two folders, other numbers of names, and templates without `{}`.
    """
    files_of = {}
    for folder in disk.list_names(task.data):
        names = disk.list_names(disk.join(task.data, folder))
        images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
        if images:
            files_of[folder] = images
    if len(files_of) < 2:
        raise ValueError(
            f"task {task.name!r}: {task.data} has {len(files_of)} folders of images "
            f"({', '.join(IMAGE_SUFFIXES)}); classification needs one folder per class, "
            "at least two"
        )
    if task.classes and len(task.classes) != len(files_of):
        raise ValueError(
            f"task {task.name!r} names {len(task.classes)} classes, but {task.data} has "
            f"{len(files_of)} folders: {', '.join(list(files_of)[:5])} …"
        )
    _check_templates(task)
    files: list[str] = []
    labels: list[int] = []
    for label, (folder, images) in enumerate(files_of.items()):
        files += [f"{folder}/{name}" for name in images]
        labels += [label] * len(images)
    names = [folder.replace("_", " ") for folder in files_of]
    return Samples(files=tuple(files), labels=tuple(labels), classes=task.classes or tuple(names))


def _check_templates(task: TaskSpec) -> None:
    for template in task.templates:
        if template.count("{}") != 1:
            raise ValueError(
                f"task {task.name!r}: template {template!r} must contain {{}} once, "
                "where the class name goes"
            )
    if not task.templates:
        raise ValueError(
            f"task {task.name!r} has no templates; leave the key out for 'a photo of a {{}}'"
        )


def sample_columns(logits_NC: Tensor, label_N: Tensor) -> Columns:
    """Columns of the predictions from logits (N, C) and labels (N,).

    An image is correct if the logit of its class is higher than every other logit. A tie counts
    against the model: a model that gives all classes the same logit has accuracy 0, not 1. That is
    the pessimistic rank (Sun et al. 2020, "A Re-evaluation of Knowledge Graph Completion Methods"),
    the same rule as in retrieval. `predicted` is then the best wrong class. `logprob` is of the
    right class, under a softmax over the classes; `margin` is its distance to the best wrong class.
    `top_classes` are the best five in the order of their `top_logprobs`, `predicted` first.
    """
    logprobs_NC = logits_NC.double().log_softmax(dim=1)
    right_N1 = logits_NC.gather(1, label_N[:, None])
    wrong_NC = logits_NC.scatter(1, label_N[:, None], -torch.inf)
    rank_N1 = (wrong_NC >= right_N1).sum(dim=1, keepdim=True)
    top = min(TOP, logits_NC.shape[1])
    # The wrong classes in order, with the right one put in at its rank.
    before_NK = wrong_NC.topk(top, dim=1).indices
    after_NK = torch.cat([label_N[:, None], before_NK[:, :-1]], dim=1)
    place_K = torch.arange(top)
    top_NK = torch.where(place_K < rank_N1, before_NK, after_NK)
    top_NK = torch.where(place_K == rank_N1, label_N[:, None], top_NK)
    return {
        "label": label_N.int().numpy(),
        "predicted": top_NK[:, 0].int().numpy(),
        "correct": (rank_N1[:, 0] == 0).numpy(),
        "correct5": (rank_N1[:, 0] < TOP).numpy(),
        "logprob": logprobs_NC.gather(1, label_N[:, None])[:, 0].float().numpy(),
        "margin": (right_N1[:, 0].double() - wrong_NC.amax(dim=1)).float().numpy(),
        "top_classes": top_NK.int().numpy(),
        "top_logprobs": logprobs_NC.gather(1, top_NK).numpy(),
    }


def classify(
    image_NE: Tensor, class_CE: Tensor, labels: Sequence[int], scale: float
) -> tuple[Columns, Metrics]:
    """Columns of the predictions (see `sample_columns`), and the metrics."""
    label_N = torch.as_tensor(labels)
    batches = []
    for start in range(0, len(image_NE), BATCH_SIZE):
        rows = slice(start, start + BATCH_SIZE)
        batches.append(sample_columns(scale * image_NE[rows] @ class_CE.T, label_N[rows]))
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return compact(columns, len(class_CE)), summarise(columns, len(class_CE))


def summarise(columns: Columns, classes: int) -> Metrics:
    """The metrics of classification. There is no accuracy5 with five classes or fewer.

    In mean_class_accuracy every class that has samples has the same weight.
    """
    table = pa.table({name: columns[name] for name in ("label", "correct", "correct5")})
    table = table.append_column("logprob", pa.array(columns["logprob"]))
    table = table.append_column("margin", pa.array(columns["margin"]))
    names = ["accuracy", "mean_class_accuracy", "logprob", "margin"]
    if classes > TOP:
        names.insert(1, "accuracy5")
    metrics = {name: mean_of_directions(metric_values(table, name)) for name in names}
    confidence_N = np.exp(columns["top_logprobs"][:, 0])
    metrics["calibration_error"] = calibration_error(confidence_N, columns["correct"])
    return metrics


def compact(columns: Columns, classes: int) -> Columns:
    """The columns as they are stored: classes as int16 where they fit, top_logprobs as float16."""
    kind = np.int16 if classes <= np.iinfo(np.int16).max else np.int32
    lowest = np.finfo(np.float16).min
    stored = dict(columns)
    for name in ("label", "predicted"):
        stored[name] = columns[name].astype(kind)
    for name, values_NK in (
        ("top_classes", columns["top_classes"].astype(kind)),
        ("top_logprobs", columns["top_logprobs"].clip(min=lowest).astype(np.float16)),
    ):
        flat = pa.array(values_NK.reshape(-1))
        stored[name] = pa.FixedSizeListArray.from_arrays(flat, values_NK.shape[1])
    return stored


def _predict(encoder: Encoder, task: TaskSpec, samples: Samples) -> tuple[Columns, Metrics]:
    image_NE = encoder.images(task.data, samples.files, task.name)
    class_CE = encoder.classes(samples.classes, task.templates, task.name)
    scale = encoder.model.logit_scale.exp().item()
    # The logit scale can overflow where the features are finite.
    require_finite(scale * image_NE @ class_CE.T, samples.files, task.name, "logits")
    columns, metrics = classify(image_NE, class_CE, samples.labels, scale)
    return {"sample": list(samples.files), **columns}, metrics


def _correct(predictions: pa.Table) -> list[BoolArray]:
    return [predictions["correct"].to_numpy()]


def _chance(metadata: Mapping[str, Any], samples: int) -> float:
    return 1 / len(metadata["classes"])


CLASSIFICATION = TaskKind(
    name="classification",
    headline="accuracy",
    read=read_class_folders,
    predict=_predict,
    correct=_correct,
    chance=_chance,
)
