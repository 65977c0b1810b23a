"""Values of any table become a type of EXTRA_TYPES, or None."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from manifests.columns import EXTRA_TYPES
from pipeline.table_files import cast_value


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("string", 3, "3"),
        ("string", True, "true"),
        ("string", [1, {"a": None}], '[1,{"a":null}]'),
        ("string", b"bytes", "bytes"),
        ("string", b"\xff", None),
        ("int", " 12 ", 12),
        ("int", "-3.0", -3),
        ("int", 3.7, None),
        ("int", "x", None),
        ("int", "", None),
        ("int", 1 << 63, None),
        ("int", -(1 << 63), -(1 << 63)),
        ("int", float("inf"), None),
        ("int", [1], None),
        ("float", "0.25", 0.25),
        ("float", "nan", None),
        ("float", "many", None),
        ("float", {}, None),
        ("bool", "False", False),
        ("bool", 1, True),
        ("bool", 0.0, False),
        ("bool", "perhaps", None),
        ("json", "[1, 2]", "[1, 2]"),
        ("json", "not json", '"not json"'),
        ("json", " ", None),
        ("json", {"a": datetime.date(2026, 1, 2)}, '{"a":"2026-01-02"}'),
        *((kind, None, None) for kind in EXTRA_TYPES),
    ],
)
def test_values_are_cast_or_left_out(kind: str, value: Any, result: Any) -> None:
    result_of_cast = cast_value(value, kind)
    assert (result_of_cast, type(result_of_cast)) == (result, type(result))
