"""Extends the index of a pool while a stage commits shards, under the lease of the pool.

Every step leaves an index that readers can use: a file is written before index.json names it, and
removed after index.json does not name it any more. While a writer is at work the index is open, and
readers look for records that it does not have yet.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from manifests import disk
from manifests.commits.commits import Commits
from manifests.commits.index_files import (
    INDEX_VERSION,
    IndexDocument,
    IndexFile,
    newest_rows,
    read_document,
    read_file,
    write_document,
    write_file,
)
from manifests.commits.reading import complete, read_commits
from manifests.commits.record_columns import schema, to_table
from manifests.pool_layout import FLAT_SHARDS, CommitRecord, PoolLayout

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
    document = read_document(pool)
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
