"""The SQL of a rule, read with DuckDB's own parser: its columns, its NULLs, its top() calls.

A rule looks at one row and gives the same answer every time. Subqueries, windows, aggregates, `*`,
parameters, random functions and functions of the clock are refused.

NULL: a row in which a column is NULL fails every rule that reads the column, unless the rule speaks
of that column's NULLs itself. It does so if the column occurs, in this rule, inside an operand of
IS NULL, of IS NOT NULL or of coalesce() (ifnull() is the same). So `a IS NULL OR a > 3` and
`coalesce(a, 0) < 3` decide about a NULL in `a`; `least(a, b) > 3` and `CASE WHEN a > 3 THEN false
ELSE true END` do not, although SQL has an answer for them. Columns inside top() are not read for
the row and do not count.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import duckdb

from manifests.schema import View
from pipeline.views.connections import borrowed_connection
from pipeline.views.sql_problems import binding_problem, syntax_problem, unknown_column
from pipeline.views.steps import Step, steps_of

Tree = dict[str, Any]

_HOST = (
    r"nullif(lower(regexp_extract({}, "
    r"'^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)', 1)), '')"
)
# Columns that no file holds: (SQL, the sidecar's columns that it reads). greatest() and least()
# skip a NULL, hence the CASE.
DERIVED: dict[str, tuple[str, tuple[str, ...]]] = {
    "aspect": (
        "CASE WHEN original_width > 0 AND original_height > 0 THEN "
        "greatest(original_width, original_height)::DOUBLE / "
        "least(original_width, original_height) END",
        ("original_width", "original_height"),
    ),
    "url_host": (_HOST.format("url"), ("url",)),
    "page_host": (_HOST.format("page_url"), ("page_url",)),
}
# Functions of the clock or the session that duckdb_functions() calls consistent, or that hide in a
# macro.
CLOCKS = frozenset(
    {"age", "ago", "current_localtime", "current_localtimestamp", "user", "current_catalog"}
)
# Functions of many rules that depend on their arguments alone. To list all functions takes 50 ms.
_CONSISTENT = (
    "+ - * / // % ~~ !~~ abs ceil contains ends_with floor greatest isfinite isinf isnan least len "
    "length list_contains lower regexp_matches round starts_with upper"
)
CONSISTENT = frozenset(_CONSISTENT.split())
FORBIDDEN = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by number",
}
NULL_OPERATORS = frozenset({"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE"})
BESIDE_AN_EXPRESSION = (
    "modifiers",
    "where_clause",
    "group_expressions",
    "having",
    "qualify",
    "sample",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """The SQL of a rule after parsing. Names of columns are spelled as the table spells them."""

    tree: Tree = field(repr=False)
    columns: frozenset[str]  # all that it reads, inside top() too
    not_null: frozenset[str]  # a row with NULL in one of these fails the rule as missing


def columns_of(views: Sequence[View], name: str, known: Iterable[str]) -> set[str]:
    """The columns to read for a view: those of its rules, `status`, and `uid` for random rows.

    `known`: the columns that can be read. ValueError for a rule that reads another one or is no
    expression.
    """
    known = {*known, *DERIVED}
    columns = {"status"}
    for step in steps_of(views, name):
        if step.where is not None:
            with borrowed_connection() as connection:
                read = parse(connection, step, known).columns
            for column in read:
                columns |= set(DERIVED[column][1]) if column in DERIVED else {column}
            continue
        columns.add("uid")
        if step.random_like is not None:
            columns |= columns_of(views, step.random_like, known)
    return columns


def parse(connection: duckdb.DuckDBPyConnection, step: Step, known: Iterable[str]) -> Expression:
    """The expression of a step. ValueError for what no rule may contain and for columns not in
    `known`."""
    assert step.where is not None
    tree = syntax_tree(connection, step.where, step)
    lambda_names: set[str] = set()
    for node in _nodes(tree["select_list"]):
        _refuse(connection, step, node)
        if node.get("class") == "LAMBDA":
            lambda_names |= _column_names(node["lhs"])
    columns = _column_names(tree["select_list"]) - lambda_names
    of_row = _column_names(tree["select_list"], into_top=False) - lambda_names
    null_aware: set[str] = set()
    for node in _nodes(tree["select_list"], into_top=False):
        if node.get("type") in NULL_OPERATORS:
            null_aware |= _column_names(node["children"])
    spelling = {column.lower(): column for column in known}
    for column in sorted(columns):
        if column not in spelling:
            raise step.error(unknown_column(column, step.where, spelling))
    return Expression(
        tree=tree,
        columns=frozenset(spelling[column] for column in columns),
        not_null=frozenset(spelling[column] for column in of_row - null_aware),
    )


def to_sql(
    connection: duckdb.DuckDBPyConnection,
    expression: Expression,
    step: Step,
    threshold: Callable[[str, str, Fraction], int | float],
) -> str:
    """The rule with each top() replaced by `threshold(call, column, share)`, before any test for
    NULL."""

    def constant(call: Tree) -> Tree:
        value = threshold(*parse_top(connection, step, call))
        kind = "HUGEINT" if isinstance(value, int) else "DOUBLE"
        node: Tree = syntax_tree(connection, f"CAST('{value!r}' AS {kind})")["select_list"][0]
        return node

    return text_of_tree(connection, _replace_top(expression.tree, constant))


def null_unless_known(sql: str, columns: Iterable[str]) -> str:
    """`sql`, but NULL for a row in which one of `columns` is NULL."""
    tests = [f"{quoted(column)} IS NULL" for column in sorted(columns)]
    return f"CASE WHEN {' OR '.join(tests)} THEN NULL ELSE ({sql}) END" if tests else sql


def quoted(column: str) -> str:
    """A column's name as SQL."""
    return '"' + column.replace('"', '""') + '"'


def parse_top(
    connection: duckdb.DuckDBPyConnection, step: Step, call: Tree
) -> tuple[str, str, Fraction]:
    """(the call as text, its column as SQL, its share) of a top(column, share)."""
    arguments = [
        argument.get("expression", argument)
        for argument in call.get("arguments") or call.get("children") or []
    ]
    nested = any(node.get("function_name") == "top" for node in _nodes(arguments))
    if len(arguments) != 2 or nested:
        raise step.error("top() takes a column and a share, as in top(clip_score, 0.30)")
    empty_select = syntax_tree(connection, "1")
    column, share_text = (
        text_of_tree(connection, {**empty_select, "select_list": [argument]})
        for argument in arguments
    )
    try:
        share = Fraction(share_text)
    except ValueError:
        share = Fraction(0)
    if not 0 < share <= 1:
        raise step.error(
            f"the share of top() is {share_text}; it must be a number above 0 and at most 1"
        )
    return f"top({column}, {share_text})", column, share


def syntax_tree(connection: duckdb.DuckDBPyConnection, sql: str, step: Step | None = None) -> Tree:
    """DuckDB's syntax tree of `SELECT sql`. ValueError if that is not one expression."""
    step = step or Step(name="", where=sql)
    answer = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {sql}"]).fetchall()[0][0]
    parsed = json.loads(answer)
    if parsed["error"]:
        raise step.error(syntax_problem(str(parsed["error_message"]), sql))
    node: Tree = parsed["statements"][0]["node"]
    is_one_expression = (
        len(parsed["statements"]) == 1
        and node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and not node["select_list"][0]["alias"]
        and node["from_table"]["type"] == "EMPTY"
        and not any(node.get(key) for key in BESIDE_AN_EXPRESSION)
    )
    if not is_one_expression:
        raise step.error("it must be one SQL expression and nothing beside it")
    return node


def text_of_tree(connection: duckdb.DuckDBPyConnection, node: Tree) -> str:
    """A syntax tree as SQL, without its SELECT."""
    statement = json.dumps({"error": False, "statements": [{"node": node}]})
    text = connection.execute("SELECT json_deserialize_sql(?)", [statement]).fetchall()[0][0]
    return str(text).removeprefix("SELECT ")


def evaluation_error(step: Step, error: duckdb.Error) -> ValueError:
    """What DuckDB says about a rule that it can read and not evaluate, as an error of the step."""
    return step.error(binding_problem(error, _allowed_functions()))


def _refuse(connection: duckdb.DuckDBPyConnection, step: Step, node: Tree) -> None:
    """ValueError for a node that no rule may contain."""
    kind = node.get("class")
    if kind in FORBIDDEN:
        raise step.error(f"{FORBIDDEN[kind]} is not allowed in a rule; it looks at one row")
    if kind != "FUNCTION":
        return
    name = str(node["function_name"]).lower()
    if name in CONSISTENT:
        return
    if name == "top":
        parse_top(connection, step, node)
        return
    refusal = _refused_functions().get(name)
    if refusal == "unstable":
        raise step.error(
            f"{name}() can give another answer the next time; for random rows write "
            f"{{{step.name}: {{sample: 0.5, seed: 0}}}}"
        )
    if refusal == "aggregate":
        raise step.error(f"{name}() looks at many rows; a rule looks at one")


@functools.cache
def _functions() -> list[tuple[str, str, str | None]]:
    """(name, type, stability) of each function of DuckDB."""
    query = "SELECT function_name, function_type, stability FROM duckdb_functions()"
    with borrowed_connection() as connection:
        return connection.execute(query).fetchall()


def _allowed_functions() -> set[str]:
    """Names of the functions that a rule may call."""
    names = {name for name, kind, _ in _functions() if kind in ("scalar", "macro")}
    return (names | {"top"}) - _refused_functions().keys()


@functools.cache
def _refused_functions() -> dict[str, str]:
    """Functions that a rule may not call: unstable, or aggregate without a scalar function of
    the same name."""
    functions = _functions()
    scalar = {name for name, kind, _ in functions if kind in ("scalar", "macro")}
    refused = {}
    for name, kind, stability in functions:
        if stability not in (None, "CONSISTENT") or name in CLOCKS:
            refused[name] = "unstable"
        elif kind == "aggregate" and name not in scalar:
            refused.setdefault(name, "aggregate")
    return {**refused, **dict.fromkeys(CLOCKS, "unstable")}


def _is_top(node: Tree) -> bool:
    return node.get("class") == "FUNCTION" and str(node["function_name"]).lower() == "top"


def _nodes(value: Any, *, into_top: bool = True) -> Iterator[Tree]:
    """Every mapping inside a tree, outer ones first. `into_top`: also what stands inside top()."""
    if isinstance(value, dict):
        if not into_top and _is_top(value):
            return
        yield value
        for inner in value.values():
            yield from _nodes(inner, into_top=into_top)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner, into_top=into_top)


def _column_names(value: Any, *, into_top: bool = True) -> set[str]:
    """The columns of a tree in lower case, as SQL compares them."""
    return {
        str(node["column_names"][-1]).lower()
        for node in _nodes(value, into_top=into_top)
        if node.get("class") == "COLUMN_REF"
    }


def _replace_top(value: Any, constant: Callable[[Tree], Tree]) -> Any:
    """A copy of a tree with `constant(call)` in place of every top()."""
    if isinstance(value, list):
        return [_replace_top(inner, constant) for inner in value]
    if not isinstance(value, dict):
        return value
    if _is_top(value):
        return constant(value)
    return {key: _replace_top(inner, constant) for key, inner in value.items()}
