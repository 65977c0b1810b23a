"""Evaluation tasks, one row of predictions per sample. Their data is read by `eval_data`.

Read: the data of tasks, an export, sidecars and score sets of pools. Written: `eval/TASK.parquet`
with the metrics in its metadata, `eval/overlap.json`, `eval/suite-NAME.json`.

Invariants:

* The predictions are the same bytes for 1, 2 and 3 ranks
  (`tests/train/evaluation/test_tasks.py`).
* Logits and scores agree with open_clip; a tie counts against the model (`test_tasks.py`). A
  metric is the mean of its values per sample (`test_tasks.py`).
* Byte-identical images are refused by sha256; near ones (at most 4 of 64 bits of a perceptual
  hash) are listed if the pool has `phash`: not crops, rotations, EXIF turns (`test_overlap.py`).
* A new kind: a module with a `TaskKind`, its entry in `tasks.TASKS`, its metric in
  `manifests/metrics.py`, its name in the schema.
"""
