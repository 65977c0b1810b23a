"""The steps of a view as tests of rows: columns, thresholds, NumPy and DuckDB.

The SQL of rules: read with DuckDB's parser, and evaluated by NumPy where that gives the same
answers. It reads and writes no file.

Invariants:

* A plain test gives DuckDB's answer for every row, next to every constant too; what may differ is
  left to DuckDB: `tests/pipeline/views/expressions/test_plain_tests.py`.
* No comparison with NaN is true: `tests/pipeline/views/expressions/test_computed_numbers.py`.
* A rule of any depth and length ends with a tree or one line:
  `tests/pipeline/views/expressions/test_syntax.py`.

A further plain form: a branch in `_Compiler._condition`, and rules in `PLAIN` and
`LEFT_TO_DUCKDB` of its test.
"""

from __future__ import annotations

import functools
import gc
import operator
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any, Protocol, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from manifests.records import RuleEffect, Threshold
from pipeline.progress.view import counted_stage
from pipeline.views.rules import (
    DERIVED,
    TABLE,
    Step,
    Tree,
    borrowed_connection,
    evaluation_error,
    is_top,
    null_unless_known,
    parse,
    parse_top,
    read_all,
    to_sql,
    wheres,
)

# --------------------------------------------------------------------------------------------------
# Some rows of a pool and the database that evaluates rules over them.


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
    for index, each in enumerate(table.schema):
        kind, column = _wide(each.type), table.column(index)
        if kind != each.type:
            column = column.cast(kind)
        if pa.types.is_floating(kind):
            is_nan = pc.is_nan(column)
            if pc.any(is_nan).as_py():
                column = pc.if_else(is_nan, pa.scalar(None, kind), column)
        if column is not table.column(index):
            table = table.set_column(index, each.with_type(kind), column)
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
        self.kinds = {each.name.lower(): each for each in table.schema}
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


# --------------------------------------------------------------------------------------------------
# The exact k-th value of any number of values that come in parts, in bounded memory.
#
# Up to COLLECTED values are held, and one pass over the parts is enough. The parts of more values
# are seen several times. The first time, values are counted in 2^20 bins of their order; the bin
# with the wanted rank is divided again until few enough values lie in it to be collected. A
# column of scores needs two passes. Memory: 8 MB a histogram, 8 bytes a collected value.


BITS = 20  # of a histogram
COLLECTED = 4_000_000  # values that are held at most
SIGN = np.uint64(1 << 63)
Values = NDArray[Any]
Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The value of a rank; of `count` values `below` are less than it, `equal` equal it."""

    value: int | float
    count: int
    below: int
    equal: int


class RankSearch:
    """Finds the value of one rank: `add` every part, then `end_pass`; again until `result` is set.

    rank(count) is the wanted rank from below, from 1 to count, once the number of values is known.
    key(values) are uint64 in the order of the values; a few different values may share one.
    Without values there is no result, and `count` is 0.
    """

    def __init__(
        self, rank: Callable[[int], int], key: Callable[[Values], Keys] | None = None
    ) -> None:
        self.result: Ranked | None = None
        self.count: int | None = None
        self._rank_of = rank
        self._prefix, self._shift = np.uint64(0), 64  # keys >> shift == prefix are searched
        self._below = 0  # values less than those
        self._histogram: NDArray[np.int64] | None = None
        self._collected: list[Values] | None = []  # all values, until they are too many
        self._held = 0  # values that are collected in the first pass
        self._tallies: dict[Any, int] | None = None  # where all keys that are left are equal
        self._key = order_keys if key is None else key
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """True where no further pass is needed."""
        return self.result is not None or self.count == 0

    def add(self, values: Values) -> None:
        """One part: (n,) numbers without NaN. May be called from several threads."""
        if self._shift == 64 and self._collected is not None:
            with self._lock:
                self._hold(values)
            return
        self._add(values)

    def _hold(self, values: Values) -> None:
        """Collect values of the first pass; once they are too many, count all in bins."""
        if self._collected is None:  # another thread has reached the limit
            self._count(self._key(values))
            return
        self._collected.append(values)
        self._held += len(values)
        if self._held > COLLECTED:
            collected, self._collected = self._collected, None
            for each in collected:
                self._count(self._key(each))

    def _count(self, keys: Keys) -> None:
        """Count keys in bins. The caller holds the lock."""
        bins = (keys >> np.uint64(self._next_shift)) & np.uint64((1 << BITS) - 1)
        counts = np.bincount(bins.astype(np.int64), minlength=1 << BITS)
        if self._histogram is None:
            self._histogram = counts
        else:
            self._histogram += counts

    def _add(self, values: Values) -> None:
        keys = self._key(values)
        if self._shift < 64:
            inside = (keys >> np.uint64(self._shift)) == self._prefix
            keys, values = keys[inside], values[inside]
        if self._tallies is not None:
            each, counts = np.unique(values, return_counts=True)
            with self._lock:
                for value, count in zip(each, counts.tolist(), strict=True):
                    self._tallies[value] = self._tallies.get(value, 0) + count
            return
        if self._collected is not None:
            with self._lock:
                self._collected.append(values)
            return
        with self._lock:
            self._count(keys)

    @property
    def _next_shift(self) -> int:
        return max(0, self._shift - BITS)

    def end_pass(self) -> None:
        """All parts were added."""
        if self._tallies is not None:
            self._finish(self._tallies)
            return
        if self._collected is not None:
            if self._shift == 64:
                self.count = self._held
            if self.count:
                self._finish(self._around(np.concatenate(self._collected)))
            return
        assert self._histogram is not None
        if self.count is None:
            self.count = int(self._histogram.sum())
        rank = self._rank_of(self.count)
        assert 1 <= rank <= self.count
        ends = self._below + np.cumsum(self._histogram)
        chosen = int(np.searchsorted(ends, rank))
        inside = int(self._histogram[chosen])
        self._below = int(ends[chosen]) - inside
        width = self._shift - self._next_shift
        high = int(self._prefix) << width if self._shift < 64 else 0
        self._prefix, self._shift = np.uint64(high | chosen), self._next_shift
        if self._shift == 0:
            self._tallies = {}
        elif inside <= COLLECTED:
            self._collected = []
        self._histogram = None

    def _around(self, values: Values) -> dict[Any, int]:
        """The value of the rank among those that were collected, and how many lie below it."""
        assert self.count is not None
        rank = self._rank_of(self.count) - self._below - 1
        assert 0 <= rank < len(values)
        value = np.partition(values, rank)[rank]
        value = values.dtype.type(value + 0)  # 0.0 for -0.0, which it equals
        self._below += int((values < value).sum())
        return {value: int((values == value).sum())}

    def _finish(self, tallies: Mapping[Any, int]) -> None:
        """tallies: how often each of the values occurs that are left."""
        assert self.count is not None
        rank, below = self._rank_of(self.count), self._below
        for value in sorted(tallies):
            if below + tallies[value] >= rank:
                self.result = Ranked(
                    value=value.item(), count=self.count, below=below, equal=tallies[value]
                )
                return
            below += tallies[value]
        raise AssertionError(f"rank {rank} lies above all {below} values")


def order_keys(values: Values) -> Keys:
    """(n,) keys in the order of the values. Whole numbers above 2^53 may share a key."""
    numbers = values.astype(np.float64) + 0.0  # -0.0 becomes 0.0, which it equals
    bits = numbers.view(np.int64)
    flipped: Keys = bits.view(np.uint64) ^ ((bits >> 63).view(np.uint64) | SIGN)
    return flipped


# --------------------------------------------------------------------------------------------------
# Units of work in as many threads as there are cores, their results in order.


T = TypeVar("T")
THREADS = max(1, os.cpu_count() or 1)


@contextmanager
def few_collections() -> Iterator[None]:
    """Fewer garbage collections in the body: a full one looks at the objects of all imported
    modules, takes 0.1 s, and finds nothing here.
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.collect(1)  # of what the body made; else the old limits start a full one at once
        gc.set_threshold(*usual)


def map_units(units: int, work: Callable[[int], T], stage: str = "choose") -> Iterator[T]:
    """work(0), work(1), …: a few of them at a time, in threads. The first error ends the rest.

    DuckDB, Arrow and NumPy release Python's lock for most of their time.
    """
    with counted_stage(stage, units, brief=True) as counter:
        for unit, result in enumerate(_results(units, work)):
            counter.ended(str(unit), {})
            yield result


def _results(units: int, work: Callable[[int], T]) -> Iterator[T]:
    if units <= 1 or THREADS == 1:
        yield from map(work, range(units))
        return
    running: deque[Future[T]] = deque()
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="views")
    try:
        for unit in range(units):
            running.append(threads.submit(work, unit))
            if len(running) >= 2 * THREADS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


# --------------------------------------------------------------------------------------------------
# Tests of rows that NumPy evaluates: comparisons of columns with constants, in, and, or, not.
#
# They are what most rules consist of, and cost a tenth of the same rule in DuckDB. Only what
# gives exactly DuckDB's answer is one of them; `plain_test` is None for every other expression:
#
# - whole columns of up to 64 bits with whole numbers;
# - float columns with numbers of few enough digits that the constant has one nearest value of the
#   column's type, and with top();
# - text with = , <> and IN; boolean columns alone;
# - least() and greatest() of columns of one type.
#
# A row with NULL or NaN in a column that is read is missing, so no test has a third value. SQL
# that speaks of NULL is not plain.


Values_plain_tests = np.ndarray[Any, np.dtype[Any]]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "COMPARE_EQUAL": operator.eq,
    "COMPARE_NOTEQUAL": operator.ne,
    "COMPARE_LESSTHAN": operator.lt,
    "COMPARE_LESSTHANOREQUALTO": operator.le,
    "COMPARE_GREATERTHAN": operator.gt,
    "COMPARE_GREATERTHANOREQUALTO": operator.ge,
}
TURNED = {
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}
INTEGER = re.compile(r"-?[0-9]{1,18}")
DECIMAL = re.compile(r"-?(?=[0-9.]{2,16}$)[0-9]*\.[0-9]*")
# A quotient of two whole numbers below these is rounded once, in any order of conversions.
EXACT = {pa.float32(): 2**24, pa.float64(): 2**53}
LONGEST_FRACTION = 10  # digits; 10^10 is exact in 32 bits
FEW_CHOICES = 4  # of IN; more are looked up in a set


class Columns(Protocol):
    """Some rows, column by column; `part_rows.PartRows`."""

    def numbers(self, name: str) -> tuple[Values_plain_tests, Mask | None]:
        """((rows,) the values of a column of numbers or booleans, any value where it is NULL,
        (rows,) where it is NULL or NaN; None for nowhere)."""
        ...

    def texts(self, name: str) -> tuple[pa.ChunkedArray, Mask | None]:
        """The same of a column of text."""
        ...


Condition = Callable[[Columns], Mask]
Resolve = Callable[[Tree], int | float]  # a call of top() -> its number


@dataclass(frozen=True, slots=True)
class PlainTest:
    """A boolean expression over columns, of which no row may lack a value."""

    condition: Condition
    numbers: tuple[str, ...]  # columns of numbers and booleans
    texts: tuple[str, ...]

    def evaluate(self, columns: Columns) -> tuple[Mask, Mask | None]:
        """((rows,) for which it is true, (rows,) for which a value is missing; None for none)."""
        missing: Mask | None = None
        for name in self.numbers:
            missing = _either(missing, columns.numbers(name)[1])
        for name in self.texts:
            missing = _either(missing, columns.texts(name)[1])
        passed = self.condition(columns)
        return passed if missing is None else passed & ~missing, missing


def _either(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other


def plain_test(
    expression: Tree, kinds: Mapping[str, pa.Field], threshold: Resolve
) -> PlainTest | None:
    """An expression as a test; None where DuckDB has to evaluate it.

    kinds: columns by their names in lower case.
    """
    try:
        return _Compiler(kinds, threshold).test(expression)
    except _NotPlainError:
        return None


class _NotPlainError(Exception):
    """The expression is left to DuckDB."""


@dataclass(frozen=True, slots=True)
class _Operand:
    kind: pa.DataType
    values: Callable[[Columns], Any]
    key: str  # equal for equal operands


class _Compiler:
    def __init__(self, kinds: Mapping[str, pa.Field], threshold: Resolve) -> None:
        self._kinds, self._threshold = kinds, threshold
        self._numbers: dict[str, None] = {}
        self._texts: dict[str, None] = {}

    def test(self, expression: Tree) -> PlainTest:
        condition = self._condition(expression, 0)
        return PlainTest(condition, tuple(self._numbers), tuple(self._texts))

    def _condition(self, node: Tree, depth: int) -> Condition:
        if depth > 50:  # of parentheses with AND and OR in turns
            raise _NotPlainError
        kind, name = node["class"], node["type"]
        if kind == "COMPARISON" and name in COMPARISONS:
            return self._comparison(name, node["left"], node["right"])
        if kind == "BETWEEN" and name == "COMPARE_BETWEEN":
            operand = self._operand(node["input"])
            lower = self._compared(operator.ge, operand, node["lower"])
            upper = self._compared(operator.le, operand, node["upper"])
            return lambda columns: lower(columns) & upper(columns)
        if kind == "CONJUNCTION":
            return self._conjunction(name, node["children"], depth)
        if kind == "OPERATOR" and name == "OPERATOR_NOT":
            inner = self._condition(node["children"][0], depth + 1)
            return lambda columns: ~inner(columns)
        if kind == "OPERATOR" and name == "COMPARE_IN":
            return self._choice(self._operand(node["children"][0]), node["children"][1:])
        if kind == "COLUMN_REF":
            flag = self._operand(node)
            if flag.kind == pa.bool_():
                return flag.values
        raise _NotPlainError

    def _conjunction(self, name: str, children: Sequence[Tree], depth: int) -> Condition:
        """AND or OR. What compares one operand with = in an OR becomes one set of choices."""
        if name == "CONJUNCTION_AND":
            parts = [self._condition(child, depth + 1) for child in children]
            return lambda columns: _reduced(np.logical_and, parts, columns)
        choices: dict[str, tuple[_Operand, list[Tree]]] = {}
        parts = []
        for child in children:
            sides = None
            if child["type"] == "COMPARE_EQUAL":
                sides = _column_and_constant(child["left"], child["right"])
            if sides is None:
                parts.append(self._condition(child, depth + 1))
                continue
            operand = self._operand(sides[0])
            choices.setdefault(operand.key, (operand, []))[1].append(sides[1])
        for operand, constants in choices.values():
            parts.append(self._choice(operand, constants))
        return lambda columns: _reduced(np.logical_or, parts, columns)

    def _comparison(self, name: str, left: Tree, right: Tree) -> Condition:
        if left["class"] == "CONSTANT" or is_top(left):
            left, right, name = right, left, TURNED.get(name, name)
        return self._compared(COMPARISONS[name], self._operand(left), right)

    def _compared(
        self, compare: Callable[[Any, Any], Any], operand: _Operand, constant: Tree
    ) -> Condition:
        value = self._constant(constant, operand.kind)
        if pa.types.is_string(operand.kind):
            if compare not in (operator.eq, operator.ne):
                raise _NotPlainError  # DuckDB's order of text is not looked at here
            function = pc.equal if compare is operator.eq else pc.not_equal
            return lambda columns: _mask(function(operand.values(columns), value))
        if operand.kind == pa.bool_():
            raise _NotPlainError
        return lambda columns: compare(operand.values(columns), value)

    def _choice(self, operand: _Operand, constants: Sequence[Tree]) -> Condition:
        if operand.kind == pa.bool_():
            raise _NotPlainError
        values = [self._constant(constant, operand.kind) for constant in constants]
        if pa.types.is_string(operand.kind):
            choices = pa.array(values, operand.kind)
            return lambda columns: _mask(pc.is_in(operand.values(columns), value_set=choices))
        several = np.unique(np.array(values))
        if len(several) > FEW_CHOICES:
            return lambda columns: np.isin(operand.values(columns), several)
        equals = [functools.partial(_equal, operand, value) for value in several]
        return lambda columns: _reduced(np.logical_or, equals, columns)

    def _operand(self, node: Tree) -> _Operand:
        """A column, or the least or greatest of columns of one type."""
        if node["class"] == "COLUMN_REF":
            return self._column(node)
        name = str(node.get("function_name", "")).lower()
        if node["class"] != "FUNCTION" or name not in ("least", "greatest"):
            raise _NotPlainError
        columns = [self._column(each.get("expression", each)) for each in _arguments(node)]
        kind = columns[0].kind if columns else pa.null()
        is_number = pa.types.is_integer(kind) or kind == pa.float64() or kind == pa.float32()
        if not is_number or any(column.kind != kind for column in columns):
            raise _NotPlainError
        function = np.minimum if name == "least" else np.maximum
        getters = [column.values for column in columns]
        key = "\0".join([name, *[column.key for column in columns]])
        return _Operand(kind, lambda rows: _reduced(function, getters, rows), key)

    def _column(self, node: Tree) -> _Operand:
        if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
            raise _NotPlainError
        field = self._kinds.get(str(node["column_names"][0]).lower())
        if field is None:
            raise _NotPlainError
        name, kind = field.name, field.type
        if pa.types.is_string(kind):
            self._texts[name] = None
            return _Operand(kind, lambda columns: columns.texts(name)[0], name)
        is_signed = pa.types.is_integer(kind) and kind != pa.uint64()
        if not (is_signed or kind in EXACT or kind == pa.bool_()):
            raise _NotPlainError
        self._numbers[name] = None
        return _Operand(kind, lambda columns: columns.numbers(name)[0], name)

    def _constant(self, node: Tree, kind: pa.DataType) -> Any:
        """A constant as it is compared with values of a type."""
        if is_top(node):
            number = self._threshold(node)
            if pa.types.is_integer(kind) and isinstance(number, int):
                return _whole(number)
            if kind in EXACT and isinstance(number, float):
                return np.float64(number)  # 32 bits become 64 for it, in DuckDB too
            raise _NotPlainError
        if node["class"] != "CONSTANT" or not isinstance(node.get("literal"), dict):
            raise _NotPlainError
        literal, text = node["literal"]["kind"], str(node["literal"]["text"])
        if pa.types.is_string(kind):
            if literal != "STRING":
                raise _NotPlainError
            return text
        if literal == "INTEGER" and INTEGER.fullmatch(text):
            if pa.types.is_integer(kind):
                return _whole(int(text))
            return _rounded(Fraction(text), 0, kind)
        if literal == "NUMERIC" and DECIMAL.fullmatch(text) and kind in EXACT:
            return _rounded(Fraction(text), len(text.partition(".")[2]), kind)
        raise _NotPlainError


def _arguments(call: Tree) -> Sequence[Tree]:
    arguments: Sequence[Tree] = call.get("arguments") or call.get("children") or []
    return arguments


def _column_and_constant(left: Tree, right: Tree) -> tuple[Tree, Tree] | None:
    if left["class"] == "COLUMN_REF" and right["class"] == "CONSTANT":
        return left, right
    if left["class"] == "CONSTANT" and right["class"] == "COLUMN_REF":
        return right, left
    return None


def _whole(number: int) -> np.int64:
    """A number of 64 bits, so that NumPy converts the column and not the number."""
    if not -(2**63) <= number < 2**63:
        raise _NotPlainError
    return np.int64(number)


def _rounded(number: Fraction, digits: int, kind: pa.DataType) -> Any:
    """A decimal number as the nearest value of a float type. digits: after its point."""
    whole = int(number * 10**digits)
    if abs(whole) >= EXACT[kind] or digits > LONGEST_FRACTION:
        raise _NotPlainError
    return np.float32(float(number)) if kind == pa.float32() else np.float64(float(number))


def _reduced(function: Any, parts: Sequence[Callable[[Columns], Any]], columns: Columns) -> Any:
    result = parts[0](columns)
    for part in parts[1:]:
        result = function(result, part(columns))
    return result


def _equal(operand: _Operand, value: Any, columns: Columns) -> Mask:
    equal: Mask = operand.values(columns) == value
    return equal


def _mask(answer: Any) -> Mask:
    mask: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask


# --------------------------------------------------------------------------------------------------
# The steps of a view as tests of single rows: thresholds are numbers, random draws are limits.
#
# What is a number for the whole pool (the k-th value of a column, the k-th hash) is found here,
# in passes over the parts of the pool.


# A query costs about a millisecond of CPU besides the rows that it reads.
TESTS_PER_QUERY = 32
KEPT, UNSTORED, FIRST_STEP = 0, 1, 2  # codes of outcomes; each step has two: failed, missing
Codes = np.ndarray[Any, np.dtype[np.int32]]


class PartColumns(Protocol):
    """Some rows and where they begin in the pool; `choose.Part`."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def first_row(self) -> int: ...


class Rows(Protocol):
    """The rows of a pool in parts; `choose.Source`."""

    units: int

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[PartColumns]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTest:
    """One step. Exactly one of `sql`, `plain` and `limit` is set."""

    step: Step
    sql: str | None = None
    plain: PlainTest | None = None
    limit: int | None = None  # stored rows with a smaller hash pass
    # Rows of the pool with the hash `limit` that pass too.
    ties: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Top:
    """One top(column, share)."""

    step: Step  # the first that has it
    call: str  # as the rule spells it
    column: str
    share: Fraction


def sizes_needed(steps: Iterable[Step]) -> set[str]:
    """The views whose size the random steps need."""
    return {step.random_like for step in steps if step.random_like is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A step before its thresholds are known."""

    step: Step
    test: RowTest | None  # None for a random step, and where thresholds are missing
    tops: dict[str, _Top]  # by the call as the rule spells it


def check_steps(rows: PartRows, steps: Sequence[Step]) -> list[_Draft]:
    """ValueError for SQL that would fail on any rows. What could be found out about each step.

    rows: none, with all columns.
    """
    read_all(rows.connection, wheres(steps))
    drafts = [_draft(rows, step) for step in steps]
    tests = [draft.test for draft in drafts if draft.test is not None]
    with_sql = [test for test in tests if test.sql is not None]
    for start in range(0, len(with_sql), TESTS_PER_QUERY):
        _check_types(rows, with_sql[start : start + TESTS_PER_QUERY])
    return [replace(draft, test=None) if draft.tops else draft for draft in drafts]


def _draft(rows: PartRows, step: Step) -> _Draft:
    tops: dict[str, _Top] = {}

    def threshold(call: str, column: str, share: Fraction) -> int | float:
        tops[call] = _Top(step=step, call=call, column=column, share=share)
        kind, _ = _numbers(rows, tops[call])  # refuses text before any row is read
        return 0 if pa.types.is_integer(kind) else 0.0

    test = None if step.where is None else _where_test(rows, step, threshold)
    return _Draft(step=step, test=test, tops=tops)


def _check_types(rows: PartRows, tests: Sequence[RowTest]) -> None:
    """ValueError for a test with SQL that is not boolean."""
    try:
        kinds = rows.types_of([str(test.sql) for test in tests])
    except duckdb.Error as error:
        if len(tests) == 1:
            raise evaluation_error(tests[0].step, error) from None
        for test in tests:
            _check_types(rows, [test])
        raise AssertionError("expressions that DuckDB refuses together, and none alone") from None
    for test, kind in zip(tests, kinds, strict=True):
        if kind != "BOOLEAN":
            raise test.step.error(f"it gives {kind}, not true or false")


def compile_views(
    rows: PartRows, views: Mapping[str, Sequence[Step]], source: Rows, sizes: Mapping[str, int]
) -> dict[str, tuple[list[RowTest], dict[str, Threshold]]]:
    """The tests of each view and its resolved thresholds, by the call as the rule spells it.

    sizes: of the views that random steps name.
    """
    drafts = {name: check_steps(rows, steps) for name, steps in views.items()}
    wanted: dict[tuple[str, Fraction], _Top] = {}
    for of_view in drafts.values():
        for draft in of_view:
            wanted |= {(top.column, top.share): top for top in draft.tops.values()}
    draws = {}
    for steps in views.values():
        for step in steps:
            if step.random_like is not None:
                draws[step.seed, sizes[step.random_like]] = step
    ranked = _find_tops(rows, source, wanted)
    drawn = size_limits(source, draws)
    compiled = {}
    for name in views:
        thresholds: dict[str, Threshold] = {}
        tests = []
        for draft in drafts[name]:
            for call, top in draft.tops.items():
                thresholds[call] = _threshold(ranked[top.column, top.share], top.share)
            test = draft.test or row_test(rows, draft.step, thresholds, drawn, sizes)
            tests.append(test)
        compiled[name] = tests, thresholds
    return compiled


class ViewCounts:
    """Counts of one view over some rows; `+` joins them."""

    def __init__(self, tests: int) -> None:
        self.left = np.zeros(tests + 1, np.int64)  # stored rows, then rows after each test
        self.rejected = np.zeros(tests, np.int64)  # of the stored rows
        self.alone = np.zeros(tests, np.int64)  # of them those that no other test rejects
        self.known = np.ones(tests, np.bool_)  # the test can be evaluated on all stored rows

    def __iadd__(self, other: ViewCounts) -> ViewCounts:
        self.left += other.left
        self.rejected += other.rejected
        self.alone += other.alone
        self.known &= other.known
        return self

    def effects(self, steps: Sequence[Step]) -> tuple[RuleEffect, ...]:
        """What each of several steps rejects of all stored rows, and what it alone rejects."""
        if len(steps) < 2:
            return ()
        all_known, effects = bool(self.known.all()), []
        for i, step in enumerate(steps):
            rejected = int(self.rejected[i]) if self.known[i] else None
            alone = int(self.alone[i]) if all_known else None
            effects.append(RuleEffect(rule=step.name, rejected=rejected, alone=alone))
        return tuple(effects)


def outcome_codes(rows: PartRows, tests: Sequence[RowTest]) -> tuple[Codes, ViewCounts]:
    """((rows,) the outcome of each row, counts of them)."""
    alive = rows.stored.copy()
    codes: Codes = np.where(alive, KEPT, UNSTORED).astype(np.int32)
    counts = ViewCounts(len(tests))
    counts.left[0] = np.count_nonzero(alive)
    times = np.zeros(len(alive), np.int32)  # how many tests reject a row
    last = np.zeros(len(alive), np.int32)  # the last of them
    answers = _answers(rows, tests)
    for number, test in enumerate(tests):
        passed, missing, on_all = _evaluated(rows, number, test, alive, answers)
        counts.known[number] = on_all
        if on_all:
            rejected = rows.stored & ~passed
            counts.rejected[number] = np.count_nonzero(rejected)
            times += rejected
            last[rejected] = number
        failed = np.flatnonzero(alive & ~passed)
        codes[failed] = FIRST_STEP + 2 * number
        if missing is not None:
            codes[failed[missing[failed]]] = FIRST_STEP + 2 * number + 1
        alive &= passed
        counts.left[number + 1] = np.count_nonzero(alive)
    counts.alone[:] = np.bincount(last[times == 1], minlength=len(tests))
    return codes, counts


def _evaluated(
    rows: PartRows,
    number: int,
    test: RowTest,
    alive: Mask,
    answers: dict[int, pa.ChunkedArray],
) -> tuple[Mask, Mask | None, bool]:
    """What `passed_of_stored` gives; None for no row in which a value is missing."""
    if test.plain is not None:
        return *test.plain.evaluate(rows), True
    if number in answers:
        answer = answers.pop(number)
        return is_true(answer), is_true(pc.is_null(answer)), True
    return passed_of_stored(rows, test, alive)


def _answers(rows: PartRows, tests: Sequence[RowTest]) -> dict[int, pa.ChunkedArray]:
    """The answers of tests for all stored rows, by number of the test. Tests that share a query
    with one that fails are not among them.
    """
    with_sql = [(number, test.sql) for number, test in enumerate(tests) if test.sql is not None]
    answers: dict[int, pa.ChunkedArray] = {}
    for start in range(0, len(with_sql), TESTS_PER_QUERY):
        group = with_sql[start : start + TESTS_PER_QUERY]
        try:
            columns = rows.evaluate_all([sql for _, sql in group], rows.stored)
        except duckdb.Error:
            continue
        for (number, _), column in zip(group, columns, strict=True):
            answers[number] = column
    return answers


def passed_of_stored(rows: PartRows, test: RowTest, alive: Mask) -> tuple[Mask, Mask, bool]:
    """(passed, missing, whether they are of all stored rows). A test may fail on rows that the
    tests before it reject (a cast of a text, say): then they are of the rows that are left.
    """
    try:
        return *_passed(rows, test, rows.stored), True
    except ValueError:
        return *_passed(rows, test, alive), False


# --- one step -----------------------------------------------------------------------------------


def _where_test(
    rows: PartRows, step: Step, threshold: Callable[[str, str, Fraction], int | float]
) -> RowTest:
    """A step with SQL as a test of rows: by NumPy where that gives the same answers. SQL is NULL
    where a column that it reads is NULL.

    threshold: (call, column, share) -> number, for each top().
    """
    connection = rows.connection
    try:
        expression = parse(connection, step, rows.known)

        def of_call(call: Tree) -> int | float:
            return threshold(*parse_top(connection, step, call))

        plain = plain_test(expression.tree["select_list"][0], rows.kinds, of_call)
        if plain is not None:
            return RowTest(step=step, plain=plain)
        sql = to_sql(connection, expression, step, threshold, rows.types_of)
    except duckdb.Error as error:
        raise evaluation_error(step, error) from None
    return RowTest(step=step, sql=null_unless_known(sql, expression.not_null))


def row_test(
    rows: PartRows,
    step: Step,
    thresholds: Mapping[str, Threshold],
    drawn: Mapping[tuple[int, int], tuple[int, frozenset[int]]],
    sizes: Mapping[str, int],
) -> RowTest:
    """A step as a test of rows: thresholds by call, limits of draws by (seed, size)."""
    if step.sample is not None:
        return RowTest(step=step, limit=int(Fraction(str(step.sample)) * 2**64))
    if step.random_like is not None:
        limit, ties = drawn[step.seed, sizes[step.random_like]]
        return RowTest(step=step, limit=limit, ties=ties)
    return _where_test(rows, step, lambda call, *_: thresholds[call].value)


def _passed(rows: PartRows, test: RowTest, alive: Mask) -> tuple[Mask, Mask]:
    """((rows,) for which rows the test is true, (rows,) for which it is NULL)."""
    if test.plain is not None:
        passed, missing = test.plain.evaluate(rows)
        return passed, np.zeros_like(alive) if missing is None else missing
    if test.sql is None:
        return _drawn(rows, test), np.zeros_like(alive)
    try:
        answer = rows.evaluate(test.sql, alive)
    except duckdb.Error as error:
        raise evaluation_error(test.step, error) from None
    return is_true(answer), is_true(pc.is_null(answer))


def _drawn(rows: PartRows, test: RowTest) -> Mask:
    assert test.limit is not None
    if test.limit == 0:
        return np.zeros_like(rows.stored)
    # A limit of 2^64 does not fit its type.
    mask = rows.of_stored(rows.stored_hashes(test.step.seed) <= np.uint64(test.limit - 1))
    inside = [tie - rows.first_row for tie in test.ties]
    mask[[tie for tie in inside if 0 <= tie < len(mask)]] = True
    return mask


# --- numbers of the whole pool --------------------------------------------------------------------


def _find_tops(
    rows: PartRows, source: Rows, tops: Mapping[tuple[str, Fraction], _Top]
) -> dict[tuple[str, Fraction], Ranked]:
    """The k-th largest value of each column over the stored rows. NULL and NaN do not count."""
    searches = {}
    columns = {"status"}
    for key, top in tops.items():
        searches[key] = RankSearch(partial(_rank_from_above, top.share))
        step = Step(name=top.step.name, where=top.column, view=top.step.view)
        for column in parse(rows.connection, step, rows.known).columns:
            columns |= set(DERIVED[column][1]) if column in DERIVED else {column}

    def work(unit: int) -> None:
        with borrowed_connection() as connection:
            for part in source.parts(unit, sorted(columns)):
                part_rows = PartRows(connection, part.table, part.first_row)
                for key, search in searches.items():
                    if not search.is_done:
                        search.add(_numbers(part_rows, tops[key])[1])

    _end_searches(source, searches.values(), work)
    thresholds = {}
    for (column, share), search in searches.items():
        if search.result is None:
            top = tops[column, share]
            raise top.step.error(f"no stored row has a value for {top.call}")
        thresholds[column, share] = search.result
    return thresholds


def _end_searches(
    source: Rows, searches: Collection[RankSearch], work: Callable[[int], None]
) -> None:
    """Pass over all rows until every search has its result. `work` shows them those of a unit."""
    while not all(search.is_done for search in searches):
        for _ in map_units(source.units, work):
            pass
        for search in searches:
            if not search.is_done:
                search.end_pass()


def _size(size: int, count: int) -> int:
    return size


def _rank_from_above(share: Fraction, count: int) -> int:
    return count - ceil(share * count) + 1


def _numbers(rows: PartRows, top: _Top) -> tuple[pa.DataType, Numbers]:
    """(type of a column, (n,) its values of the stored rows without NULL and NaN)."""
    try:
        kind, numbers = rows.values_of_stored(top.column)
    except duckdb.Error as error:
        raise evaluation_error(top.step, error) from None
    if numbers is None:
        raise top.step.error(f"{top.call} needs a number, and {top.column} is {kind}")
    return kind, numbers


def _threshold(ranked: Ranked, share: Fraction) -> Threshold:
    kept = ranked.count - ranked.below
    return Threshold(
        value=ranked.value,
        asked=float(share),
        share=kept / ranked.count,
        kept=kept,
        rows=ranked.count,
    )


def size_limits(
    source: Rows, draws: Mapping[tuple[int, int], Step]
) -> dict[tuple[int, int], tuple[int, frozenset[int]]]:
    """(seed, size) -> (the size-th smallest hash, the rows with that hash that are drawn too)."""
    searches = {(seed, size): RankSearch(partial(_size, size), lambda h: h) for seed, size in draws}

    def work(unit: int) -> None:
        with borrowed_connection() as connection:
            for part in source.parts(unit, ["status", "uid"]):
                rows = PartRows(connection, part.table, part.first_row)
                for (seed, _), search in searches.items():
                    if not search.is_done:
                        search.add(rows.stored_hashes(seed))

    _end_searches(source, searches.values(), work)
    draws_made = {}
    for (seed, size), search in searches.items():
        assert search.result is not None
        ranked = search.result
        last, missing = int(ranked.value), size - ranked.below
        if missing == ranked.equal:
            draws_made[seed, size] = last + 1, frozenset[int]()
        else:
            draws_made[seed, size] = last, _first_ties(source, seed, last, missing)
    return draws_made


def _first_ties(source: Rows, seed: int, last: int, count: int) -> frozenset[int]:
    """The first `count` rows with the hash `last`: by uid, then by their place in the pool."""
    ties: list[tuple[str, int]] = []
    with borrowed_connection() as connection:
        for unit in range(source.units):
            for part in source.parts(unit, ["status", "uid"]):
                rows = PartRows(connection, part.table, part.first_row)
                same = rows.of_stored(rows.stored_hashes(seed) == np.uint64(last))
                for row in np.flatnonzero(same).tolist():
                    ties.append((str(part.table["uid"][row]), part.first_row + row))
    return frozenset(row for _, row in sorted(ties)[:count])
