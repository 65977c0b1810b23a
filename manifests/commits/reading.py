"""`read_commits`: the commit records of a pool from its index, and from the records where the
index does not have them.

A closed index of more than FLAT_SHARDS shards is trusted as it is. A smaller one is compared with
a listing of its one folder, which costs little, so that a record that a person removes or replaces
is noticed. An index that a writer left open is completed from the folders that it does not have
completely.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manifests import disk
from manifests.commits.commits import Commits
from manifests.commits.index_files import IndexDocument, newest_rows, read_document, read_files
from manifests.commits.record_columns import KEYS, schema, to_table
from manifests.pool_layout import (
    COMMIT_SUFFIX,
    FLAT_SHARDS,
    FOLDER_NAME,
    READERS,
    SHARDS_PER_FOLDER,
    CommitRecord,
    PoolLayout,
    check_flat_names,
)

CHUNK = 10_000  # records that are Python objects at a time
FINGERPRINTED = ("sidecar_sha256",)


def read_commits(pool: str, columns: Sequence[str] | None = None) -> Commits:
    """Every committed shard of a pool; none where there is no pool.

    columns: the fields to hold in memory (default: all); `shard` and `revision` are always there.
    ValueError for a damaged index, a file that is no commit record of clipmill, and a shard in the
    folder of an earlier version.
    """
    document = read_document(pool)
    if document is not None and document.closed and document.shards > FLAT_SHARDS:
        document, table = read_files(pool, document, columns)
        if document.closed:
            return Commits(pool, table, document.fingerprint, document.totals)
    # A fingerprint that is not written down is computed from the hashes.
    wanted = None if columns is None else [*columns, *FINGERPRINTED]
    names = schema().names if wanted is None else list(dict.fromkeys([*KEYS, *wanted]))
    if document is None:
        table = pa.schema([schema().field(name) for name in names]).empty_table()
    else:
        document, table = read_files(pool, document, wanted)
    return complete(pool, document, table)


def complete(pool: str, document: IndexDocument | None, table: pa.Table) -> Commits:
    """The rows of an index, compared with the folders that it does not have completely."""
    indexed = np.asarray(table["shard"].to_numpy(), np.int64)
    listed, outdated = _list_folders(pool, document, indexed)
    in_listing = np.isin(indexed, list(listed))
    in_other_folder = ~_in_folders(indexed, _incomplete(indexed))
    kept = (in_listing & ~np.isin(indexed, list(outdated))) | in_other_folder
    if kept.all() and len(listed) == np.count_nonzero(in_listing):
        if document is not None and document.closed:
            return Commits(pool, table, document.fingerprint, document.totals)
        return Commits(pool, table)
    have = set(indexed[kept & in_listing].tolist())
    missing = {shard: path for shard, path in listed.items() if shard not in have}
    read = _read_records(missing, table.column_names)
    together = pa.concat_tables([table.filter(pa.array(kept)), *read])
    return Commits(pool, newest_rows(pool, together))


def _folder_of(shards: NDArray[np.int64]) -> NDArray[np.int64]:
    """(shards,) the number of each one's folder; 0 for the flat one."""
    return np.where(shards < FLAT_SHARDS, 0, shards // SHARDS_PER_FOLDER)


def _complete_folders(shards: NDArray[np.int64]) -> set[int]:
    """The folders that have every shard that they may have."""
    folders, counts = np.unique(_folder_of(shards), return_counts=True)
    sizes = np.where(folders == 0, FLAT_SHARDS, SHARDS_PER_FOLDER)
    return set(folders[counts == sizes].tolist())


def _incomplete(shards: NDArray[np.int64]) -> set[int]:
    """The folders that are listed: all but the complete ones. The flat one is listed if it holds
    all of the pool.
    """
    folders = {*_folder_of(shards).tolist()} - _complete_folders(shards)
    return folders | ({0} if len(shards) <= FLAT_SHARDS else set())


def _in_folders(shards: NDArray[np.int64], folders: set[int]) -> NDArray[np.bool_]:
    return np.isin(_folder_of(shards), list(folders))


def _list_folders(
    pool: str, document: IndexDocument | None, indexed: NDArray[np.int64]
) -> tuple[dict[int, str], set[int]]:
    """({shard: its commit record} of the folders that the index does not have completely, shards
    whose record is younger than the index).
    """
    layout = PoolLayout(pool)
    names = disk.list_names(layout.shards)
    folders = [name for name in names if FOLDER_NAME.fullmatch(name)]
    flat = [name for name in names if name.endswith(COMMIT_SUFFIX)]
    check_flat_names(pool, flat)
    complete_folders = _complete_folders(indexed)
    listed: dict[int, str] = {}
    outdated: set[int] = set()
    if 0 not in complete_folders or len(indexed) <= FLAT_SHARDS:
        listed |= _records_in(layout.shards, flat)
        outdated = _younger(layout, listed) if document is not None else set()
    others = [folder for folder in folders if int(folder) not in complete_folders]
    with ThreadPoolExecutor(READERS) as threads:
        paths = [disk.join(layout.shards, folder) for folder in others]
        for path, in_folder in zip(paths, threads.map(disk.list_names, paths), strict=True):
            listed |= _records_in(path, in_folder)
    return listed, outdated


def _records_in(folder: str, names: Sequence[str]) -> dict[int, str]:
    records = {}
    for name in names:
        shard = name.removesuffix(COMMIT_SUFFIX)
        if shard != name:
            records[_number(folder, name)] = disk.join(folder, name)
    return records


def _number(folder: str, name: str) -> int:
    try:
        return int(name.removesuffix(COMMIT_SUFFIX))
    except ValueError:
        raise ValueError(
            f"{disk.join(folder, name)} is not a commit record of clipmill: its name has no shard "
            "number; move it out of the pool's folder"
        ) from None


def _younger(layout: PoolLayout, records: dict[int, str]) -> set[int]:
    """Shards whose record was written after index.json; of a local pool only."""
    if disk.is_url(layout.root):
        return set()
    try:
        indexed_at = os.stat(disk.local_path(layout.index_json)).st_mtime_ns
    except FileNotFoundError:
        return set(records)
    younger = set()
    for shard, path in records.items():
        if os.stat(disk.local_path(path)).st_mtime_ns >= indexed_at:
            younger.add(shard)
    return younger


def _read_records(paths: dict[int, str], columns: Sequence[str]) -> list[pa.Table]:
    """The records of these files as tables of some columns, a part of them at a time."""
    tables = []
    in_order = sorted(paths.items())
    with ThreadPoolExecutor(READERS) as readers:
        for start in range(0, len(in_order), CHUNK):
            part = in_order[start : start + CHUNK]
            records = list(readers.map(CommitRecord.read, [path for _, path in part]))
            for (shard, path), record in zip(part, records, strict=True):
                if int(record.shard) != shard:
                    raise ValueError(f"{path} is the commit record of shard {record.shard}")
            tables.append(to_table(records).select(list(columns)))
    return tables
