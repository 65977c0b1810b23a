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


def _readable(table: pa.Table) -> pa.Table:
    """The table with 32-bit floats in place of those of 16 bits, which DuckDB cannot read, and NULL
    in place of NaN, which DuckDB orders above every number."""
    for index, field in enumerate(table.schema):
        kind, column = _wide(field.type), table.column(index)
        if kind != field.type:
            column = column.cast(kind)
        if pa.types.is_floating(kind):
            is_nan = pc.is_nan(column)
            if pc.any(is_nan).as_py():
                column = pc.if_else(is_nan, pa.scalar(None, kind), column)
        if column is not table.column(index):
            table = table.set_column(index, field.with_type(kind), column)
    return table


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
        self.connection, self.table, self.first_row = connection, table, first_row
        columns = set(table.column_names)
        self.derived = {
            name: sql for name, (sql, sources) in DERIVED.items() if columns.issuperset(sources)
        }
        self.known = columns | set(self.derived)
        self.kinds = {field.name.lower(): field for field in table.schema}
        self.stored: Mask = is_true(pc.equal(table["status"], "success"))
        self._hashes: dict[int, Hashes] = {}
        self._numbers: dict[str, tuple[Numbers, Mask | None]] = {}
        self._texts: dict[str, tuple[pa.ChunkedArray, Mask | None]] = {}
        self._readable: pa.Table | None = None

    @property
    def readable(self) -> pa.Table:
        """The rows as rules see them in DuckDB."""
        if self._readable is None:
            self._readable = _readable(self.table)
        return self._readable

    def numbers(self, name: str) -> tuple[Numbers, Mask | None]:
        """((rows,) the values of a column of numbers or booleans, any value where it is NULL,
        (rows,) where it is NULL or NaN; None for nowhere)."""
        if name not in self._numbers:
            self._numbers[name] = _numbers_of(self.table[name])
        return self._numbers[name]

    def texts(self, name: str) -> tuple[pa.ChunkedArray, Mask | None]:
        """(a column of text, (rows,) where it is NULL; None for nowhere)."""
        if name not in self._texts:
            column = self.table[name]
            missing = column.is_null().to_numpy() if column.null_count else None
            self._texts[name] = column, missing
        return self._texts[name]

    def evaluate(self, sql: str, alive: Mask) -> pa.ChunkedArray:
        """`sql` for each row. It is not evaluated for rows that are not alive; they are NULL."""
        return self.evaluate_all([sql], alive)[0]

    def evaluate_all(self, expressions: Sequence[str], alive: Mask) -> list[pa.ChunkedArray]:
        """`evaluate` for several expressions in one query. An error may be that of any of them."""
        is_alive = "row_is_alive"
        while is_alive in {name.lower() for name in self.known}:
            is_alive += "_"
        table = self.readable.append_column(is_alive, pa.array(alive))
        self.connection.register(TABLE, table)
        columns = []
        for number, sql in enumerate(expressions):
            columns.append(f"CASE WHEN {is_alive} THEN ({sql}) END AS answer_{number}")
        answers: pa.Table = self._select(", ".join(columns)).to_arrow_table()
        return list(answers.columns)

    def values_of_stored(self, sql: str) -> tuple[pa.DataType, Numbers | None]:
        """(type of `sql`, its values of the stored rows without NULL and NaN; None where it is no
        number). A column of numbers is not given to DuckDB."""
        if sql in self.table.column_names:
            kind = self.table.schema.field(sql).type
            if _is_number(kind):
                values, missing = self.numbers(sql)
                chosen = self.stored if missing is None else self.stored & ~missing
                return kind, values[chosen]
        answer = pc.drop_null(self.evaluate(sql, self.stored))
        if pa.types.is_decimal(answer.type):  # a column times 0.5 is a decimal
            answer = answer.cast(pa.float64())
        if not _is_number(answer.type):
            return answer.type, None
        values = answer.to_numpy()
        return answer.type, values[~np.isnan(values)]

    def types_of(self, expressions: Sequence[str]) -> list[str]:
        """DuckDB's types of some expressions over the columns. An error may be that of any."""
        self.connection.register(TABLE, self.readable)
        columns = []
        for number, sql in enumerate(expressions):
            columns.append(f"({sql}) AS answer_{number}")
        return [str(kind) for kind in self._select(", ".join(columns)).types]

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


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _numbers_of(column: pa.ChunkedArray) -> tuple[Numbers, Mask | None]:
    """What `PartRows.numbers` has of a column."""
    missing: Mask | None = None
    if pa.types.is_floating(column.type):
        values = column.to_numpy()  # NULL becomes NaN
        missing = np.isnan(values)
        return values, missing if missing.any() else None
    if column.null_count:
        missing = column.is_null().to_numpy()
        column = pc.fill_null(column, pa.scalar(0).cast(column.type))
    return column.to_numpy(), missing


def is_true(answer: Any) -> Mask:
    """True where a boolean column is true; NULL counts as false."""
    mask: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask
