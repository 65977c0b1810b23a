"""The index of a pool's commit records on disk: written once, read by everybody."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clipmill.manifests import disk
from clipmill.manifests.commits.commits import (
    KEYS,
    REPEATED_FIELDS,
    Commits,
    CommitTotals,
    conform,
    position_of,
    schema,
    to_table,
)
from clipmill.manifests.layout import (
    COMMIT_SUFFIX,
    CommitRecord,
    PoolLayout,
    shard_name,
)

# --------------------------------------------------------------------------------------------------
# The index of a pool on disk: Parquet files of commit records, and index.json, which is written
# last and says which files make it up.
#
# A file of the index is named by its content and never changes. A reader that finds one gone
# reads index.json again: the writer has put its rows into another. Anything else that does not fit
# is damage, named with its remedy.


INDEX_VERSION = 4
REPEATED_COLUMNS = (*REPEATED_FIELDS, "version", "revision", "fence", "reasons.key_value.key")
TRIES = 5  # of a reader while a writer replaces files


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


def damaged(layout: PoolLayout, path: str, problem: str) -> ValueError:
    """The error for a part of the index that cannot be used, with the command that mends it."""
    return ValueError(f"{path} is damaged: {problem}; run clipmill audit reindex {layout}")


def read_index_document(layout: PoolLayout) -> IndexDocument | None:
    """index.json; None where there is no index. ValueError for a damaged one."""
    path = layout.index_json
    try:
        plain = disk.read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(layout, path, str(error).removeprefix(f"{path} is ")) from None
    if not isinstance(plain, dict):
        raise damaged(layout, path, "it is not a JSON object")
    version = plain.get("version")
    if isinstance(version, int) and version != INDEX_VERSION:
        is_old = version < INDEX_VERSION
        remedy = f"run clipmill audit reindex {layout}" if is_old else "take a newer one"
        raise ValueError(
            f"{path} has version {version}; this clipmill reads {INDEX_VERSION}: {remedy}"
        )
    checksum = plain.pop("checksum", None)
    if checksum != _checksum(plain):
        raise damaged(layout, path, "its checksum is another one")
    try:
        document: IndexDocument = disk.from_plain(IndexDocument, plain, "index.json")
    except (ValueError, TypeError) as error:
        raise damaged(layout, path, str(error)) from None
    return document


def write_document(layout: PoolLayout, document: IndexDocument) -> None:
    """Write index.json, whole or not at all."""
    plain: dict[str, object] = disk.to_plain(document)
    disk.write_json(layout.index_json, {**plain, "checksum": _checksum(plain)})


def _checksum(plain: dict[str, object]) -> str:
    return disk.content_hash(plain, 64)


def write_file(layout: PoolLayout, table: pa.Table) -> IndexFile:
    """Write a table of commit records under the name of its content."""
    # Hashes and names of tasks do not repeat.
    content = disk.parquet_bytes(table, use_dictionary=list(REPEATED_COLUMNS))
    sha256 = hashlib.sha256(content).hexdigest()
    name = f"commits-{sha256[:16]}.parquet"
    disk.write_bytes(disk.join(layout.index, name), content)
    return IndexFile(name=name, rows=table.num_rows, bytes=len(content), sha256=sha256)


def read_file(layout: PoolLayout, file: IndexFile, columns: Sequence[str]) -> pa.Table:
    """Columns of one file. FileNotFoundError where it is gone, ValueError where it is damaged."""
    path = disk.join(layout.index, file.name)
    content = disk.read_bytes(path)
    if len(content) != file.bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise damaged(layout, path, "its sha256 is not the one in index.json")
    try:
        parquet = pq.ParquetFile(pa.BufferReader(content))
        present = [name for name in columns if name in parquet.schema_arrow.names]
        table = conform(parquet.read(present), columns)
    except (pa.ArrowException, ValueError) as error:
        raise damaged(layout, path, str(error)) from None
    if table.num_rows != file.rows:
        raise damaged(layout, path, f"it has {table.num_rows} rows and index.json says {file.rows}")
    return table


def read_files(
    layout: PoolLayout, document: IndexDocument, columns: Sequence[str] | None = None
) -> tuple[IndexDocument, pa.Table]:
    """(the index that was read, its rows sorted by shard, each shard once).

    If a writer replaces files in the meantime, index.json is read again.
    """
    names = list(schema().names if columns is None else dict.fromkeys([*KEYS, *columns]))
    for _ in range(TRIES):
        try:
            tables = [read_file(layout, file, names) for file in document.files]
        except FileNotFoundError as error:
            again = read_index_document(layout)
            if again is None or again == document:
                missing = str(error.filename or error).rpartition("/")[2]
                raise damaged(layout, layout.index_json, f"{missing} is not there") from None
            document = again
            continue
        kinds = pa.schema([schema().field(name) for name in names])
        table = pa.concat_tables(tables) if tables else kinds.empty_table()
        return document, newest_rows(layout, table)
    raise damaged(layout, layout.index_json, f"it changed {TRIES} times while it was read")


def newest_rows(layout: PoolLayout, table: pa.Table) -> pa.Table:
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
                layout,
                layout.index_json,
                f"two of its files have different records of shard {shard_name(int(ordered[i]))}",
            )
    last = np.append(~same_shard, True) if len(order) else np.zeros(0, bool)
    return table.take(pa.array(order[last]))


# --------------------------------------------------------------------------------------------------
# `read_commits`: the commit records of a pool from its index, and from the records where the
# index does not have them.
#
# A closed index is what is committed: it is trusted, whatever the size of the pool, because a
# listing of 300,000 shards costs a second on a disk and minutes on a store. `audit verify` compares
# it with the records. An index that a writer left open is completed from a listing.


READERS = 16  # threads that read commit records: a remote store answers each after about 30 ms
CHUNK = 10_000  # records that are Python objects at a time
FINGERPRINTED = ("sidecar_sha256",)


def read_commits(pool: str, columns: Sequence[str] | None = None) -> Commits:
    """Every committed shard of a pool; none where there is no pool.

    columns: the fields to hold in memory (default: all); `shard` and `revision` are always there.
    ValueError for a damaged index, and a file that is no commit record of clipmill.
    """
    layout = PoolLayout(pool)
    try:
        document = read_index_document(layout)
    except NotADirectoryError:
        raise ValueError(f"{pool} is a file; a pool is a folder") from None
    if document is not None and document.closed:
        document, table = read_files(layout, document, columns)
        if document.closed:
            return Commits(pool, table, document.fingerprint, document.totals)
    # A fingerprint that is not written down is computed from the hashes.
    wanted = None if columns is None else [*columns, *FINGERPRINTED]
    names = schema().names if wanted is None else list(dict.fromkeys([*KEYS, *wanted]))
    if document is None:
        table = pa.schema([schema().field(name) for name in names]).empty_table()
    else:
        document, table = read_files(layout, document, wanted)
    return complete(layout, table)


def complete(layout: PoolLayout, table: pa.Table) -> Commits:
    """The rows of an open index, compared with the commit records that are there."""
    folder = layout.shards
    listed = {_number(folder, name): name for name in disk.list_names(folder, COMMIT_SUFFIX)}
    indexed = np.asarray(table["shard"].to_numpy(), np.int64)
    missing = listed.keys() - set(indexed.tolist())
    if len(indexed) + len(missing) > len(listed):  # somebody removed a record
        table = table.filter(pa.array(np.isin(indexed, list(listed))))
    paths = {shard: disk.join(folder, listed[shard]) for shard in missing}
    together = pa.concat_tables([table, *_read_records(paths, table.column_names)])
    return Commits(layout.root, newest_rows(layout, together))


def _number(folder: str, name: str) -> int:
    try:
        return int(name.removesuffix(COMMIT_SUFFIX))
    except ValueError:
        raise ValueError(
            f"{disk.join(folder, name)} is not a commit record of clipmill: its name has no shard "
            "number; move it out of the pool's folder"
        ) from None


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
        position = position_of(self._shards, shard)
        if position is None:
            return self._layout.named_tar(f"{shard_name(shard)}.tar")
        return self._layout.named_tar(self._renamed["tar"][position].as_py())

    def sidecar(self, shard: int | str) -> str:
        """The path of a shard's sidecar."""
        position = position_of(self._shards, shard)
        revision = 0 if position is None else self._renamed["revision"][position].as_py()
        return self._layout.sidecar(shard, revision)


def open_shard_files(pool: str) -> ShardFiles | Commits:
    """The files of all committed shards, by a closed index from two small files.

    ValueError for a damaged index.
    """
    layout = PoolLayout(pool)
    document = read_index_document(layout)
    if document is not None and document.closed:
        assert document.fingerprint is not None
        columns = ["shard", "revision", "tar"]
        if document.renamed is None:
            return ShardFiles(pool, document.fingerprint, Commits.of_records(pool, []).table)
        try:
            renamed = read_file(layout, document.renamed, columns)
        except FileNotFoundError:
            # A writer has opened the index in the meantime, or the file is lost.
            if read_index_document(layout) == document:
                name = document.renamed.name
                raise damaged(layout, layout.index_json, f"{name} is not there") from None
        else:
            return ShardFiles(pool, document.fingerprint, renamed)
    return read_commits(pool, ["tar"])


# --------------------------------------------------------------------------------------------------
# Extends the index of a pool while a stage commits shards, under the lease of the pool.
#
# Every step leaves an index that readers can use: a file is written before index.json names it,
# and removed after index.json does not name it any more. While a writer is at work the index is
# open, and readers look for records that it does not have yet. Its last file is replaced until it
# has BATCH_ROWS rows, so that there are few files; closing puts all rows into one.


BATCH_ROWS = 1_000
BATCH_SECONDS = 30.0
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
        self.pool, self._layout, self._check = pool, PoolLayout(pool), check
        self._batch_rows, self._batch_seconds = batch_rows, batch_seconds
        self._pending: list[CommitRecord] = []
        self._flushed_at = time.monotonic()
        self.commits = read_commits(pool)
        self._files = _files_of(self._layout, self.commits)
        self._tail = schema().empty_table()  # what the last file holds, while it is not full

    def __enter__(self) -> IndexWriter:
        self._write(self._files)
        _remove_others(self._layout, self._files)
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
            table = read_file(self._layout, file, schema().names)
            keep = ~np.isin(table["shard"].to_numpy(), dropped)
            if keep.all():
                files.append(file)
            elif keep.any():
                files.append(write_file(self._layout, table.filter(pa.array(keep))))
        self._replace(files)
        self._tail = schema().empty_table()

    def flush(self) -> None:
        """Write what was added since the last batch."""
        self._flushed_at = time.monotonic()
        if not self._pending:
            return
        batch = newest_rows(self._layout, pa.concat_tables([self._tail, to_table(self._pending)]))
        full = self._files[:-1] if self._tail.num_rows else self._files
        self._pending = []
        self._replace([*full, write_file(self._layout, batch)])
        self._tail = batch if batch.num_rows < self._batch_rows else schema().empty_table()

    def close(self) -> Commits:
        """Complete the index from the records, close it, and return what is committed."""
        self.flush()
        self.commits = Commits.of_records(self.pool, [])  # frees it before all is read again
        pa.default_memory_pool().release_unused()
        commits = complete(self._layout, read_files(self._layout, _document(self._files))[1])
        self._replace(_one_file(self._layout, self._files, commits.table), commits)
        return Commits(self.pool, commits.table, commits.fingerprint, commits.totals)

    def _replace(self, files: Sequence[IndexFile], closed_with: Commits | None = None) -> None:
        """Name other files in index.json, then remove those that it does not name any more."""
        before = self._files
        self._write(files, closed_with)
        kept = {file.name for file in files}
        for file in before:
            if file.name not in kept:
                disk.remove(disk.join(self._layout.index, file.name))

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
                renamed=write_file(self._layout, renamed) if renamed.num_rows else None,
            )
        write_document(self._layout, document)
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
    _remove_others(layout, ())
    return update_index(pool, check)


def _document(files: Sequence[IndexFile]) -> IndexDocument:
    """The document of an open index."""
    shards = sum(file.rows for file in files)
    return IndexDocument(version=INDEX_VERSION, closed=False, files=tuple(files), shards=shards)


def _files_of(layout: PoolLayout, commits: Commits) -> list[IndexFile]:
    """The files of the index where they hold exactly `commits`, else a new one that does."""
    document = read_index_document(layout)
    if document is not None:
        files = list(document.files)
        if document.closed or read_files(layout, document)[1].equals(commits.table):
            return files
    return [write_file(layout, commits.table)] if len(commits) else []


def _one_file(layout: PoolLayout, files: Sequence[IndexFile], table: pa.Table) -> list[IndexFile]:
    """One file of exactly the rows of `table`; `files` hold them, or some of them."""
    if len(files) == 1 and files[0].rows == table.num_rows:
        return list(files)
    return [write_file(layout, table)] if table.num_rows else []


def _remove_others(layout: PoolLayout, files: Sequence[IndexFile]) -> None:
    """Remove what a writer left that was killed before index.json named it."""
    folder = layout.index
    named = {file.name for file in files}
    for name in disk.list_names(folder, ".parquet"):
        if name not in named:
            disk.remove(disk.join(folder, name))
