"""The SQL of a rule: its steps, the columns that it reads, what it may not contain, and that it
reaches nothing else. A mistake is one line that names view, rule and expression."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pytest

from clipmill.manifests.columns import SIDECAR
from clipmill.manifests.disk import to_plain
from clipmill.manifests.schema import Rule, View
from clipmill.pipeline.views import rules
from clipmill.pipeline.views.choose import check
from clipmill.pipeline.views.rules import (
    TABLE,
    Step,
    borrowed_connection,
    rule_text,
    rules_of,
    steps_of,
)
from tests.support.chosen import choose, view

COLUMNS = [
    "status",
    "uid",
    "words",
    "score",
    "Class",
    "page_url",
    "original_width",
    "original_height",
]
SCHEMA = pa.schema(
    [*SIDECAR, ("words", pa.int32()), ("score", pa.float32()), ("tokens", pa.list_(pa.uint16()))]
)


# --- databases ------------------------------------------------------------------------------------


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
    with borrowed_connection() as connection, pytest.raises(duckdb.Error):
        connection.execute(sql).fetchall()


def test_a_connection_is_used_again_without_rows_and_not_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "_idle", {})
    with borrowed_connection() as first, borrowed_connection() as second:
        assert first is not second
        first.register(TABLE, pa.table({"a": [1]}))
    with borrowed_connection() as again:
        assert again is first  # the last that was given back
        with pytest.raises(duckdb.CatalogException, match=TABLE):
            again.execute(f"FROM {TABLE}")
    with pytest.raises(ValueError, match="bad rule"), borrowed_connection() as connection:
        raise ValueError("bad rule")
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")
    monkeypatch.setattr(os, "getpid", lambda: 0)  # as a child of this process
    with borrowed_connection() as of_child:
        assert of_child is not second


# --- steps ----------------------------------------------------------------------------------------

BASIC = view("basic", ("words", "words > 2"))
HALF = view("half", Rule(name="part", sample=0.5, seed=3))
ALIKE = view("alike", Rule(name="random", random_like="basic", seed=1))
ALL = view(
    "all",
    Rule(name="first", view="basic"),
    Rule(name="second", view="half"),
    Rule(name="third", view="alike"),
)


def test_steps_plain_rules_and_their_text() -> None:
    views = (ALL, BASIC, HALF, ALIKE)
    assert steps_of(views, "all") == (
        Step(name="first.words", where="words > 2"),
        Step(name="second.part", sample=0.5, seed=3),
        Step(name="third.random", random_like="basic", seed=1),
    )
    first, second, third = rules_of(views, "all")
    assert to_plain(first) == {"name": "first.words", "where": "words > 2"}
    assert to_plain(second) == {"name": "second.part", "sample": 0.5, "seed": 3}
    assert to_plain(third) | {"like": ""} == {
        "name": "third.random", "random_like": "basic", "seed": 1, "like": "",
    }  # fmt: skip
    texts = [rule_text(rule) for rule in (first, second, third)]
    assert texts == ["words > 2", "sample 0.5, seed 3", "random_like basic, seed 1"]


def test_plain_rules_are_the_same_exactly_when_they_decide_the_same() -> None:
    harder = view("basic", ("words", "words > 3"))
    for user in (view("v", Rule(name="basic", view="basic")), ALIKE):
        assert rules_of([BASIC, user], user.name) == rules_of([user, BASIC], user.name)
        assert rules_of([BASIC, user], user.name) != rules_of([harder, user], user.name)


A_IS_B, B_IS_A = view("a", Rule(name="b", view="b")), view("b", Rule(name="a", view="a"))


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([A_IS_B, B_IS_A], "in a circle: a -> b -> a"),
        ([view("a", Rule(name="r", random_like="a"))], "in a circle: a -> a"),
        ([view("a", Rule(name="b", random_like="b")), B_IS_A], "in a circle: a -> b -> a"),
        ([view("a", Rule(name="x", view="basik")), BASIC], "view 'a': there is no view 'basik'; d"),
        ([view("a", Rule(name="x", random_like="basik")), BASIC], "there is no view 'basik'"),
        ([view("a", ("x", "words > 1"), ("x", "words > 2"))], "two rules named 'x'"),
        ([view("a", ("not_stored", "words > 1"))], "cannot be named 'not_stored'"),
        ([view("a", ("x:y", "words > 1"))], "cannot be named 'x:y'"),
    ],
)
def test_views_that_name_each_other_wrongly(views: list[View], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(views, SCHEMA)


# --- columns --------------------------------------------------------------------------------------


def test_the_columns_to_read() -> None:
    top = ("clip", "score >= top(score + words, 0.3)")
    views = [
        view("basic", ("shape", "ASPECT <= 3"), ("host", "page_host != 'x'")),
        view("random", Rule(name="r", random_like="basic"), top),
    ]
    basic = {"status", "original_width", "original_height", "page_url"}
    assert rules.columns_of(views, "basic", COLUMNS) == basic
    assert rules.columns_of(views, "random", COLUMNS) == basic | {"uid", "score", "words"}
    assert rules.columns_of([HALF], "half", COLUMNS) == {"status", "uid"}
    with pytest.raises(ValueError, match="no column 'score'"):
        rules.columns_of(views, "random", [name for name in COLUMNS if name != "score"])


@pytest.mark.parametrize(
    ("where", "columns", "not_null"),
    [
        ("words > 2", {"words"}, {"words"}),
        ("WORDS > 2 AND class = 'a'", {"words", "Class"}, {"words", "Class"}),
        ("words IS NULL OR score > 1", {"words", "score"}, {"score"}),
        ("coalesce(words, score, 0) > 1", {"words", "score"}, set()),
        ("words >= top(score, 0.3)", {"words", "score"}, {"words"}),
        ("words >= top(coalesce(words, 0), 0.3)", {"words"}, {"words"}),
        ("aspect < 2", {"aspect"}, {"aspect"}),
        ("list_sum(list_transform([1], lambda q: q + words)) > 1", {"words"}, {"words"}),
        ("true", set(), set()),
    ],
)
def test_the_columns_of_a_rule_and_those_that_must_not_be_null(
    where: str, columns: set[str], not_null: set[str]
) -> None:
    expression = rules.parse(Step(name="r", where=where), [*COLUMNS, *rules.DERIVED])
    assert (expression.columns, expression.not_null) == (columns, not_null)


NUMBERS, TEXTS = ", ".join(map(str, range(21))), ", ".join(f"'{n}'" for n in range(30))


@pytest.mark.parametrize(
    ("where", "lists"),
    [
        (f"words IN ({NUMBERS})", [f"(words IN ({NUMBERS}))"]),
        (f"NOT WORDS IN ({NUMBERS}, NULL, 1.5)", [f"(WORDS IN ({NUMBERS}, NULL, 1.5))"]),
        (f"text = 'a' OR text NOT IN ({TEXTS})", [f"(text IN ({TEXTS}))"]),
        ("words IN (1, 2)", []),
        (f"words IN ({NUMBERS}, words)", []),
        (f"words + 1 IN ({NUMBERS})", []),
        (f"len(list_filter([1], lambda words: words IN ({NUMBERS}))) = 1", []),
        (f"words >= top(CASE WHEN words IN ({NUMBERS}) THEN 1 END, 0.5)", []),
    ],
)
def test_a_long_list_becomes_a_column(where: str, lists: list[str]) -> None:
    expression = rules.parse(Step(name="r", where=where), ["words", "text"])
    tree, columns = rules.long_lists(expression.tree, "alive")
    guard = re.compile(r"CASE  WHEN \(alive\) THEN \((\w+)\) ELSE NULL END")
    assert [guard.sub(r"\1", sql.replace('"', "")) for sql in columns.values()] == lists
    assert all(guard.search(sql.replace('"', "")) for sql in columns.values())
    assert tree == expression.tree or all(name in rules.text_of_tree(tree) for name in columns)


# --- what is no rule ------------------------------------------------------------------------------


def test_functions_that_are_not_looked_up_are_consistent_in_this_duckdb() -> None:
    kinds: dict[str, set[tuple[str, str | None]]] = {}
    for name, kind, stability, _ in rules._functions():
        kinds.setdefault(name, set()).add((kind, stability))
    for name in rules.CONSISTENT:
        assert ("scalar", "CONSISTENT") in kinds[name], name
        # The second of those is of times with a zone alone; the zone is UTC in every connection.
        of_zones = {("scalar", "CONSISTENT"), ("scalar", "CONSISTENT_WITHIN_QUERY")}
        assert kinds[name] <= of_zones, name
        assert name not in rules._refused_functions()


BESIDE = "one SQL expression and nothing beside it"
UNSTABLE = "can give another answer the next time"
# (rule, what its message has after the view, the rule and the expression)
WRONG = [
    # a text in double quotes
    ('caption = "Shirt"', """"Shirt" stands in double quotes, which name a column.*: 'Shirt'$"""),
    ('caption = "it\'s"', "a text stands in single quotes: 'it''s'$"),
    ('"Wrds" > 4', "no such column; did you mean 'words'\\?; a text stands in"),
    # columns
    ("not caption_url", "filter caption gives the column 'caption_url' with other options only"),
    ("word > 1", "no column 'word'; did you mean 'words'\\?; clipmill filter columns POOL lists"),
    ("dc_clip > 0.3", "POOL lists them; one of the source is named in source.extra_columns$"),
    ("picture_short > 99", "'picture_short'; the filter picture gives brightness, .*, phash, "),
    ("caption_word > 1", "no column 'caption_word'; .*caption_words"),
    ("license IS NULL", "'license' comes from the filter page; put page into the filters"),
    ("pool.words > 4", 'table "pool" not found'),
    # syntax
    ("", "it is empty; write one condition, as in caption_words >= 4"),
    ("words >", 'it is no SQL expression: syntax error at or near ">"; write one condition'),
    ("words > 1) OR (words > 2", 'it is no SQL expression: syntax error at or near "\\)"; write'),
    ("caption = 'it's'", "it is no SQL expression: unterminated string literal"),
    ("words > 1; SELECT 1", BESIDE),
    ("words > 1 AS x", BESIDE),
    ("words > 1, words > 2", BESIDE),
    ("words > 1 LIMIT 3", BESIDE),
    ("words FROM read_text('/etc/passwd')", BESIDE),
    # functions, operators and types
    ("words", "it gives INTEGER, not true or false"),
    ("NULL", "not true or false"),
    ("caption > 4", "Cannot compare values of type VARCHAR and type INTEGER"),
    ("lenght(caption) > 4", "lenght does not exist! Did you mean \"length\"\\?"),
    ("status && caption", "No function matches .*'&&\\(VARCHAR, VARCHAR\\)'"),
    ("CAST(caption AS NUMBR) = 3", "Type with name NUMBR does not exist"),
    ("caption + 1 > 3", "No function matches .*'\\+\\(VARCHAR, INTEGER_LITERAL\\)'"),
    ("regexp_matches(caption, '[')", "a regular expression that cannot be read: missing \\]"),
    ("caption ~ '('", "missing \\)"),
    # what looks at more than one row, or gives other answers later
    ("words > (SELECT 1)", "a subquery is not allowed"),
    ("EXISTS (FROM read_text('/etc/passwd'))", "a subquery is not allowed"),
    ("max(words) > 1", "looks at many rows"),
    ("row_number() OVER () > 1", "a window function is not allowed"),
    ("COLUMNS(*) > 1", "is not allowed"),
    ("words > ?", "a parameter is not allowed"),
    ("random() > 0.5", f"{UNSTABLE}; for random rows write {{mine: {{sample"),
    ("hash(caption) % 2 = 0", "hash\\(\\) can give another answer in another release of DuckDB"),
    ("list_aggr([words], 'approx_count_distinct') = 1", "approx_count_distinct\\(\\) .* release"),
    ("uuid() > 'a'", UNSTABLE),
    ("now() > '2020-01-01'", UNSTABLE),
    ("ago(INTERVAL 1 DAY) > '2020-01-01'", UNSTABLE),
    ("age(TIMESTAMP '2020-01-01') > INTERVAL 1 DAY", UNSTABLE),
    ("pg_conf_load_time() > fetched_at", UNSTABLE),
    ("version() = 'v2.0.0'", UNSTABLE),
    ("current_date > '2020-01-01'", "no column 'current_date'|another answer"),
    # top()
    ("score >= top(score)", "top\\(\\) takes a column and a share"),
    ("score >= top(score, 30)", "the share of top\\(\\) is 30"),
    ("score >= top(score, 1.01)", "the share of top\\(\\) is 1.01"),
    ("score >= top(score, 0)", "the share of top\\(\\) is 0"),
    ("score >= top(score, words)", "the share of top\\(\\) is words"),
    ("score >= top(scor, 0.3)", "no column 'scor'; did you mean 'score'"),
    ("score >= top(top(score, 0.1), 0.3)", "top\\(\\) takes a column and a share"),
    ("url >= top(url, 0.3)", "top\\(url, 0\\.3\\) needs a number, and url is string"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "message"), WRONG, ids=[where for where, _ in WRONG])
def test_what_is_no_rule_is_told_in_one_line(where: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check([BASIC, view("v", ("ok", "words > 2"), ("mine", where))], SCHEMA)
    line = str(caught.value)
    assert line.startswith(f"view 'v', rule 'mine' ({where}): ")
    assert "\n" not in line
    assert not any(word in line for word in (" Error:", "Candidate", "LINE 1"))


def test_a_value_that_cannot_be_converted_is_told_with_a_cast_that_can() -> None:
    table = pa.table({"status": ["success"], "caption": ["a cat"]})
    message = r"the text 'a cat' is no INT32; TRY_CAST\(caption AS INT32\) is NULL for such a row"
    with pytest.raises(ValueError, match=message):
        choose({"0": table}, [view("v", ("r", "CAST(caption AS INTEGER) > 4"))])


@pytest.mark.parametrize(
    ("sql", "times"),
    [
        ("caption", 1),
        ("'xyz'", 1),
        ("repeat(caption, 0)", 1),
        ("repeat(caption, 1e2)", 100),
        ("repeat(repeat(caption, 20), 30)", 600),
        ("caption.repeat(3)", 3),
        ("repeat(caption, words)", math.inf),
        ("lpad(caption, 20, 'x')", 20),
        ("greatest(repeat(caption, 4), lpad(caption, 9, ' '))", 9),
        ("generate_series(5)", 5),
        ("range(0, 7, 2)", 7),
        ("range(0, 10, 2000)", 2000),
        ("equi_width_bins(0, 10, 7, true)", 7),
        ("replace(caption, 'a', 'bcd')", 3),
        ("regexp_replace(caption, 'abcd', '')", 1),
        ("array_to_string([caption], ', ')", 2),
        ("list_transform(range(9), lambda x: repeat(caption, 7))", 63),
        ("printf('%50d', words)", 50),
        ("printf('%*d', words, 3)", math.inf),
        ("format('{:5} {:30}', caption, words)", 30),
        ("format('{:>{}}', caption, words)", math.inf),
    ],
)
def test_how_many_times_larger_than_the_values_of_a_row(sql: str, times: float) -> None:
    assert rules.times_larger(rules.syntax_of(sql).expression) == times


def test_the_share_of_top_may_be_all_rows() -> None:
    check([view("v", ("r", "score >= top(score, 1)"))], SCHEMA)


def test_a_rule_may_make_a_value_a_thousand_times_larger_and_no_more() -> None:
    check([view("v", ("r", "length(repeat(caption, 1000)) > 3"))], SCHEMA)
    with pytest.raises(ValueError, match="by repeat a value can be more than 1,000 times"):
        check([view("v", ("r", "length(repeat(caption, 1001)) > 3"))], SCHEMA)


@pytest.mark.parametrize("length", [399, 400, 401])
def test_a_message_shows_400_characters_of_a_rule(length: int) -> None:
    step = Step(name="r", where="x" * length, view="v")
    shown = "x" * length if length <= 400 else "x" * 400 + " …"
    assert step.short_text() == shown
    assert str(step.error("wrong")) == f"view 'v', rule 'r' ({shown}): wrong"


def test_a_step_is_the_same_in_each_view_that_has_it() -> None:
    assert Step(name="r", where="a", view="v") == Step(name="r", where="a", view="w")
    assert "tree" not in repr(rules.parse(Step(name="r", where="words > 1"), {"words"}))


@pytest.mark.parametrize(
    ("sql", "asked"),
    [
        ("words > 1", []),
        ("abs(words) >= length(caption)", []),
        ("greatest(words, CAST('5' AS INTEGER)) < 9", []),
        ("abs(words) IN (1, round(2.5))", []),
        ("score / words > 1", ["(score / words)"]),
        ("abs(CAST('NaN' AS DOUBLE)) > score", ["abs(CAST('NaN' AS DOUBLE))"]),
        ("least(score, sqrt(words)) BETWEEN 0 AND 1", ["least(score, sqrt(words))"]),
        ("words / 2 IS DISTINCT FROM 1", []),
    ],
)
def test_only_what_may_be_nan_is_asked_for_its_type(sql: str, asked: list[str]) -> None:
    """`abs` and the like give numbers for numbers: they are compared as they are."""
    expressions: list[str] = []

    def types_of(given: Sequence[str]) -> list[str]:
        expressions.extend(given)
        return ["DOUBLE"] * len(given)

    tree = rules.syntax_of(sql).tree
    guarded = rules.text_of_tree(rules.without_nan(tree, types_of))
    assert expressions == asked
    assert guarded.count("nullif") == len(asked)


def test_large_rules_are_cheap_or_refused_in_one_short_line() -> None:
    """A list of thousands of values, hundreds of rules, thousands of operations, any depth."""
    rows = pa.table({"status": ["success"] * 50, "c": [f"c{number}" for number in range(50)]})
    listed = ", ".join(f"'c{number}'" for number in range(10, 20_010))
    assert choose({"0": rows}, [view("v", ("r", f"c IN ({listed})"))])["v"].kept == 40
    many = view("many", *[(f"r{number}", f"words > -{number}") for number in range(1, 301)])
    check([many, view("chain", ("r", "words" + " + 1" * 50 + " > 1"))], SCHEMA)
    for where, message in [
        (" OR ".join(f"url LIKE '%{n}'" for n in range(10_001)), "10,002 operations, and may have"),
        ("(" * 3000 + "words > 1" + ")" * 3000, "nested too deeply"),
        *(("words" + " + 1" * n + " > 1", "too deeply|nesting depth") for n in (100, 300, 5000)),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            check([view("v", ("r", where))], SCHEMA)
        assert len(str(raised.value)) < 700
