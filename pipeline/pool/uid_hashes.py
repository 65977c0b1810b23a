"""Records of one width, divided by their first bits, and the hashes of rows by them."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifests import disk
from manifests.columns import hex_bytes

# --------------------------------------------------------------------------------------------------
# Records of one width, divided by their first bits into partitions on local disk: records of any
# number are compared and sorted in bounded memory, one partition at a time.


MAX_BITS = 14  # 16,384 partitions
NUMBER_BYTES = 8
BUFFERED_BYTES = 2**25  # of each spill before they are written

Bytes = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.bytes_]


def partition_bits(records: int, at_most: int, max_bits: int = MAX_BITS) -> int:
    """By how many bits so many records are divided into partitions of about `at_most`. Spills that
    are compared share it.
    """
    partitions = -(-records // at_most)
    return min(max_bits, max(0, partitions - 1).bit_length())


class RecordSpill:
    """Records in local temporary files: `with RecordSpill(width, bits) as spill`."""

    def __init__(self, width: int, bits: int) -> None:
        """width: bytes of a record, at least 2. bits: of `partition_bits`, at most 16."""
        self.width, self.bits, self.records = width, bits, 0
        self._written = np.zeros(1 << bits, np.int64)  # records by partition
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(disk.scratch_folder("clipmill-records-"))
        self._buffer: list[Bytes] = []
        self._buffered = 0

    def __enter__(self) -> RecordSpill:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add(self, records: Bytes) -> None:
        """Add (records, width) bytes."""
        assert records.shape[1] == self.width, records.shape
        self._buffer.append(records)
        self._buffered += len(records)
        self.records += len(records)
        if self._buffered * self.width >= BUFFERED_BYTES:
            self._flush()

    def partitions(self) -> Iterator[Bytes]:
        """(records, width) of each partition, by their first bits; in one, as they were added.

        No file is made for records that fit into the buffer. OSError where the local disk has
        lost some.
        """
        if not self._written.any():
            yield from self._buffered_partitions()
            return
        self._flush()
        for number, count in enumerate(self._written.tolist()):
            path = self._path(number)
            content = path.read_bytes() if count else b""
            if len(content) != count * self.width:
                message = f"{len(content)} of {count * self.width} bytes were written"
                raise OSError(errno.EIO, message, str(path))
            yield np.frombuffer(content, np.uint8).reshape(-1, self.width)

    def _flush(self) -> None:
        records, ends = self._divided()
        self._buffer, self._buffered = [], 0
        start = 0
        for number, end in enumerate(ends.tolist()):
            if end > start:
                path = self._path(number)
                with disk.naming(path), open(path, "ab") as f:
                    f.write(records[start:end].data)
                self._written[number] += end - start
            start = end

    def _buffered_partitions(self) -> Iterator[Bytes]:
        records, ends = self._divided()
        start = 0
        for end in ends.tolist():
            yield records[start:end]
            start = end

    def _divided(self) -> tuple[Bytes, npt.NDArray[np.int64]]:
        """(the records of the buffer, partition after partition, where each partition ends)."""
        records = np.concatenate([np.zeros((0, self.width), np.uint8), *self._buffer])
        if not self.bits:
            return records, np.array([len(records)])
        first = records[:, 0].astype(np.uint16) << 8 | records[:, 1]
        partition = first >> (16 - self.bits)  # 16 bits: NumPy sorts them by counting
        counts = np.bincount(partition, minlength=1 << self.bits)
        return records[np.argsort(partition, kind="stable")], np.cumsum(counts)

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


def sorted_records(records: Bytes, key_bytes: int) -> tuple[Keys, Bytes]:
    """(the first `key_bytes` of each record, ascending, what follows them in each)."""
    keys = np.ascontiguousarray(records[:, :key_bytes]).view(f"S{key_bytes}").ravel()
    order = _order(records, keys, key_bytes)
    return keys[order], records[order, key_bytes:]


def _order(records: Bytes, keys: Keys, key_bytes: int) -> npt.NDArray[np.int64]:
    """A stable order of the keys. Keys that begin with a hash are in the order of their first
    eight bytes, which are compared five times as fast; where two keys share them, all are compared.
    """
    if key_bytes >= NUMBER_BYTES:
        numbers = np.ascontiguousarray(records[:, :NUMBER_BYTES]).view(">u8").ravel()
        numbers = numbers.astype(np.uint64)
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        if not (ascending[1:] == ascending[:-1]).any():
            return order
    return np.argsort(keys, kind="stable")


def is_first_of_equal(keys: Keys) -> npt.NDArray[np.bool_]:
    """(rows,) False where a value of an ascending array is the one before it."""
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    return is_first


# --------------------------------------------------------------------------------------------------
# Rows by what they are: a record of 48 bytes, the uid and the sha256 of the received bytes; and
# the hash of a set of rows.
#
# Records of any number are compared and hashed in bounded memory: they are spilled into
# partitions by the first bits of the uid, and sorted one partition at a time.


UID_BYTES, SHA256_BYTES = 16, 32
KEY_BYTES = UID_BYTES + SHA256_BYTES
HASH_PARTITION_ROWS = 2**19  # 25 MB and a payload, sorted in memory


def row_bits(rows: int) -> int:
    """The bits of a spill for so many rows; spills that are compared share them."""
    return partition_bits(rows, HASH_PARTITION_ROWS)


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


# --------------------------------------------------------------------------------------------------
# Whether the attempts of a pool of any size are its pairs, and which uids are there twice.


UID_PARTITION_ROWS = 2**20  # 16 MB, sorted in memory


def uid_spill(rows: int) -> RecordSpill:
    """A spill for about so many uids, of 16 bytes each."""
    return RecordSpill(UID_BYTES, partition_bits(rows, UID_PARTITION_ROWS))


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
