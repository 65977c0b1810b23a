"""Columns and rules to masks: SQL and Arrow. This module opens no file and knows no worker.

The steps of a view are evaluated in order, each only for the rows that are left. A row's `rule` is
the first step that is not true for it, or `NAME:missing` if the step reads a NULL that it does not
speak of (see `rules`).

`top(column, share)` is a number that is computed first, over all stored rows of the pool with a
value: the k-th largest with k = ceil(share × number of such rows). So `clip_score >=
top(clip_score, 0.30)` keeps the best 30 % of the rows that have a score, and all rows that tie with
the last of them.

Random rows are drawn by `uid_hashes`: `sample` keeps the stored rows with a hash below share ×
2^64, `random_like` the rows with the smallest hashes. Both depend on uid and seed alone, so with
the same seed a smaller sample is a part of every larger one. Nothing depends on how the rows are
divided into shards or on the number of workers.

Rows come in parts, and units of parts are worked on in parallel. The parts are read once for all
thresholds (see `Ranks`) and once for the masks; one part per thread is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from manifests.columns import VIEW
from manifests.layout import NOT_STORED
from manifests.records import RuleEffect, Threshold, ViewDocument
from manifests.schema import View
from pipeline.shuffle import connect
from pipeline.views.row_tests import (
    MISSING,
    TRUE,
    Codes,
    Mask,
    PartRows,
    RowTest,
    ViewCounts,
    check_steps,
    compile_views,
    drawn,
    map_units,
    outcomes,
    row_test,
    size_limits,
    sizes_needed,
    stored_answers,
)
from pipeline.views.rules import Step, borrowed_connection, is_selected, parse, steps_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive rows: of some whole shards."""

    table: pa.Table
    first_row: int  # in the pool
    sizes: dict[str, int]  # shard -> its rows


class Source(Protocol):
    """The rows of a pool, in units that are worked on in parallel."""

    schema: pa.Schema
    units: int
    rows: int

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[Part]:
        """The parts of a unit, with some columns (default: all)."""
        ...


class Sink(Protocol):
    """Takes the masks of one unit and view, shard by shard in order."""

    def add(self, shard: str, mask: pa.Table) -> None:
        """mask: of schema VIEW."""
        ...


OpenSink = Callable[[str, int], AbstractContextManager[Sink]]  # (view, unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a view keeps. `effects`: of each of several rules, over all stored rows; () for one
    rule."""

    thresholds: dict[str, Threshold]
    funnel: tuple[tuple[str, int], ...]
    kept: int
    effects: tuple[RuleEffect, ...] = ()


class InMemorySource:
    """Tables as one part."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._part = Part(
            table=pa.concat_tables(tables.values()),
            first_row=0,
            sizes={shard: table.num_rows for shard, table in tables.items()},
        )
        self.schema, self.rows, self.units = self._part.table.schema, self._part.table.num_rows, 1

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[Part]:
        """The one part."""
        yield self._part


def check(views: Sequence[View], schema: pa.Schema) -> None:
    """ValueError for rules that would fail on any rows with these columns. No rows are needed."""
    with borrowed_connection() as connection:
        rows = PartRows(connection, schema.empty_table())
        for view in views:
            steps = steps_of(views, view.name)
            for step in steps:
                if step.random_like is not None:
                    steps_of(views, step.random_like)
            check_steps(rows, steps)


def choose_parts(
    source: Source,
    views: Sequence[View],
    names: Sequence[str],
    open_sink: OpenSink,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Selection]:
    """Select the rows of each view in `names`; the masks go to the sinks.

    sizes: rows kept by views that `random_like` names, if known. ValueError for a rule that is no
    boolean expression over the columns, that could answer differently the next time, or that leaves
    no row.
    """
    known_sizes = dict(sizes or {})
    selections: dict[str, Selection] = {}
    todo = dict.fromkeys(names)  # in the order in which they were asked for
    while todo:
        steps = {name: steps_of(views, name) for name in todo}
        waiting = {name: sizes_needed(steps[name]) - known_sizes.keys() for name in todo}
        ready = [name for name in todo if not waiting[name]]
        if not ready:  # a view that is not asked for, and whose size is
            needed = sorted(set().union(*waiting.values()) - todo.keys())
            todo = {**dict.fromkeys(needed), **todo}
            continue
        of_ready = {name: steps[name] for name in ready}
        for name, selection in _apply(source, of_ready, names, open_sink, known_sizes).items():
            selections[name] = selection
            known_sizes.setdefault(name, selection.kept)
            del todo[name]
    return {name: selections[name] for name in names}


def _apply(
    source: Source,
    steps: Mapping[str, Sequence[Step]],
    names: Sequence[str],
    open_sink: OpenSink,
    sizes: Mapping[str, int],
) -> dict[str, Selection]:
    """The selections of some views whose random rows can be drawn, in one pass over the rows."""
    with borrowed_connection() as connection:
        rows = PartRows(connection, source.schema.empty_table())
        compiled = compile_views(rows, steps, source, sizes)
    tests = {name: of_view for name, (of_view, _) in compiled.items()}

    def work(unit: int) -> dict[str, ViewCounts]:
        return _work_on_unit(source, unit, tests, names, open_sink)

    counts = {name: ViewCounts(len(steps[name])) for name in steps}
    for of_unit in map_units(source.units, work):
        for name in steps:
            counts[name] += of_unit[name]
    selections = {}
    for name in steps:
        funnel = _funnel(name, steps[name], source.rows, counts[name].left.tolist())
        thresholds = compiled[name][1]
        selections[name] = Selection(
            thresholds=thresholds,
            funnel=funnel,
            kept=funnel[-1][1],
            effects=counts[name].effects(steps[name]),
        )
    return selections


def _work_on_unit(
    source: Source,
    unit: int,
    tests: Mapping[str, Sequence[RowTest]],
    names: Sequence[str],
    open_sink: OpenSink,
) -> dict[str, ViewCounts]:
    """Write the masks of a unit; the counts of each view."""
    counts = {name: ViewCounts(len(of_view)) for name, of_view in tests.items()}
    with ExitStack() as stack:
        connection = stack.enter_context(borrowed_connection())
        sinks = {}
        for name in tests:
            if name in names:
                sinks[name] = stack.enter_context(open_sink(name, unit))
        for part in source.parts(unit):
            rows = PartRows(connection, part.table, part.first_row)
            for name, (codes, of_part) in outcomes(rows, tests).items():
                counts[name] += of_part
                if name in sinks:
                    _add_masks(sinks[name], part, codes, tests[name])
    return counts


def _add_masks(sink: Sink, part: Part, codes: Codes, tests: Sequence[RowTest]) -> None:
    rules: list[str | None] = [None, NOT_STORED]
    for test in tests:
        rules += [test.step.name, f"{test.step.name}:missing"]
    rule = pa.array(rules, pa.string()).take(pa.array(codes))
    whole = pa.Table.from_arrays([pa.array(codes == 0), rule], schema=VIEW)
    start = 0
    for shard, size in part.sizes.items():
        sink.add(shard, whole.slice(start, size))
        start += size


def _funnel(
    name: str, steps: Sequence[Step], rows: int, left: Sequence[int]
) -> tuple[tuple[str, int], ...]:
    """The rows after each step. ValueError where none is left."""
    if not left[0]:
        raise ValueError(f"view {name!r} keeps nothing: none of the pool's {rows} rows is stored")
    for step, before, after in zip(steps, left[:-1], left[1:], strict=True):
        if not after:
            raise ValueError(
                f"view {name!r} keeps nothing: rule {step.name!r} ({step.short_text()}) lets none "
                f"of the {before} rows through that the rules before it left"
            )
    after_steps = zip([step.name for step in steps], left[1:], strict=True)
    return (("attempted", rows), ("stored", left[0]), *after_steps)


# --------------------------------------------------------------------------------------------------
# What each rule of a view does to rows in memory, whatever the other rules do.
#
# The thresholds are those of the view's document. Masks say which rule rejects a row first; this
# module says of every rule which rows it rejects, so that rules can be compared.
#
# What rules and views amount to. It reads what is committed and writes nothing.
#
# Invariants:
#
# * A rule rejects what it rejected when the view was made:
#   `tests/pipeline/views/outcomes/test_rule_outcomes.py`.
# * Two pools with the same rows have the same hash of a view:
#   `tests/pipeline/views/outcomes/test_view_hash.py`.


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
    return PartRows(connect(), table).with_derived()


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
        outcomes: list[RuleOutcome] = []
        tests: dict[int, RowTest] = {}
        for number, plain in enumerate(document.rules):
            step = Step(**{key: value for key, value in plain.items() if key != "like"})
            outcomes.append(RuleOutcome(name=step.name, text=step.text()))
            if is_selected(document.rules):  # a program selected the rows; `where` is prose
                continue
            try:
                test = _test(rows, document, number, step, sizes)
            except ValueError:  # it reads a column that is not there
                continue
            if test is not None:  # else a draw of a size that is not known
                tests[number] = test
        answers = stored_answers(rows, list(tests.values()))
        for number, outcome in enumerate(outcomes):
            if (test := tests.get(number)) is None:
                yield outcome
                continue
            answer = drawn(rows, test) if test.sql is None else answers.get(test.sql)
            if answer is None:  # it fails on some row
                yield outcome
                continue
            rejected, missing = rows.stored & (answer != TRUE), rows.stored & (answer == MISSING)
            columns = _columns(rows, test.step)
            yield replace(outcome, columns=columns, rejected=rejected, missing=missing)


def _columns(rows: PartRows, step: Step) -> frozenset[str]:
    return parse(rows.connection, step, rows.known).columns if step.where else frozenset()


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
