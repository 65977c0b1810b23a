"""Evaluation tasks and their metrics."""

from __future__ import annotations

from train.evaluation.clean_views import (
    MARK,
    clean_blend,
    count_dropped,
    dropping,
    write_clean_random,
    write_clean_view,
)
from train.evaluation.metrics import METRICS, Metric, metric_values
from train.evaluation.overlap import (
    DroppedRows,
    SharedImages,
    find_shared_images,
    overlap_lines,
    refuse_identical,
    refuse_near,
)
from train.evaluation.sharing import on_rank_0
from train.evaluation.suite import (
    GroupAverage,
    SuiteResults,
    evaluate_suite,
    group_averages,
    readable_tasks,
)
from train.evaluation.task_kind import BoolArray, Metrics, Predicted, TaskKind
from train.evaluation.tasks import (
    TASKS,
    data_hash,
    deciding_metric,
    evaluate,
    headline,
    kind_of,
    read_samples,
    saved_metrics,
)
from train.task_data import Samples

__all__ = [
    "MARK",
    "METRICS",
    "TASKS",
    "BoolArray",
    "DroppedRows",
    "GroupAverage",
    "Metric",
    "Metrics",
    "Predicted",
    "Samples",
    "SharedImages",
    "SuiteResults",
    "TaskKind",
    "clean_blend",
    "count_dropped",
    "data_hash",
    "deciding_metric",
    "dropping",
    "evaluate",
    "evaluate_suite",
    "find_shared_images",
    "group_averages",
    "headline",
    "kind_of",
    "metric_values",
    "on_rank_0",
    "overlap_lines",
    "read_samples",
    "readable_tasks",
    "refuse_identical",
    "refuse_near",
    "saved_metrics",
    "write_clean_random",
    "write_clean_view",
]
