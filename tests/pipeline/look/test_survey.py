"""What is computed once for a page: rows, effects of rules, examples, values. All numbers sum to
those of the books."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.records import CrawlCounts, ViewRulesDocument, read_document
from clipmill.pipeline.audit.counts import count_pool
from clipmill.pipeline.look.survey import (
    DETAILED_VIEWS,
    SHOWN_VALUES,
    RowDraw,
    Survey,
    beside_thresholds,
    copies,
    example_groups,
    ladder,
    nearest,
    pool_funnel,
    read_rows,
    reason_lines,
    survey_pool,
    value_tables,
    view_effects,
    view_thresholds,
)
from tests.support import looked, small_pool

# --- rows -----------------------------------------------------------------------------------------


def test_rows_masks_and_scores_are_those_of_the_files(pool: str, survey: Survey) -> None:
    rows = survey.rows
    assert rows.table["uid"].to_pylist() == looked.sidecars(pool)["uid"].to_pylist()
    assert int(rows.stored.sum()) == 48
    assert [view.name for view in rows.views] == ["basic", "drawn", "raw", "top"]
    for view in rows.views:
        assert view.kept is not None
        assert int(view.kept.sum()) == view.document.kept
    assert rows.meanings["caption_words"][0].startswith("caption@")
    assert {"caption_words", "aspect", "url_host"} <= set(rows.table.column_names)
    assert rows.problems == ()
    assert (rows.location(0), rows.location(59)) == ((0, 0), (5, 9))
    places = [(5, 9), (5, 10), (6, 0), (5, -1)]
    assert [rows.row_at(*place) for place in places] == [59, None, None, None]


def test_a_large_pool_is_read_by_whole_shards(pool: str) -> None:
    commits = read_commits(pool)
    sample, again = read_rows(commits, most_rows=25), read_rows(commits, most_rows=25)
    assert (sample.table.num_rows, sample.whole) == (20, False)
    assert np.array_equal(sample.shards, again.shards)
    uids = looked.sidecars(pool)["uid"].to_pylist()
    expected = [uid for shard in sample.shards for uid in uids[10 * shard : 10 * shard + 10]]
    assert sample.table["uid"].to_pylist() == expected
    assert read_rows(commits, most_rows=1).table.num_rows == 10, "at least one shard"


def test_one_view_or_the_first_of_many(pool: str, survey: Survey, tmp_path: Path) -> None:
    assert list(survey.detailed) == ["basic", "drawn", "raw", "top"]
    assert list(survey_pool(pool, "top").effects) == ["top"]
    with pytest.raises(ValueError, match="has no view 'basik'; did you mean 'basic'"):
        survey_pool(pool, "basik")
    views = [dataclasses.replace(looked.VIEWS[0], name=f"v{number:02d}") for number in range(15)]
    many = survey_pool(looked.make(tmp_path / "pool", 10, tuple(views)))
    assert len(many.rows.views) == 15
    assert list(many.effects) == [f"v{number:02d}" for number in range(DETAILED_VIEWS)]


def test_what_is_older_than_the_shards_or_damaged_is_said_and_not_shown(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    Path(PoolLayout(pool).view_bundle("basic", 1)).write_bytes(b"nothing")
    Path(PoolLayout(pool).view_json("top")).write_text("{")
    rows = read_rows(read_commits(pool))
    assert {view.name: view.kept is None for view in rows.views}["basic"]
    assert len([p for p in rows.problems if "basic" in p or "top.json" in p]) == 2
    small_pool.write_shard(pool, 2, [(20 + i, row) for i, row in enumerate(small_pool.rows(5))])
    rows = read_rows(read_commits(pool))
    assert all(view.kept is None for view in rows.views)
    assert "caption_words" not in rows.table.column_names
    assert any("scores caption@" in problem for problem in rows.problems)
    assert any("view basic is older" in problem for problem in rows.problems)


def test_the_funnel_and_the_reasons_are_those_of_the_books(pool: str, survey: Survey) -> None:
    fetch = count_pool(read_commits(pool)).fetch
    assert pool_funnel(survey.counts) == [("attempted", fetch.attempted), ("stored", fetch.stored)]
    lines = reason_lines(survey.counts, survey.rows.table)
    assert {line.reason: line.count for line in lines} == fetch.reasons
    assert fetch.attempted == fetch.stored + sum(line.count for line in lines)
    assert (lines[0].example, lines[0].kind) == ("https://img4.example/4.jpg", "permanent")
    crawl = CrawlCounts(parts=1, links=90, pairs=60, reasons={"no_alt": 10, "scheme": 20})
    counts = dataclasses.replace(survey.counts, crawl=crawl)
    assert pool_funnel(counts)[:2] == [("links", 90), ("pairs", 60)]
    lines = reason_lines(counts, survey.rows.table)
    assert [(line.reason, line.kind, line.count) for line in lines][:2] == [
        ("scheme", "crawl", 20),
        ("no_alt", "crawl", 10),
    ]


# --- rules ----------------------------------------------------------------------------------------


def test_the_numbers_of_the_rules_sum_to_the_books(pool: str, survey: Survey) -> None:
    counts = count_pool(read_commits(pool))
    for name, effects in survey.effects.items():
        funnel = counts.views[name].funnel
        assert effects.kept == counts.views[name].kept == funnel[-1][1]
        assert effects.stored == counts.fetch.stored == funnel[1][1]
        left = effects.stored
        for rule, (step, after) in zip(effects.rules, funnel[2:], strict=True):
            left -= rule.first
            assert (step, after) == (rule.name, left)
        assert not effects.disagrees
    document = read_document(PoolLayout(pool).view_rules("basic"), ViewRulesDocument)
    for rule, effect in zip(survey.effects["basic"].rules, document.rules, strict=True):
        expected = (effect.rule, effect.rejected, effect.alone)
        assert (rule.name, rule.rejected, rule.alone) == expected
    view = survey.detailed["basic"]
    assert view.kept is not None
    wrong = dataclasses.replace(view, kept=np.roll(view.kept, 1))
    assert view_effects(survey.rows, wrong, (), {}).disagrees


def test_overlaps_and_scopes_are_counted_by_hand(survey: Survey) -> None:
    effects, table, stored = survey.effects["basic"], survey.rows.table, survey.rows.stored
    words = np.asarray(table["caption_words"].fill_null(0).to_numpy()) > 2
    side = np.asarray(table["original_width"].fill_null(0).to_numpy()) >= 200
    shape = np.asarray(table["aspect"].fill_null(9).to_numpy()) <= 3
    at = {name: place for place, name in enumerate(effects.compared)}
    overlap = np.array(effects.overlap)
    assert overlap[at["words"], at["side"]] == (~words & ~side & stored).sum()
    assert overlap[at["words"], at["words"]] == (~words & stored).sum()
    assert (overlap == overlap.T).all()
    assert np.array_equal(survey.scope("basic", "caption_words"), stored & side & shape)
    assert effects.replaced("caption_words") == ("words",)
    assert survey.scope("basic", "height").sum() == effects.kept
    assert survey.scope("", "height").sum() == effects.stored


# --- examples -------------------------------------------------------------------------------------


def test_groups_hold_rows_of_their_kind_and_say_of_how_many(survey: Survey) -> None:
    groups = example_groups(survey.rows, list(survey.detailed.values()))
    assert groups == example_groups(survey.rows, list(survey.detailed.values()))
    by_title = {(group.view, group.title): group for group in groups}
    assert by_title["", "stored"].of == 48
    kept = by_title["basic", "kept"]
    view = survey.detailed["basic"]
    assert view.kept is not None
    assert view.first_rule is not None
    assert view.kept[list(kept.rows)].all()
    rejected = by_title["basic", "rejected by words"]
    assert {view.first_rule[row].as_py() for row in rejected.rows} == {"words"}
    assert kept.of + sum(group.of for group in groups if group.view == "basic" and group.rule) == 48
    assert all(survey.rows.stored[list(group.rows)].all() for group in groups)


def test_the_choice_depends_on_uids_only(survey: Survey) -> None:
    everything = np.ones(60, np.bool_)
    draw = RowDraw(survey.rows)
    drawn = draw.draw(everything, 10)
    assert RowDraw(survey.rows).draw(everything, 20)[:10] == drawn
    some = everything.copy()
    some[list(drawn[:3])] = False
    assert draw.draw(some, 7) == drawn[3:]


def test_rows_along_a_column_and_beside_a_threshold(survey: Survey) -> None:
    column, width = survey.columns["original_width"], survey.rows.table["original_width"]

    def values(rows: tuple[int, ...]) -> list[int]:
        return [width[row].as_py() for row in rows]

    steps = values(ladder(survey.rows, column, 6))
    assert steps == sorted(set(steps))
    assert len(steps) == 6
    scope = survey.rows.stored & (np.arange(60) % 2 == 0)
    place = column.below("400")
    low, high = nearest(column, scope, place, 3)
    assert (values(low), values(high)) == ([380, 360, 320], [400, 420, 460])
    assert nearest(column, np.zeros(60, np.bool_), place, 3) == ((), ())
    views = survey.detailed
    limits = [("caption_words", 2.0), ("original_width", 200.0)]
    assert view_thresholds(views["basic"], survey.columns) == limits
    top = views["top"].document.thresholds["top(original_width, 0.3)"].value
    assert view_thresholds(views["top"], survey.columns) == [("original_width", top)]
    groups = beside_thresholds(survey.rows, [views["basic"]], survey.columns)
    by_title = {group.title: group for group in groups}
    below, above = by_title["below original_width = 200"], by_title["from original_width = 200 on"]
    assert below.of + above.of == 48
    assert values(below.rows) == sorted(values(below.rows), reverse=True)
    assert max(values(below.rows)) < 200 <= min(values(above.rows))


def test_the_largest_groups_of_copies(survey: Survey) -> None:
    names = [None] * 60
    for row, name in ((0, "a"), (1, "a"), (3, "b"), (5, "b"), (4, "b"), (6, "b"), (7, "c")):
        names[row] = name  # type: ignore[call-overload]
    table = survey.rows.table.append_column("near_group", pa.array(names, pa.string()))
    table = table.append_column("near_size", pa.array([2] * 60))
    table = table.append_column("age_group", pa.array(names, pa.string()))
    groups = copies(dataclasses.replace(survey.rows, table=table))
    assert [(group.title, group.of, group.rows) for group in groups] == [
        ("near: group 1", 3, (3, 5, 6)),  # row 4 is not stored
        ("near: group 2", 2, (0, 1)),
    ]


# --- values ---------------------------------------------------------------------------------------


def test_the_lines_of_values_sum_to_all_rows(survey: Survey) -> None:
    rows = survey.rows
    table = rows.table.append_column("is_cat", pa.array([True, None] * 30))
    table = table.append_column("tokens", pa.array([[1]] * 60))
    kept = {name: view.kept for name, view in survey.detailed.items() if view.kept is not None}
    tables = {}
    for one in value_tables(dataclasses.replace(rows, table=table), kept):
        tables[one["column"]] = one
        assert sum(line["rows"] for line in one["lines"]) == 60
        assert sum(line["stored"] for line in one["lines"]) == 48
        for name, effects in survey.effects.items():
            assert sum(line["kept"][name] for line in one["lines"]) == effects.kept
    assert {"url_host", "page_host"} <= tables.keys()
    assert not {"caption", "tokens", "page_lang", "content_type"} & tables.keys()
    assert tables["page_host"]["lines"][0]["rows"] == 20
    lines = tables["url_host"]["lines"]
    assert (tables["url_host"]["distinct"], len(lines)) == (60, SHOWN_VALUES + 1)
    assert lines[-1]["name"] == f"({60 - SHOWN_VALUES} other values)"
    lines = [(line["name"], line["rows"]) for line in tables["is_cat"]["lines"]]
    assert lines == [("true", 30), ("(no value)", 30)]
