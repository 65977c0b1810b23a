"""What each rule of a view does to rows in memory, whatever the other rules do.

The thresholds are those of the view's document. Masks say which rule rejects a row first; this
module says of every rule which rows it rejects, so that rules can be compared.

What rules and views amount to. It reads what is committed and writes nothing.

Invariants:

* A rule rejects what it rejected when the view was made:
  `tests/pipeline/views/outcomes/test_rule_outcomes.py`.
* Two pools with the same rows have the same hash of a view:
  `tests/pipeline/views/outcomes/test_view_hash.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from manifests.records import ViewDocument
from pipeline.views.choose import InMemorySource
from pipeline.views.row_tests import (
    Mask,
    PartRows,
    RowTest,
    passed_of_stored,
    row_test,
    size_limits,
)
from pipeline.views.rules import TABLE, Step, borrowed_connection, connect, is_selected, parse

FEW_ROWS = 10_000  # more are evaluated in as many threads as there are cores


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """One rule over some rows. `rejected` and `missing` are None where it cannot be evaluated on
    all stored rows, or draws rows from a pool of which not all rows are there."""

    name: str
    text: str
    columns: frozenset[str] = frozenset()  # that it reads, as the rule names them
    rejected: Mask | None = None  # (rows,) stored rows that it rejects
    missing: Mask | None = None  # of them those in which a column is NULL


def with_derived(table: pa.Table) -> pa.Table:
    """A table of sidecar columns with the derived columns that rules may read, such as aspect."""
    rows = PartRows(connect(), table)
    rows.connection.register(TABLE, table)
    for name in rows.derived:
        table = table.append_column(name, rows.relation(name).to_arrow_table().column(0))
    return table


def rule_outcomes(
    table: pa.Table, document: ViewDocument, sizes: Mapping[str, int] | None = None
) -> Iterator[RuleOutcome]:
    """The rules of a view over rows of its pool, one by one, in order.

    table: the columns that the rules read, `status`, and `uid` for random rules. sizes: rows that
    other views keep, for rules that are `random_like` them; None: `table` is not the whole pool.
    """
    few = table.num_rows <= FEW_ROWS
    with borrowed_connection() if few else nullcontext(connect()) as connection:
        rows = PartRows(connection, table)
        for number, plain in enumerate(document.rules):
            step = Step(**{key: value for key, value in plain.items() if key != "like"})
            if is_selected(document.rules):  # a program selected the rows; `where` is prose
                yield RuleOutcome(name=step.name, text=step.text())
                continue
            try:
                yield _outcome(rows, document, number, step, sizes)
            except ValueError:  # it reads a column that is not there, or fails on some row
                yield RuleOutcome(name=step.name, text=step.text())


def _outcome(
    rows: PartRows,
    document: ViewDocument,
    number: int,
    step: Step,
    sizes: Mapping[str, int] | None,
) -> RuleOutcome:
    columns: frozenset[str] = frozenset()
    if step.where is not None:
        columns = parse(rows.connection, step, rows.known).columns
    unknown = RuleOutcome(name=step.name, text=step.text(), columns=columns)
    test = _test(rows, document, number, step, sizes)
    if test is None:
        return unknown
    passed, missing, on_all = passed_of_stored(rows, test, rows.stored)
    if not on_all:
        return unknown
    return replace(unknown, rejected=rows.stored & ~passed, missing=rows.stored & missing)


def _test(
    rows: PartRows,
    document: ViewDocument,
    number: int,
    step: Step,
    sizes: Mapping[str, int] | None,
) -> RowTest | None:
    """A rule as a test of rows; None for a draw whose size is not known."""
    if step.random_like is None:
        return row_test(rows, step, document.thresholds, {}, {})
    if sizes is None:
        return None
    size = document.funnel[2][1] if number == 0 else sizes.get(step.random_like)
    if not size or size > int(np.count_nonzero(rows.stored)):
        return None
    limits = size_limits(InMemorySource({"0": rows.table}), {(step.seed, size): step})
    return row_test(rows, step, {}, limits, {step.random_like: size})
