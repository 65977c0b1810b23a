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
from train.evaluation.embeddings import Encoder, require_finite
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


def classify(
    image_NE: Tensor, class_CE: Tensor, labels: Sequence[int], scale: float
) -> tuple[Columns, Metrics]:
    """Columns of the predictions, and accuracy, accuracy5 and mean_class_accuracy.

    An image is correct if the logit of its class is higher than every other logit. A tie counts
    against the model: a model that gives all classes the same logit has accuracy 0, not 1. That is
    the pessimistic rank (Sun et al. 2020, "A Re-evaluation of Knowledge Graph Completion Methods"),
    the same rule as in retrieval. `predicted` is then the best wrong class. `score` is the margin
    of the best logit over the second. In mean_class_accuracy each class has the same weight.
    """
    logits_NC = scale * image_NE @ class_CE.T
    label_N = torch.as_tensor(labels)
    right_N1 = logits_NC.gather(1, label_N[:, None])
    wrong_NC = logits_NC.scatter(1, label_N[:, None], -torch.inf)
    rank_N = (wrong_NC >= right_N1).sum(dim=1)
    correct_N = rank_N == 0
    best_N2 = logits_NC.topk(2, dim=1).values
    columns = {
        "label": label_N.int().numpy(),
        "predicted": torch.where(correct_N, label_N, wrong_NC.argmax(dim=1)).int().numpy(),
        "correct": correct_N.numpy(),
        "correct5": (rank_N < 5).numpy(),
        "score": (best_N2[:, 0] - best_N2[:, 1]).float().numpy(),
    }
    per_class = []
    for c in range(logits_NC.shape[1]):
        per_class.append(correct_N[label_N == c].double().mean().item())
    return columns, {
        "accuracy": correct_N.double().mean().item(),
        "accuracy5": (rank_N < 5).double().mean().item(),
        "mean_class_accuracy": float(np.mean(per_class)),
    }


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
