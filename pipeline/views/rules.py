"""The SQL of a rule, read with DuckDB's own parser: steps, columns, problems."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pyarrow as pa

from clipmill.filters import FILTERS
from clipmill.manifests import disk
from clipmill.manifests.columns import PAIRS, SIDECAR
from clipmill.manifests.late import duckdb
from clipmill.manifests.layout import NOT_STORED
from clipmill.manifests.records import ViewRule
from clipmill.manifests.schema import Rule, View
from clipmill.pipeline.database import connect

# --------------------------------------------------------------------------------------------------
# The database in memory that rules are evaluated in.
#
# To open a database costs 20 to 50 ms of CPU, as much as twenty rules over 200,000 rows. So a
# process has one of one thread; a connection to it costs 0.02 ms, runs in the thread that uses
# it, and sees no rows of another connection. Connections that are not in use are kept.


TABLE = "pool_rows"  # the one table of rows that rules are evaluated over
MEMORY = "2GB"  # that DuckDB may take for all of its connections beside the values of expressions

_lock = threading.Lock()
# Process -> connections that are not in use. A forked process must not use those of its parent.
_idle: dict[int, list[duckdb.DuckDBPyConnection]] = {}
# Process -> the connection that holds its database open. It evaluates nothing.
_databases: dict[int, duckdb.DuckDBPyConnection] = {}


@contextmanager
def borrowed_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the database of one thread, for one user at a time. It holds no rows when
    it is given back; after an error it is closed.
    """
    process = os.getpid()
    with _lock:
        idle = _idle.setdefault(process, [])
        if idle:
            connection = idle.pop()
        else:
            if process not in _databases:
                limits = {"memory_limit": MEMORY, "temp_directory": ""}
                _databases[process] = connect(threads=1, **limits)
            connection = _databases[process].cursor()
    try:
        yield connection
        connection.unregister(TABLE)
    except BaseException:
        connection.close()
        raise
    with _lock:
        idle.append(connection)


# --------------------------------------------------------------------------------------------------
# What is wrong with a rule, as one line: DuckDB's words without the name of their class, its list
# of candidates and its excerpt of the SQL.


LIST_COLUMNS = (
    "clipmill filter columns POOL lists them; one of the source is named in source.extra_columns"
)
PAIRS_ONLY = frozenset(PAIRS.names) - frozenset(SIDECAR.names)
EXAMPLE = "write one condition, as in caption_words >= 4 AND aspect <= 3"
CLOSE = 0.8  # of a misspelt column; else a text in double quotes is rather a text
DOUBLE_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
TOO_DEEP = (
    "it is nested too deeply to be read; write fewer parentheses and shorter chains of operators, "
    "or several rules"
)
_NOT_CONVERTED = re.compile(
    r"Could not convert string '(.*)' to (\w+)(?: when casting from source column (\w+))?"
)
_ERROR_CLASS = re.compile(r"^(?:[A-Z]\w* )+Error: ")


def unknown_column(column: str, sql: str, known: Iterable[str]) -> str:
    """What is wrong with a rule that reads a column that is not there. `column` in lower case."""
    for written in DOUBLE_QUOTED.findall(sql):
        text = written.replace('""', '"')
        if text.lower() == column:
            close = disk.did_you_mean(column, known, CLOSE)
            in_single_quotes = "'" + text.replace("'", "''") + "'"
            return (
                f'"{written}" stands in double quotes, which name a column, and there is no such '
                f"column{close}; a text stands in single quotes: {in_single_quotes}"
            )
    if column in PAIRS_ONLY:
        return f"the column {column!r} comes from the filter page; put page into the filters"
    for name, filter_class in FILTERS.items():
        if column in filter_class.adds:
            return (
                f"the filter {name} gives the column {column!r} with other options only; "
                "docs/reference/filters.md says which"
            )
    wrong = f"there is no column {column!r}"
    owners = [name for name in FILTERS if FILTERS[name].adds and column.startswith(f"{name}_")]
    if owners and disk.closest(column, known, CLOSE) is None:
        owner = max(owners, key=len)
        return f"{wrong}; the filter {owner} gives {', '.join(FILTERS[owner].adds)}"
    return f"{wrong}{disk.did_you_mean(column, known)}; {LIST_COLUMNS}"


def binding_problem(error: Exception) -> str:
    """What is wrong with a rule that DuckDB can read and not evaluate."""
    message = " ".join(str(error).split("\n\nLINE")[0].split())
    message = _ERROR_CLASS.sub("", message).split(" Candidate")[0]
    if match := _NOT_CONVERTED.search(message):
        cast = f"TRY_CAST({match[3] or 'column'} AS {match[2]})"
        return f"the text {match[1]!r} is no {match[2]}; {cast} is NULL for such a row"
    return message


# --------------------------------------------------------------------------------------------------
# The steps of a view: its rules in order, with the rules of other views in place of `view:`
# rules.


RESERVED = (NOT_STORED, "attempted", "stored")  # steps of every funnel
MOST_STEPS, DEEPEST = 2000, 100  # of a view, with those of the views that it names; of such views
SHOWN_TEXT = 400  # characters of a rule in a message
SELECTED, SELECTED_WORD = "selected", "in "


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rule of a view. Exactly one of `where`, `random_like` and `sample` is set."""

    name: str  # "basic.words" if it came from view `basic`
    where: str | None = None  # SQL
    random_like: str | None = None  # a view
    sample: float | None = None  # a share of the stored rows
    seed: int = 0
    view: str = field(default="", compare=False)  # the view that is made, for messages

    def text(self) -> str:
        """The rule as a person reads it."""
        if self.where is not None:
            return self.where
        if self.sample is not None:
            return f"sample {self.sample:g}, seed {self.seed}"
        return f"random_like {self.random_like}, seed {self.seed}"

    def error(self, reason: str) -> ValueError:
        """A ValueError that names the view, the rule and its expression in one line."""
        view = f"view {self.view!r}, " if self.view else ""
        return ValueError(f"{view}rule {self.name!r} ({self.short_text()}): {reason}")

    def short_text(self) -> str:
        """The beginning of the rule in one line, for messages."""
        text = " ".join(self.text().split())
        return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]} …"


def steps_of(views: Sequence[View], name: str) -> tuple[Step, ...]:
    """The steps of view `name`.

    ValueError for unknown views, views that name each other in a circle, and rules of the same
    name.
    """
    by_name = {view.name: view for view in views}
    steps = [replace(step, view=name) for step in _steps_of_view(by_name, name, (), {})]
    names = Counter(step.name for step in steps)
    for step in steps:
        if names[step.name] > 1:
            raise ValueError(
                f"view {name!r} has two rules named {step.name!r}; give one of them another name"
            )
        if step.name in RESERVED or ":" in step.name:
            raise ValueError(f"view {name!r}: a rule cannot be named {step.name!r}")
    return tuple(steps)


def rules_of(views: Sequence[View], name: str) -> tuple[ViewRule, ...]:
    """The steps as NAME.json has them. Equal rules decide equally, and the other way round."""

    @functools.cache
    def rules_by_name(view: str) -> tuple[ViewRule, ...]:
        rules = []
        for step in steps_of(views, view):
            like = step.random_like
            rule = ViewRule(
                name=step.name,
                where=step.where,
                sample=step.sample,
                random_like=like,
                seed=step.seed if step.where is None else None,
                like=None if like is None else disk.content_hash(rules_by_name(like)),
            )
            rules.append(rule)
        return tuple(rules)

    return rules_by_name(name)


def step_of(rule: ViewRule | Rule) -> Step:
    """The step of a rule of NAME.json or of a recipe."""
    return Step(
        name=rule.name,
        where=rule.where,
        random_like=rule.random_like,
        sample=rule.sample,
        seed=rule.seed or 0,
    )


def rule_text(rule: ViewRule) -> str:
    """A rule of NAME.json as a person reads it."""
    return step_of(rule).text()


def selected_rules(where: str) -> tuple[ViewRule, ...]:
    """The rules of a view whose rows a program selected: `where` says in words which."""
    assert where.startswith(SELECTED_WORD), where
    return (ViewRule(name=SELECTED, where=where),)


def is_selected(rules: Sequence[ViewRule]) -> bool:
    """Whether `selected_rules` gave these rules. No SQL expression begins with the word `in`."""
    return len(rules) == 1 and (rules[0].where or "").startswith(SELECTED_WORD)


def _steps_of_view(
    by_name: Mapping[str, View], name: str, outer: tuple[str, ...], done: dict[str, list[Step]]
) -> list[Step]:
    """outer: the views that led here. done: the steps of views that were met, once for each."""
    if name in done:
        return done[name]
    if name in outer:
        raise ValueError(f"views name each other in a circle: {' -> '.join([*outer, name])}")
    if name not in by_name:
        prefix = f"view {outer[-1]!r}: " if outer else ""
        raise ValueError(
            f"{prefix}there is no view {name!r}{disk.did_you_mean(name, by_name)}; "
            f"there are {', '.join(by_name)}"
        )
    if len(outer) > DEEPEST:
        raise ValueError(f"view {outer[0]!r} names views more than {DEEPEST} deep; write rules")
    steps: list[Step] = []
    for rule in by_name[name].rules:
        if rule.view is not None:
            for step in _steps_of_view(by_name, rule.view, (*outer, name), done):
                steps.append(replace(step, name=f"{rule.name}.{step.name}"))
        else:
            if rule.random_like is not None and rule.random_like in by_name:  # a circle raises
                _steps_of_view(by_name, rule.random_like, (*outer, name), done)
            steps.append(step_of(rule))
        if len(steps) > MOST_STEPS:
            raise ValueError(
                f"view {name!r} has more than {MOST_STEPS:,} rules, with those of the views that "
                "it names; name each view once"
            )
    done[name] = steps
    return steps


# --------------------------------------------------------------------------------------------------
# DuckDB's syntax trees of rules: kept, because each is asked for several times, and walked without
# recursion. DuckDB's parser takes 0.3 ms for one rule.


Tree = dict[str, Any]

KEPT_TREES = 2048  # expressions whose trees stay in memory; a tree takes 100 times their text
NULL_OPERATORS = frozenset({"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE"})
FORBIDDEN = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by number",
}
BESIDE_AN_EXPRESSION = (
    "modifiers",
    "where_clause",
    "group_expressions",
    "having",
    "qualify",
    "sample",
)


@dataclass(slots=True)
class Syntax:
    """The SELECT of one expression, and what stands in it. Names of columns are in lower case."""

    tree: Tree = field(repr=False)
    columns: set[str] = field(default_factory=set)  # all, inside top() too
    of_row: set[str] = field(default_factory=set)  # outside of top()
    null_aware: set[str] = field(default_factory=set)  # inside IS NULL, IS NOT NULL, coalesce()
    calls: list[Tree] = field(default_factory=list)  # of functions, outer ones first
    forbidden: list[Tree] = field(default_factory=list)
    operations: int = 0  # comparisons, functions and the like

    @property
    def expression(self) -> Tree:
        """The tree of the expression."""
        node: Tree = self.tree["select_list"][0]
        return node


@functools.lru_cache(maxsize=KEPT_TREES)
def syntax_of(sql: str) -> Syntax:
    """The syntax of `SELECT sql`. Its trees must not be changed. ValueError if that is not one
    expression."""
    if not sql.strip():
        raise ValueError(f"it is empty; {EXAMPLE}")
    parsed = json.loads(_answer_of_parser("SELECT json_serialize_sql(?)", f"SELECT {sql}"))
    if parsed["error"]:
        message = str(parsed["error_message"])
        is_deep = message.startswith("Max expression depth")
        raise ValueError(TOO_DEEP if is_deep else f"it is no SQL expression: {message}; {EXAMPLE}")
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
        raise ValueError("it must be one SQL expression and nothing beside it")
    return _examined(node)


def text_of_tree(node: Tree) -> str:
    """A syntax tree as SQL, without its SELECT."""
    statement = json.dumps({"error": False, "statements": [{"node": node}]})
    return _answer_of_parser("SELECT json_deserialize_sql(?)", statement).removeprefix("SELECT ")


def _text_of_expression(node: Tree) -> str:
    return text_of_tree({**syntax_of("1").tree, "select_list": [node]})


def _answer_of_parser(query: str, text: str) -> str:
    with borrowed_connection() as connection:
        return str(connection.execute(query, [text]).fetchall()[0][0])


def walk(value: object, *, into: Callable[[Tree], bool] | None = None) -> Iterator[Tree]:
    """Every mapping inside a tree, outer ones first. What is inside a constant is left out, and
    nodes for which `into` is false with all that is inside them."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += reversed(node)
        elif isinstance(node, dict):
            if into is not None and not into(node):
                continue
            yield node
            if node.get("class") != "CONSTANT":
                inner = reversed(node.values())
                waiting += [each for each in inner if isinstance(each, (dict, list))]


def column_names(value: Any, *, into: Callable[[Tree], bool] | None = None) -> set[str]:
    """The columns of a tree in lower case, as SQL compares them."""
    names = set()
    for node in walk(value, into=into):
        if node.get("class") == "COLUMN_REF":
            names.add(str(node["column_names"][-1]).lower())
    return names


def is_top(node: Tree) -> bool:
    """True for a call of top()."""
    return node.get("class") == "FUNCTION" and str(node["function_name"]).lower() == "top"


def is_not_top(node: Tree) -> bool:
    """True for every other node."""
    return not is_top(node)


def replaced(value: Any, other: Callable[[Tree], Tree | None]) -> Any:
    """A copy of a tree with `other(node)` in place of every node for which it is not None.

    What was put in is not searched again. A tree of DuckDB's parser is at most 1000 nodes deep.
    """
    if isinstance(value, list):
        return [replaced(inner, other) for inner in value]
    if not isinstance(value, dict):
        return value
    new = other(value)
    if new is not None:
        return new
    if value.get("class") == "CONSTANT":
        return value
    return {key: replaced(inner, other) for key, inner in value.items()}


def _examined(tree: Tree) -> Syntax:
    syntax, lambda_names = Syntax(tree), set()
    for node in walk(tree["select_list"]):
        kind = node.get("class")
        syntax.operations += kind not in (None, "COLUMN_REF", "CONSTANT")
        if kind == "COLUMN_REF":
            syntax.columns.add(str(node["column_names"][-1]).lower())
        elif kind == "FUNCTION":
            syntax.calls.append(node)
        elif kind == "LAMBDA":
            lambda_names |= column_names(node["lhs"])
        elif kind in FORBIDDEN:
            syntax.forbidden.append(node)
    syntax.of_row = set(syntax.columns)
    if any(is_top(call) for call in syntax.calls):
        syntax.of_row = column_names(tree["select_list"], into=is_not_top)
    for node in walk(tree["select_list"], into=is_not_top):
        if node.get("type") in NULL_OPERATORS:
            syntax.null_aware |= column_names(node["children"])
    syntax.columns -= lambda_names
    syntax.of_row -= lambda_names
    return syntax


# --------------------------------------------------------------------------------------------------
# NaN that a rule computes itself: 0 / 0, ln(-1), inf - inf, and the text 'nan' read as a number.
#
# DuckDB orders NaN above every number. A number that is missing is not above anything, so what a
# comparison compares is NULL instead of NaN. Columns have no NaN when rules read them.


FLOATS = ("FLOAT", "DOUBLE")
COMPARED = {
    "COMPARISON": ("left", "right"),
    "BETWEEN": ("input", "lower", "upper"),
}
DISTINCT = ("COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM")
CHOICES = ("COMPARE_IN", "COMPARE_NOT_IN")
GIVE_NUMBERS = frozenset({"abs", "ceil", "floor", "greatest", "least", "len", "length", "round"})
NULL_FOR_NAN = "nullif(1, CAST('nan' AS DOUBLE))"


def without_nan(tree: Tree, types_of: Callable[[Sequence[str]], Sequence[str]]) -> Tree:
    """A SELECT in which what comparisons compare is NULL where it would be NaN.

    types_of: the types of expressions over the columns.
    """
    operands = list(_computed(tree["select_list"]))
    if not operands:
        return tree
    kinds = types_of([_text_of_expression(node) for node in operands])
    is_float = set()
    for node, kind in zip(operands, kinds, strict=True):
        if kind in FLOATS:
            is_float.add(id(node))
    call = syntax_of(NULL_FOR_NAN).expression

    def guarded(node: Tree) -> Tree | None:
        if id(node) not in is_float:
            return None
        inner = {key: replaced(value, guarded) for key, value in node.items()}
        first, second = call["arguments"]
        return {**call, "arguments": [{**first, "expression": inner}, second]}

    return {**tree, "select_list": replaced(tree["select_list"], guarded)}


def _computed(value: object) -> Iterator[Tree]:
    """What comparisons compare and is no column and no constant. A lambda has names of its own."""
    for node in walk(value, into=lambda node: node.get("class") != "LAMBDA"):
        names = COMPARED.get(str(node.get("class")), ())
        operands = [node[name] for name in names if node["type"] not in DISTINCT]
        if node.get("type") in CHOICES:
            operands = node["children"]
        for operand in operands:
            if operand["class"] not in ("COLUMN_REF", "CONSTANT") and _may_be_nan(operand):
                yield operand


def _may_be_nan(operand: Tree) -> bool:
    for node in walk(operand):
        if str(node.get("function_name", "abs")).lower() not in GIVE_NUMBERS:
            return True
        if (
            node.get("class") == "CAST"
            and "nan" in str(node["child"].get("literal", "nan")).lower()
        ):
            return True
    return False


# --------------------------------------------------------------------------------------------------
# The SQL of a rule, read with DuckDB's own parser: its columns, its NULLs, its top() calls.
#
# A rule looks at one row and gives the same answer every time. Subqueries, windows, aggregates,
# `*`, parameters, random functions and functions of the clock are refused.
#
# NULL: a row in which a column is NULL fails every rule that reads the column, unless the rule
# speaks of that column's NULLs itself. It does so if the column occurs, in this rule, inside an
# operand of IS NULL, of IS NOT NULL or of coalesce() (ifnull() is the same). So `a IS NULL OR a >
# 3` and `coalesce(a, 0) < 3` decide about a NULL in `a`; `least(a, b) > 3` and `CASE WHEN a > 3
# THEN false ELSE true END` do not, although SQL has an answer for them. Columns inside top() are
# not read for the row and do not count.


_HOST = (
    r"nullif(lower(regexp_extract({}, "
    r"'^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)', 1)), '')"
)


@dataclass(frozen=True, slots=True)
class Derived:
    """A column that no file holds."""

    sql: str
    sources: tuple[str, ...]  # the sidecar's columns that it reads
    type: pa.DataType
    meaning: str


DERIVED = {
    "aspect": Derived(  # greatest() and least() skip a NULL, hence the CASE
        "CASE WHEN original_width > 0 AND original_height > 0 THEN "
        "greatest(original_width, original_height)::DOUBLE / "
        "least(original_width, original_height) END",
        ("original_width", "original_height"),
        pa.float64(),
        "longer over shorter side of the image as received, 1 or more",
    ),
    "url_host": Derived(_HOST.format("url"), ("url",), pa.string(), "host of url, lower case"),
    "page_host": Derived(
        _HOST.format("page_url"), ("page_url",), pa.string(), "host of page_url, lower case"
    ),
}
# Functions of the clock, the session or the program that duckdb_functions() calls consistent, or
# does not list.
CLOCKS = frozenset(
    {"age", "current_localtime", "current_localtimestamp", "current_timestamp", "user", "version"}
)
# Functions whose answer DuckDB may change with a release.
_OF_RELEASE = (
    "approx_count_distinct approx_quantile approx_top_k create_sort_key hash icu_sort_key "
    "json_serialize_plan json_serialize_sql list_approx_count_distinct pragma_version"
)
OF_RELEASE = frozenset(_OF_RELEASE.split())
AGGREGATED = ("aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate")
# Functions that make a value larger than its parts, with the arguments that say how much; those
# that put one part into another as often as they like; and those that do so without an end.
SIZED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("array_resize", "bitstring", "list_resize", "lpad", "repeat", "rpad"), (1,)),
    **dict.fromkeys(("generate_series", "range"), (0, 1, 2)),
    **dict.fromkeys(("format", "printf"), (0,)),
    "equi_width_bins": (2,),
}
_MULTIPLIED = (
    "apply array_apply array_to_string array_transform list_apply list_transform regexp_replace "
    "replace"
)
MULTIPLIED = frozenset(_MULTIPLIED.split())
REDUCED = ("array_reduce", "list_reduce", "reduce")
MOST_TIMES = 1000  # that a value of a rule may be larger than those of the row
LONG_LIST = 20  # values after IN; as many and more are compared outside of the rule's CASE
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
    operations: int  # comparisons, functions and the like


def columns_of(views: Sequence[View], name: str, known: Iterable[str]) -> set[str]:
    """The columns to read for a view: those of its rules, `status`, and `uid` for random rows.

    `known`: the columns that can be read. ValueError for a rule that reads another one or is no
    expression.
    """
    known = {*known, *DERIVED}
    columns = {"status"}
    names = [name]
    for view in names:  # it grows
        for step in steps_of(views, view):
            if step.where is not None:
                columns |= columns_on_disk(parse(step, known).columns)
                continue
            columns.add("uid")
            if step.random_like is not None and step.random_like not in names:
                names.append(step.random_like)
    return columns


def columns_on_disk(columns: Iterable[str]) -> set[str]:
    """Columns with the sources of the derived ones in their place."""
    on_disk: set[str] = set()
    for column in columns:
        on_disk |= set(DERIVED[column].sources) if column in DERIVED else {column}
    return on_disk


def parse(step: Step, known: Iterable[str]) -> Expression:
    """The expression of a step. ValueError for what no rule may contain and for columns not in
    `known`."""
    assert step.where is not None
    try:
        syntax = syntax_of(step.where)
    except ValueError as error:
        raise step.error(str(error)) from None
    except RecursionError:
        raise step.error(TOO_DEEP) from None
    for node in syntax.forbidden:
        kind = FORBIDDEN[node["class"]]
        raise step.error(f"{kind} is not allowed in a rule; it looks at one row")
    for call in syntax.calls:
        _check_function(step, call)
    called = {str(call["function_name"]).lower() for call in syntax.calls}
    growing = sorted(called & (SIZED.keys() | MULTIPLIED))
    if growing and times_larger(syntax.expression) > MOST_TIMES:
        raise step.error(
            f"its memory has no limit: by {', '.join(growing)} a value can be more than "
            f"{MOST_TIMES:,} times as large as those of the row; write constants that are smaller"
        )
    spelling: dict[str, str] = {}
    for name in sorted(known):
        other = spelling.setdefault(name.lower(), name)
        if other != name and name.lower() in syntax.columns:
            raise step.error(f"the pool has the columns {other!r} and {name!r}; rename one of them")
    for column in sorted(syntax.columns):
        if column not in spelling:
            raise step.error(unknown_column(column, step.where, spelling))
    not_null = syntax.of_row - syntax.null_aware
    return Expression(
        tree=syntax.tree,
        columns=frozenset(spelling[column] for column in syntax.columns),
        not_null=frozenset(spelling[column] for column in not_null),
        operations=syntax.operations,
    )


def to_sql(
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
        value = threshold(*parse_top(step, node))
        kind = "HUGEINT" if isinstance(value, int) else "DOUBLE"
        return syntax_of(f"CAST('{value!r}' AS {kind})").expression

    return text_of_tree(without_nan(replaced(expression.tree, constant), types_of))


def quoted(column: str) -> str:
    """A column's name as SQL."""
    return '"' + column.replace('"', '""') + '"'


def long_lists(tree: Tree, alive: str) -> tuple[Tree, dict[str, str]]:
    """The tree with a column in place of each long list after IN; the SQL of these columns by name.

    DuckDB joins rows with the values of a list. Inside a CASE it compares each row with each value:
    30 s for 20,000 texts and a million rows. alive: a column; where it is false, NULL is compared.
    """
    lists: dict[str, str] = {}

    def listed(node: Tree) -> Tree | None:
        if is_top(node) or node.get("class") == "LAMBDA":
            return node  # the text of top() is shown; a lambda has names of its own
        if node.get("type") != "COMPARE_IN":
            return None
        column, *values = node["children"]
        constants = [value for value in values if value["class"] == "CONSTANT"]
        if column["class"] != "COLUMN_REF" or not LONG_LIST <= len(constants) == len(values):
            return None
        of_alive = syntax_of(f"CASE WHEN {alive} THEN {_text_of_expression(column)} END")
        sql = _text_of_expression({**node, "children": [of_alive.expression, *values]})
        name = f"list_{disk.content_hash(sql)}"
        lists[name] = sql
        return syntax_of(name).expression

    return {**tree, "select_list": replaced(tree["select_list"], listed)}, lists


def parse_top(step: Step, call: Tree) -> tuple[str, str, Fraction]:
    """(the call as text, its column as SQL, its share) of a top(column, share)."""
    arguments = _arguments(call)
    nested = any(is_top(node) for node in walk(arguments))
    if len(arguments) != 2 or nested:
        raise step.error("top() takes a column and a share, as in top(clip_score, 0.30)")
    column, share_text = (_text_of_expression(argument) for argument in arguments)
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
    return step.error(binding_problem(error))


def _arguments(call: Tree) -> list[Tree]:
    arguments = call.get("arguments") or call.get("children") or []
    return [argument.get("expression", argument) for argument in arguments]


def _literal(nodes: Sequence[Tree]) -> str | None:
    """The text of the first node where it is a constant."""
    literal = nodes[0].get("literal") if nodes else None
    text = literal.get("text") if isinstance(literal, dict) else None
    return text if isinstance(text, str) else None


def times_larger(value: object) -> float:
    """How many times larger than the values of a row those of a tree may be; infinity where it is
    no constant that says so."""
    if isinstance(value, list):
        return max(map(times_larger, value), default=1.0)
    if not isinstance(value, dict) or value.get("class") == "CONSTANT":
        return 1.0
    name = str(value.get("function_name", "")).lower()
    arguments = _arguments(value) if name else []
    if len(value.get("qualified_name", {}).get("path", ())) > 1:  # caption.repeat(3)
        arguments = [{}, *arguments]
    if name in MULTIPLIED:
        parts = [len(_literal([part]) or "") for part in arguments[2 if "replace" in name else 1 :]]
        return math.prod([*map(times_larger, arguments), *(max(1, size) for size in parts)])
    times = max(map(times_larger, value.values()), default=1.0)
    for place in SIZED.get(name, ()):
        if place < len(arguments):
            times = max(times, times_larger(arguments) * _size(arguments[place]))
    return times


def _size(node: Tree) -> float:
    """The largest number in a constant; infinity for another node, and for a text that takes its
    numbers from elsewhere."""
    text = _literal([node])
    if text is None or re.search(r"[*]|\{[^}]*\{", text):
        return math.inf
    return max(map(float, re.findall(r"[\d.]*\d(?:[eE]\+?\d+)?", text)), default=1.0)


def _check_function(step: Step, node: Tree) -> None:
    """ValueError for the call of a function that no rule may contain."""
    name = str(node["function_name"]).lower()
    if name.startswith("regexp_"):
        _check_pattern(step, node)
    if name in CONSISTENT:
        return
    if name == "top":
        parse_top(step, node)
        return
    refusal = _refused_functions().get(name)
    if refusal == "unstable":
        raise step.error(
            f"{name}() can give another answer the next time; for random rows write "
            f"{{{step.name}: {{sample: 0.5, seed: 0}}}}"
        )
    if refusal == "aggregate":
        raise step.error(f"{name}() looks at many rows; a rule looks at one")
    if name in REDUCED:
        raise step.error(f"{name}() can make a value of any size; write list_sum() or the like")
    if name in AGGREGATED:
        name = str(_literal(_arguments(node)[1:2])).lower()
    if name in OF_RELEASE or name.startswith("reservoir_"):
        raise step.error(
            f"{name}() can give another answer in another release of DuckDB; for a share of the "
            f"rows write {{{step.name}: {{sample: 0.5, seed: 0}}}}, and for parts without common "
            "rows compare uid, which is a hash: uid < '8' is a half"
        )


def _check_pattern(step: Step, node: Tree) -> None:
    """ValueError for a constant pattern that is no regular expression: DuckDB compiles it only
    where a row meets it."""
    text = _literal(_arguments(node)[1:2])
    if text is not None:
        try:
            with borrowed_connection() as connection:
                connection.execute("SELECT regexp_matches('', $1)", [text]).fetchall()
        except duckdb.Error as error:
            problem = binding_problem(error)
            raise step.error(
                f"it has a regular expression that cannot be read: {problem}"
            ) from None


@functools.cache
def _functions() -> list[tuple[str, str, str | None, str | None]]:
    """(name, type, stability, SQL of a macro) of each function of DuckDB."""
    query = (
        "SELECT function_name, function_type, stability, macro_definition FROM duckdb_functions()"
    )
    with borrowed_connection() as connection:
        return connection.execute(query).fetchall()


@functools.cache
def _refused_functions() -> dict[str, str]:
    """Functions that a rule may not call: unstable, or aggregate without a scalar function of
    the same name."""
    functions = _functions()
    scalar = {name for name, kind, *_ in functions if kind in ("scalar", "macro")}
    # hour() of a time with a zone depends on the connection's TimeZone, which is UTC in all.
    zoned = {name for name, _, stability, _ in functions if stability == "CONSISTENT"}
    refused = dict.fromkeys(CLOCKS, "unstable")
    for name, kind, stability, _ in functions:
        if stability == "CONSISTENT_WITHIN_QUERY" and name in zoned:
            continue
        if stability not in (None, "CONSISTENT"):
            refused[name] = "unstable"
        elif kind == "aggregate" and name not in scalar:
            refused.setdefault(name, "aggregate")
    unstable = {name for name, refusal in refused.items() if refusal == "unstable"} | {"select"}
    for name, _, _, definition in functions:  # pg_conf_load_time() is current_timestamp
        if unstable & set(re.findall(r"\w+", (definition or "").lower())):
            refused[name] = "unstable"
    return refused
