"""Rows to tar, sidecar and commit record; which shards are committed."""

from __future__ import annotations

from pipeline.pool.commits import read_commit_record, read_sidecar, remove_uncommitted
from pipeline.pool.lease import (
    Lease,
    LeaseHeld,
    LeaseLost,
    LeaseOwner,
    check_fence,
    hold_lease,
    live_owner,
)
from pipeline.pool.publication import (
    TarFile,
    publish_new,
    publish_shard,
    remove_partial,
    replace_shard,
    sidecar_hash,
    staged_file,
)
from pipeline.pool.record_spill import (
    Bytes,
    Keys,
    RecordSpill,
    hex_bytes,
    is_first_of_equal,
    partition_bits,
    sorted_records,
)
from pipeline.pool.rows import outcome_row, row_key
from pipeline.pool.rows_hash import (
    RowsHash,
    are_in,
    row_bits,
    row_keys,
    row_spill,
    sorted_rows,
    unique_where,
)
from pipeline.pool.score_columns import ScoreColumns, commit_columns, read_scores
from pipeline.pool.shard_writer import ShardWriter, member_block
from pipeline.pool.tar_copy import copy_tar_with, copy_tar_without, moved_offsets
from pipeline.pool.tars import Member, index_tar, local_copy
from pipeline.pool.uid_comparison import UID_BYTES, compare_uids, uid_spill

__all__ = [
    "UID_BYTES",
    "Bytes",
    "Keys",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LeaseOwner",
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
    "hex_bytes",
    "hold_lease",
    "index_tar",
    "is_first_of_equal",
    "live_owner",
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
