"""What a view and a score set say of every shard: in their JSON document for a pool of at most
FLAT_SHARDS shards, in a Parquet file beside it for a larger one.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from manifests import disk
from manifests.documents import ScoreSetDocument, ShardTable, ViewDocument
from manifests.pool_layout import FLAT_SHARDS, PoolLayout, shard_name

Ints = NDArray[np.int64]


def has_table(shards: int) -> bool:
    """Whether a pool of so many shards has the file instead of keys in the document."""
    return shards > FLAT_SHARDS


def write_view_shards(pool: str, view: str, shards: Ints, rows: Ints, kept: Ints) -> ShardTable:
    """Write views/NAME/shards.parquet: rows and kept rows by shard."""
    table = pa.table({"shard": shards, "rows": rows, "kept": kept})
    return _write(PoolLayout(pool).view_shards(view), table)


def write_score_shards(
    pool: str, name: str, shards: Ints, uids: Sequence[str], rows: Ints, scored: Ints
) -> ShardTable:
    """Write scores/NAME@ID/shards.parquet: checksum of the uids, rows and scored rows by shard."""
    hashes = pa.array([bytes.fromhex(each) for each in uids], pa.binary(32))
    table = pa.table({"shard": shards, "uids": hashes, "rows": rows, "scored": scored})
    return _write(PoolLayout(pool).score_shards(name), table)


def view_shards(pool: str, document: ViewDocument) -> tuple[Ints, Ints]:
    """((shards,) their numbers, ascending, (shards,) rows that the view keeps).

    ValueError for a damaged file.
    """
    if document.shards is not None:
        return _by_number(document.shards)
    path = PoolLayout(pool).view_shards(document.name)
    table = _read(path, document.table, ["shard", "kept"])
    return _numbers(table, "shard"), _numbers(table, "kept")


def score_shards(pool: str, document: ScoreSetDocument) -> tuple[Ints, pa.Array]:
    """((shards,) their numbers, ascending, (shards,) the checksum of their uids as 32 bytes).

    ValueError for a damaged file.
    """
    if document.shards is not None:
        in_order = sorted(document.shards, key=int)
        hashes = [bytes.fromhex(document.shards[name]) for name in in_order]
        numbers = np.array([int(name) for name in in_order], np.int64)
        return numbers, pa.array(hashes, pa.binary(32))
    path = PoolLayout(pool).score_shards(f"{document.name}@{document.id}")
    table = _read(path, document.table, ["shard", "uids"])
    return _numbers(table, "shard"), table["uids"].combine_chunks()


def scored_shards(pool: str, document: ScoreSetDocument) -> Ints:
    """(shards,) the numbers of the shards of a score set. ValueError for a damaged file."""
    if document.shards is not None:
        return np.array(sorted(int(name) for name in document.shards), np.int64)
    return score_shards(pool, document)[0]


def count_shards(document: ViewDocument | ScoreSetDocument) -> int:
    """How many shards a view or a score set was made of."""
    if document.shards is not None:
        return len(document.shards)
    assert document.table is not None
    return document.table.shards


def view_shards_dict(pool: str, document: ViewDocument) -> dict[str, int]:
    """Kept rows by the name of a shard."""
    shards, kept = view_shards(pool, document)
    return {shard_name(s): int(k) for s, k in zip(shards.tolist(), kept.tolist(), strict=True)}


def score_shards_dict(pool: str, document: ScoreSetDocument) -> dict[str, str]:
    """Checksum of the uids by the name of a shard."""
    shards, uids = score_shards(pool, document)
    hexes = [value.hex() for value in uids.to_pylist()]
    return {shard_name(s): value for s, value in zip(shards.tolist(), hexes, strict=True)}


def _by_number(counts: dict[str, int]) -> tuple[Ints, Ints]:
    in_order = sorted(counts, key=int)
    numbers = np.array([int(name) for name in in_order], np.int64)
    return numbers, np.array([counts[name] for name in in_order], np.int64)


def _write(path: str, table: pa.Table) -> ShardTable:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    content = sink.getvalue()
    disk.write_bytes(path, content)
    return ShardTable(shards=table.num_rows, sha256=hashlib.sha256(content).hexdigest())


def _read(path: str, expected: ShardTable | None, columns: Sequence[str]) -> pa.Table:
    if expected is None:
        raise ValueError(f"the document beside {path} names no shards")
    try:
        content = disk.read_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; make it again") from None
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise ValueError(f"{path} is damaged: its sha256 is not that of its document")
    return pq.read_table(pa.BufferReader(content), columns=list(columns))


def _numbers(table: pa.Table, name: str) -> Ints:
    return np.asarray(table[name].to_numpy(), np.int64)
