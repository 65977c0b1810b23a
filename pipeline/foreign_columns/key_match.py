"""Which row of a table each row of a pool has, by uid: a join of any number of rows in bounded
memory, partition by partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.foreign_columns.uid_arrays import UID_BYTES
from pipeline.pool import Bytes, Keys, RecordSpill, is_first_of_equal, sorted_records

NAMED = 10  # keys without a row of the pool that are named
ORDINAL = np.dtype(">u8")  # number of a row of the pool
LOCATION = np.dtype([("file", ">u4"), ("row", ">u4")])  # of a row of the table
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]


@dataclass(slots=True)
class MatchCounts:
    """What became of the keys of a table."""

    table_rows: int = 0
    keys: int = 0  # different ones
    pool_rows: int = 0
    matched_rows: int = 0  # rows of the pool that have a row of the table
    missing: int = 0  # keys that no row of the pool has
    missing_keys: list[str] = field(default_factory=list)  # the first ones of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matches:
    """Pairs of rows: (pairs,) each."""

    ordinals: Integers
    files: Integers
    rows: Integers


def payload(values: npt.NDArray[np.generic]) -> Bytes:
    """(rows, bytes of a value) of an array of ORDINAL or LOCATION."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.dtype.itemsize)


def match_keys(pool: RecordSpill, table: RecordSpill, counts: MatchCounts) -> Iterator[Matches]:
    """The matches of each partition; `counts` is filled.

    pool: uid and ORDINAL. table: uid and LOCATION, in the order in which the first one counts. Both
    have the same number of partitions.
    """
    for of_pool, of_table in zip(pool.partitions(), table.partitions(), strict=True):
        pool_keys, ordinals = sorted_records(of_pool, UID_BYTES)
        table_keys, locations = sorted_records(of_table, UID_BYTES)
        counts.table_rows += len(table_keys)
        is_first = is_first_of_equal(table_keys)
        table_keys, locations = table_keys[is_first], locations[is_first]
        counts.keys += len(table_keys)
        counts.pool_rows += len(pool_keys)
        positions, is_there = _look_up(pool_keys, table_keys)
        counts.matched_rows += int(is_there.sum())
        positions = positions[is_there]
        is_used = np.zeros(len(table_keys), np.bool_)
        is_used[positions] = True
        counts.missing += int((~is_used).sum())
        for key in table_keys[~is_used][: NAMED - len(counts.missing_keys)].tolist():
            counts.missing_keys.append(bytes(key).ljust(UID_BYTES, b"\0").hex())
        chosen = np.ascontiguousarray(locations[positions]).view(LOCATION).ravel()
        numbers = np.ascontiguousarray(ordinals[is_there]).view(ORDINAL).ravel()
        yield Matches(
            ordinals=numbers.astype(np.int64),
            files=chosen["file"].astype(np.int64),
            rows=chosen["row"].astype(np.int64),
        )


def _look_up(keys: Keys, others: Keys) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """(position in `others` of each key, whether it is there); both ascending, `others` without
    repeats. The first eight bytes are searched for, then the rest is compared.
    """
    high, low = _halves(keys)
    other_high, other_low = _halves(others)
    positions = np.searchsorted(other_high, high)
    is_there = np.zeros(len(keys), np.bool_)
    waiting = np.arange(len(keys))
    while len(waiting):
        inside = waiting[positions[waiting] < len(others)]
        same_high = inside[other_high[positions[inside]] == high[inside]]
        same = other_low[positions[same_high]] == low[same_high]
        is_there[same_high[same]] = True
        waiting = same_high[~same]
        positions[waiting] += 1
    return positions.astype(np.int64), is_there


def _halves(keys: Keys) -> tuple[Numbers, Numbers]:
    numbers = np.frombuffer(keys.tobytes(), ">u8").reshape(-1, 2).astype(np.uint64)
    return numbers[:, 0].copy(), numbers[:, 1].copy()
