"""Some rows of a pool and the database that evaluates rules over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline.views.connections import TABLE
from pipeline.views.rules import DERIVED

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Numbers = np.ndarray[Any, np.dtype[Any]]


def uid_hashes(uids: Sequence[str], seed: int) -> Hashes:
    """(rows,) xxh3_64 of each uid with `seed`. The one source of randomness of views."""
    hashes = (xxhash.xxh3_64_intdigest(uid.encode(), seed) for uid in uids)
    return np.fromiter(hashes, np.uint64, len(uids))


def _widened(table: pa.Table) -> pa.Table:
    """The table with 32-bit floats in place of those of 16 bits, which DuckDB cannot read."""
    schema = table.schema
    for index, field in enumerate(schema):
        schema = schema.set(index, field.with_type(_wide(field.type)))
    return table if schema.equals(table.schema) else table.cast(schema)


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_wide(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_wide(kind.value_type))
    return pa.float32() if pa.types.is_float16(kind) else kind


class PartRows:
    """The joined columns of some consecutive rows."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: pa.Table, first_row: int = 0
    ) -> None:
        """first_row: number of its first row in the pool."""
        self.connection, self.table, self.first_row = connection, _widened(table), first_row
        columns = set(table.column_names)
        self.derived = {
            name: sql for name, (sql, sources) in DERIVED.items() if columns.issuperset(sources)
        }
        self.known = columns | set(self.derived)
        self.stored: Mask = is_true(pc.equal(table["status"], "success"))
        self._hashes: dict[int, Hashes] = {}

    def evaluate(self, sql: str, alive: Mask) -> pa.ChunkedArray:
        """`sql` for each row. It is not evaluated for rows that are not alive; they are NULL."""
        return self.evaluate_all([sql], alive)[0]

    def evaluate_all(self, expressions: Sequence[str], alive: Mask) -> list[pa.ChunkedArray]:
        """`evaluate` for several expressions in one query. An error may be that of any of them."""
        is_alive = "row_is_alive"
        while is_alive in {name.lower() for name in self.known}:
            is_alive += "_"
        table = self.table.append_column(is_alive, pa.array(alive))
        self.connection.register(TABLE, table)
        columns = []
        for number, sql in enumerate(expressions):
            columns.append(f"CASE WHEN {is_alive} THEN ({sql}) END AS answer_{number}")
        answers: pa.Table = self._select(", ".join(columns)).to_arrow_table()
        return list(answers.columns)

    def values_of_stored(self, sql: str) -> pa.ChunkedArray:
        """`sql` for the stored rows; other rows are NULL or left out. A column of numbers is not
        given to DuckDB."""
        if sql in self.table.column_names:
            column = self.table[sql]
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                return column.filter(pa.array(self.stored))
        return self.evaluate(sql, self.stored)

    def type_of(self, sql: str) -> str:
        """DuckDB's type of an expression over the columns."""
        self.connection.register(TABLE, self.table)
        return str(self.relation(f"({sql})").types[0])

    def relation(self, sql: str) -> Any:
        """`sql` over the registered rows."""
        return self._select(f"{sql} AS answer")

    def _select(self, columns: str) -> Any:
        derived = "".join(f", {text} AS {name}" for name, text in self.derived.items())
        return self.connection.sql(f"SELECT {columns} FROM (SELECT *{derived} FROM {TABLE})")

    def stored_hashes(self, seed: int) -> Hashes:
        """(stored rows,) `uid_hashes` of the stored rows, computed once per seed."""
        if seed not in self._hashes:
            uids = self.table["uid"].filter(pa.array(self.stored)).to_pylist()
            self._hashes[seed] = uid_hashes(uids, seed)
        return self._hashes[seed]

    def of_stored(self, values: Mask) -> Mask:
        """(rows,) from (stored rows,); False for the others."""
        mask = np.zeros(len(self.stored), np.bool_)
        mask[self.stored] = values
        return mask


def is_true(answer: Any) -> Mask:
    """True where a boolean column is true; NULL counts as false."""
    mask: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask
