from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from pipeline.look.survey import SHOWN_VALUES, Survey, value_tables


def test_lines_sum_to_all_rows(survey: Survey) -> None:
    kept = {name: view.kept for name, view in survey.detailed.items() if view.kept is not None}
    tables = {table.column: table for table in value_tables(survey.rows, kept)}
    assert {"url_host", "page_host", "page_lang", "content_type"} <= tables.keys()
    for table in tables.values():
        lines = [*table.lines, table.null, table.other]
        assert sum(line.rows for line in lines) == 60
        assert sum(line.stored for line in lines) == 48
        for name, effects in survey.effects.items():
            assert sum(line.kept[name] for line in lines) == effects.kept
    hosts = {line.value: line.rows for line in tables["page_host"].lines}
    assert hosts["host0.example"] == 20
    assert tables["url_host"].distinct == 60
    assert len(tables["url_host"].lines) == SHOWN_VALUES
    assert tables["page_lang"].null.rows == 60
    assert "caption" not in tables


def test_truth_values_are_shown_and_lists_are_not(survey: Survey) -> None:
    rows = survey.rows
    table = rows.table.append_column("is_cat", pa.array([True, None] * 30))
    table = table.append_column("tokens", pa.array([[1]] * 60))
    tables = {t.column: t for t in value_tables(dataclasses.replace(rows, table=table), {})}
    assert "tokens" not in tables
    assert [(line.value, line.rows) for line in tables["is_cat"].lines] == [("true", 30)]
    with pytest.raises(KeyError):
        tables["no_column"]
