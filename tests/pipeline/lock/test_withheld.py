"""Rows of which nothing is handed on."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from manifests.columns import REASONS
from pipeline.lock import lock_file

NOBODY = pa.array([], pa.string())


def rows(**changes: str | None) -> pa.Table:
    row = {"uid": "a", "url": "http://x.test/", "reason": None, "optout": None} | changes
    schema = pa.schema([(name, pa.string()) for name in lock_file.COLUMNS])
    return pa.Table.from_pylist([row], schema)


@pytest.mark.parametrize("reason", [None, *REASONS])
def test_refusals_of_others_and_known_bad_content_are_withheld(reason: str | None) -> None:
    expected = reason in lock_file.REASONS
    assert lock_file.withheld_rows(rows(reason=reason), NOBODY, None).tolist() == [expected]
    assert {name for name in lock_file.REASONS if "optout" in name or "robots" in name} == {
        name for name in REASONS if "optout" in name or "robots" in name
    }


def test_a_row_without_a_url_and_one_that_was_refused_later_are_withheld() -> None:
    assert lock_file.withheld_rows(rows(url=None), NOBODY, None).tolist() == [True]
    assert lock_file.withheld_rows(rows(), pa.array(["b", "a"]), None).tolist() == [True]
    assert lock_file.withheld_rows(rows(), pa.array(["b"]), None).tolist() == [False]


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
