"""Tests of rows that NumPy evaluates: comparisons of columns with constants, in, and, or, not.

They are what most rules consist of, and cost a tenth of the same rule in DuckDB. Only what gives
exactly DuckDB's answer is one of them; `plain_test` is None for every other expression:

- whole columns of up to 64 bits with whole numbers;
- float columns with numbers of few enough digits that the constant has one nearest value of the
  column's type, and with top();
- text with = , <> and IN; boolean columns alone;
- least() and greatest() of columns of one type.

A row with NULL or NaN in a column that is read is missing, so no test has a third value. SQL that
speaks of NULL is not plain.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.views.expressions.syntax import Tree, is_top

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Values = np.ndarray[Any, np.dtype[Any]]

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

    def numbers(self, name: str) -> tuple[Values, Mask | None]:
        """((rows,) the values of a column of numbers or booleans, any value where it is NULL,
        (rows,) where it is NULL or NaN; None for nowhere)."""
        ...

    def texts(self, name: str) -> tuple[pa.ChunkedArray, Mask | None]:
        """The same of a column of text."""
        ...


Condition = Callable[[Columns], Mask]
Threshold = Callable[[Tree], int | float]  # a call of top() -> its number


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
    expression: Tree, kinds: Mapping[str, pa.Field], threshold: Threshold
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
    def __init__(self, kinds: Mapping[str, pa.Field], threshold: Threshold) -> None:
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
