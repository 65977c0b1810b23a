"""Text of strangers can be stored, and a terminal shows it without acting on it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.text import printable, valid_text


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
    assert printable(text).isprintable()


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
