"""Syntax trees: read together or alone, walked at any depth, nested too deeply is said."""

from __future__ import annotations

import pytest

from pipeline.shuffle import connect
from pipeline.views import rules
from pipeline.views.rules import (
    Step,
    column_names,
    is_not_top,
    read_all,
    replaced,
    syntax_of,
    text_of_tree,
    walk,
)


def test_many_are_read_with_one_query_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_kept", rules._Kept())
    connection = connect(threads=1)
    read_all(connection, ["a > 1", "b > ", "a > 1", "c = 'x' AND top(d, 0.5) > 1"])
    monkeypatch.setattr(rules, "_serialized", lambda *_: pytest.fail("it is read again"))
    last = syntax_of(connection, "c = 'x' AND top(d, 0.5) > 1")
    assert (last.columns, last.of_row) == ({"c", "d"}, {"c"})
    assert syntax_of(connection, "a > 1") is syntax_of(connection, "a > 1")


def test_wrong_ones_are_named_when_they_are_asked_for() -> None:
    connection = connect(threads=1)
    read_all(connection, ["b > "])
    with pytest.raises(ValueError, match=r"rule 'mine' .*it ends too early"):
        syntax_of(connection, "b > ", Step(name="mine", where="b > "))


def test_a_chain_of_operators_is_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connect(threads=1)
    assert syntax_of(connection, "a" + " + 1" * 200 + " > 1").columns == {"a"}
    with pytest.raises(ValueError, match="nested too deeply"):
        syntax_of(connection, "a" + " + 1" * 5000 + " > 1")

    def too_deep(text: str) -> None:
        raise RecursionError

    monkeypatch.setattr(rules.json, "loads", too_deep)  # as Python does from some depth on
    with pytest.raises(ValueError, match="nested too deeply"):
        syntax_of(connection, "a > 0.123")


def test_what_stays_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = rules._Kept()
    monkeypatch.setattr(rules, "_kept", kept)
    monkeypatch.setattr(rules, "KEPT_TEXTS", 3)
    connection = connect(threads=1)
    read_all(connection, [f"a > {number}" for number in range(9)])
    assert list(kept._syntax) == ["a > 6", "a > 7", "a > 8"]
    monkeypatch.setattr(rules, "KEPT_CHARACTERS", 20)
    read_all(connection, ["long_name > 1234567"])
    assert list(kept._syntax) == ["long_name > 1234567"]


def test_walks_and_copies() -> None:
    connection = connect(threads=1)
    tree = syntax_of(connection, "a > top(b, 0.1) AND c IN ('x', 'y')").tree
    assert column_names(tree) == {"a", "b", "c"}
    assert column_names(tree, into=is_not_top) == {"a", "c"}
    assert sum(node.get("class") == "CONSTANT" for node in walk(tree)) == 3
    one = syntax_of(connection, "1").expression

    def other(node: rules.Tree) -> rules.Tree | None:
        return one if node.get("class") == "COLUMN_REF" else None

    text = text_of_tree(connection, replaced(tree, other))
    assert column_names(syntax_of(connection, text).tree) == set()
    assert column_names(tree) == {"a", "b", "c"}, "the tree itself has not changed"
