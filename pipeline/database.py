"""DuckDB in memory: SQL over tables that are given to it, and rows by what they are.

Invariants, in `tests/pipeline/test_shuffle.py`:

* A statement over more rows than its memory spills into a scratch folder, and sees no other file.
* The hash of rows depends neither on their order nor on how often each is there.

DuckDB decides no order and no hash of what is stored: statements end in ORDER BY of a unique key,
and hashes are columns that were computed before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.arrays import Bytes, Hashes
from clipmill.manifests.columns import hex_bytes
from clipmill.manifests.late import duckdb

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY = "512MB"  # of a statement; beyond, it spills
BATCH_ROWS = 10_000  # that a statement gives at a time


def connect(**config: Any) -> DuckDBPyConnection:
    """A new database in memory, for rules and for a shuffle: it reaches no file but those that it
    spills, no network and no Python variable. `config`: settings of DuckDB.
    """
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    # Else text and parts of a time would be those of the machine's TZ.
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


@contextmanager
def database() -> Iterator[DuckDBPyConnection]:
    """A database in one thread with MEMORY, for tables that are given to it; beyond, it spills into
    a scratch folder.
    """
    with (
        disk.scratch_folder("clipmill-sql-") as folder,
        connect(temp_directory=str(folder), memory_limit=MEMORY, threads=1) as connection,
    ):
        yield connection


def stream(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.RecordBatchReader:
    """Tables as rows that a statement reads once, one table in memory at a time."""

    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            yield from table.select(schema.names).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def select(
    sql: str, batch_rows: int = BATCH_ROWS, /, **tables: pa.Table | pa.RecordBatchReader
) -> Iterator[pa.RecordBatch]:
    """The answer of a statement over some tables, batch by batch."""
    with database() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        yield from connection.sql(sql).to_arrow_reader(batch_rows)


def blobs(rows: Bytes) -> pa.Array:
    """(rows, width) bytes as a column."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(rows.shape[1]), len(rows), buffers)


def insert(connection: DuckDBPyConnection, table: str, *columns: object) -> None:
    """Add rows to a table of a database."""
    names = [str(number) for number in range(len(columns))]
    connection.register("part", pa.table(list(columns), names))
    connection.execute(f"INSERT INTO {table} SELECT * FROM part")


# --------------------------------------------------------------------------------------------------
# Rows by what they are, their uid and the sha256 of the received bytes; and the hash of a set of
# them. Views, locks and the rows that pools have in common are such sets: each is a flag of rows.


UID_BYTES, SHA256_BYTES = 16, 32
KEY_BYTES = UID_BYTES + SHA256_BYTES
# A key as numbers, first bytes first: DuckDB sorts them in two thirds of the time of a BLOB.
WORDS = [f"w{number}" for number in range(KEY_BYTES // 8)]
KEY = ", ".join(WORDS)


def row_keys(uids: pa.Array | pa.ChunkedArray, hashes: pa.Array | pa.ChunkedArray) -> Bytes:
    """(rows, KEY_BYTES) of two columns of hex digits. ValueError for other values."""
    binary = hex_bytes(uids, UID_BYTES, "uid"), hex_bytes(hashes, SHA256_BYTES, "sha256")
    return np.hstack(binary)


def is_sha256(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """(rows,) True where a value is a sha256 in hex digits."""
    return pc.fill_null(pc.match_substring_regex(column, r"^[0-9a-f]{64}$"), False)


def key_columns(keys: Bytes) -> Hashes:
    """(WORDS, rows) of (rows, KEY_BYTES)."""
    words: Hashes = np.ascontiguousarray(keys).view(">u8").astype(np.uint64).T
    return words


def of_flags(form: str, flags: int) -> str:
    """Columns of a statement: `form`, with the name of each flag where it has braces."""
    return ", ".join(form.format(f"f{number}") for number in range(flags))


def create_keyed(connection: DuckDBPyConnection, table: str, columns: str) -> None:
    """Make a table of rows with their keys and further columns."""
    words = ", ".join(f"{word} UBIGINT" for word in WORDS)
    connection.execute(f"CREATE TABLE {table} ({words}, {columns})")


def hash_flagged(connection: DuckDBPyConnection, table: str, flags: int) -> list[tuple[int, str]]:
    """(different rows, their hash) of each flag of a table: sha256 over the keys of the rows that
    have it, each once, ascending.
    """
    contents = [hashlib.sha256() for _ in range(flags)]
    rows, last = [0] * flags, [np.zeros((0, len(WORDS)), np.uint64)] * flags
    ordered = connection.sql(f"SELECT {KEY}, {of_flags('{}', flags)} FROM {table} ORDER BY {KEY}")
    for batch in ordered.to_arrow_reader(BATCH_ROWS):
        words = np.stack([batch[word].to_numpy() for word in WORDS], axis=1)
        for number, content in enumerate(contents):
            has_flag = batch[len(WORDS) + number].to_numpy(zero_copy_only=False)
            keys = np.concatenate([last[number], words[has_flag]])
            is_new = np.ones(len(keys), np.bool_)
            is_new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
            is_new[: len(last[number])] = False
            rows[number] += int(is_new.sum())
            content.update(keys[is_new].astype(">u8").tobytes())
            last[number] = keys[-1:]
    return [(count, content.hexdigest()) for count, content in zip(rows, contents, strict=True)]
