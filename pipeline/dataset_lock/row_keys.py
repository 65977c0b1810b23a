"""Rows by what they are: a record of 48 bytes, the uid and the sha256 of the received bytes.

Records of any number are compared and hashed in bounded memory: they are spilled into partitions
by the first bits of the uid, and sorted one partition at a time.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UID_BYTES, SHA256_BYTES = 16, 32
KEY_BYTES = UID_BYTES + SHA256_BYTES
PARTITION_ROWS = 2**19  # 25 MB and a payload, sorted in memory
MAX_BITS = 14  # 16,384 partitions
BUFFERED_ROWS = 2**19  # of each spill before they are written

Bytes = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.bytes_]  # (rows,) of KEY_BYTES each


def partition_bits(rows: int) -> int:
    """By how many bits of the uid so many rows are divided. Spills that are compared share it."""
    return min(MAX_BITS, max(0, (rows // PARTITION_ROWS).bit_length()))


def row_keys(uids: pa.Array | pa.ChunkedArray, hashes: pa.Array | pa.ChunkedArray) -> Bytes:
    """(rows, KEY_BYTES) of two columns of hex digits. ValueError for other values."""
    return np.hstack([_binary(uids, UID_BYTES, "uid"), _binary(hashes, SHA256_BYTES, "sha256")])


def _binary(column: pa.Array | pa.ChunkedArray, width: int, name: str) -> Bytes:
    content = bytes.fromhex("".join(column.to_pylist()))
    if len(content) != width * len(column):
        raise ValueError(f"a {name} does not have {2 * width} hex digits")
    return np.frombuffer(content, np.uint8).reshape(-1, width)


class RowSpill:
    """Records with a payload in local temporary files: `with RowSpill(bits, payload) as spill`."""

    def __init__(self, bits: int, payload: int) -> None:
        """bits: of `partition_bits`. payload: bytes that each record carries along."""
        self.bits, self._width = bits, KEY_BYTES + payload
        self._folder = tempfile.TemporaryDirectory(prefix="clipmill-rows-")
        self._buffer: list[Bytes] = []
        self._buffered = 0

    def __enter__(self) -> RowSpill:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def add(self, keys: Bytes, payload: Bytes) -> None:
        """Add records: (rows, KEY_BYTES) and (rows, payload)."""
        self._buffer.append(np.hstack([keys, payload]))
        self._buffered += len(keys)
        assert self._buffer[-1].shape[1] == self._width
        if self._buffered >= BUFFERED_ROWS:
            self._flush()

    def partitions(self) -> Iterator[tuple[Keys, Bytes]]:
        """(keys in ascending order, their payloads) of each partition."""
        self._flush()
        for number in range(1 << self.bits):
            path = Path(self._folder.name) / str(number)
            content = path.read_bytes() if path.exists() else b""
            records = np.frombuffer(content, np.uint8).reshape(-1, self._width)
            keys = np.ascontiguousarray(records[:, :KEY_BYTES]).view(f"S{KEY_BYTES}").ravel()
            order = np.argsort(keys, kind="stable")
            yield keys[order], records[order, KEY_BYTES:]

    def _flush(self) -> None:
        if not self._buffer:
            return
        records = np.concatenate(self._buffer)
        self._buffer, self._buffered = [], 0
        first = records[:, 0].astype(np.int64) << 8 | records[:, 1]
        partition = first >> (16 - self.bits)
        order = np.argsort(partition, kind="stable")
        numbers, starts = np.unique(partition[order], return_index=True)
        ends = [*starts[1:].tolist(), len(records)]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            with open(Path(self._folder.name) / str(number), "ab") as f:
                f.write(records[order[start:end]].tobytes())


class RowsHash:
    """The canonical hash of a set of rows: sha256 over their records, each once, ascending."""

    def __init__(self) -> None:
        self._content = hashlib.sha256()
        self.rows = 0  # different records

    def add(self, keys: Keys) -> None:
        """Add the next records, in ascending order; a repeated one counts once."""
        unique = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
        self.rows += len(unique)
        self._content.update(unique.tobytes())

    def hexdigest(self) -> str:
        """64 hex digits."""
        return self._content.hexdigest()


def unique_where(keys: Keys, chosen: npt.NDArray[Any]) -> Keys:
    """The different records among those of a mask; `keys` are ascending."""
    kept = keys[np.asarray(chosen, np.bool_)]
    unique: Keys = kept[np.append(True, kept[1:] != kept[:-1])[: len(kept)]]
    return unique


def are_in(keys: Keys, others: Keys) -> npt.NDArray[np.bool_]:
    """(rows,) True where a record is one of `others`, which are ascending."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    positions = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    return np.asarray(others[positions] == keys, np.bool_)
