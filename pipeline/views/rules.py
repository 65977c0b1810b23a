"""The SQL of a rule, read with DuckDB's own parser: steps, columns, problems."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import duckdb
import pyarrow as pa

from filters import FILTERS
from manifests import disk
from manifests.columns import PAIRS, SIDECAR
from manifests.layout import NOT_STORED
from manifests.schema import Rule, View
from pipeline.shuffle import connect

# --------------------------------------------------------------------------------------------------
# The database in memory that rules are evaluated in.
#
# To open a database costs 20 to 50 ms of CPU, as much as twenty rules over 200,000 rows. So a
# process has one of one thread; a connection to it costs 0.02 ms, runs in the thread that uses
# it, and sees no rows of another connection. Connections that are not in use are kept.


TABLE = "pool_rows"  # the one table of rows that rules are evaluated over

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
                _databases[process] = connect(threads=1)
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
# DuckDB's errors about a rule as what is wrong with the rule and how to mend it.
#
# Pure functions from texts to texts. A message that is not known here is shown without the name
# of its class, without DuckDB's list of candidates and without its excerpt of the SQL.


LIST_COLUMNS = "clipmill filter columns POOL lists them"
PAIRS_ONLY = frozenset(PAIRS.names) - frozenset(SIDECAR.names)
EXAMPLE = "write one condition, as in caption_words >= 4 AND aspect <= 3"
# What other languages write, and what SQL writes.
SQL_WORDS = {"&&": "AND", "=>": ">=", "=<": "<=", "!": "NOT", "len": "length"}
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
CLOSE_FUNCTION = 0.6  # similarity of two names, from 0 to 1
CLOSE_QUOTED = 0.8  # a text in double quotes is rather a text than a misspelt column
NEEDS_MORE = re.compile(
    r"(?:\b(?:and|or|not|like|in|is|between)|[-+*/<>=|,(\[])\s*$", re.IGNORECASE
)
QUOTED_TEXT = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
DOUBLE_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
NUMBERS = re.compile(r"^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|INT\d+)$")

_NEAR = re.compile(r'syntax error at or near "(.*)"$')
_NO_FUNCTION = re.compile(r"Function with name (\S+) does not exist")
_NO_TYPE = re.compile(r"Type with name (\S+) does not exist")
_NO_TABLE = re.compile(r'Referenced table "(.*?)" not found')
_COMPARED = re.compile(r"Cannot compare values of type (.+?) and type (.+?) - an explicit cast")
_ARGUMENTS = re.compile(r"No function matches the given name and argument types '(\S+?)\((.*?)\)'")
_CANDIDATE = re.compile(r"\(([^()]*)\) -> \w+")
_NOT_CONVERTED = re.compile(
    r"Could not convert string '(.*)' to (\w+)(?: when casting from source column (\w+))?"
)
_PATTERN = re.compile(r"(missing [\])]|no argument for repetition|invalid escape|bad repetition).*")
_ERROR_CLASS = re.compile(r"^(?:[A-Z]\w* )+Error: ")


def syntax_problem(message: str, sql: str) -> str:
    """What is wrong with a rule that DuckDB's parser refuses. `message`: the parser's."""
    if not sql.strip():
        return f"it is empty; {EXAMPLE}"
    if message.startswith("unterminated quoted identifier"):
        return "a double quote is not closed; a text stands in single quotes, as in 'cat'"
    if message.startswith("unterminated"):
        return "a single quote is not closed; a quote inside a text is written twice: 'it''s'"
    bare = QUOTED_TEXT.sub("", sql)
    for left, right, name in (("(", ")", "parenthesis"), ("[", "]", "bracket")):
        difference = bare.count(left) - bare.count(right)
        if difference > 0:
            return f"a {name} is not closed: {right!r} is missing"
        if difference < 0:
            return f"there is one {name} too many: {right!r} without {left!r}"
    if NEEDS_MORE.search(sql):
        return f"it ends too early, after {sql.split()[-1]!r}; {EXAMPLE}"
    near = _NEAR.match(message)
    problem = f"it cannot be read at {near[1]!r}" if near else message
    return f"it is no SQL expression: {problem}; {EXAMPLE}"


def unknown_column(column: str, sql: str, known: Iterable[str]) -> str:
    """What is wrong with a rule that reads a column that is not there. `column` in lower case."""
    for written in DOUBLE_QUOTED.findall(sql):
        text = written.replace('""', '"')
        if text.lower() == column:
            close = disk.did_you_mean(column, known, CLOSE_QUOTED)
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
    return f"there is no column {column!r}{disk.did_you_mean(column, known)}; {LIST_COLUMNS}"


def binding_problem(error: Exception, functions: Iterable[str]) -> str:
    """What is wrong with a rule that DuckDB can read and not evaluate. `functions`: their names."""
    message = " ".join(str(error).split("\n\nLINE")[0].split())
    message = _ERROR_CLASS.sub("", message)
    if match := _NO_FUNCTION.search(message):
        return _unknown_function(match[1], functions)
    if match := _NO_TYPE.search(message):
        return f"there is no type {match[1]!r}; types are INTEGER, DOUBLE, VARCHAR, BOOLEAN, …"
    if match := _NO_TABLE.search(message):
        return f"it names a table {match[1]!r}; write the name of a column alone; {LIST_COLUMNS}"
    if match := _COMPARED.search(message):
        left, right = _type_name(match[1]), _type_name(match[2])
        return (
            f"it compares {left} with {right}; a text stands in single quotes, a number without, "
            "and TRY_CAST(column AS DOUBLE) reads a number from a text"
        )
    if match := _ARGUMENTS.search(message):
        return _wrong_arguments(match[1], match[2], message)
    if match := _NOT_CONVERTED.search(message):
        cast = f"TRY_CAST({match[3] or 'column'} AS {match[2]})"
        return f"the text {match[1]!r} is no {match[2]}; {cast} is NULL for such a row"
    if match := _PATTERN.match(message):
        return f"it has a regular expression that cannot be read: {message}"
    return message.split(" Candidate")[0].split(" Did you mean")[0]


def _unknown_function(name: str, functions: Iterable[str]) -> str:
    is_operator = not re.search(r"\w", name)
    kind, shown = ("operator", name) if is_operator else ("function", f"{name}()")
    known = COMPARISONS if is_operator else sorted(functions)
    meant = SQL_WORDS.get(name.lower()) or disk.closest(name.lower(), known, CLOSE_FUNCTION)
    if meant:
        return f"there is no {kind} {shown}; did you mean {meant!r}?"
    return f"there is no {kind} {shown} in DuckDB's SQL"


def _wrong_arguments(name: str, given: str, message: str) -> str:
    if name in SQL_WORDS:
        return f"the operator {name} is not for such values; did you mean {SQL_WORDS[name]!r}?"
    types = " and ".join(_type_name(kind) for kind in given.split(", ")) or "nothing"
    if not re.search(r"\w", name) or len(candidates := _CANDIDATE.findall(message)) > 4:
        operator = {"~~": "LIKE", "!~~": "NOT LIKE"}.get(name, name)
        return f"{operator} cannot be used on {types}"
    takes = " or ".join(f"{name}({arguments})" for arguments in candidates)
    return f"{name}() cannot be used on {types}; it is {takes.replace(', /', '')}"


def _type_name(kind: str) -> str:
    """An SQL type in words: a number, a text; others as they are."""
    plain = kind.removesuffix("_LITERAL")
    if NUMBERS.match(plain):
        return "a number"
    return "a text" if plain in ("VARCHAR", "STRING") else plain


# --------------------------------------------------------------------------------------------------
# The steps of a view: its rules in order, with the rules of other views in place of `view:`
# rules.


RESERVED = (NOT_STORED, "attempted", "stored")  # steps of every funnel
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
    steps = tuple(replace(step, view=name) for step in _steps_of_view(views, name, ()))
    names = Counter(step.name for step in steps)
    for step in steps:
        if names[step.name] > 1:
            raise ValueError(
                f"view {name!r} has two rules named {step.name!r}; give one of them another name"
            )
        if step.name in RESERVED or ":" in step.name:
            raise ValueError(f"view {name!r}: a rule cannot be named {step.name!r}")
    return steps


def rules_of(views: Sequence[View], name: str) -> tuple[dict[str, Any], ...]:
    """The steps as plain values for NAME.json. Equal values decide equally, and the other way
    round."""
    return tuple(_plain_rule(views, step) for step in steps_of(views, name))


def rules_hash(rules: Sequence[dict[str, Any]]) -> str:
    """Hash of what `rules_of` gave: it stands for a view in the rules of a random view of its
    size."""
    return disk.content_hash(rules)


def rule_text(rule: dict[str, Any]) -> str:
    """A rule of NAME.json as a person reads it."""
    fields = {key: value for key, value in rule.items() if key != "like"}
    return Step(**fields).text()


def selected_rules(where: str) -> tuple[dict[str, Any], ...]:
    """The plain rules of a view whose rows a program selected: `where` says in words which."""
    assert where.startswith(SELECTED_WORD), where
    return ({"name": SELECTED, "where": where},)


def is_selected(rules: Sequence[dict[str, Any]]) -> bool:
    """Whether `selected_rules` gave these rules. No SQL expression begins with the word `in`."""
    return len(rules) == 1 and str(rules[0].get("where", "")).startswith(SELECTED_WORD)


def _plain_rule(views: Sequence[View], step: Step) -> dict[str, Any]:
    if step.where is not None:
        return {"name": step.name, "where": step.where}
    if step.sample is not None:
        return {"name": step.name, "sample": step.sample, "seed": step.seed}
    assert step.random_like is not None
    return {
        "name": step.name,
        "random_like": step.random_like,
        "seed": step.seed,
        "like": rules_hash(rules_of(views, step.random_like)),
    }


def _steps_of_view(views: Sequence[View], name: str, outer: tuple[str, ...]) -> Iterator[Step]:
    """`outer`: the views that led here."""
    if name in outer:
        raise ValueError(f"views name each other in a circle: {' -> '.join([*outer, name])}")
    by_name = {view.name: view for view in views}
    if name not in by_name:
        prefix = f"view {outer[-1]!r}: " if outer else ""
        raise ValueError(
            f"{prefix}there is no view {name!r}{disk.did_you_mean(name, by_name)}; "
            f"there are {', '.join(by_name)}"
        )
    for rule in by_name[name].rules:
        yield from _steps_of_rule(views, rule, (*outer, name))


def _steps_of_rule(views: Sequence[View], rule: Rule, outer: tuple[str, ...]) -> Iterator[Step]:
    if rule.view is not None:
        for step in _steps_of_view(views, rule.view, outer):
            yield Step(
                name=f"{rule.name}.{step.name}",
                where=step.where,
                random_like=step.random_like,
                sample=step.sample,
                seed=step.seed,
            )
        return
    if rule.random_like is not None and rule.random_like in {view.name for view in views}:
        list(_steps_of_view(views, rule.random_like, outer))  # raises for a circle
    yield Step(
        name=rule.name,
        where=rule.where,
        random_like=rule.random_like,
        sample=rule.sample,
        seed=rule.seed,
    )


# --------------------------------------------------------------------------------------------------
# DuckDB's syntax trees of rules: read many at a time, kept, and walked without recursion.
#
# DuckDB's parser takes 0.3 ms for one rule, and 0.05 ms a rule where one query asks for all of
# them.


Tree = dict[str, Any]

KEPT_TEXTS = 4096  # expressions whose trees stay in memory
KEPT_CHARACTERS = 2**20  # of all of them; a tree takes about 100 times as much
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
TOO_DEEP = (
    "it is nested too deeply to be read; write fewer parentheses and shorter chains of operators, "
    "or several rules"
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
    casts: bool = False  # a value is cast to another type
    operations: int = 0  # comparisons, functions and the like

    @property
    def expression(self) -> Tree:
        """The tree of the expression."""
        node: Tree = self.tree["select_list"][0]
        return node


class _Kept:
    """The trees of the expressions that were read last, for all threads."""

    def __init__(self) -> None:
        self._syntax: OrderedDict[str, Syntax] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def get(self, sql: str) -> Syntax | None:
        with self._lock:
            return self._syntax.get(sql)

    def put(self, sql: str, syntax: Syntax) -> None:
        with self._lock:
            if sql in self._syntax:
                return
            self._syntax[sql] = syntax
            self._characters += len(sql)
            while len(self._syntax) > 1 and (
                len(self._syntax) > KEPT_TEXTS or self._characters > KEPT_CHARACTERS
            ):
                self._characters -= len(self._syntax.popitem(last=False)[0])


_kept = _Kept()


def read_all(connection: duckdb.DuckDBPyConnection, expressions: Iterable[str]) -> None:
    """Read many expressions with one query, so that `syntax_of` has them. Wrong ones are left to
    it."""
    missing = [sql for sql in dict.fromkeys(expressions) if _kept.get(sql) is None]
    for sql, answer in zip(missing, _serialized(connection, missing), strict=True):
        try:
            _kept.put(sql, _syntax(answer, sql, Step(name="", where=sql)))
        except ValueError:
            continue


def syntax_of(connection: duckdb.DuckDBPyConnection, sql: str, step: Step | None = None) -> Syntax:
    """The syntax of `SELECT sql`. Its trees must not be changed. ValueError if that is not one
    expression."""
    syntax = _kept.get(sql)
    if syntax is None:
        (answer,) = _serialized(connection, [sql])
        syntax = _syntax(answer, sql, step or Step(name="", where=sql))
        _kept.put(sql, syntax)
    return syntax


def text_of_tree(connection: duckdb.DuckDBPyConnection, node: Tree) -> str:
    """A syntax tree as SQL, without its SELECT."""
    statement = json.dumps({"error": False, "statements": [{"node": node}]})
    text = connection.execute("SELECT json_deserialize_sql(?)", [statement]).fetchall()[0][0]
    return str(text).removeprefix("SELECT ")


@functools.lru_cache(maxsize=1024)
def text_of_argument(statement: str) -> str:
    """`text_of_tree` of a short tree as JSON: thresholds are asked for their text again and
    again."""
    with borrowed_connection() as connection:
        return text_of_tree(connection, json.loads(statement))


def walk(value: Any, *, into: Callable[[Tree], bool] | None = None) -> Iterator[Tree]:
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


def _serialized(connection: duckdb.DuckDBPyConnection, expressions: Sequence[str]) -> list[str]:
    """The JSON that DuckDB's parser gives for each SELECT."""
    if not expressions:
        return []
    query = "SELECT json_serialize_sql(text) FROM (SELECT unnest(?::VARCHAR[]) AS text)"
    statements = [f"SELECT {sql}" for sql in expressions]
    return [str(text) for (text,) in connection.execute(query, [statements]).fetchall()]


def _syntax(answer: str, sql: str, step: Step) -> Syntax:
    try:
        parsed = json.loads(answer)
    except RecursionError:
        raise step.error(TOO_DEEP) from None
    if parsed["error"]:
        message = str(parsed["error_message"])
        is_deep = message.startswith("Max expression depth")
        raise step.error(TOO_DEEP if is_deep else syntax_problem(message, sql))
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
    return _examined(node)


def _examined(tree: Tree) -> Syntax:
    syntax, lambda_names = Syntax(tree), set()
    for node in walk(tree["select_list"]):
        kind = node.get("class")
        syntax.operations += kind not in (None, "COLUMN_REF", "CONSTANT")
        if kind == "COLUMN_REF":
            syntax.columns.add(str(node["column_names"][-1]).lower())
        elif kind == "FUNCTION":
            syntax.calls.append(node)
        elif kind == "CAST":
            syntax.casts = True
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
# Functions that give NaN for finite numbers, and some that give it for no number.
_GIVE_NAN = "/ ^ ** acos acosh asin atanh fdiv fmod gamma ln log log10 log2 pow power sqrt"
GIVE_NAN = frozenset(_GIVE_NAN.split())
GIVE_NUMBERS = frozenset({"abs", "ceil", "floor", "greatest", "least", "len", "length", "round"})
NULL_FOR_NAN = "nullif(1, CAST('nan' AS DOUBLE))"


def may_compute_nan(syntax: Syntax) -> bool:
    """True where an expression has NaN for finite numbers, or reads one from something else."""
    return syntax.casts or any(call["function_name"].lower() in GIVE_NAN for call in syntax.calls)


def without_nan(
    connection: duckdb.DuckDBPyConnection,
    tree: Tree,
    types_of: Callable[[Sequence[str]], Sequence[str]],
) -> Tree:
    """A SELECT in which what comparisons compare is NULL where it would be NaN.

    types_of: the types of expressions over the columns.
    """
    operands = list(_computed(tree["select_list"]))
    if not operands:
        return tree
    empty_select = syntax_of(connection, "1").tree
    texts = [text_of_tree(connection, {**empty_select, "select_list": [n]}) for n in operands]
    kinds = types_of(texts)
    is_float = set()
    for node, kind in zip(operands, kinds, strict=True):
        if kind in FLOATS:
            is_float.add(id(node))
    call = syntax_of(connection, NULL_FOR_NAN).expression

    def guarded(node: Tree) -> Tree | None:
        if id(node) not in is_float:
            return None
        inner = {key: replaced(value, guarded) for key, value in node.items()}
        first, second = call["arguments"]
        return {**call, "arguments": [{**first, "expression": inner}, second]}

    return {**tree, "select_list": replaced(tree["select_list"], guarded)}


def _computed(value: Any) -> Iterator[Tree]:
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
TEXTS = {"url_host": pa.string(), "page_host": pa.string()}  # those of them that are texts
# Functions of the clock, the session or the program that duckdb_functions() calls consistent, or
# does not list.
CLOCKS = frozenset(
    {"age", "current_localtime", "current_localtimestamp", "current_timestamp", "user", "version"}
)
LONG_LIST = 20  # values after IN, and of = in an OR; as many and more are a table
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

    tree = without_nan(connection, replaced(expression.tree, constant), types_of)
    return text_of_tree(connection, tree)


def quoted(column: str) -> str:
    """A column's name as SQL."""
    return '"' + column.replace('"', '""') + '"'


def long_lists(
    connection: duckdb.DuckDBPyConnection, expression: Expression, schema: pa.Schema
) -> tuple[Expression, dict[str, pa.Table]]:
    """The expression with tables in place of long lists after IN, and of long chains of = and OR;
    the tables by name.

    DuckDB joins rows with a table. Inside a CASE it compares each row with each value of a list,
    and each query reads the list again: 13 s for 20,000 texts and a million rows.
    """
    kinds = {**TEXTS, **{each.name.lower(): each.type for each in schema}}
    tables: dict[str, pa.Table] = {}
    equalities = 0  # that became one table

    def joined(node: Tree) -> Tree | None:
        nonlocal equalities
        if is_top(node) or node.get("class") == "LAMBDA":
            return node  # the text of top() is shown; a lambda has names of its own
        if node.get("type") == "CONJUNCTION_OR":
            choices, others = _choices(node["children"])
            lists = [table_of(*choice) for choice in choices]
            if not lists or None in lists:
                return None
            equalities += len(node["children"]) - len(others)
            children = [*lists, *replaced(others, joined)]
            return {**node, "children": children} if len(children) > 1 else children[0]
        if node.get("type") == "COMPARE_IN":
            return table_of(*node["children"])
        return None

    def table_of(column: Tree, *constants: Tree) -> Tree | None:
        values = _values(column, constants, kinds)
        if values is None or len(constants) < LONG_LIST:
            return None
        name = f"list_{disk.content_hash(values.to_pylist())}"
        tables[name] = pa.table({"value": values})
        subquery = syntax_of(connection, f"1 IN (SELECT value FROM {name})").expression
        return {**subquery, "child": column}

    tree = {**expression.tree, "select_list": replaced(expression.tree["select_list"], joined)}
    return replace(expression, tree=tree, operations=expression.operations - equalities), tables


def _choices(children: Sequence[Tree]) -> tuple[list[list[Tree]], list[Tree]]:
    """(a column and the constants that it is compared with by =, for each column with many; the
    other tests) of the tests of an OR."""
    by_column: dict[str, list[Tree]] = {}
    places: dict[str, list[int]] = {}
    for place, child in enumerate(children):
        if child["type"] != "COMPARE_EQUAL":
            continue
        column, constant = child["left"], child["right"]
        if column["class"] == "CONSTANT":
            column, constant = constant, column
        if column["class"] == "COLUMN_REF" and constant["class"] == "CONSTANT":
            name = str(column["column_names"][-1]).lower()
            by_column.setdefault(name, [column]).append(constant)
            places.setdefault(name, []).append(place)
    many = [name for name, choice in by_column.items() if len(choice) > LONG_LIST]
    taken = {place for name in many for place in places[name]}
    others = [child for place, child in enumerate(children) if place not in taken]
    return [by_column[name] for name in many], others


def _values(
    column: Tree, constants: Sequence[Tree], kinds: Mapping[str, pa.DataType]
) -> pa.Array | None:
    """The constants that a column is compared with; None where they are not all texts for a column
    of texts, or whole numbers for one of whole numbers."""
    literals = [constant.get("literal") for constant in constants]
    known = [literal for literal in literals if isinstance(literal, dict)]
    if column["class"] != "COLUMN_REF" or len(known) < len(literals):
        return None
    kind = kinds.get(str(column["column_names"][-1]).lower(), pa.null())
    texts = [str(literal["text"]) for literal in known]
    are = {literal["kind"] for literal in known}
    if pa.types.is_string(kind) and are == {"STRING"}:
        return pa.array(texts, kind).unique()
    if pa.types.is_signed_integer(kind) and are == {"INTEGER"} and max(map(len, texts)) <= 18:
        return pa.array([int(text) for text in texts], pa.int64()).unique()
    return None


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
    if name.startswith("regexp_"):
        _check_pattern(connection, step, node)
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


def _check_pattern(connection: duckdb.DuckDBPyConnection, step: Step, node: Tree) -> None:
    """ValueError for a constant pattern that is no regular expression: DuckDB compiles it only
    where a row meets it."""
    arguments = [
        argument.get("expression", argument)
        for argument in node.get("arguments") or node.get("children") or []
    ]
    for pattern in arguments[1:2]:
        literal = pattern.get("literal")
        text = literal.get("text") if isinstance(literal, dict) else None
        if isinstance(text, str):
            try:
                connection.execute("SELECT regexp_matches('', $1)", [text]).fetchall()
            except duckdb.Error as error:
                raise evaluation_error(step, error) from None


@functools.cache
def _functions() -> list[tuple[str, str, str | None, str | None]]:
    """(name, type, stability, SQL of a macro) of each function of DuckDB."""
    query = (
        "SELECT function_name, function_type, stability, macro_definition FROM duckdb_functions()"
    )
    with borrowed_connection() as connection:
        return connection.execute(query).fetchall()


def _allowed_functions() -> set[str]:
    """Names of the functions that a rule may call."""
    names = {name for name, kind, *_ in _functions() if kind in ("scalar", "macro")}
    return (names | {"top"}) - _refused_functions().keys()


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
