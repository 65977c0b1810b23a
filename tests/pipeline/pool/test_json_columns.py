"""The text of a column is byte for byte that of json.dumps."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pool.shard_writer import json_array

TEXTS = [
    None,
    "",
    "plain",
    'a "quote"',
    "back\\slash",
    "tab\t",
    "\x7f",
    "ü",
    "🐱",
    "a\n",
    "/",
    "~ ",
]


def expected(values: list[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from(TEXTS), st.text(max_size=20)), max_size=30))
def test_text_is_escaped_as_json_does(values: list[str | None]) -> None:
    values = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
    column = pa.chunked_array([values[:3], values[3:]], pa.string())
    assert json_array(column) == expected(values)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -(2**63), 2**63 - 1], pa.int64()),
        ([None, None], pa.int32()),
        ([True, None, False], pa.bool_()),
        ([1.5, None, 1e300, 0.1], pa.float64()),
        ([[1, 2], None, []], pa.list_(pa.int64())),
        ([], pa.string()),
        ([None], pa.string()),
        (TEXTS, pa.large_string()),
    ],
)
def test_other_types_too(values: list[Any], kind: pa.DataType) -> None:
    assert json_array(pa.chunked_array([values], kind)) == expected(values)


def test_a_column_without_chunks_and_a_value_that_json_has_not() -> None:
    assert json_array(pa.chunked_array([], pa.string())) == b"[]"
    with pytest.raises(TypeError, match="not JSON serializable"):
        json_array(pa.chunked_array([[b"bytes"]], pa.binary()))
