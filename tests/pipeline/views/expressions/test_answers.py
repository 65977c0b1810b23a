"""Answers of rules against a reference in Python: constants, types, NULL, NaN, lists, counts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.views.choose import InMemorySource
from pipeline.views.row_tests import (
    FIRST_STEP,
    KEPT,
    MISSING,
    UNSTORED,
    PartRows,
    ViewCounts,
    compile_views,
    outcomes,
    stored_answers,
)
from pipeline.views.rules import Step, borrowed_connection

Row = Mapping[str, Any]
CONSTANTS = ["0.7", "-1.5", "3", "0.1", "16777215", "0.3333333", ".5", "2.", "-0.0001234", "0.28"]
RNG = np.random.default_rng(0)


def around(kind: Any) -> np.ndarray[Any, Any]:
    """Values next to the constants, zeros, infinities, NaN, and others."""
    exact = np.array([float(text) for text in CONSTANTS]).astype(kind)
    steps = [exact, np.nextafter(exact, kind(np.inf)), np.nextafter(exact, kind(-np.inf))]
    others = [[0.0, -0.0, np.inf, -np.inf, np.nan], RNG.normal(size=200)]
    return np.concatenate([*steps, *others]).astype(kind)


def with_nulls(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind, mask=RNG.random(len(values)) < 0.1)


def table() -> pa.Table:
    double = around(np.float64)
    count = len(double)
    single = np.resize(around(np.float32), count)
    whole = np.resize([-3, -1, 0, 1, 2, 3, 4, 5, 300, 2**31 - 1], count)
    long = np.resize([-(2**63), 2**63 - 1, 2**53, 2**53 + 1, 3, 0, 16777215], count)
    texts = np.resize(["ja", "en", "de", "", "ja ", "JA", "é", "it's"], count)
    prices = [Decimal(text) for text in np.resize(["0.10", "2.50", "-1.00", "0.10"], count)]
    return pa.table(
        {
            "status": np.resize(["success", "success", "failed"], count),
            "double": with_nulls(double, pa.float64()),
            "single": with_nulls(single, pa.float32()),
            "small": with_nulls(np.resize([0, 1, 2, 3, 100, 127], count), pa.int8()),
            "whole": with_nulls(whole, pa.int32()),
            "other": with_nulls(RNG.permutation(whole), pa.int32()),
            "Long": with_nulls(long, pa.int64()),
            "unsigned": with_nulls(np.resize([0, 1, 3, 255], count), pa.uint8()),
            "flag": with_nulls(np.resize([True, False, True], count), pa.bool_()),
            "lang": with_nulls(texts, pa.string()),
            "huge": with_nulls(
                np.resize(np.array([1, 2, 3, 2**64 - 1], np.uint64), count), pa.uint64()
            ),
            "half": pa.array(np.resize([0.5, 1.0, np.nan], count), pa.float16()),
            "price": pa.array(prices, pa.decimal128(9, 2)),
        }
    )


ROWS = table()
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NEAREST: dict[str, Callable[[str], Any]] = {
    "double": float,
    "single": lambda text: float(np.float32(text)),
}


@dataclass(frozen=True)
class Case:
    """A rule. `true`: for which rows without a missing value; reads: the columns, by name."""

    where: str
    reads: str
    true: Callable[[Row], bool | None]


def compared(left: str, symbol: str, right: str) -> Case:
    """A column with a constant, on either side. The constant is rounded to the column's type."""
    column, text = (left, right) if left[0].isalpha() else (right, left)
    value, compare = NEAREST.get(column, Fraction)(text), OPERATORS[symbol]
    if column == left:
        return Case(f"{left} {symbol} {right}", column, lambda row: compare(row[column], value))
    return Case(f"{left} {symbol} {right}", column, lambda row: compare(value, row[column]))


WHOLE_NUMBERS = ("small", "whole", "Long", "unsigned", "huge")
LONG = [*(f"x{number}" for number in range(40)), "ja", "é", "it's"]
LISTED = ", ".join("'" + text.replace("'", "''") + "'" for text in LONG)
NUMBERS = ", ".join(str(number) for number in range(3, 50))
CASES = [
    *(compared("double", symbol, text) for symbol in OPERATORS for text in CONSTANTS),
    *(compared(text, symbol, "single") for symbol in OPERATORS for text in CONSTANTS),
    *(compared(name, symbol, "3") for symbol in OPERATORS for name in WHOLE_NUMBERS),
    *(compared("Long", symbol, str(2**53 + 1)) for symbol in OPERATORS),
    *(compared("Long", symbol, "99999999999") for symbol in OPERATORS),
    *(compared("price", symbol, "0.1") for symbol in OPERATORS),
    compared("small", ">", "300"),
    compared("unsigned", ">", "-1"),
    compared("double", ">", "12345678901234567.5"),
    compared("double", ">", "1e-1"),
    compared("single", ">", "16777217"),
    compared("whole", ">", "2.5"),
    compared("half", ">", "0.5"),
    Case("lang = 'ja'", "lang", lambda row: row["lang"] == "ja"),
    Case("'ja' <> lang", "lang", lambda row: row["lang"] != "ja"),
    Case("lang < 'ja'", "lang", lambda row: row["lang"].encode() < b"ja"),
    Case("lang LIKE 'j%'", "lang", lambda row: row["lang"].startswith("j")),
    Case("length(lang) = 2", "lang", lambda row: len(row["lang"]) == 2),
    Case("lang IN ('ja', 'é', 'it''s')", "lang", lambda row: row["lang"] in ("ja", "é", "it's")),
    Case("lang NOT IN ('ja', '')", "lang", lambda row: row["lang"] not in ("ja", "")),
    Case("lang IN ('ja', NULL)", "lang", lambda row: True if row["lang"] == "ja" else None),
    Case(f"lang IN ({LISTED})", "lang", lambda row: row["lang"] in LONG),
    Case(f"lang NOT IN ({LISTED})", "lang", lambda row: row["lang"] not in LONG),
    Case(f"whole IN ({NUMBERS})", "whole", lambda row: row["whole"] in range(3, 50)),
    Case(f"Long NOT IN ({NUMBERS})", "Long", lambda row: row["Long"] not in range(3, 50)),
    Case(f"double IN ({NUMBERS})", "double", lambda row: row["double"] in range(3, 50)),
    Case(
        f"CASE WHEN lang IN ({LISTED}) THEN whole IN ({NUMBERS}) ELSE flag END",
        "lang whole flag",
        lambda row: row["whole"] in range(3, 50) if row["lang"] in LONG else row["flag"],
    ),
    Case(
        f"lang IS NULL OR lang IN ({LISTED})", "", lambda row: row["lang"] in (None, *LONG)
    ),
    Case(
        "whole = 300 OR " + " OR ".join(f"{n} = LONG OR lang = 'x{n}'" for n in range(30)),
        "whole Long lang",
        lambda row: row["whole"] == 300 or row["Long"] in range(30),
    ),
    Case(
        "lang = 'en' OR lang = 'de' OR 'ja' = lang OR whole > 3",
        "lang whole",
        lambda row: row["lang"] in ("en", "de", "ja") or row["whole"] > 3,
    ),
    Case("whole IN (1, 2, 2147483648)", "whole", lambda row: row["whole"] in (1, 2)),
    Case("double IN (0.7, 3, -1.5)", "double", lambda row: row["double"] in (0.7, 3, -1.5)),
    Case("whole BETWEEN 0 AND 3", "whole", lambda row: 0 <= row["whole"] <= 3),
    Case("double BETWEEN -1.5 AND 0.7", "double", lambda row: -1.5 <= row["double"] <= 0.7),
    Case(
        "double NOT BETWEEN -1.5 AND 0.7", "double", lambda row: not -1.5 <= row["double"] <= 0.7
    ),
    Case(
        "least(whole, other) >= 1", "whole other", lambda row: min(row["whole"], row["other"]) >= 1
    ),
    Case(
        "greatest(whole, Long) < 9",
        "whole Long",
        lambda row: max(row["whole"], row["Long"]) < 9,
    ),
    Case("flag", "flag", lambda row: row["flag"]),
    Case("flag = true", "flag", lambda row: row["flag"]),
    Case("NOT flag AND whole > 0", "flag whole", lambda row: not row["flag"] and row["whole"] > 0),
    Case("NOT (double > 0.7)", "double", lambda row: not row["double"] > 0.7),
    Case("NOT double < 0.7", "double", lambda row: not row["double"] < 0.7),
    Case(
        "double > 0 OR single > 0",
        "double single",
        lambda row: row["double"] > 0 or row["single"] > 0,
    ),
    Case("double > single", "double single", lambda row: row["double"] > row["single"]),
    Case("whole::BIGINT + 1 > 2", "whole", lambda row: row["whole"] + 1 > 2),
    Case(
        "double IS NULL OR double > 0.7",
        "",
        lambda row: row["double"] is None or row["double"] > 0.7,
    ),
    Case(
        "coalesce(double, 0) > 0.7",
        "",
        lambda row: (0 if row["double"] is None else row["double"]) > 0.7,
    ),
    Case("double IS DISTINCT FROM 0.7", "double", lambda row: row["double"] != 0.7),
    Case("single - single = 0", "single", lambda row: None if math.isinf(row["single"]) else True),
    Case("sqrt(double) >= 0", "double", lambda row: True if row["double"] >= 0 else None),
]  # fmt: skip


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values, None for NULL and NaN."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float | np.floating) and math.isnan(value):
                row[name] = None
    return rows


def answer(case: Case, row: Row) -> int:
    """What the rule says of a row: 0 or 1, or MISSING."""
    if any(row[name] is None for name in case.reads.split()):
        return MISSING
    true = case.true(row)
    return MISSING if true is None else int(true)


def test_the_answers_are_those_of_the_reference() -> None:
    rows = rows_of(ROWS)
    steps = [Step(name=f"r{number}", where=case.where) for number, case in enumerate(CASES)]
    source = InMemorySource({"0": ROWS})
    with borrowed_connection() as connection:
        empty = PartRows(connection, ROWS.schema.empty_table())
        tests, _ = compile_views(empty, {"v": steps}, source, {})["v"]
        answers = stored_answers(PartRows(connection, ROWS), tests)
    for case, test in zip(CASES, tests, strict=True):
        expected = [answer(case, row) for row in rows if row["status"] == "success"]
        stored = answers[test.sql][np.array([row["status"] == "success" for row in rows])]
        assert stored.tolist() == expected, case.where
        assert len(set(expected)) > 1, f"{case.where} has one answer for all rows"


@pytest.mark.parametrize(
    ("column", "number"),
    [
        ("double", 0.1),
        ("single", 0.7),
        ("whole", 3),
        ("whole", 2.5),
        ("double", 3),
        ("Long", 2**63),
    ],
)
def test_a_threshold_is_a_number_of_64_bits(column: str, number: float) -> None:
    kind = "HUGEINT" if isinstance(number, int) else "DOUBLE"
    step = Step(name="r", where=f"{column} >= CAST('{number!r}' AS {kind})")
    with borrowed_connection() as connection:
        rows = PartRows(connection, ROWS)
        tests, _ = compile_views(rows, {"v": [step]}, InMemorySource({"0": ROWS}), {})["v"]
        (found,) = rows.answers(tests, rows.stored)
    for row, stored, one in zip(rows_of(ROWS), rows.stored, found.tolist(), strict=True):
        missing = not stored or row[column] is None
        assert one == (MISSING if missing else int(row[column] >= number))


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


def one_of(operand: Drawn, numbers: list[float], negated: bool) -> Drawn:
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


@settings(deadline=None, max_examples=150)
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
