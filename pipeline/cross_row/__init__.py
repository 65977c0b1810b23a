"""Filters that look at the whole pool: a map over shards, an exchange, columns back.

Filters that look at the whole pool (`PoolFilter`): a map over shards, an exchange by partitions,
columns back.

Reads `shards/` and `scores/NAME@ID/` of the columns that a filter reads. Writes
`.transient/scores-NAME@ID-FINGERPRINT/`, which is removed at the end, and
`scores/NAME@ID/SHARD.parquet`.

Invariants:

* The columns depend neither on shards nor on partitions nor on workers:
  `tests/pipeline/cross_row/test_engine.py`.
* Workers of Ray, also killed ones, leave the bytes of one worker:
  `tests/pipeline/cross_row/test_on_ray.py`.
* A killed job is resumed to the same columns; a pool that grew makes all columns old: the same
  file.
* Rounds of stars end in the components of the whole graph:
  `tests/pipeline/cross_row/test_components.py`.
* Memory is that of a partition (PARTITION_BYTES, sorted: twice), not of the pool: figures in
  `docs/filters.md`. Summaries are merged beyond SUMMARY_BYTES:
  `tests/pipeline/cross_row/test_rows_to_partitions.py`.

A filter subclasses `PoolFilter` (`filters/base.py`); nothing changes here.
"""

from __future__ import annotations

from pipeline.cross_row.engine import PoolJob, compute, plan_job, remove_transient

__all__ = ["PoolJob", "compute", "plan_job", "remove_transient"]
