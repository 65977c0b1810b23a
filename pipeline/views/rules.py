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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import duckdb
import pyarrow as pa

from manifests.schema import View
from pipeline.views.connections import borrowed_connection
from pipeline.views.expressions.computed_numbers import may_compute_nan, without_nan
from pipeline.views.expressions.syntax import (
    FORBIDDEN,
    Tree,
    is_top,
    read_all,
    replaced,
    syntax_of,
    text_of_argument,
    text_of_tree,
    walk,
)
from pipeline.views.sql_problems import binding_problem, unknown_column
from pipeline.views.steps import Step, steps_of

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
# Operations of one rule that DuckDB evaluates; on 20,000 rows these take 5 s.
MOST_OPERATIONS = 10_000
# Functions of many rules that depend on their arguments alone. To list all functions takes 50 ms.
_CONSISTENT = (
    "+ - * / // % ~~ !~~ abs ceil contains ends_with floor greatest isfinite isinf isnan least len "
    "length list_contains lower regexp_matches round starts_with upper"
)
CONSISTENT = frozenset(_CONSISTENT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """The SQL of a rule after parsing. Names of columns are spelled as the table spells them."""

    tree: Tree = field(repr=False)
    columns: frozenset[str]  # all that it reads, inside top() too
    not_null: frozenset[str]  # a row with NULL in one of these fails the rule as missing
    may_compute_nan: bool
    operations: int  # comparisons, functions and the like


def columns_of(views: Sequence[View], name: str, known: Iterable[str]) -> set[str]:
    """The columns to read for a view: those of its rules, `status`, and `uid` for random rows.

    `known`: the columns that can be read. ValueError for a rule that reads another one or is no
    expression.
    """
    steps = steps_of(views, name)
    with borrowed_connection() as connection:
        read_all(connection, wheres(steps))
        return _columns_of_steps(connection, views, steps, {*known, *DERIVED})


def _columns_of_steps(
    connection: duckdb.DuckDBPyConnection,
    views: Sequence[View],
    steps: Sequence[Step],
    known: set[str],
) -> set[str]:
    columns = {"status"}
    for step in steps:
        if step.where is not None:
            for column in parse(connection, step, known).columns:
                columns |= set(DERIVED[column][1]) if column in DERIVED else {column}
            continue
        columns.add("uid")
        if step.random_like is not None:
            like = steps_of(views, step.random_like)
            columns |= _columns_of_steps(connection, views, like, known)
    return columns


def can_meet_nan(views: Sequence[View], name: str, kinds: Mapping[str, pa.DataType]) -> bool:
    """True where a rule of a view, or of one that it is random like, reads a column of floats or
    may compute NaN. kinds: of the columns that can be read."""
    if any(pa.types.is_floating(kinds[column]) for column in columns_of(views, name, kinds)):
        return True
    for step in steps_of(views, name):
        if step.random_like is not None and can_meet_nan(views, step.random_like, kinds):
            return True
    with borrowed_connection() as connection:
        for where in wheres(steps_of(views, name)):
            if may_compute_nan(syntax_of(connection, where)):
                return True
    return False


def wheres(steps: Iterable[Step]) -> list[str]:
    """The SQL of those steps that have some."""
    return [step.where for step in steps if step.where is not None]


def parse(connection: duckdb.DuckDBPyConnection, step: Step, known: Iterable[str]) -> Expression:
    """The expression of a step. ValueError for what no rule may contain and for columns not in
    `known`."""
    assert step.where is not None
    syntax = syntax_of(connection, step.where, step)
    for node in syntax.forbidden:
        kind = FORBIDDEN[node["class"]]
        raise step.error(f"{kind} is not allowed in a rule; it looks at one row")
    for call in syntax.calls:
        _check_function(connection, step, call)
    spelling = {column.lower(): column for column in known}
    for column in sorted(syntax.columns):
        if column not in spelling:
            raise step.error(unknown_column(column, step.where, spelling))
    not_null = syntax.of_row - syntax.null_aware
    return Expression(
        tree=syntax.tree,
        columns=frozenset(spelling[column] for column in syntax.columns),
        not_null=frozenset(spelling[column] for column in not_null),
        may_compute_nan=may_compute_nan(syntax),
        operations=syntax.operations,
    )


def to_sql(
    connection: duckdb.DuckDBPyConnection,
    expression: Expression,
    step: Step,
    threshold: Callable[[str, str, Fraction], int | float],
    types_of: Callable[[Sequence[str]], Sequence[str]],
) -> str:
    """The rule with each top() replaced by `threshold(call, column, share)`, and NULL for NaN that
    it computes, before any test for NULL. types_of: of expressions over the columns."""

    if expression.operations > MOST_OPERATIONS:
        raise step.error(
            f"it has {expression.operations:,} operations, and may have {MOST_OPERATIONS:,}; "
            "write column IN (…), or several rules"
        )

    def constant(node: Tree) -> Tree | None:
        if not is_top(node):
            return None
        value = threshold(*parse_top(connection, step, node))
        kind = "HUGEINT" if isinstance(value, int) else "DOUBLE"
        return syntax_of(connection, f"CAST('{value!r}' AS {kind})").expression

    tree = replaced(expression.tree, constant)
    if expression.may_compute_nan:
        tree = without_nan(connection, tree, types_of)
    return text_of_tree(connection, tree)


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
    nested = any(is_top(node) for node in walk(arguments))
    if len(arguments) != 2 or nested:
        raise step.error("top() takes a column and a share, as in top(clip_score, 0.30)")
    empty_select = syntax_of(connection, "1").tree
    column, share_text = (
        text_of_argument(json.dumps({**empty_select, "select_list": [argument]}))
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


def evaluation_error(step: Step, error: duckdb.Error) -> ValueError:
    """What DuckDB says about a rule that it can read and not evaluate, as an error of the step."""
    return step.error(binding_problem(error, _allowed_functions()))


def _check_function(connection: duckdb.DuckDBPyConnection, step: Step, node: Tree) -> None:
    """ValueError for the call of a function that no rule may contain."""
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
