from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from pipeline.look.survey import (
    RowDraw,
    Survey,
    beside_thresholds,
    copies,
    example_groups,
    ladder,
    nearest,
    view_thresholds,
)


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
    with pytest.raises(IndexError):
        draw.of_numbers(np.array([60]), 1)


def test_a_ladder_covers_the_whole_range(survey: Survey) -> None:
    column = survey.columns["original_width"]
    rows = ladder(survey.rows, column, 6)
    values = [survey.rows.table["original_width"][row].as_py() for row in rows]
    assert values == sorted(values)
    assert len(set(values)) == 6


def test_the_nearest_rows_of_a_scope_on_both_sides(survey: Survey) -> None:
    column = survey.columns["original_width"]
    scope = survey.rows.stored & (np.arange(60) % 2 == 0)
    place = column.below("400")
    low, high = nearest(column, scope, place, 3)
    width = survey.rows.table["original_width"]
    assert [width[row].as_py() for row in low] == [380, 360, 320]
    assert [width[row].as_py() for row in high] == [400, 420, 460]
    assert nearest(column, np.zeros(60, np.bool_), place, 3) == ((), ())


def test_rows_on_both_sides_of_the_thresholds_of_the_rules(survey: Survey) -> None:
    views = survey.detailed
    assert view_thresholds(views["basic"], survey.columns) == [
        ("caption_words", 2.0),
        ("original_width", 200.0),
    ]
    ((name, value),) = view_thresholds(views["top"], survey.columns)
    assert (name, value) == (
        "original_width",
        views["top"].document.thresholds["top(original_width, 0.3)"].value,
    )
    groups = beside_thresholds(survey.rows, [views["basic"]], survey.columns)
    width = survey.rows.table["original_width"]
    by_title = {group.title: group for group in groups}
    below, above = by_title["below original_width = 200"], by_title["from original_width = 200 on"]
    assert below.of + above.of == 48
    values = [width[row].as_py() for row in below.rows]
    assert values == sorted(values, reverse=True)
    assert max(values) < 200 <= min(width[row].as_py() for row in above.rows)


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
