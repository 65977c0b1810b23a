"""Columns of numbers in sorted order: exact counts above and below any threshold.

NULL and NaN are in no order: rules take both as a missing value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.pool_page.pool_rows import Mask, PoolRows

# Numbers of the sidecar that say where bytes lie, and nothing about a sample. Neither does the
# order of hashes, the columns *phash.
NOT_SHOWN = frozenset(
    {"image_offset", "text_offset", "json_offset", "text_length", "json_length", "warc_offset"}
)
EXACT = Context(prec=60)
Values = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """A column of numbers of the stored rows. `rows`: (n,) numbers of rows in the order of the
    values, equal values in the order of the pool; `values`: (n,) sorted, without NULL and NaN."""

    name: str
    type: pa.DataType
    rows: NDArray[np.int32]
    values: Values
    nulls: int
    nans: int

    def below(self, threshold: str) -> int:
        """How many values are less than a decimal number. ValueError for what is no number."""
        return int(np.searchsorted(self.values, self.as_value(threshold), side="left"))

    def as_value(self, text: str) -> Any:
        """A decimal number as DuckDB compares it with the values of the column."""
        value = Decimal(text)
        if not value.is_finite():
            raise ValueError(f"{text!r} is not a finite number")
        if pa.types.is_integer(self.type):
            return int(value.to_integral_value("ROUND_CEILING", EXACT))
        return np.float64(text)

    def rule(self, threshold: str, *, at_least: bool) -> str:
        """The rule that keeps the values from a threshold on, or those below it."""
        name = sql_name(self.name)
        if not at_least:
            return f"{name} < {threshold}"
        return f"{name} >= {threshold}"


def sql_name(column: str) -> str:
    """A column in a rule, quoted where it is no plain word."""
    if column.isascii() and column.isidentifier():
        return column
    return '"' + column.replace('"', '""') + '"'


def number_columns(rows: PoolRows) -> Iterator[NumberColumn]:
    """The columns of numbers of a pool, sorted. One without a value is among them."""
    stored = pa.array(rows.stored)
    numbers = np.flatnonzero(rows.stored).astype(np.int32)
    for field in rows.table.schema:
        kind = field.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if is_number and field.name not in NOT_SHOWN and not field.name.endswith("phash"):
            column = rows.table[field.name].filter(stored)
            yield number_column(field.name, column, numbers)


def number_column(name: str, column: pa.ChunkedArray, numbers: NDArray[np.int32]) -> NumberColumn:
    """column: the values of the stored rows; numbers: their row numbers."""
    valid = np.asarray(column.is_valid().to_numpy(), np.bool_)
    values: Values = pc.drop_null(column).to_numpy()
    of_values = numbers[valid]
    nans = 0
    if pa.types.is_floating(column.type):
        values = values.astype(np.float64)
        is_nan = np.isnan(values)
        nans = int(is_nan.sum())
        if nans:
            values, of_values = values[~is_nan], of_values[~is_nan]
    order = np.argsort(values, kind="stable")
    return NumberColumn(
        name=name,
        type=column.type,
        rows=of_values[order],
        values=values[order],
        nulls=int(column.null_count),
        nans=nans,
    )


def positions(column: NumberColumn, most: int) -> NDArray[np.int64]:
    """Places in the sorted values where another value begins: all, or `most` of them at about
    equal distances in rank. An infinite value is no threshold."""
    values = column.values
    if not len(values):
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
    if len(starts) > most:
        wanted = np.linspace(0, len(values) - 1, most)
        nearest = np.searchsorted(starts, wanted, side="right") - 1
        starts = starts[np.unique(nearest)]
    if values.dtype.kind == "f":
        starts = starts[np.isfinite(values[starts])]
    return starts.astype(np.int64)


def threshold_at(column: NumberColumn, position: int) -> str:
    """The shortest decimal number above the value before a position, and not above its own: as a
    threshold it divides the values exactly there. The value at the position is finite."""
    value = column.values[position]
    before = column.values[position - 1] if position else None
    if column.values.dtype.kind != "f":
        low = None if before is None else Decimal(int(before))
        return _shortest(low, Decimal(int(value)))
    low = None if before is None or not isfinite(before) else Decimal(float(before))
    text = _shortest(low, Decimal(float(value)))
    if _divides(column, text, before, value):
        return text
    return repr(float(value))


def _divides(column: NumberColumn, text: str, before: Any, value: Any) -> bool:
    """Whether a threshold lies between two values, however many bits it is compared with."""
    kinds: list[Any] = [np.float64]
    if column.type == pa.float32():
        kinds.append(np.float32)
    elif column.type == pa.float16():
        kinds += [np.float32, np.float16]
    for kind in kinds:
        threshold = float(kind(text))
        if threshold > value or (before is not None and threshold <= before):
            return False
    return True


def _shortest(low: Decimal | None, high: Decimal) -> str:
    """The number in (low, high] with the fewest digits; below `high` by at most 10 % without
    `low`."""
    if low is None:
        low = EXACT.subtract(high, EXACT.divide(abs(high), Decimal(10)) if high else Decimal(1))
    if low < 0 <= high:
        return "0"
    exponent = EXACT.subtract(high, low).adjusted() + 1
    while True:
        step = Decimal(1).scaleb(exponent)
        steps = EXACT.divide(high, step).to_integral_value(ROUND_FLOOR, EXACT)
        candidate = EXACT.multiply(steps, step)
        if candidate > low:
            return f"{candidate:f}"
        exponent -= 1


def counts_below(column: NumberColumn, scope: Mask, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """(places,) rows of a scope with a value before each place. scope: (rows of the table,)."""
    ends = np.concatenate([[0], np.cumsum(scope[column.rows], dtype=np.int64)])
    return np.asarray(ends[places], np.int64)
