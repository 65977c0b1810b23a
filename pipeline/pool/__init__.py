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
  (`tests/pipeline/pool/test_publication.py`). Lost bytes are errors
  (`tests/pipeline/pool/test_record_spill.py`).
* Of two commands one gets the lease, and the workers of a lost one publish nothing
  (`tests/pipeline/pool/test_lease.py`).
* Every row has one outcome (`tests/pipeline/pool/test_rows.py`); a damaged tar is an error with
  its offset (`tests/pipeline/pool/test_tars.py`).
* A new column of the sidecar: `manifests/columns.py`, a new `SHARD_VERSION`, new hashes in the
  golden test.
"""

from __future__ import annotations

from pipeline.pool.lease import (
    Lease,
    LeaseHeld,
    LeaseLost,
    LeaseOwner,
    LeaseWatch,
    check_fence,
    hold_lease,
    read_commit_record,
    read_sidecar,
    remove_uncommitted,
)
from pipeline.pool.score_columns import ScoreColumns, commit_columns, read_scores
from pipeline.pool.shard_writer import (
    ShardWriter,
    TarFile,
    member_block,
    outcome_row,
    publish_new,
    publish_shard,
    remove_partial,
    replace_shard,
    row_key,
    sidecar_hash,
    staged_file,
)
from pipeline.pool.tar_copy import copy_tar_with, copy_tar_without, copy_with_json, moved_offsets
from pipeline.pool.tars import Member, index_tar, local_copy
from pipeline.pool.uid_hashes import (
    UID_BYTES,
    Bytes,
    Keys,
    RecordSpill,
    RowsHash,
    are_in,
    compare_uids,
    hex_bytes,
    is_first_of_equal,
    partition_bits,
    row_bits,
    row_keys,
    row_spill,
    sorted_records,
    sorted_rows,
    uid_spill,
    unique_where,
)

__all__ = [
    "UID_BYTES",
    "Bytes",
    "Keys",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LeaseOwner",
    "LeaseWatch",
    "Member",
    "RecordSpill",
    "RowsHash",
    "ScoreColumns",
    "ShardWriter",
    "TarFile",
    "are_in",
    "check_fence",
    "commit_columns",
    "compare_uids",
    "copy_tar_with",
    "copy_tar_without",
    "copy_with_json",
    "hex_bytes",
    "hold_lease",
    "index_tar",
    "is_first_of_equal",
    "local_copy",
    "member_block",
    "moved_offsets",
    "outcome_row",
    "partition_bits",
    "publish_new",
    "publish_shard",
    "read_commit_record",
    "read_scores",
    "read_sidecar",
    "remove_partial",
    "remove_uncommitted",
    "replace_shard",
    "row_bits",
    "row_key",
    "row_keys",
    "row_spill",
    "sidecar_hash",
    "sorted_records",
    "sorted_rows",
    "staged_file",
    "uid_spill",
    "unique_where",
]
