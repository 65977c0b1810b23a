"""Pairs to shards in fetch order: the stage plan.

Pairs to planned shards: which row is fetched with which shard, fixed before the fetch. The stage
plan.

Read: `POOL/pairs/`, `POOL/parts.parquet`; for retries sidecars. Written:
`POOL/plan/shards-00000.parquet` … (one row group a shard), `shards.parquet` (one row a shard),
`plan.json` last; `POOL/plan/retry-001/` … the same and `retried.parquet`. `POOL/plan/.shuffle` is
scratch space, empty at the end.

Invariants:

* A plan is a function of the pairs, the kind of the source and the fetch settings (golden, and
  row by row against a plain program: `tests/pipeline/planning/test_planner.py`), whatever the
  tickets' sizes and wherever it was stopped.
* A row is retried once (`tests/pipeline/planning/test_planner.py`).
* A ticket holds at most 500,000 rows or 256 MB, or one shard: `planner.ROWS_PER_TICKET`.

To extend: a change of order or ids raises `PLAN_VERSION`. A new column of the plan goes to `PLAN`
in `plan_files.py`.
"""
