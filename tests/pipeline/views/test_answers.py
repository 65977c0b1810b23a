"""Answers of drawn rules against a reference in Python: NULL, NaN, lists, counts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmill.pipeline.views.choose import (
    FIRST_STEP,
    KEPT,
    UNSTORED,
    InMemorySource,
    PartRows,
    ViewCounts,
    compile_views,
    outcomes,
)
from clipmill.pipeline.views.rules import Step, borrowed_connection

Row = Mapping[str, Any]
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values, None for NULL and NaN."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float | np.floating) and math.isnan(value):
                row[name] = None
    return rows


@pytest.mark.parametrize(
    ("kind", "values", "number"),
    [
        (pa.float64(), [0.1, np.nextafter(0.1, 1), np.nextafter(0.1, 0)], 0.1),
        (pa.float32(), [np.float32(0.7), np.nextafter(np.float32(0.7), np.float32(1))], 0.7),
        (pa.int32(), [2, 3, 4], 3),
        (pa.int32(), [2, 3], 2.5),
        (pa.float64(), [3.0, np.nextafter(3.0, 0)], 3),
        (pa.int64(), [2**53, 2**53 + 1, 2**63 - 1, -(2**63)], 2**53 + 1),
        (pa.uint64(), [2**63, 2**63 - 1, 2**64 - 1], 2**63),
    ],
)
def test_a_threshold_is_a_number_of_64_bits(
    kind: pa.DataType, values: list[Any], number: float
) -> None:
    literal = "HUGEINT" if isinstance(number, int) else "DOUBLE"
    step = Step(name="r", where=f"x >= CAST('{number!r}' AS {literal})")
    table = pa.table({"status": ["success"] * len(values), "x": pa.array(values, kind)})
    with borrowed_connection() as connection:
        rows = PartRows(connection, table)
        tests, _ = compile_views(rows, {"v": [step]}, InMemorySource({"0": table}), {})["v"]
        (answers,) = rows.answers(tests, rows.stored)
    assert answers.tolist() == [int(value >= number) for value in table["x"].to_pylist()]


# --- drawn rules ----------------------------------------------------------------------------------

Value = Callable[[Row], Any]


@dataclass(frozen=True)
class Drawn:
    """An expression as SQL and in Python, with SQL's three values: True, False, None."""

    sql: str
    value: Value
    reads: frozenset[str] = frozenset()
    null_aware: frozenset[str] = frozenset()


def joined(sql: str, parts: list[Drawn], value: Value) -> Drawn:
    reads = frozenset[str]().union(*(part.reads for part in parts))
    null_aware = frozenset[str]().union(*(part.null_aware for part in parts))
    return Drawn(sql, value, reads, null_aware)


def column(name: str) -> Drawn:
    return Drawn(name, lambda row: row[name], frozenset({name}))


def constant(number: float) -> Drawn:
    return Drawn(f"{number}::DOUBLE", lambda row: number)


def coalesced(name: str, number: float) -> Drawn:
    def value(row: Row) -> Any:
        return number if row[name] is None else row[name]

    return Drawn(f"coalesce({name}, {number})", value, frozenset({name}), frozenset({name}))


def computed(symbol: str, left: Drawn, right: Drawn) -> Drawn:
    def value(row: Row) -> float | None:
        a, b = left.value(row), right.value(row)
        if a is None or b is None:
            return None
        with np.errstate(all="ignore"):
            x, y = np.float64(a), np.float64(b)
            return float({"+": x + y, "-": x - y, "*": x * y, "/": x / y}[symbol])

    return joined(f"({left.sql} {symbol} {right.sql})", [left, right], value)


def extreme(name: str, left: Drawn, right: Drawn) -> Drawn:
    def value(row: Row) -> Any:  # NULL is skipped
        values = [each for each in (left.value(row), right.value(row)) if each is not None]
        return (min if name == "least" else max)(values, default=None)

    return joined(f"{name}({left.sql}, {right.sql})", [left, right], value)


def number_of(operand: Drawn, row: Row) -> Any:
    """What a comparison compares: nothing in place of NaN."""
    value = operand.value(row)
    return None if value is None or math.isnan(value) else value


def comparison(symbol: str, left: Drawn, right: Drawn) -> Drawn:
    def value(row: Row) -> bool | None:
        a, b = number_of(left, row), number_of(right, row)
        return None if a is None or b is None else OPERATORS[symbol](a, b)

    return joined(f"{left.sql} {symbol} {right.sql}", [left, right], value)


def between(operand: Drawn, low: float, high: float) -> Drawn:
    def value(row: Row) -> bool | None:
        a = number_of(operand, row)
        return None if a is None else low <= a <= high

    return joined(f"{operand.sql} BETWEEN {low} AND {high}", [operand], value)


def one_of(operand: Drawn, numbers: Sequence[float], negated: bool) -> Drawn:
    def value(row: Row) -> bool | None:
        a = number_of(operand, row)
        return None if a is None else (a in numbers) != negated

    listed = ", ".join(str(number) for number in numbers)
    return joined(f"{operand.sql} {'NOT ' * negated}IN ({listed})", [operand], value)


def text_of(texts: list[str], negated: bool) -> Drawn:
    def value(row: Row) -> bool | None:
        return None if row["t"] is None else (row["t"] in texts) != negated

    listed = ", ".join(f"'{text}'" for text in texts)
    return Drawn(f"t {'NOT ' * negated}IN ({listed})", value, frozenset({"t"}))


def is_null(name: str, negated: bool) -> Drawn:
    def value(row: Row) -> bool:
        return (row[name] is None) != negated

    sql = f"{name} IS {'NOT ' * negated}NULL"
    return Drawn(sql, value, frozenset({name}), frozenset({name}))


def negation(inner: Drawn) -> Drawn:
    def value(row: Row) -> bool | None:
        a = inner.value(row)
        return None if a is None else not a

    return joined(f"NOT ({inner.sql})", [inner], value)


def conjunction(word: str, left: Drawn, right: Drawn) -> Drawn:
    decisive = word == "OR"

    def value(row: Row) -> bool | None:
        values = left.value(row), right.value(row)
        if decisive in values:
            return decisive
        return None if None in values else not decisive

    return joined(f"({left.sql}) {word} ({right.sql})", [left, right], value)


def choice(condition: Drawn, then: Drawn, other: Drawn) -> Drawn:
    def value(row: Row) -> bool | None:
        return then.value(row) if condition.value(row) else other.value(row)

    sql = f"CASE WHEN {condition.sql} THEN {then.sql} ELSE {other.sql} END"
    return joined(sql, [condition, then, other], value)


DOUBLES = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.0, -1.5, 0.25]
SMALL = st.sampled_from([0.0, 1.0, 2.0, -1.5, 0.25])
NAMES = st.sampled_from(["d", "e", "i"])
OPERANDS = st.recursive(
    st.one_of(
        NAMES.map(column), SMALL.map(constant), st.builds(coalesced, st.sampled_from("de"), SMALL)
    ),
    lambda inner: st.builds(computed, st.sampled_from("+-*/"), inner, inner),
    max_leaves=3,
)
EXTREMES = st.builds(
    extreme, st.sampled_from(["least", "greatest"]), NAMES.map(column), NAMES.map(column)
)
LISTS = st.lists(SMALL, min_size=1, max_size=4)
FEW_TEXTS = st.lists(st.sampled_from(["a", "b", "é"]), min_size=1, max_size=3)
TEXTS = st.one_of(FEW_TEXTS, FEW_TEXTS.map(lambda texts: [*texts, *(f"x{i}" for i in range(25))]))
TESTS = st.recursive(
    st.one_of(
        st.builds(comparison, st.sampled_from(list(OPERATORS)), OPERANDS, OPERANDS | EXTREMES),
        st.builds(between, OPERANDS, SMALL, SMALL),
        st.builds(one_of, OPERANDS, LISTS, st.booleans()),
        st.builds(one_of, st.just(column("i")), st.just(range(1, 40)), st.booleans()),
        st.builds(text_of, TEXTS, st.booleans()),
        st.builds(is_null, st.sampled_from("deitb"), st.booleans()),
        st.just(column("b")),
    ),
    lambda inner: st.one_of(
        st.builds(negation, inner),
        st.builds(conjunction, st.sampled_from(["AND", "OR"]), inner, inner),
        st.builds(choice, inner, inner, inner),
    ),
    max_leaves=4,
)
DRAWN_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["success", "success", "success", "failed"]),
        st.sampled_from(DOUBLES),
        st.sampled_from(DOUBLES),
        st.sampled_from([None, 0, 1, 2, -3]),
        st.sampled_from([None, "a", "b", "é", "x3"]),
        st.sampled_from([None, True, False]),
    ),
    min_size=1,
    max_size=30,
)
KINDS = {
    "status": pa.string(),
    "d": pa.float64(),
    "e": pa.float64(),
    "i": pa.int32(),
    "t": pa.string(),
    "b": pa.bool_(),
}


def expected_answer(rule: Drawn, row: Row) -> bool | None:
    if any(row[name] is None for name in rule.reads - rule.null_aware):
        return None
    value: bool | None = rule.value(row)
    return value


def expected_outcomes(rules: list[Drawn], rows: list[dict[str, Any]]) -> tuple[list[int], Any]:
    """The codes of the rows, and their counts, row by row."""
    codes, counts = [], ViewCounts(len(rules))
    for row in rows:
        if row["status"] != "success":
            codes.append(UNSTORED)
            continue
        answers = [expected_answer(rule, row) for rule in rules]
        failed = [number for number, each in enumerate(answers) if each is not True]
        first = failed[0] if failed else len(rules)
        counts.left[: first + 1] += 1
        counts.rejected[failed] += 1
        if len(failed) == 1:
            counts.alone[first] += 1
        missing = bool(failed) and answers[first] is None
        codes.append(FIRST_STEP + 2 * first + missing if failed else KEPT)
    return codes, counts


@settings(max_examples=40)
@given(st.lists(st.lists(TESTS, min_size=1, max_size=3), min_size=1, max_size=3), DRAWN_ROWS)
def test_outcomes_of_drawn_views(views: list[list[Drawn]], values: list[tuple[Any, ...]]) -> None:
    table = pa.table(
        {name: pa.array([row[number] for row in values], kind)
         for number, (name, kind) in enumerate(KINDS.items())}
    )  # fmt: skip
    steps = {}
    for number, rules in enumerate(views):
        steps[f"v{number}"] = [
            Step(name=f"r{place}", where=rule.sql) for place, rule in enumerate(rules)
        ]
    with borrowed_connection() as connection:
        empty = PartRows(connection, table.schema.empty_table())
        compiled = compile_views(empty, steps, InMemorySource({"0": table}), {})
        tests = {name: of_view for name, (of_view, _) in compiled.items()}
        made = outcomes(PartRows(connection, table), tests)
    for rules, (codes, counts) in zip(views, made.values(), strict=True):
        expected_codes, expected = expected_outcomes(rules, rows_of(table))
        assert codes.tolist() == expected_codes, [rule.sql for rule in rules]
        assert counts.left.tolist() == expected.left.tolist()
        assert counts.rejected.tolist() == expected.rejected.tolist()
        assert counts.alone.tolist() == expected.alone.tolist()
