"""Evaluation tasks and their metrics.

Evaluation tasks and their metrics, one row per sample. The data of tasks is read by task_data.

Read: the data of tasks, an export, sidecars and score sets of pools. Written: `eval/TASK.parquet`
with the metrics in its metadata, `eval/overlap.json`, `eval/suite-NAME.json`,
`POOL/views/VIEW.clean-HASH`.

Invariants:

* The predictions are the same bytes for 1, 2 and 3 ranks
  (`tests/train/evaluation/test_sharing.py`).
* Logits and scores agree with open_clip; a tie counts against the model (`test_zero_shot.py`,
  `test_retrieval.py`). A metric is the mean of its values per sample (`test_metrics.py`).
* Byte-identical images are refused by sha256; near ones (at most 4 of 64 bits of a perceptual
  hash) are listed if the pool has `phash`: not crops, rotations, EXIF turns (`test_overlap.py`);
  a view without them is always the same (`test_clean_views.py`).
* A new kind: a module with a `TaskKind`, its entry in `tasks.TASKS`, its name in the schema.
"""

from __future__ import annotations

from train.eval_data import Samples
from train.evaluation.metrics import (
    DIRECTIONS,
    METRICS,
    Metric,
    can_be_averaged,
    chance_of,
    metric_values,
)
from train.evaluation.overlap import (
    MARK,
    DroppedRows,
    SharedImages,
    clean_blend,
    count_dropped,
    dropping,
    find_shared_images,
    overlap_lines,
    refuse_identical,
    refuse_near,
    write_clean_random,
    write_clean_view,
)
from train.evaluation.suite import (
    GroupAverage,
    SuiteResults,
    evaluate_suite,
    group_averages,
    readable_tasks,
)
from train.evaluation.tasks import (
    TASKS,
    BoolArray,
    Metrics,
    Predicted,
    TaskKind,
    data_hash,
    deciding_metric,
    evaluate,
    headline,
    kind_of,
    on_rank_0,
    read_samples,
    saved_metrics,
)

__all__ = [
    "DIRECTIONS",
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
    "can_be_averaged",
    "chance_of",
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
