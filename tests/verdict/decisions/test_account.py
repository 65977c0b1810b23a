"""The account of a table as text: compact, with guesses that are named as guesses."""

from __future__ import annotations

import dataclasses

from clipmill.verdict.tables.account import Account, ColumnRole, LeftOut, MetricFacts, account_texts


def column(name: str, role: str, reason: str = "its name") -> ColumnRole:
    return ColumnRole(name=name, role=role, reason=reason)


def facts(task: str, metric: str = "value", **more: object) -> MetricFacts:
    plain = {
        "higher_is_better": True,
        "direction_from": "name",
        "unit": "share",
        "unit_from": "name",
    }
    return MetricFacts(task=task, metric=metric, **{**plain, **more})


ACCOUNT = Account(
    form="a table, one row for each run",
    columns=(
        column("method", "arm"),
        column("lr", "setting"),
        column("bs", "setting", "guess: the same in every row"),
        column("acc", "value"),
        column("f1", "value"),
        column("foo", "value"),
    ),
    metrics=(
        facts("acc"),
        facts("f1"),
        facts("foo", higher_is_better=False, direction_from="guess", unit="", unit_from="values"),
    ),
    rows=40,
    rows_used=38,
    rows_left_out=(LeftOut(reason="without an arm", number=2),),
    cells=114,
    cells_used=110,
    cells_left_out=(LeftOut(reason="empty", number=3), LeftOut(reason="no number", number=1)),
)


def test_an_account_is_a_line_for_each_kind() -> None:
    assert account_texts(ACCOUNT) == [
        "a table, one row for each run",
        "arm: column 'method'",
        "setting: lr, bs (guess)",
        "value: acc, f1, foo",
        "direction: higher, by name: acc, f1",
        "direction: lower (guess: --higher-is-better if it is wrong): foo",
        "unit: share, by name: acc, f1",
        "unit: none: foo",
        "rows: 38 of 40 used; left out: 2 rows without an arm",
        "cells: 110 of 114 used; left out: 3 cells empty, 1 cell no number",
    ]


def test_an_account_of_hundreds_of_columns_is_short() -> None:
    many = dataclasses.replace(
        ACCOUNT,
        columns=tuple(column(f"c{n}", f"role{n % 20}", "guess") for n in range(400)),
        metrics=tuple(facts(f"task {n}", "acc") for n in range(200)),
        rows_used=40,
        rows_left_out=(),
    )
    texts = account_texts(many)
    assert len(texts) <= 15
    assert (
        "role0: c0 (guess), c20 (guess), c40 (guess), c60 (guess), c80 (guess), c100 (guess)"
        in (texts[1])
    )
    assert texts[1].endswith("and 14 more")
    assert "direction: higher, by name: acc" in texts
    assert "rows: all 40 used" in texts


def test_a_metric_that_differs_between_tasks_has_its_task() -> None:
    metrics = (
        facts("a", "score"),
        facts("b", "score", higher_is_better=False, direction_from="option"),
    )
    texts = account_texts(dataclasses.replace(ACCOUNT, metrics=metrics))
    assert "direction: higher, by name: a, score" in texts
    assert "direction: lower, as the options say: b, score" in texts
