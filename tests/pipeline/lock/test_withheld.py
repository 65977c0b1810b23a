"""Rows of which nothing is handed on."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from pipeline.lock import lock_file

NOBODY = pa.array([], pa.string())


def rows(**changes: str | None) -> pa.Table:
    row = {"uid": "a", "url": "http://x.test/", "reason": None, "optout": None} | changes
    schema = pa.schema([(name, pa.string()) for name in lock_file.COLUMNS])
    return pa.Table.from_pylist([row], schema)


@pytest.mark.parametrize(
    ("signals", "refused"),
    [
        (None, False),
        ({"x-robots-tag": ["noai"]}, True),
        ({"x-robots-tag": ["noarchive"]}, False),
        ({"page": {"meta": ["otherbot: noai"]}}, False),
        ({"page": {"meta": ["noai"]}}, True),
        ({"site": {"http://x.test": {"robots.txt": {"allowed": False}}}}, True),
        ("damaged", True),
        ([], True),
    ],
)
def test_a_row_that_was_stored_against_its_signals_is_withheld(
    signals: object, refused: bool
) -> None:
    text = None if signals is None else "{" if signals == "damaged" else json.dumps(signals)
    table = rows(optout=text)
    assert lock_file.withheld_rows(table, NOBODY, "clipmill/1").tolist() == [refused]
    # a pool with a policy of its own has refused such rows when they were fetched
    assert lock_file.withheld_rows(table, NOBODY, None).tolist() == [False]
