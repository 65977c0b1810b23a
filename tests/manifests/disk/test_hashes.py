"""Hashes of rows and documents are the same everywhere, and take any text."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests import disk


def test_hashes_are_pinned() -> None:
    assert disk.uid_of("http://a/b.jpg", "a cat") == "f89428b805e63d706f158e1dc5842bb0"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == "94a786c3662b"
    assert disk.content_hash({"b": 1, "a": [1, 2]}) == disk.content_hash({"a": (1, 2), "b": 1})
    assert len(disk.uid_of("u", "c")) == 32
    assert disk.uid_of("ab", "c") != disk.uid_of("a", "bc")


def test_hashes_take_any_text() -> None:
    assert disk.uid_of("http://a/\udce9", "\ud800") != disk.uid_of("http://a/\ufffd", "\ufffd")
    assert disk.content_hash(["\ud800"]) != disk.content_hash(["\ufffd"])


def test_the_hash_of_plain_values_is_that_of_their_content() -> None:
    value = {"b": [1, 2.5, None, True, "ä"], "a": {"y": {}, "x": "z"}}
    assert disk.plain_hash(value) == disk.content_hash(value)
    assert disk.plain_hash(value, 64) == disk.content_hash(value, 64)
    with pytest.raises(TypeError):
        disk.plain_hash({"path": Path("x")})
