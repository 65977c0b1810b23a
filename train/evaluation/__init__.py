"""Evaluation tasks and their metrics."""

from __future__ import annotations

from train.evaluation.metrics import METRICS, Metric, metric_values
from train.evaluation.overlap import (
    SharedImages,
    find_shared_images,
    overlap_lines,
    refuse_identical,
)
from train.evaluation.task_kind import BoolArray, Metrics, Samples, TaskKind
from train.evaluation.tasks import (
    TASKS,
    data_hash,
    evaluate,
    headline,
    kind_of,
    read_samples,
    saved_metrics,
)

__all__ = [
    "METRICS",
    "TASKS",
    "BoolArray",
    "Metric",
    "Metrics",
    "Samples",
    "SharedImages",
    "TaskKind",
    "data_hash",
    "evaluate",
    "find_shared_images",
    "headline",
    "kind_of",
    "metric_values",
    "overlap_lines",
    "read_samples",
    "refuse_identical",
    "saved_metrics",
]
