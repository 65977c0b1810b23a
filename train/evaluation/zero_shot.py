"""The task kind `classification`: zero-shot, by the similarity to the names of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from manifests.schema import TaskSpec
from train.evaluation.embeddings import Encoder, finite_rows, require_finite
from train.evaluation.metrics import (
    TOP,
    calibration_error,
    f1_macro,
    mean_of_directions,
    metric_values,
    worst_group,
)
from train.evaluation.sharing import Arrays
from train.evaluation.task_kind import BoolArray, Columns, Metrics, Predicted, TaskKind
from train.task_data import Samples, read_labelled


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


def classify(logits_NC: Tensor, labels: Sequence[int]) -> tuple[Columns, Metrics]:
    """Columns of the predictions (see `sample_columns`), and the metrics."""
    columns = sample_columns(logits_NC, torch.as_tensor(labels))
    classes = logits_NC.shape[1]
    return compact(columns, classes), summarise(columns, classes)


def summarise(columns: Columns, classes: int, ignore_groups: Sequence[str] = ()) -> Metrics:
    """The metrics of classification. There is no accuracy5 with five classes or fewer.

    In mean_class_accuracy and f1_macro every class that has samples has the same weight. The
    metrics of the worst group are there if `columns` has `group`.
    """
    names = ["label", "correct", "correct5", "logprob", "margin"]
    table = pa.table({name: columns[name] for name in names})
    metrics = {}
    for name in ("accuracy", "accuracy5", "mean_class_accuracy", "logprob", "margin"):
        if name != "accuracy5" or classes > TOP:
            metrics[name] = mean_of_directions(metric_values(table, name))
    confidence_N = np.exp(columns["top_logprobs"][:, 0])
    metrics["calibration_error"] = calibration_error(confidence_N, columns["correct"])
    metrics["f1_macro"] = f1_macro(columns["label"], columns["predicted"])
    if "group" in columns:
        worst = {"worst_group_accuracy": "correct"}
        if classes > TOP:
            worst["worst_group_accuracy5"] = "correct5"
        for name, column in worst.items():
            metrics[name] = worst_group(columns[column], columns["group"], ignore_groups)
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


def with_groups(columns: Columns, samples: Samples) -> Columns:
    """The columns with the samples' groups, if they have any."""
    if not samples.groups:
        return columns
    return {**columns, "group": np.array(samples.groups)}


def predicted_of(columns: Columns, task: TaskSpec, samples: Samples) -> Predicted:
    """Metrics of `sample_columns`, and the columns as they are stored, with names and groups."""
    columns, classes = with_groups(columns, samples), len(samples.classes)
    metrics = summarise(columns, classes, task.ignore_groups)
    stored = {"sample": list(samples.files), **compact(columns, classes)}
    return Predicted(columns=stored, metrics=metrics)


def _predict(encoder: Encoder, task: TaskSpec, samples: Samples) -> Predicted:
    class_CE = encoder.classes(samples.classes, samples.templates, task.name)
    scale = encoder.model.logit_scale.exp().item()
    label_N = torch.tensor(samples.labels)

    def columns_of(image_BE: Tensor, rows: slice) -> Arrays:
        logits_BC = scale * image_BE @ class_CE.T
        return {**sample_columns(logits_BC, label_N[rows]), "finite_logits": finite_rows(logits_BC)}

    columns = encoder.map_images(samples.images, task.name, columns_of)
    # The logit scale can overflow where the features are finite.
    require_finite(columns.pop("finite_logits"), samples.files, task.name, "logits")
    return predicted_of(columns, task, samples)


def _correct(predictions: pa.Table) -> list[BoolArray]:
    return [predictions["correct"].to_numpy()]


def _chance(metadata: Mapping[str, Any], samples: int) -> float:
    return 1 / len(metadata["classes"])


CLASSIFICATION = TaskKind(
    name="classification",
    headline="accuracy",
    read=read_labelled,
    predict=_predict,
    correct=_correct,
    chance=_chance,
)
