"""Uids as DataComp keeps a subset: a NumPy array of pairs of 64-bit integers, sorted, in a .npy.

A uid of 32 hex digits is the pair (first 16 digits, last 16 digits). DataComp's own uids and ours
have the same form, and a pool has its `uid` in that form always.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifests import disk
from pipeline.pool import (
    Bytes,
    RecordSpill,
    hex_bytes,
    is_first_of_equal,
    partition_bits,
    sorted_records,
)

UID_BYTES = 16
PAIR = np.dtype("<u8,<u8")
PARTITION_ROWS = 2**20  # 16 MB, sorted in memory
READ_ROWS = 2**20  # rows of a .npy that are in memory at a time


def uid_spill(rows: int, payload: int = 0) -> RecordSpill:
    """A spill of uids, each with so many bytes that it carries along."""
    return RecordSpill(UID_BYTES + payload, uid_bits(rows))


def uid_bits(rows: int) -> int:
    """The bits of a spill of so many uids; spills that are compared share them."""
    return partition_bits(rows, PARTITION_ROWS)


def uid_records(uids: pa.ChunkedArray | pa.Array) -> Bytes:
    """(rows, 16) of a column of uids. ValueError for other values."""
    return hex_bytes(uids, UID_BYTES, "uid")


def write_uid_array(spill: RecordSpill, staged: Path) -> int:
    """Write the uids of a spill, sorted and each once; how many there are."""
    count = 0
    with open(staged, "wb") as file:
        _write_header(file, 0)
        for records in spill.partitions():
            keys, _ = sorted_records(records, UID_BYTES)
            unique = keys[is_first_of_equal(keys)]
            raw = np.frombuffer(unique.tobytes(), ">u8").astype("<u8")
            file.write(raw.tobytes())
            count += len(unique)
        file.seek(0)
        _write_header(file, count)
        file.flush()
        os.fsync(file.fileno())
    expected = _header_bytes() + count * PAIR.itemsize
    disk.check_size(staged, expected)
    return count


def read_uid_array(path: str) -> Iterator[Bytes]:
    """(rows, 16) of a .npy of uids in pieces. ValueError where it is none."""
    with disk.open_file(path) as source:
        try:
            if isinstance(source, Path):
                array = np.load(source, mmap_mode="r", allow_pickle=False)
            else:
                array = np.load(source, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            text = " ".join(str(error).split())[:160]
            raise ValueError(f"{path} is not a NumPy file that can be read: {text}") from None
        if isinstance(array, np.lib.npyio.NpzFile) or not _is_pairs(array):
            form = getattr(array, "dtype", "several arrays")
            raise ValueError(
                f"{path} holds {form}, not uids: it must be one array of pairs of 64-bit integers "
                "(numpy.dtype('u8,u8')), as DataComp's subset files are"
            )
        number = np.dtype("<u8") if array.dtype == PAIR else np.dtype(">u8")
        for start in range(0, len(array), READ_ROWS):
            pairs = np.ascontiguousarray(array[start : start + READ_ROWS])
            numbers = pairs.view(number).reshape(-1, 2)
            yield numbers.astype(">u8").view(np.uint8).reshape(-1, UID_BYTES)


def _is_pairs(array: npt.NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype in (PAIR, np.dtype(">u8,>u8"))


def _write_header(file: Any, count: int) -> None:
    """The header of format 1.0 for so many pairs; padded to one length whatever the count."""
    descr = "[('f0', '<u8'), ('f1', '<u8')]"
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': ({count},), }}"
    length = _header_bytes() - len(MAGIC) - 2
    file.write(MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n")


def _header_bytes() -> int:
    return 128


MAGIC = b"\x93NUMPY\x01\x00"
