"""The SQL of a rule: which columns it reads, which NULLs it speaks of, and that it reaches
nothing else."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from manifests.schema import Rule, View
from pipeline.shuffle import connect
from pipeline.views import rules
from pipeline.views.rules import Step

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


def view(name: str, *steps: tuple[str, str] | Rule) -> View:
    made = [s if isinstance(s, Rule) else Rule(name=s[0], where=s[1]) for s in steps]
    return View(name=name, rules=tuple(made))


def parse(where: str) -> rules.Expression:
    known = [*COLUMNS, *rules.DERIVED]
    return rules.parse(connect(), Step(name="r", where=where), known)


def test_the_columns_to_read() -> None:
    views = [
        view("basic", ("shape", "ASPECT <= 3"), ("host", "page_host != 'x'")),
        view(
            "random",
            Rule(name="r", random_like="basic"),
            ("clip", "score >= top(score + words, 0.3)"),
        ),
    ]
    basic = {"status", "original_width", "original_height", "page_url"}
    assert rules.columns_of(views, "basic", COLUMNS) == basic
    assert rules.columns_of(views, "random", COLUMNS) == basic | {"uid", "score", "words"}
    with pytest.raises(ValueError, match="no column 'score'"):
        rules.columns_of(
            views,
            "random",
            ["status", "uid", "page_url", "original_width", "original_height", "words"],
        )


def test_a_sample_reads_the_uid() -> None:
    half = view("half", Rule(name="half", sample=0.5))
    assert rules.columns_of([half], "half", COLUMNS) == {"status", "uid"}


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
    expression = parse(where)
    assert (expression.columns, expression.not_null) == (columns, not_null)


def test_a_threshold_takes_the_place_of_top() -> None:
    connection, step = connect(), Step(name="r", where="score >= top(score, 0.3)")
    calls = []

    def threshold(call: str, column: str, share: Fraction) -> float:
        calls.append((call, column, share))
        return 0.25

    expression = rules.parse(connection, step, COLUMNS)
    sql = rules.to_sql(connection, expression, step, threshold, lambda texts: [])
    assert calls == [("top(score, 0.3)", "score", Fraction(3, 10))]
    assert connection.sql(f"SELECT {sql} FROM (SELECT 0.25::DOUBLE AS score)").fetchall() == [
        (True,)
    ]


def test_a_long_list_becomes_a_table() -> None:
    schema = pa.schema([("words", pa.int32()), ("text", pa.string()), ("score", pa.float32())])
    numbers, texts = ", ".join(map(str, range(21))), ", ".join(f"'{n}'" for n in range(30))
    connection = connect()
    for where, values in [
        (f"words IN ({numbers}, 5)", list(range(21))),
        (f"NOT WORDS IN ({numbers})", list(range(21))),
        (f"page_host NOT IN ({texts})", [str(n) for n in range(30)]),
        (f"text = 'a' OR text IN ({texts})", [str(n) for n in range(30)]),
        ("words IN (1, 2)", None),
        (f"score IN ({numbers})", None),
        (f"text IN ({texts}, NULL)", None),
        (f"words IN ({numbers}, 1.5)", None),
        (f"words IN ({numbers}, {2**63})", None),
        (f"words + 1 IN ({numbers})", None),
        (f"len(list_filter([1], lambda words: words IN ({numbers}))) = 1", None),
        ("score > 1 OR " + " OR ".join(f"words = {n}" for n in range(20)), list(range(20))),
        (" OR ".join(f"'{n}' = text" for n in range(30)), [str(n) for n in range(30)]),
        (" OR ".join(f"words = {n}" for n in range(19)), None),
        (" OR ".join(f"score = {n}" for n in range(30)), None),
        (f"words >= top(CASE WHEN words IN ({numbers}) THEN 1 END, 0.5)", None),
    ]:
        syntax = rules.syntax_of(connection, where)
        expression = rules.Expression(
            tree=syntax.tree, columns=frozenset(), not_null=frozenset(), operations=1
        )
        short, tables = rules.long_lists(connection, expression, schema)
        if values is None:
            assert not tables
            assert short.tree == syntax.tree
            continue
        ((name, table),) = tables.items()
        assert table["value"].to_pylist() == values
        assert f'(SELECT "value" FROM {name})' in rules.text_of_tree(connection, short.tree)


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


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "word > 1",
            r"no column 'word'; did you mean 'words'\?; clipmill filter columns POOL lists them",
        ),
        ("random() < 0.5", r"write \{r: \{sample: 0\.5, seed: 0\}\}"),
        ("pg_conf_load_time() > fetched_at", r"pg_conf_load_time\(\) can give another answer"),
        ("version() = 'v2.0.0'", r"version\(\) can give another answer the next time"),
        ("words > (SELECT 1)", "a subquery is not allowed"),
        ("words >", "it ends too early, after '>'"),
    ],
)
def test_what_a_rule_may_not_contain(where: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(where)
