from __future__ import annotations

import dataclasses

import pytest

from pipeline.pool_page import Bounds, Survey, page_data, sections
from tests.support.looked import cells, number


def test_reasons_and_views_sum_to_the_books(survey: Survey) -> None:
    rows = cells(sections.funnel(survey), "Why 12 links and rows")
    assert [(row[0], row[1], number(row[2])) for row in rows] == [("http_4xx", "permanent", 12)]
    views = {row[0]: number(row[2]) for row in cells(sections.views_table(survey), "4 views")}
    assert views == {name: one.kept for name, one in survey.counts.views.items()}


def test_the_table_of_the_rules(survey: Survey) -> None:
    rows = cells(sections.rules(survey), "Rows that each rule of basic rejects")
    kept = survey.effects["basic"].kept
    assert [row[0] for row in rows] == ["words", "side", "shape"]
    assert sum(number(row[2]) for row in rows) == 48 - kept
    for row in rows:
        assert number(row[6]) == kept + number(row[5])


def test_problems_stand_first(survey: Survey) -> None:
    effects = dataclasses.replace(survey.effects["basic"], disagrees=True)
    totals = dataclasses.replace(
        survey.totals, problems=("<b>bad</b>",) * 20, planned=9, complete=False
    )
    rows = dataclasses.replace(survey.rows, whole=False)
    html = sections.head(
        dataclasses.replace(survey, effects={"basic": effects}, totals=totals, rows=rows)
    )
    assert "&lt;b&gt;bad" in html
    assert "and 9 more" in html
    assert "6 of 9 planned shards" in html
    assert "of a sample: 60 rows in 6 of 6 shards" in html


def test_values_have_a_column_for_each_view(survey: Survey) -> None:
    data = page_data(survey, Bounds(images=0))
    rows = cells(sections.values(data), "page_host: 4 values")
    assert sum(number(row[1]) for row in rows) == 60
    assert len(rows[0]) == 3 + len(survey.detailed)
    with pytest.raises(KeyError):
        sections.values({})
