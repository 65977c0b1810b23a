"""Rows by what they are: a record of 48 bytes, the uid and the sha256 of the received bytes; and
the hash of a set of rows.

Records of any number are compared and hashed in bounded memory: they are spilled into partitions
by the first bits of the uid, and sorted one partition at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.pool.record_spill import (
    Bytes,
    Keys,
    RecordSpill,
    hex_bytes,
    is_first_of_equal,
    partition_bits,
    sorted_records,
)

UID_BYTES, SHA256_BYTES = 16, 32
KEY_BYTES = UID_BYTES + SHA256_BYTES
PARTITION_ROWS = 2**19  # 25 MB and a payload, sorted in memory


def row_bits(rows: int) -> int:
    """The bits of a spill for so many rows; spills that are compared share them."""
    return partition_bits(rows, PARTITION_ROWS)


def row_spill(bits: int, payload: int) -> RecordSpill:
    """A spill of records, each with so many bytes that it carries along."""
    return RecordSpill(KEY_BYTES + payload, bits)


def row_keys(uids: pa.Array | pa.ChunkedArray, hashes: pa.Array | pa.ChunkedArray) -> Bytes:
    """(rows, KEY_BYTES) of two columns of hex digits. ValueError for other values."""
    binary = hex_bytes(uids, UID_BYTES, "uid"), hex_bytes(hashes, SHA256_BYTES, "sha256")
    return np.hstack(binary)


def sorted_rows(spill: RecordSpill) -> Iterator[tuple[Keys, Bytes]]:
    """(records in ascending order, their payloads) of each partition."""
    for records in spill.partitions():
        yield sorted_records(records, KEY_BYTES)


class RowsHash:
    """The canonical hash of a set of rows: sha256 over their records, each once, ascending."""

    def __init__(self) -> None:
        self._content = hashlib.sha256()
        self.rows = 0  # different records

    def add(self, keys: Keys) -> None:
        """Add the next records, in ascending order; a repeated one counts once."""
        unique = keys[is_first_of_equal(keys)]
        self.rows += len(unique)
        self._content.update(unique.view(np.uint8).data)

    def hexdigest(self) -> str:
        """64 hex digits."""
        return self._content.hexdigest()


def unique_where(keys: Keys, chosen: npt.NDArray[Any]) -> Keys:
    """The different records among those of a mask; `keys` are ascending."""
    kept = keys[np.asarray(chosen, np.bool_)]
    unique: Keys = kept[is_first_of_equal(kept)]
    return unique


def are_in(keys: Keys, others: Keys) -> npt.NDArray[np.bool_]:
    """(rows,) True where a record is one of `others`, which are ascending."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    positions = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    return np.asarray(others[positions] == keys, np.bool_)
