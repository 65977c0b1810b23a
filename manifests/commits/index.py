"""The index of a pool's commit records on disk: written once, read by everybody."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from manifests import disk
from manifests.commits.commits import (
    KEYS,
    REASON_KEYS,
    Commits,
    CommitTotals,
    conform,
    dictionaries,
    schema,
    to_table,
)
from manifests.layout import (
    COMMIT_SUFFIX,
    FLAT_SHARDS,
    FOLDER_NAME,
    READERS,
    SHARDS_PER_FOLDER,
    CommitRecord,
    PoolLayout,
    shard_name,
)

# --------------------------------------------------------------------------------------------------
# The index of a pool on disk: Parquet files of commit records, and index.json, which is written
# last and says which files make it up.
#
# A file of the index is named by its content and never changes. A reader that finds one gone
# reads index.json again: the writer has merged it into another. Anything else that does not fit
# is damage, named with its remedy.


INDEX_VERSION = 1
DICTIONARY_COLUMNS = (
    "group",
    "engine",
    "engine_version",
    "manners",
    "version",
    "revision",
    "fence",
)
TRIES = 5  # of a reader while a writer merges files


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One Parquet file of the index."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
    """index/index.json. Later files win over earlier ones only by a higher revision."""

    version: int
    closed: bool  # no stage is writing: the index has every committed shard
    files: tuple[IndexFile, ...]
    shards: int
    fingerprint: str | None = None  # of a closed index
    totals: CommitTotals | None = None  # of a closed index
    # Shards of a closed index whose files are not named by their number alone, see ShardFiles.
    renamed: IndexFile | None = None


def damaged(pool: str, path: str, problem: str) -> ValueError:
    """The error for a part of the index that cannot be used, with the command that mends it."""
    return ValueError(f"{path} is damaged: {problem}; run clipmill audit reindex {pool}")


def read_index_document(pool: str) -> IndexDocument | None:
    """index.json; None where there is no index. ValueError for a damaged one."""
    path = PoolLayout(pool).index_json
    try:
        plain = disk.read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(pool, path, str(error).removeprefix(f"{path} is ")) from None
    if not isinstance(plain, dict):
        raise damaged(pool, path, "it is not a JSON object")
    version = plain.get("version")
    if isinstance(version, int) and version > INDEX_VERSION:
        raise ValueError(
            f"{path} has version {version}; this clipmill reads up to {INDEX_VERSION}: take a "
            "newer one"
        )
    checksum = plain.pop("checksum", None)
    if checksum != _checksum(plain):
        raise damaged(pool, path, "its checksum is another one")
    try:
        document: IndexDocument = disk.from_plain(IndexDocument, plain, "index.json")
    except (ValueError, TypeError) as error:
        raise damaged(pool, path, str(error)) from None
    return document


def write_document(pool: str, document: IndexDocument) -> None:
    """Write index.json, whole or not at all."""
    plain: dict[str, Any] = disk.to_plain(document)
    disk.write_json(PoolLayout(pool).index_json, {**plain, "checksum": _checksum(plain)})


def _checksum(plain: dict[str, Any]) -> str:
    return disk.content_hash(plain, 64)


def write_file(pool: str, table: pa.Table) -> IndexFile:
    """Write a table of commit records under the name of its content."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        write_page_checksum=True,
        # Hashes and names of tasks do not repeat.
        use_dictionary=[*DICTIONARY_COLUMNS, REASON_KEYS],
    )
    content = sink.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    name = f"commits-{sha256[:16]}.parquet"
    disk.write_bytes(disk.join(PoolLayout(pool).index, name), content)
    return IndexFile(name=name, rows=table.num_rows, bytes=len(content), sha256=sha256)


def read_file(pool: str, file: IndexFile, columns: Sequence[str]) -> pa.Table:
    """Columns of one file. FileNotFoundError where it is gone, ValueError where it is damaged."""
    path = disk.join(PoolLayout(pool).index, file.name)
    content = disk.read_bytes(path)
    if len(content) != file.bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise damaged(pool, path, "its sha256 is not the one in index.json")
    try:
        names = pq.read_schema(pa.BufferReader(content)).names
        present = [name for name in columns if name in names]
        parquet = pq.ParquetFile(pa.BufferReader(content), read_dictionary=dictionaries(names))
        table = conform(parquet.read(present), columns)
    except (pa.ArrowException, ValueError) as error:
        raise damaged(pool, path, str(error)) from None
    if table.num_rows != file.rows:
        raise damaged(pool, path, f"it has {table.num_rows} rows and index.json says {file.rows}")
    return table


def read_files(
    pool: str, document: IndexDocument, columns: Sequence[str] | None = None
) -> tuple[IndexDocument, pa.Table]:
    """(the index that was read, its rows sorted by shard, each shard once).

    If a writer merges files in the meantime, index.json is read again.
    """
    names = list(schema().names if columns is None else dict.fromkeys([*KEYS, *columns]))
    for _ in range(TRIES):
        try:
            tables = [read_file(pool, file, names) for file in document.files]
        except FileNotFoundError as error:
            again = read_index_document(pool)
            if again is None or again == document:
                missing = str(error.filename or error).rpartition("/")[2]
                raise damaged(
                    pool, PoolLayout(pool).index_json, f"{missing} is not there"
                ) from None
            document = again
            continue
        kinds = pa.schema([schema().field(name) for name in names])
        table = pa.concat_tables(tables) if tables else kinds.empty_table()
        return document, newest_rows(pool, table)
    raise damaged(pool, PoolLayout(pool).index_json, f"it changed {TRIES} times while it was read")


def newest_rows(pool: str, table: pa.Table) -> pa.Table:
    """The rows in the order of their shards; of a shard only the row of its highest revision.

    ValueError for two different rows of one shard and revision.
    """
    shards = np.asarray(table["shard"].to_numpy(), np.int64)
    if bool((np.diff(shards) > 0).all()):
        return table
    revisions = np.asarray(table["revision"].to_numpy(), np.int64)
    order = np.lexsort((revisions, shards))
    ordered, ordered_revisions = shards[order], revisions[order]
    same_shard = ordered[1:] == ordered[:-1]
    for i in np.flatnonzero(same_shard & (ordered_revisions[1:] == ordered_revisions[:-1])):
        first, second = (table.slice(int(order[i + k]), 1).to_pylist()[0] for k in (0, 1))
        if first != second:
            raise damaged(
                pool,
                PoolLayout(pool).index_json,
                f"two of its files have different records of shard {shard_name(int(ordered[i]))}",
            )
    last = np.append(~same_shard, True) if len(order) else np.zeros(0, bool)
    return table.take(pa.array(order[last]))


# --------------------------------------------------------------------------------------------------
# `read_commits`: the commit records of a pool from its index, and from the records where the
# index does not have them.
#
# A closed index of more than FLAT_SHARDS shards is trusted as it is. A smaller one is compared
# with a listing of its one folder, which costs little, so that a record that a person removes or
# replaces is noticed. An index that a writer left open is completed from the folders that it does
# not have completely.


CHUNK = 10_000  # records that are Python objects at a time
FINGERPRINTED = ("sidecar_sha256",)


def read_commits(pool: str, columns: Sequence[str] | None = None) -> Commits:
    """Every committed shard of a pool; none where there is no pool.

    columns: the fields to hold in memory (default: all); `shard` and `revision` are always there.
    ValueError for a damaged index, and a file that is no commit record of clipmill.
    """
    document = read_index_document(pool)
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


# --------------------------------------------------------------------------------------------------
# Where the files of the shards of a pool are, for readers that need nothing else: the trainer.
#
# A closed index has a list of the shards whose files have other names than their numbers give:
# tars that were adopted, shards that were replaced. So a reader of a million shards reads two
# small files.


class ShardFiles:
    """Paths of tars and sidecars, and the fingerprint of the pool. It does not change."""

    __slots__ = ("_layout", "_renamed", "_shards", "fingerprint", "pool")

    def __init__(self, pool: str, fingerprint: str, renamed: pa.Table) -> None:
        """renamed: shard, revision and tar of the shards that have other names than usual."""
        self.pool, self.fingerprint, self._renamed = pool, fingerprint, renamed
        self._layout = PoolLayout(pool)
        self._shards = np.asarray(renamed["shard"].to_numpy(), np.int64)

    def tar(self, shard: int | str) -> str:
        """The path or URL of a shard's tar."""
        position = self._position(shard)
        if position is None:
            return self._layout.named_tar(shard, f"{shard_name(shard)}.tar")
        return self._layout.named_tar(shard, self._renamed["tar"][position].as_py())

    def sidecar(self, shard: int | str) -> str:
        """The path of a shard's sidecar."""
        position = self._position(shard)
        revision = 0 if position is None else self._renamed["revision"][position].as_py()
        return self._layout.sidecar(shard, revision)

    def _position(self, shard: int | str) -> int | None:
        number = int(shard)
        position = int(np.searchsorted(self._shards, number))
        is_there = position < len(self._shards) and self._shards[position] == number
        return position if is_there else None


def open_shard_files(pool: str) -> ShardFiles | Commits:
    """The files of all committed shards, by a closed index of a large pool from two small files.

    ValueError for a damaged index.
    """
    document = read_index_document(pool)
    if document is not None and document.closed and document.shards > FLAT_SHARDS:
        assert document.fingerprint is not None
        columns = ["shard", "revision", "tar"]
        if document.renamed is None:
            return ShardFiles(pool, document.fingerprint, Commits.of_records(pool, []).table)
        try:
            renamed = read_file(pool, document.renamed, columns)
        except FileNotFoundError:
            # A writer has opened the index in the meantime, or the file is lost.
            if read_index_document(pool) == document:
                path = PoolLayout(pool).index_json
                name = document.renamed.name
                raise damaged(pool, path, f"{name} is not there") from None
        else:
            return ShardFiles(pool, document.fingerprint, renamed)
    return read_commits(pool, ["tar"])


# --------------------------------------------------------------------------------------------------
# Extends the index of a pool while a stage commits shards, under the lease of the pool.
#
# Every step leaves an index that readers can use: a file is written before index.json names it,
# and removed after index.json does not name it any more. While a writer is at work the index is
# open, and readers look for records that it does not have yet.


BATCH_ROWS = 1_000
BATCH_SECONDS = 30.0
FANOUT = 8  # files of a size class before they are merged into one of the next
LARGEST_MERGED = 65_536  # rows; files of that many stay as they are
logger = logging.getLogger(__name__)


class IndexWriter:
    """The open index of a pool: `with IndexWriter(pool) as index: …; index.add(record)`.

    `commits` is what was committed when it was opened and, after the block, what is committed then.
    A block that ends with an exception leaves the index open: what it has is kept.
    """

    def __init__(
        self,
        pool: str,
        *,
        batch_rows: int = BATCH_ROWS,
        batch_seconds: float = BATCH_SECONDS,
        check: Callable[[], None] | None = None,
    ) -> None:
        """check: called before each write of index.json; it raises where another command has taken
        the lease of the pool over.
        """
        self.pool, self._check = pool, check
        self._batch_rows, self._batch_seconds = batch_rows, batch_seconds
        self._pending: list[CommitRecord] = []
        self._flushed_at = time.monotonic()
        self.commits = read_commits(pool)
        self._files = _files_of(pool, self.commits)

    def __enter__(self) -> IndexWriter:
        self._write(self._files)
        _remove_others(self.pool, self._files)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commits = self.close()
        elif issubclass(kind, Exception):
            self.flush()

    def add(self, record: CommitRecord | Mapping[str, Any]) -> None:
        """Take up a shard that is committed now: its record, or the record as plain values."""
        if not isinstance(record, CommitRecord):
            record = CommitRecord.from_plain(dict(record))
        self._pending.append(record)
        is_late = time.monotonic() - self._flushed_at >= self._batch_seconds
        if len(self._pending) >= self._batch_rows or is_late:
            self.flush()

    def forget(self, shards: Iterable[int]) -> None:
        """Drop some shards, before their records are replaced or removed. Add the new ones after.

        A reader takes what is not in the index from the records themselves.
        """
        self.flush()
        dropped = np.array(sorted(shards), np.int64)
        files = []
        for file in self._files:  # one at a time, and only those that have such a shard again
            table = read_file(self.pool, file, schema().names)
            keep = ~np.isin(table["shard"].to_numpy(), dropped)
            if keep.all():
                files.append(file)
            elif keep.any():
                files.append(write_file(self.pool, table.filter(pa.array(keep))))
        self._replace(files)

    def flush(self) -> None:
        """Write what was added since the last batch."""
        self._flushed_at = time.monotonic()
        if not self._pending:
            return
        batch = newest_rows(self.pool, to_table(self._pending))
        self._files = [*self._files, write_file(self.pool, batch)]
        self._pending = []
        self._replace(_merged_by_size(self.pool, self._files))

    def close(self) -> Commits:
        """Complete the index from the records, close it, and return what is committed."""
        self.flush()
        self.commits = Commits.of_records(self.pool, [])  # frees it before all is read again
        pa.default_memory_pool().release_unused()
        document = _document(self._files)
        commits = complete(self.pool, document, _read_all(self.pool, self._files))
        self._replace(_compact(self.pool, self._files, commits.table), commits)
        return Commits(self.pool, commits.table, commits.fingerprint, commits.totals)

    def _replace(self, files: Sequence[IndexFile], closed_with: Commits | None = None) -> None:
        """Name other files in index.json, then remove those that it does not name any more."""
        before = self._files
        self._write(files, closed_with)
        kept = {file.name for file in files}
        for file in before:
            if file.name not in kept:
                disk.remove(disk.join(PoolLayout(self.pool).index, file.name))

    def _write(self, files: Sequence[IndexFile], closed_with: Commits | None = None) -> None:
        if self._check is not None:
            self._check()
        document = _document(files)
        if closed_with is not None:
            renamed = closed_with.renamed()
            document = dataclasses.replace(
                document,
                closed=True,
                shards=len(closed_with),
                fingerprint=closed_with.fingerprint,
                totals=closed_with.totals,
                renamed=write_file(self.pool, renamed) if renamed.num_rows else None,
            )
        write_document(self.pool, document)
        self._files = list(files)


def update_index(pool: str, check: Callable[[], None] | None = None) -> Commits:
    """Bring the index of a pool up to date and close it. Under the pool's lease; `check` as that of
    IndexWriter.
    """
    with IndexWriter(pool, check=check) as index:
        pass
    return index.commits


def rebuild_index(pool: str, check: Callable[[], None] | None = None) -> Commits:
    """Make the index anew from the commit records alone, whatever is in its folder.

    Under the pool's lease; `check` as that of IndexWriter. After a crash in between, the pool has
    no index, and is read without.
    """
    layout = PoolLayout(pool)
    if check is not None:
        check()
    disk.remove(layout.index_json)
    _remove_others(pool, ())
    return update_index(pool, check)


def _document(files: Sequence[IndexFile]) -> IndexDocument:
    """The document of an open index."""
    shards = sum(file.rows for file in files)
    return IndexDocument(version=INDEX_VERSION, closed=False, files=tuple(files), shards=shards)


def _files_of(pool: str, commits: Commits) -> list[IndexFile]:
    """The files of the index where they hold exactly `commits`, else new ones that do."""
    document = read_index_document(pool)
    rows = 0 if document is None else sum(file.rows for file in document.files)
    if document is not None and rows == len(commits):
        if document.closed and document.shards > FLAT_SHARDS:
            return list(document.files)  # it was trusted: `commits` is what they hold
        table = _read_all(pool, document.files)
        if table.num_rows == len(commits) and table.equals(commits.table):
            return list(document.files)
    return _write_parts(pool, commits.table)


def _write_parts(pool: str, table: pa.Table) -> list[IndexFile]:
    """The rows of a table as files of at most LARGEST_MERGED rows."""
    files = []
    for start in range(0, table.num_rows, LARGEST_MERGED):
        files.append(write_file(pool, table.slice(start, LARGEST_MERGED)))
    return files


def _read_all(pool: str, files: Sequence[IndexFile]) -> pa.Table:
    tables = [read_file(pool, file, schema().names) for file in files]
    together = pa.concat_tables(tables) if tables else schema().empty_table()
    return newest_rows(pool, together)


def _merged_by_size(pool: str, files: Sequence[IndexFile]) -> list[IndexFile]:
    """The files, with any FANOUT of one size class merged into one: few files, and each row is
    written again once per class.
    """
    groups = [[file] for file in files]
    while True:
        by_class: dict[int, list[list[IndexFile]]] = {}
        for group in groups:
            rows = sum(file.rows for file in group)
            if rows < LARGEST_MERGED:
                by_class.setdefault(int(math.log(max(1, rows), FANOUT)), []).append(group)
        full = next((same for same in by_class.values() if len(same) >= FANOUT), None)
        if full is None:
            break
        merged = [file for group in full for file in group]
        groups = [*(group for group in groups if group not in full), merged]
    result = []
    for group in groups:
        result += group if len(group) == 1 else _write_parts(pool, _read_all(pool, group))
    return result


def _compact(pool: str, files: Sequence[IndexFile], table: pa.Table) -> list[IndexFile]:
    """Few files that hold exactly the rows of `table`: large ones stay, small ones are merged."""
    large = [file for file in files if file.rows >= LARGEST_MERGED]
    small = [file for file in files if file.rows < LARGEST_MERGED]
    if sum(file.rows for file in files) == table.num_rows:
        if len(small) <= 1:
            return list(files)
        return large + _write_parts(pool, _read_all(pool, small))
    return _write_parts(pool, table)


def _remove_others(pool: str, files: Sequence[IndexFile]) -> None:
    """Remove what a writer left that was killed before index.json named it."""
    folder = PoolLayout(pool).index
    named = {file.name for file in files}
    for name in disk.list_names(folder, ".parquet"):
        if name not in named:
            disk.remove(disk.join(folder, name))
