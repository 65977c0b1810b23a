"""Columns and rules to views: pure SQL and Arrow. It opens no file and knows no worker.

A rule is an SQL boolean expression over the columns of one row. `top(column, share)` stands for a number that is found
first, over all stored rows of the pool with a value: the k-th largest with k = ceil(share × such rows), so
`clip_score >= top(clip_score, 0.30)` keeps the best 30 % of the rows that have a score, and all rows that tie with the
last of them. Then the rules are asked in order, each only of the rows that are left; a row's `rule` is the first that
is not true for it, `NAME:missing` where that is NULL. Nothing depends on how the rows are cut into shards.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from manifests import disk
from manifests.columns import VIEW
from manifests.pool_layout import NOT_STORED
from manifests.schema import Rule, View

RESERVED = (NOT_STORED, "attempted", "stored")
_HOST = r"nullif(lower(regexp_extract({}, '^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)', 1)), '')"
# Columns that no file holds: (SQL, the sidecar's columns that it reads).
DERIVED: dict[str, tuple[str, tuple[str, ...]]] = {
    "aspect": (
        # greatest() and least() pass over a NULL
        "CASE WHEN original_width > 0 AND original_height > 0 THEN "
        "greatest(original_width, original_height)::DOUBLE / least(original_width, original_height) END",
        ("original_width", "original_height"),
    ),
    "url_host": (_HOST.format("url"), ("url",)),
    "page_host": (_HOST.format("page_url"), ("page_url",)),
}
# Functions of the clock or the session that duckdb_functions() calls consistent, or that hide in a macro.
CLOCKS = frozenset(
    {"age", "ago", "current_localtime", "current_localtimestamp", "user", "current_catalog"}
)
FORBIDDEN = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "STAR": "*", "PARAMETER": "a parameter",
             "POSITIONAL_REFERENCE": "a column by number"}  # fmt: skip
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rule of a view after `view:` rules were replaced by what they stand for."""

    name: str  # "basic.words" where it came from view `basic`
    where: str | None = None
    random_like: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a view keeps. `tables` has a table of schema VIEW for each shard, row-aligned with what was given."""

    thresholds: dict[str, dict[str, Any]]
    funnel: list[tuple[str, int]]
    kept: int
    tables: dict[str, pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A rule's SQL, read: its tree, the columns it uses, and a key for each top() in it."""

    step: Step
    tree: dict[str, Any] = field(repr=False)
    columns: frozenset[str]


def steps_of(views: Sequence[View], name: str) -> tuple[Step, ...]:
    """The rules of a view in order, other views' rules in place. ValueError for cycles, unknown views, double names."""
    steps = tuple(_inline(views, name, ()))
    names = [step.name for step in steps]
    for step in steps:
        if names.count(step.name) > 1:
            raise ValueError(
                f"view {name!r} has two rules named {step.name!r}; give one of them another name"
            )
        if step.name in RESERVED or ":" in step.name:
            raise ValueError(f"view {name!r}: a rule cannot be named {step.name!r}")
    return steps


def rules_of(views: Sequence[View], name: str) -> list[dict[str, Any]]:
    """The same as plain values, the same exactly when they decide the same; `like` is a hash of a view's own rules."""
    return [
        {"name": s.name, "where": s.where}
        if s.random_like is None
        else {
            "name": s.name,
            "random_like": s.random_like,
            "seed": s.seed,
            "like": like(rules_of(views, s.random_like)),
        }
        for s in steps_of(views, name)
    ]


def like(rules: list[dict[str, Any]]) -> str:
    """Hash of what `rules_of` gave, for a view that is random but as large."""
    return disk.content_hash(rules)


def columns_of(views: Sequence[View], name: str, known: Iterable[str]) -> set[str]:
    """The columns to read for a view: what its rules use, `status`, and `uid` where it draws at random.

    `known` are the columns that can be read. ValueError for a rule that uses another, or is no expression.
    """
    connection = _connect()
    known = {*known, *DERIVED}
    used = {"status"}
    for step in steps_of(views, name):
        if step.random_like is not None:
            used |= {"uid", *columns_of(views, step.random_like, known)}
        else:
            for column in _parse(connection, step, known).columns:
                used |= set(DERIVED[column][1]) if column in DERIVED else {column}
    return used


def choose(
    tables: Mapping[str, pa.Table], views: Sequence[View], names: Sequence[str] | None = None,
    *, sizes: Mapping[str, int] | None = None,
) -> dict[str, Selection]:  # fmt: skip
    """Each view of `names` (default: all of `views`) over the joined columns of all shards.

    sizes: rows kept by views that `random_like` names, where that is known already. ValueError for a rule that is no
    boolean expression over the columns, that could answer differently the next time, or that leaves no row.
    """
    rows = Rows(tables)
    sizes = dict(sizes or {})
    found: dict[str, Selection] = {}

    def select(name: str) -> Selection:
        if name not in found:
            steps = steps_of(views, name)
            for step in steps:
                if step.random_like is not None and step.random_like not in sizes:
                    sizes[step.random_like] = select(step.random_like).kept
            found[name] = _select(rows, name, steps, sizes)
        return found[name]

    return {name: select(name) for name in ([v.name for v in views] if names is None else names)}


def check(views: Sequence[View], schema: pa.Schema) -> None:
    """ValueError for what would go wrong with these views over any rows of such columns: to be asked before a fetch."""
    rows = Rows({"": schema.empty_table()})

    def number(call: str, column: str, share: Fraction) -> float:
        return 0.0

    for view in views:
        for step in steps_of(views, view.name):
            if step.random_like is not None:
                steps_of(views, step.random_like)
                continue
            try:
                _bound(rows, step, number)
            except duckdb.Error as error:
                raise _refused(step, _told(error)) from None


class Rows:
    """The joined columns of all shards in one table, and the database that rules are asked of."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.sizes = {shard: table.num_rows for shard, table in tables.items()}
        self.table = pa.concat_tables(tables.values())
        self.connection = _connect()
        have = set(self.table.column_names)
        self.derived = {
            name: sql for name, (sql, bases) in DERIVED.items() if have.issuperset(bases)
        }
        self.known = have | set(self.derived)
        self.stored: Mask = _true(pc.equal(self.table["status"], "success"))

    def ask(self, sql: str, alive: Mask) -> pa.ChunkedArray:
        """`sql` for each row; NULL without being asked where a row is not alive."""
        self.connection.register(
            "pool_rows", self.table.append_column("row_is_alive", pa.array(alive))
        )
        return self.relation(f"CASE WHEN row_is_alive THEN ({sql}) END").to_arrow_table().column(0)

    def relation(self, sql: str) -> Any:
        more = "".join(f", {derived} AS {name}" for name, derived in self.derived.items())
        return self.connection.sql(f"SELECT {sql} AS answer FROM (SELECT *{more} FROM pool_rows)")

    def smallest(self, size: int, seed: int) -> Mask:
        """The `size` stored rows with the smallest xxh3_64(uid, seed); equal hashes by uid."""
        places = np.flatnonzero(self.stored)
        uids = self.table["uid"].take(pa.array(places)).to_pylist()
        hashes = np.fromiter(
            (xxhash.xxh3_64_intdigest(uid.encode(), seed) for uid in uids), np.uint64, len(uids)
        )
        last = np.partition(hashes, size - 1)[size - 1]
        drawn = np.flatnonzero(hashes < last)
        ties = sorted(np.flatnonzero(hashes == last), key=lambda i: str(uids[i]))[
            : size - len(drawn)
        ]
        mask = np.zeros(len(self.stored), np.bool_)
        mask[places[np.concatenate([drawn, np.array(ties, np.intp)])]] = True
        return mask


def _select(rows: Rows, name: str, steps: Sequence[Step], sizes: Mapping[str, int]) -> Selection:
    alive = rows.stored.copy()
    code = np.where(alive, 0, 1).astype(
        np.int16
    )  # 0 kept, 1 not stored, then two for each step: failed, missing
    thresholds: dict[str, dict[str, Any]] = {}
    funnel = [("attempted", len(alive)), ("stored", int(alive.sum()))]
    if not alive.any():
        raise ValueError(
            f"view {name!r} keeps nothing: none of the pool's {len(alive)} rows is stored"
        )
    for number, step in enumerate(steps):
        if step.random_like is not None:
            passed, missing = (
                rows.smallest(sizes[step.random_like], step.seed),
                np.zeros_like(alive),
            )
        else:
            answer = _answer(rows, step, alive, thresholds)
            passed, missing = _true(answer), _true(pc.is_null(answer))
        code[alive & ~passed] = 2 + 2 * number
        code[alive & missing] = 3 + 2 * number
        before, alive = int(alive.sum()), alive & passed
        funnel.append((step.name, int(alive.sum())))
        if not alive.any():
            what = step.where or f"random_like {step.random_like}"
            raise ValueError(
                f"view {name!r} keeps nothing: rule {step.name!r} ({what}) lets none of the {before} rows through that "
                "the rules before it left"
            )
    outcomes = [None, NOT_STORED] + [f"{s.name}{end}" for s in steps for end in ("", ":missing")]
    rule = pa.array(outcomes, pa.string()).take(pa.array(code))
    whole = pa.Table.from_arrays([pa.array(alive), rule], schema=VIEW)
    tables, at = {}, 0
    for shard, size in rows.sizes.items():
        tables[shard] = whole.slice(at, size)
        at += size
    return Selection(thresholds=thresholds, funnel=funnel, kept=int(alive.sum()), tables=tables)


def _answer(
    rows: Rows, step: Step, alive: Mask, thresholds: dict[str, dict[str, Any]]
) -> pa.ChunkedArray:
    """The rule's value for the rows that are alive; what its top() were resolved to goes into `thresholds`."""

    def number(key: str, column: str, share: Fraction) -> int | float:
        if key not in thresholds:
            thresholds[key] = _threshold(rows, step, key, column, share)
        value: int | float = thresholds[key]["value"]
        return value

    try:
        return rows.ask(_bound(rows, step, number), alive)
    except duckdb.Error as error:
        raise _refused(step, _told(error)) from None


def _bound(rows: Rows, step: Step, number: Callable[[str, str, Fraction], int | float]) -> str:
    """The rule as SQL over columns that are there, each top() replaced by `number(call, column, share)`."""

    def constant(call: dict[str, Any]) -> dict[str, Any]:
        value = number(*_top(rows.connection, step, call))
        kind = "HUGEINT" if isinstance(value, int) else "DOUBLE"
        node: dict[str, Any] = _tree(rows.connection, f"CAST('{value!r}' AS {kind})")[
            "select_list"
        ][0]
        return node

    expression = _parse(rows.connection, step, rows.known)
    sql = _text(rows.connection, _swap(expression.tree, constant))
    rows.connection.register("pool_rows", rows.table)
    kind = str(rows.relation(f"({sql})").types[0])
    if kind != "BOOLEAN":
        raise _refused(step, f"it gives {kind}, not true or false")
    return sql


def _threshold(rows: Rows, step: Step, key: str, column: str, share: Fraction) -> dict[str, Any]:
    found = pc.drop_null(rows.ask(column, rows.stored))
    if pa.types.is_decimal(found.type):  # what a column times 0.5 is
        found = found.cast(pa.float64())
    if not (pa.types.is_floating(found.type) or pa.types.is_integer(found.type)):
        raise _refused(step, f"{key} needs a number, and {column} is {found.type}")
    values = found.to_numpy()
    values = values[~np.isnan(values)]
    if not len(values):
        raise _refused(step, f"no stored row has a value for {key}")
    k = ceil(share * len(values))
    value = np.partition(values, len(values) - k)[len(values) - k]
    kept = int((values >= value).sum())
    return {
        "value": value.item(), "asked": float(share), "share": kept / len(values), "kept": kept, "rows": len(values),
    }  # fmt: skip


# --- reading a rule ------------------------------------------------------------------------------------------------


def _connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    connection.execute(
        "SET python_enable_replacements = false"
    )  # a name in a rule is never a Python variable
    connection.execute("SET lock_configuration = true")
    return connection


def _inline(views: Sequence[View], name: str, inside: tuple[str, ...]) -> Iterable[Step]:
    if name in inside:
        raise ValueError(f"views name each other in a circle: {' -> '.join([*inside, name])}")
    by_name = {view.name: view for view in views}
    if name not in by_name:
        where = f"view {inside[-1]!r}: " if inside else ""
        raise ValueError(
            f"{where}there is no view {name!r}{disk.did_you_mean(name, by_name)}; there are {', '.join(by_name)}"
        )
    for rule in by_name[name].rules:
        yield from _steps(views, rule, (*inside, name))


def _steps(views: Sequence[View], rule: Rule, inside: tuple[str, ...]) -> Iterable[Step]:
    if rule.view is not None:
        for step in _inline(views, rule.view, inside):
            yield Step(
                name=f"{rule.name}.{step.name}",
                where=step.where,
                random_like=step.random_like,
                seed=step.seed,
            )
        return
    if rule.random_like is not None:
        if rule.random_like in {view.name for view in views}:
            list(_inline(views, rule.random_like, inside))  # for its circles
        if not 0 <= rule.seed < 2**64:
            raise ValueError(f"rule {rule.name!r}: seed is {rule.seed}; it must lie in 0..2^64-1")
    yield Step(name=rule.name, where=rule.where, random_like=rule.random_like, seed=rule.seed)


def _parse(connection: duckdb.DuckDBPyConnection, step: Step, known: Iterable[str]) -> Expression:
    assert step.where is not None
    tree = _tree(connection, step.where, step)
    kinds = _functions()
    columns, bound = set(), set()
    for node in _nodes(tree["select_list"]):
        kind = node.get("class")
        if kind in FORBIDDEN:
            raise _refused(step, f"{FORBIDDEN[kind]} is not allowed in a rule; it looks at one row")
        if kind == "FUNCTION":
            name = str(node["function_name"]).lower()
            if kinds.get(name) == "unstable":
                raise _refused(
                    step,
                    f"{name}() can give another answer the next time; random subsets are random_like",
                )
            if kinds.get(name) == "aggregate":
                raise _refused(step, f"{name}() looks at many rows; a rule looks at one")
            if name == "top":
                _top(connection, step, node)
        elif kind == "LAMBDA":
            bound |= {
                n["column_names"][0] for n in _nodes(node["lhs"]) if n.get("class") == "COLUMN_REF"
            }
        elif kind == "COLUMN_REF":
            columns.add(str(node["column_names"][-1]))
    spelled = {column.lower(): column for column in known}
    for column in sorted(columns - bound):
        if column.lower() not in spelled:
            raise _refused(
                step, f"there is no column {column!r}{disk.did_you_mean(column.lower(), spelled)}"
            )
    return Expression(
        step=step, tree=tree, columns=frozenset(spelled[c.lower()] for c in columns - bound)
    )


def _tree(
    connection: duckdb.DuckDBPyConnection, where: str, step: Step | None = None
) -> dict[str, Any]:
    """DuckDB's own syntax tree of `SELECT where`. ValueError where that is not one expression."""
    step = step or Step(name="", where=where)
    read = json.loads(
        connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {where}"]).fetchall()[0][0]
    )
    if read["error"]:
        raise _refused(
            step, f"it is no SQL expression: {' '.join(str(read['error_message']).split())}"
        )
    node: dict[str, Any] = read["statements"][0]["node"]
    alone = (
        len(read["statements"]) == 1
        and node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and not node["select_list"][0]["alias"]
        and node["from_table"]["type"] == "EMPTY"
        and not any(
            node.get(k)
            for k in (
                "modifiers",
                "where_clause",
                "group_expressions",
                "having",
                "qualify",
                "sample",
            )
        )
    )
    if not alone:
        raise _refused(step, "it must be one SQL expression and nothing beside it")
    return node


def _text(connection: duckdb.DuckDBPyConnection, node: dict[str, Any]) -> str:
    """A syntax tree as SQL, without its SELECT."""
    whole = json.dumps({"error": False, "statements": [{"node": node}]})
    text = connection.execute("SELECT json_deserialize_sql(?)", [whole]).fetchall()[0][0]
    return str(text).removeprefix("SELECT ")


def _top(
    connection: duckdb.DuckDBPyConnection, step: Step, call: dict[str, Any]
) -> tuple[str, str, Fraction]:
    """(the call as text, its column as SQL, its share) of a top(column, share)."""
    arguments = [
        a.get("expression", a) for a in call.get("arguments") or call.get("children") or []
    ]
    if len(arguments) != 2 or any(n.get("function_name") == "top" for n in _nodes(arguments)):
        raise _refused(step, "top() takes a column and a share, as in top(clip_score, 0.30)")
    around = _tree(connection, "1")
    column, share = (
        _text(connection, {**around, "select_list": [argument]}) for argument in arguments
    )
    try:
        asked = Fraction(share)
    except ValueError:
        asked = Fraction(0)
    if not 0 < asked <= 1:
        raise _refused(
            step, f"the share of top() is {share}; it must be a number above 0 and at most 1"
        )
    return f"top({column}, {share})", column, asked


@functools.cache
def _functions() -> dict[str, str]:
    """Names that a rule may not call: unstable, or aggregate where no scalar function has the name too."""
    listed = (
        _connect()
        .execute("SELECT function_name, function_type, stability FROM duckdb_functions()")
        .fetchall()
    )
    scalar = {name for name, kind, _ in listed if kind in ("scalar", "macro")}
    found = {
        name: "aggregate" for name, kind, _ in listed if kind == "aggregate" and name not in scalar
    }
    unstable = {name for name, _, stability in listed if stability not in (None, "CONSISTENT")}
    return found | dict.fromkeys(unstable | CLOCKS, "unstable")


def _nodes(value: Any) -> Iterable[dict[str, Any]]:
    """Every mapping inside a tree, outer ones first."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


def _swap(value: Any, number: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy of a tree with every top() replaced by what `number` gives for it."""
    if isinstance(value, list):
        return [_swap(inner, number) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get("class") == "FUNCTION" and str(value["function_name"]).lower() == "top":
        return number(value)
    return {key: _swap(inner, number) for key, inner in value.items()}


def _true(answer: Any) -> Mask:
    """True where a boolean column is true; NULL counts as false."""
    mask: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask


def _told(error: duckdb.Error) -> str:
    return " ".join(str(error).split("\n\nLINE")[0].split())


def _refused(step: Step, why: str) -> ValueError:
    return ValueError(f"rule {step.name!r} ({step.where}): {why}")
