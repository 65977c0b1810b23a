"""A pool as one file that another lab builds it again from, and the rows that labs have in
common.

A pool as one file, its lock: another lab builds the same rows from it, with its own requests, and
both compare on the rows that both have.

`FILE.parquet`: a row per row of the pool in the order of its shards (`ROWS` in `lock_file.py`,
the pool's extra columns, a column `view:NAME` for each view); the head (`LockHead`) is JSON in
the footer. In the new pool `plan/` is made of the lock, and
`drift.json` and views are written.

Invariants:

* A damaged lock is refused before a row of it is used: `tests/pipeline/lock/test_lock_file.py`.
* Purged, known-bad and opted-out rows are not in a lock, the same pool gives the same bytes:
  `tests/pipeline/lock/test_lock_writer.py`.
* Bytes that are not those of the lock are never stored, whatever is stopped or retried; what has
  not changed has the same tar: `tests/pipeline/lock/test_rebuild.py`.
* The hash of common rows does not depend on shards: `tests/pipeline/lock/test_same_rows.py`.

To extend: a change of columns, of the head or of a meaning raises `FORM`.
"""
