"""Databases of rules: they reach nothing else, are used again, and never by two at one time."""

from __future__ import annotations

import os

import duckdb
import pyarrow as pa
import pytest

from pipeline.shuffle import connect
from pipeline.views import rules
from pipeline.views.rules import TABLE, borrowed_connection


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '/tmp/clipmill-never.csv'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "FROM COLUMNS",
    ],
)
def test_the_database_reaches_no_file_and_no_variable(sql: str) -> None:
    with pytest.raises(duckdb.Error):
        connect().execute(sql).fetchall()
    with borrowed_connection() as connection, pytest.raises(duckdb.Error):
        connection.execute(sql).fetchall()


def test_a_connection_is_used_again_and_holds_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_idle", {})
    with borrowed_connection() as first, borrowed_connection() as second:
        assert first is not second
        first.register(TABLE, pa.table({"a": [1]}))
    with borrowed_connection() as again:
        assert again is first  # the last that was given back
        with pytest.raises(duckdb.CatalogException, match=TABLE):
            again.execute(f"FROM {TABLE}")
    monkeypatch.setattr(os, "getpid", lambda: 0)  # as a child of this process
    with borrowed_connection() as of_child:
        assert of_child is not first
        assert of_child is not second


def test_a_connection_is_closed_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_idle", {})
    with pytest.raises(ValueError, match="bad rule"), borrowed_connection() as connection:
        raise ValueError("bad rule")
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")
    assert rules._idle == {os.getpid(): []}
