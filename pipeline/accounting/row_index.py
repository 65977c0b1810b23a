"""Where the rows of a uid or a URL are: a table of (hash, shard) in partitions by the first bits.

`audit.py --reindex` writes it, 12 bytes a row before compression. A lookup reads one row group of
one file. It is used while its fingerprint is that of the pool.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from manifests import disk
from manifests.commits import Commits
from manifests.documents import read_document
from manifests.pool_layout import PoolLayout
from pipeline.accounting.uid_spill import binary_uids

PARTITION_ROWS = 2**22  # 48 MB, sorted in memory
MAX_PARTITIONS = 2**12
ROW_GROUP = 2**16
UID_DIGITS = 32
ENTRY = np.dtype([("hash", ">u8"), ("shard", "<i4")])
Entries = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndexDocument:
    """index/rows.json, written last."""

    fingerprint: str  # of the pool
    bits: int  # of a hash, which number the files
    rows: int


def write_row_index(commits: Commits) -> int:
    """Write the table anew, and return its number of entries. Under the pool's lease."""
    layout = PoolLayout(commits.pool)
    disk.remove(_document(layout))
    partitions = min(MAX_PARTITIONS, max(1, 2 * commits.totals.rows // PARTITION_ROWS))
    bits = (partitions - 1).bit_length()
    rows = 0
    with tempfile.TemporaryDirectory(prefix="clipmill-rows-") as folder:
        for name in commits.names():
            for entries in _entries(commits, name):
                rows += len(entries)
                _spill(Path(folder), entries, bits)
        for number in range(1 << bits):
            spilled = Path(folder) / str(number)
            content = spilled.read_bytes() if spilled.exists() else b""
            entries = np.sort(np.frombuffer(content, ENTRY), order=("hash", "shard"))
            columns = {
                "hash": entries["hash"].astype(np.uint64),
                "shard": entries["shard"].astype(np.int32),
            }
            staged = Path(folder) / "staged.parquet"
            pq.write_table(
                pa.table(columns),
                staged,
                compression="zstd",
                row_group_size=ROW_GROUP,
                write_page_checksum=True,
            )
            disk.publish(staged, _file(layout, number))
            spilled.unlink(missing_ok=True)
    document = RowIndexDocument(fingerprint=commits.fingerprint, bits=bits, rows=rows)
    disk.write_json(_document(layout), document)
    return rows


def shards_of(commits: Commits, name: str) -> list[int] | None:
    """The shards that may have rows of a tar key, a uid or a URL; None where that is not known."""
    if name.isdecimal() and len(name) >= len("000000000") and len(name) != UID_DIGITS:
        shard = int(name[:-4])
        return [shard] if shard in commits else None
    value = _hash_of(name)
    layout = PoolLayout(commits.pool)
    if value is None or not disk.exists(_document(layout)):
        return None
    try:
        document = read_document(_document(layout), RowIndexDocument)
        if document.fingerprint != commits.fingerprint:
            return None
        path = _file(layout, value >> 64 - document.bits if document.bits else 0)
        rows = disk.read_parquet(path, where=[("hash", "=", pa.scalar(value, pa.uint64()))])
    except (ValueError, OSError):  # it is only a help
        return None
    return sorted(set(rows["shard"].to_pylist()))


def _hash_of(name: str) -> int | None:
    """The first 64 bits of a uid, or the hash of a URL; None for any other name."""
    if "://" in name:
        return xxhash.xxh3_64_intdigest(name.encode())
    try:
        return int(name[:16], 16) if len(name) == UID_DIGITS else None
    except ValueError:
        return None


def _entries(commits: Commits, name: str) -> Iterator[Entries]:
    """The entries of a shard, by uid and by URL."""
    table = disk.read_parquet(commits.sidecar(name), ["uid", "url"])
    uids = binary_uids(table["uid"])
    yield _as_entries(np.frombuffer(uids.tobytes(), ">u8")[::2], int(name))
    urls = table["url"].drop_null().to_pylist()
    hashes = [xxhash.xxh3_64_intdigest(url.encode()) for url in urls]
    yield _as_entries(np.array(hashes, np.uint64), int(name))


def _as_entries(hashes: np.ndarray[Any, Any], shard: int) -> Entries:
    entries = np.empty(len(hashes), ENTRY)
    entries["hash"], entries["shard"] = hashes, shard
    return entries


def _spill(folder: Path, entries: Entries, bits: int) -> None:
    """Append entries to the files of their partitions."""
    numbers = (entries["hash"].astype(np.uint64) >> np.uint64(32)) >> np.uint64(32 - bits)
    order = np.argsort(numbers, kind="stable")
    different, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for number, start, end in zip(different.tolist(), starts.tolist(), ends, strict=True):
        with open(folder / str(number), "ab") as f:
            f.write(entries[order[start:end]].tobytes())


def _document(layout: PoolLayout) -> str:
    return disk.join(layout.index, "rows.json")


def _file(layout: PoolLayout, number: int) -> str:
    return disk.join(layout.index, "rows", f"rows-{number:05d}.parquet")
