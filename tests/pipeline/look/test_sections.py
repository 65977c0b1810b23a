from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from manifests.schema import FilterSpec, Recipe, Rule, Source, View
from pipeline.look.page import Bounds, page_data, render
from pipeline.look.survey import Survey, survey_pool
from pipeline.scoring.scorer import score
from pipeline.views.files import choose_views
from tests.support import small_pool
from tests.support.looked import cells, number


def page_of(survey: Survey) -> str:
    return render(survey, page_data(survey, Bounds(images=0)))


def test_reasons_and_views_sum_to_the_books(survey: Survey) -> None:
    html = page_of(survey)
    rows = cells(html, "Why 12 links and rows")
    assert [(row[0], row[1], number(row[2])) for row in rows] == [("http_4xx", "permanent", 12)]
    views = {row[0]: number(row[2]) for row in cells(html, "4 views")}
    assert views == {name: one.kept for name, one in survey.counts.views.items()}


def test_the_table_of_the_rules(survey: Survey) -> None:
    rows = cells(page_of(survey), "Rows that each rule of basic rejects")
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
    effects_of = {**survey.effects, "basic": effects}
    html = page_of(dataclasses.replace(survey, effects=effects_of, totals=totals, rows=rows))
    assert "&lt;b&gt;bad" in html
    assert "and 9 more" in html
    assert "6 of 9 planned shards" in html
    assert "of a sample: 60 rows in 6 of 6 shards" in html


def test_values_have_a_column_for_each_view(survey: Survey) -> None:
    rows = cells(page_of(survey), "page_host: 4 values")
    assert sum(number(row[1]) for row in rows) == 60
    assert len(rows[0]) == 3 + len(survey.detailed)


def test_the_log_says_by_what_survivors_are_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(4))
    same = {"on": "sha256", "column": "page_url"}
    with caplog.at_level("INFO"):
        score(pool, [FilterSpec(name="twins", kind="duplicate", options=same)], engine="inline")
    (line,) = [line for line in caplog.messages if "survives" in line]
    assert line.startswith("twins@")
    assert "the row with the smallest uid survives" in line
    assert line.endswith("best: COLUMN names what does")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """A pool with rows of one page as copies, whose survivors are chosen in two ways."""
    folder = tmp_path_factory.mktemp("scored")
    given = small_pool.rows(20)
    for i in (1, 2, 3):
        given[i] = dataclasses.replace(given[i], page="https://same.example/")
    pool = small_pool.make_pool(folder / "pool", given)
    same = {"on": "sha256", "column": "page_url"}
    filters = (
        FilterSpec(name="caption"),
        FilterSpec(name="copies", kind="duplicate", options={"best": "caption_words", **same}),
        FilterSpec(name="twins", kind="duplicate", options=same),
    )
    half = Rule(name="half", where="caption_chars >= top(caption_chars, 0.5)")
    recipe = Recipe(
        name="r",
        source=Source(kind="files", paths=("x",)),
        filters=filters,
        views=(View(name="long", rules=(half,)),),
    )
    score(pool, filters, engine="inline")
    choose_views(pool, recipe)
    return survey_pool(pool)


def test_the_slider_begins_at_the_score_and_empty_columns_are_named(scored: Survey) -> None:
    html = page_of(scored)
    first, second = html.index('value="caption_chars"'), html.index('value="caption_words"')
    assert first < second, "a view cuts it by rank"
    sets = dict(scored.rows.sets)
    sets["caption_words"] = dataclasses.replace(sets["caption_words"], kind="clip_score")
    rows = dataclasses.replace(scored.rows, sets=sets)
    html = page_of(dataclasses.replace(scored, rows=rows))
    assert html.index('value="caption_words"') < html.index('value="caption_chars"')
    empty = dataclasses.replace(scored.columns["caption_words"], values=np.zeros(0))
    shown = page_of(dataclasses.replace(scored, columns={**scored.columns, "caption_words": empty}))
    assert (
        "and not shown: width, height, http_status, elapsed_ms, attempts, caption_words." in shown
    )


def test_copies_say_by_what_their_survivor_was_chosen(scored: Survey) -> None:
    data = page_data(scored, Bounds())
    html = render(scored, data)
    assert "copies: of each group the row with the highest caption_words survives." in html
    assert "twins: of each group the row with the smallest uid survives, which says" in html
    group = next(one for one in data["copies"] if one["title"] == "copies: group 1")
    assert group["images"][0] == group["survivors"][0]
    captions = [data["images"][number]["caption"] for number in group["images"]]
    assert captions[0] == "dog dog dog dog"
    assert len(captions) == 3
