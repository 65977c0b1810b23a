"""Whether the attempts of a pool of any size are its pairs, and which uids are there twice."""

from __future__ import annotations

import numpy as np

from pipeline.pool.record_spill import (
    RecordSpill,
    is_first_of_equal,
    partition_bits,
    sorted_records,
)

UID_BYTES = 16
PARTITION_ROWS = 2**20  # 16 MB, sorted in memory


def uid_spill(rows: int) -> RecordSpill:
    """A spill for about so many uids, of 16 bytes each."""
    return RecordSpill(UID_BYTES, partition_bits(rows, PARTITION_ROWS))


def compare_uids(pairs: RecordSpill, attempted: RecordSpill) -> tuple[int, int, bool]:
    """(repeated uids of the pairs, repeated uids of the attempts, whether both have the same)."""
    assert pairs.bits == attempted.bits
    repeated_pairs = repeated_attempts = 0
    same = True
    for left, right in zip(pairs.partitions(), attempted.partitions(), strict=True):
        of_pairs, _ = sorted_records(left, UID_BYTES)
        of_attempts, _ = sorted_records(right, UID_BYTES)
        repeated_pairs += int((~is_first_of_equal(of_pairs)).sum())
        repeated_attempts += int((~is_first_of_equal(of_attempts)).sum())
        same = same and np.array_equal(of_pairs, of_attempts)
    return repeated_pairs, repeated_attempts, same
