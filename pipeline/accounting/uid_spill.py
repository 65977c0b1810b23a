"""The uids of a pool of any size, sorted in bounded memory: they are spilled into partitions by
their first bits, 16 bytes a row, and sorted one partition at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PARTITION_ROWS = 2**20  # 16 MB, sorted in memory
MAX_PARTITIONS = 2**14
BUFFERED_ROWS = 2**21  # 32 MB of each spill before they are written

Uids = npt.NDArray[np.bytes_]


class UidSpill:
    """Uids in local temporary files: `with UidSpill(rows) as spill`."""

    def __init__(self, rows: int) -> None:
        """rows: about how many there will be; it decides the number of partitions."""
        partitions = min(MAX_PARTITIONS, max(1, rows // PARTITION_ROWS))
        self.bits = (partitions - 1).bit_length()
        self.rows = 0
        self._folder = tempfile.TemporaryDirectory(prefix="clipmill-uids-")
        self._buffer: list[Uids] = []
        self._buffered = 0

    def __enter__(self) -> UidSpill:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def add(self, uids: pa.ChunkedArray) -> None:
        """Add a column of uids, 32 hex digits each. ValueError for other values."""
        self._buffer.append(binary_uids(uids))
        self._buffered += len(self._buffer[-1])
        self.rows += len(self._buffer[-1])
        if self._buffered >= BUFFERED_ROWS:
            self._flush()

    def partitions(self) -> Iterator[Uids]:
        """The uids of each partition, sorted."""
        self._flush()
        for number in range(1 << self.bits):
            path = Path(self._folder.name) / str(number)
            content = path.read_bytes() if path.exists() else b""
            yield np.sort(np.frombuffer(content, "S16"))

    def _flush(self) -> None:
        if not self._buffer:
            return
        uids = np.concatenate(self._buffer)
        self._buffer, self._buffered = [], 0
        first_bytes = np.frombuffer(uids.tobytes(), np.uint8).reshape(-1, 16)[:, :2]
        first = first_bytes[:, 0].astype(np.int64) << 8 | first_bytes[:, 1]
        partition = first >> (16 - self.bits)
        order = np.argsort(partition, kind="stable")
        uids = uids[order]
        numbers, starts = np.unique(partition[order], return_index=True)
        ends = [*starts[1:].tolist(), len(uids)]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            with open(Path(self._folder.name) / str(number), "ab") as f:
                f.write(uids[start:end].tobytes())


def compare(pairs: UidSpill, attempted: UidSpill) -> tuple[int, int, bool]:
    """(repeated uids of the pairs, repeated uids of the attempts, whether both have the same)."""
    assert pairs.bits == attempted.bits
    repeated_pairs = repeated_attempts = 0
    same = True
    for left, right in zip(pairs.partitions(), attempted.partitions(), strict=True):
        repeated_pairs += _repetitions(left)
        repeated_attempts += _repetitions(right)
        same = same and np.array_equal(left, right)
    return repeated_pairs, repeated_attempts, same


def binary_uids(uids: pa.ChunkedArray) -> Uids:
    """(rows,) uids as 16 bytes each. ValueError for a value that is not 32 hex digits."""
    content = bytes.fromhex("".join(uids.to_pylist()))
    if len(content) != 16 * len(uids):
        raise ValueError("a uid does not have 32 hex digits")
    return np.frombuffer(content, "S16")


def _repetitions(uids: Uids) -> int:
    """How many values of a sorted array equal the one before."""
    return int((uids[1:] == uids[:-1]).sum())
