"""NaN that a rule computes itself: 0 / 0, and the text 'nan' read as a number.

DuckDB orders NaN above every number. A number that is missing is not above anything, so what a
comparison compares is NULL instead of NaN. Columns have no NaN when rules read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb

from pipeline.views.expressions.syntax import Syntax, Tree, replaced, syntax_of, text_of_tree, walk

FLOATS = ("FLOAT", "DOUBLE")
COMPARED = {
    "COMPARISON": ("left", "right"),
    "BETWEEN": ("input", "lower", "upper"),
}
DISTINCT = ("COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM")
CHOICES = ("COMPARE_IN", "COMPARE_NOT_IN")
NULL_FOR_NAN = "nullif(1, CAST('nan' AS DOUBLE))"


def may_compute_nan(syntax: Syntax) -> bool:
    """True where an expression divides or reads a number from something else."""
    return syntax.casts or any(call["function_name"] == "/" for call in syntax.calls)


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
            if operand["class"] not in ("COLUMN_REF", "CONSTANT") and _divides_or_casts(operand):
                yield operand


def _divides_or_casts(operand: Tree) -> bool:
    for node in walk(operand):
        if node.get("class") == "CAST" or node.get("function_name") == "/":
            return True
    return False
