"""Columns on disk, and those that a recipe adds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from manifests.columns import (
    PAIRS,
    SIDECAR,
    VOLATILE_COLUMNS,
    extra_column,
    with_extra,
)


def test_the_sidecar_begins_with_the_columns_of_img2dataset() -> None:
    assert SIDECAR.names[:11] == [
        "url", "caption", "key", "status", "error_message", "width", "height", "original_width",
        "original_height", "exif", "sha256",
    ]  # fmt: skip
    assert set(VOLATILE_COLUMNS) <= set(SIDECAR.names)
    assert set(PAIRS.names) & set(SIDECAR.names) >= {"uid", "url", "caption", "page_url"}


@pytest.mark.parametrize(
    ("kind", "column", "type_name"),
    [
        ("float", "similarity", "float"),
        ("score:float", "score", "float"),
        ("a:b:int", "a:b", "int"),
    ],
)
def test_an_extra_column_has_a_type_and_may_be_renamed(
    kind: str, column: str, type_name: str
) -> None:
    assert extra_column("similarity", kind) == (column, type_name)


def test_extra_columns_come_last_in_the_order_of_the_recipe() -> None:
    schema = with_extra(SIDECAR, {"b": "int", "a": "json"})
    assert schema.names == [*SIDECAR.names, "b", "a"]
    assert (schema.field("b").type, schema.field("a").type) == (pa.int64(), pa.string())
