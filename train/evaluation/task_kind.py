"""The interface of a task kind: how its folder is read, how a model is scored, what its table says.

A new kind is one module with a `TaskKind`, one line in `tasks.TASKS`, and one test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manifests.schema import TaskSpec
from train.evaluation.embeddings import Encoder
from train.task_data import Samples

Metrics = dict[str, float]
Columns = dict[str, Any]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The predictions of a model: columns with a row per sample, metrics, further metadata."""

    columns: Columns
    metrics: Metrics
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """One kind of evaluation task.

    name: the `kind` of a task manifest. headline: the metric that arms are compared by.
    read: the samples of a task; ValueError names what the folder lacks.
    predict: the columns of the predictions (one row per sample) and the metrics; a collective.
    correct: from a predictions table, one boolean array per direction, in the order of the table;
    the headline metric is the mean of their means.
    chance: the headline metric of random guesses, from the metadata and the number of samples.
    """

    name: str
    headline: str
    read: Callable[[TaskSpec], Samples]
    predict: Callable[[Encoder, TaskSpec, Samples], Predicted]
    correct: Callable[[pa.Table], list[BoolArray]]
    chance: Callable[[Mapping[str, Any], int], float]
