"""The index of a pool on disk: Parquet files of commit records, and index.json, which is written
last and says which files make it up.

A file of the index is named by its content and never changes. A reader that finds one gone reads
index.json again: the writer has merged it into another. Anything else that does not fit is damage,
named with its remedy.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import disk
from manifests.commits.commits import CommitTotals
from manifests.commits.record_columns import KEYS, REASON_KEYS, conform, dictionaries, schema
from manifests.pool_layout import PoolLayout, shard_name

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
    return ValueError(
        f"{path} is damaged: {problem}; run python pipeline/audit.py {pool} --reindex"
    )


def read_document(pool: str) -> IndexDocument | None:
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
        disk.check_types(IndexDocument, plain, "index.json")
        document: IndexDocument = disk.from_plain(IndexDocument, plain)
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
            again = read_document(pool)
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
    revisions = np.asarray(pc.fill_null(table["revision"], 0).to_numpy(), np.int64)
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
