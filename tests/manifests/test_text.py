"""Text of strangers can be stored, and a terminal shows it without acting on it."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmill.manifests.columns import EXTRA_TYPES
from clipmill.manifests.text import is_printable, printable, valid_text
from clipmill.pipeline.table_files import CASTS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("café 東京 😀", "café 東京 😀"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "café"),
        (json.loads('"\\ud800 half"'), "\ufffd half"),
        ("\udfff\udc80", "\ufffd\x80"),
        ("", ""),
    ],
)
def test_text_becomes_valid(text: str, expected: str) -> None:
    assert valid_text(text) == expected
    expected.encode()


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_encoded_afterwards(text: str) -> None:
    assert valid_text(valid_text(text)) == valid_text(text)
    valid_text(text).encode()
    printable(text).encode()
    assert is_printable(printable(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a picture", "a picture"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\nb\r\tc\x9b31m", "a\\x0ab\\x0d\\x09c\\x9b31m"),
        ("right \u202eleft", "right \\u202eleft"),
        ("\ud800\U000e0001", "\\ud800\\U000e0001"),
    ],
)
def test_what_a_terminal_would_act_on_is_shown_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


# --- Values of any table become a type of EXTRA_TYPES, or None


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
    result_of_cast = CASTS[kind](value)
    assert (result_of_cast, type(result_of_cast)) == (result, type(result))
