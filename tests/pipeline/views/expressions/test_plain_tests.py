"""Tests that NumPy evaluates give DuckDB's answers, to the last bit of a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.views import rules
from pipeline.views.row_tests import PartRows, is_true, plain_test
from pipeline.views.rules import Step, borrowed_connection

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
            "huge": with_nulls(np.resize([1, 2], count), pa.uint64()),
            "half": pa.array(np.resize([0.5, 1.0], count), pa.float16()),
        }
    )


ROWS = table()
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
PLAIN = [
    *(f"double {op} {constant}" for op in OPERATORS for constant in CONSTANTS),
    *(f"{constant} {op} single" for op in OPERATORS for constant in CONSTANTS),
    *(f"{name} {op} 3" for op in OPERATORS for name in ("small", "whole", "LONG", "unsigned")),
    *(f"Long {op} {2**53 + 1}" for op in OPERATORS),
    *(f"Long {op} 99999999999" for op in OPERATORS),
    "small > 300",
    "unsigned > -1",
    "whole = -1",
    "lang = 'ja'",
    "'ja' <> lang",
    "lang IN ('ja', 'é', 'it''s', 'ja')",
    "lang NOT IN ('ja', '')",
    "lang = 'en' OR lang = 'de' OR 'ja' = lang OR whole > 3",
    "whole IN (3)",
    "whole IN (1, 2, 3, 4, 300, 2147483648)",
    "whole NOT IN (1, 3)",
    "double IN (0.7, 3, -1.5, 0.1, .5, 0.28)",
    "single IN (0.7, 0.1, 0.28)",
    "whole BETWEEN 0 AND 3",
    "double BETWEEN -1.5 AND 0.7",
    "double NOT BETWEEN -1.5 AND 0.7",
    "least(whole, other) >= 1",
    "greatest(whole, other) < 300",
    "least(double, double) > 0.7",
    "flag",
    "NOT flag AND whole > 0",
    "NOT (double > 0.7)",
    "NOT double < 0.7",
    "double > 0.1 AND (single < 0.7 OR NOT whole = 3) AND lang <> 'ja'",
    "double > 0 OR single > 0",
]  # fmt: skip
LEFT_TO_DUCKDB = [
    "double > 12345678901234567.5",
    "double > 1e-1",
    "single > 16777217",
    "whole > 2.5",
    "huge > 1",
    "half > 0.5",
    "lang < 'ja'",
    "lang IN ('ja', NULL)",
    "flag = true",
    "double IS NULL OR double > 0.7",
    "double > single",
    "whole + 1 > 2",
    "coalesce(double, 0) > 0.7",
    "least(whole, Long) > 1",
    "length(lang) = 2",
    "whole > CAST(3 AS INTEGER)",
    "double IS DISTINCT FROM 0.7",
    "lang LIKE 'j%'",
]


def parsed(where: str) -> rules.Expression:
    with borrowed_connection() as connection:
        return rules.parse(connection, Step(name="r", where=where), ROWS.column_names)


@pytest.mark.parametrize("where", PLAIN)
def test_the_answers_are_those_of_duckdb(where: str) -> None:
    expression = parsed(where)
    with borrowed_connection() as connection:
        rows = PartRows(connection, ROWS)
        plain = plain_test(expression.tree["select_list"][0], rows.kinds, no_threshold)
        assert plain is not None
        passed, missing = plain.evaluate(rows)
        every = np.ones(len(rows.stored), np.bool_)
        answer = rows.evaluate(rules.null_unless_known(where, expression.not_null), every)
    assert missing is not None
    assert missing.tolist() == answer.is_null().to_pylist()
    assert passed.tolist() == is_true(answer).tolist()


def no_threshold(call: Any) -> float:
    raise AssertionError(call)


@pytest.mark.parametrize("where", LEFT_TO_DUCKDB)
def test_what_numpy_may_answer_otherwise_is_left_to_duckdb(where: str) -> None:
    kinds = {field.name.lower(): field for field in ROWS.schema}
    assert plain_test(parsed(where).tree["select_list"][0], kinds, no_threshold) is None


@pytest.mark.parametrize(
    ("column", "number", "is_plain"),
    [("double", 0.1, True), ("single", 0.7, True), ("whole", 3, True), ("whole", 2.5, False),
     ("double", 3, False), ("Long", 2**63, False)],
)  # fmt: skip
def test_a_threshold_is_a_number_of_64_bits(column: str, number: float, is_plain: bool) -> None:
    expression = parsed(f"{column} >= top({column}, 0.3)")
    with borrowed_connection() as connection:
        rows = PartRows(connection, ROWS)
        plain = plain_test(expression.tree["select_list"][0], rows.kinds, lambda _: number)
        assert (plain is not None) == is_plain
        if plain is None:
            return
        kind = "HUGEINT" if isinstance(number, int) else "DOUBLE"
        sql = f"{column} >= CAST('{number!r}' AS {kind})"
        every = np.ones(len(rows.stored), np.bool_)
        assert plain.evaluate(rows)[0].tolist() == is_true(rows.evaluate(sql, every)).tolist()
