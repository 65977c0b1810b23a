"""Rows to tar, sidecar and commit record; which shards are committed.

Reads and writes: `POOL/shards/NNNNN.tar`, `NNNNN.parquet` (the sidecar: one row per attempt, in
key order) and `NNNNN_stats.json` (the commit record, a `CommitRecord` of `manifests/layout.py`,
written last). A replaced shard has `NNNNN.rK.tar` and `NNNNN.rK.parquet`, which its record names.
`POOL/lease.json` says who may write; `POOL/.lease-N.json` decided it.

Invariants:

* The same rows give the same bytes: `tests/pipeline/pool/test_shard_writer.py` has the golden
  hashes of `SHARD_VERSION`.
* A shard is visible only with its commit record; a lease removes partial files of killed commands
  (`test_commits.py`). No committed file is overwritten
  (`tests/pipeline/pool/test_commits.py`).
* Of two commands one gets the lease, and the workers of a lost one publish nothing
  (`tests/pipeline/pool/test_lease.py`).
* Every row has one outcome (`tests/pipeline/pool/test_shard_writer.py`); a damaged tar is an error
  with its offset (`tests/pipeline/pool/test_tars.py`).
* A new column of the sidecar: `manifests/columns.py`, a new `SHARD_VERSION`, new hashes in the
  golden test.
"""
