"""The steps of a view as tests of single rows: thresholds are numbers, random draws are limits.

What is a number for the whole pool (the k-th value of a column, the k-th hash) is found here, in
passes over the parts of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifests.documents import RuleEffect, Threshold
from pipeline.views.connections import borrowed_connection
from pipeline.views.expressions.plain_tests import PlainTest, plain_test
from pipeline.views.expressions.syntax import Tree, read_all
from pipeline.views.part_rows import Mask, Numbers, PartRows, is_true
from pipeline.views.ranks import Ranked, RankSearch
from pipeline.views.rules import (
    DERIVED,
    evaluation_error,
    null_unless_known,
    parse,
    parse_top,
    to_sql,
    wheres,
)
from pipeline.views.steps import Step
from pipeline.views.unit_threads import map_units

# A query costs about a millisecond of CPU besides the rows that it reads.
TESTS_PER_QUERY = 32
KEPT, UNSTORED, FIRST_STEP = 0, 1, 2  # codes of outcomes; each step has two: failed, missing
Codes = np.ndarray[Any, np.dtype[np.int32]]


class Part(Protocol):
    """Some rows and where they begin in the pool; `choose.Part`."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def first_row(self) -> int: ...


class Rows(Protocol):
    """The rows of a pool in parts; `choose.Source`."""

    units: int

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[Part]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTest:
    """One step. Exactly one of `sql`, `plain` and `limit` is set."""

    step: Step
    sql: str | None = None
    plain: PlainTest | None = None
    limit: int | None = None  # stored rows with a smaller hash pass
    # Rows of the pool with the hash `limit` that pass too.
    ties: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Top:
    """One top(column, share)."""

    step: Step  # the first that has it
    call: str  # as the rule spells it
    column: str
    share: Fraction


def sizes_needed(steps: Iterable[Step]) -> set[str]:
    """The views whose size the random steps need."""
    return {step.random_like for step in steps if step.random_like is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A step before its thresholds are known."""

    step: Step
    test: RowTest | None  # None for a random step, and where thresholds are missing
    tops: dict[str, _Top]  # by the call as the rule spells it


def check_steps(rows: PartRows, steps: Sequence[Step]) -> list[_Draft]:
    """ValueError for SQL that would fail on any rows. What could be found out about each step.

    rows: none, with all columns.
    """
    read_all(rows.connection, wheres(steps))
    drafts = [_draft(rows, step) for step in steps]
    tests = [draft.test for draft in drafts if draft.test is not None]
    with_sql = [test for test in tests if test.sql is not None]
    for start in range(0, len(with_sql), TESTS_PER_QUERY):
        _check_types(rows, with_sql[start : start + TESTS_PER_QUERY])
    return [replace(draft, test=None) if draft.tops else draft for draft in drafts]


def _draft(rows: PartRows, step: Step) -> _Draft:
    tops: dict[str, _Top] = {}

    def threshold(call: str, column: str, share: Fraction) -> int | float:
        tops[call] = _Top(step=step, call=call, column=column, share=share)
        kind, _ = _numbers(rows, tops[call])  # refuses text before any row is read
        return 0 if pa.types.is_integer(kind) else 0.0

    test = None if step.where is None else _where_test(rows, step, threshold)
    return _Draft(step=step, test=test, tops=tops)


def _check_types(rows: PartRows, tests: Sequence[RowTest]) -> None:
    """ValueError for a test with SQL that is not boolean."""
    try:
        kinds = rows.types_of([str(test.sql) for test in tests])
    except duckdb.Error as error:
        if len(tests) == 1:
            raise evaluation_error(tests[0].step, error) from None
        for test in tests:
            _check_types(rows, [test])
        raise AssertionError("expressions that DuckDB refuses together, and none alone") from None
    for test, kind in zip(tests, kinds, strict=True):
        if kind != "BOOLEAN":
            raise test.step.error(f"it gives {kind}, not true or false")


def compile_views(
    rows: PartRows, views: Mapping[str, Sequence[Step]], source: Rows, sizes: Mapping[str, int]
) -> dict[str, tuple[list[RowTest], dict[str, Threshold]]]:
    """The tests of each view and its resolved thresholds, by the call as the rule spells it.

    sizes: of the views that random steps name.
    """
    drafts = {name: check_steps(rows, steps) for name, steps in views.items()}
    wanted: dict[tuple[str, Fraction], _Top] = {}
    for of_view in drafts.values():
        for draft in of_view:
            wanted |= {(top.column, top.share): top for top in draft.tops.values()}
    draws = {}
    for steps in views.values():
        for step in steps:
            if step.random_like is not None:
                draws[step.seed, sizes[step.random_like]] = step
    ranked = _find_tops(rows, source, wanted)
    drawn = size_limits(source, draws)
    compiled = {}
    for name in views:
        thresholds: dict[str, Threshold] = {}
        tests = []
        for draft in drafts[name]:
            for call, top in draft.tops.items():
                thresholds[call] = _threshold(ranked[top.column, top.share], top.share)
            test = draft.test or row_test(rows, draft.step, thresholds, drawn, sizes)
            tests.append(test)
        compiled[name] = tests, thresholds
    return compiled


class ViewCounts:
    """Counts of one view over some rows; `+` joins them."""

    def __init__(self, tests: int) -> None:
        self.left = np.zeros(tests + 1, np.int64)  # stored rows, then rows after each test
        self.rejected = np.zeros(tests, np.int64)  # of the stored rows
        self.alone = np.zeros(tests, np.int64)  # of them those that no other test rejects
        self.known = np.ones(tests, np.bool_)  # the test can be evaluated on all stored rows

    def __iadd__(self, other: ViewCounts) -> ViewCounts:
        self.left += other.left
        self.rejected += other.rejected
        self.alone += other.alone
        self.known &= other.known
        return self

    def effects(self, steps: Sequence[Step]) -> tuple[RuleEffect, ...]:
        """What each of several steps rejects of all stored rows, and what it alone rejects."""
        if len(steps) < 2:
            return ()
        all_known, effects = bool(self.known.all()), []
        for i, step in enumerate(steps):
            rejected = int(self.rejected[i]) if self.known[i] else None
            alone = int(self.alone[i]) if all_known else None
            effects.append(RuleEffect(rule=step.name, rejected=rejected, alone=alone))
        return tuple(effects)


def outcome_codes(rows: PartRows, tests: Sequence[RowTest]) -> tuple[Codes, ViewCounts]:
    """((rows,) the outcome of each row, counts of them)."""
    alive = rows.stored.copy()
    codes: Codes = np.where(alive, KEPT, UNSTORED).astype(np.int32)
    counts = ViewCounts(len(tests))
    counts.left[0] = np.count_nonzero(alive)
    times = np.zeros(len(alive), np.int32)  # how many tests reject a row
    last = np.zeros(len(alive), np.int32)  # the last of them
    answers = _answers(rows, tests)
    for number, test in enumerate(tests):
        passed, missing, on_all = _evaluated(rows, number, test, alive, answers)
        counts.known[number] = on_all
        if on_all:
            rejected = rows.stored & ~passed
            counts.rejected[number] = np.count_nonzero(rejected)
            times += rejected
            last[rejected] = number
        failed = np.flatnonzero(alive & ~passed)
        codes[failed] = FIRST_STEP + 2 * number
        if missing is not None:
            codes[failed[missing[failed]]] = FIRST_STEP + 2 * number + 1
        alive &= passed
        counts.left[number + 1] = np.count_nonzero(alive)
    counts.alone[:] = np.bincount(last[times == 1], minlength=len(tests))
    return codes, counts


def _evaluated(
    rows: PartRows,
    number: int,
    test: RowTest,
    alive: Mask,
    answers: dict[int, pa.ChunkedArray],
) -> tuple[Mask, Mask | None, bool]:
    """What `passed_of_stored` gives; None for no row in which a value is missing."""
    if test.plain is not None:
        return *test.plain.evaluate(rows), True
    if number in answers:
        answer = answers.pop(number)
        return is_true(answer), is_true(pc.is_null(answer)), True
    return passed_of_stored(rows, test, alive)


def _answers(rows: PartRows, tests: Sequence[RowTest]) -> dict[int, pa.ChunkedArray]:
    """The answers of tests for all stored rows, by number of the test. Tests that share a query
    with one that fails are not among them.
    """
    with_sql = [(number, test.sql) for number, test in enumerate(tests) if test.sql is not None]
    answers: dict[int, pa.ChunkedArray] = {}
    for start in range(0, len(with_sql), TESTS_PER_QUERY):
        group = with_sql[start : start + TESTS_PER_QUERY]
        try:
            columns = rows.evaluate_all([sql for _, sql in group], rows.stored)
        except duckdb.Error:
            continue
        for (number, _), column in zip(group, columns, strict=True):
            answers[number] = column
    return answers


def passed_of_stored(rows: PartRows, test: RowTest, alive: Mask) -> tuple[Mask, Mask, bool]:
    """(passed, missing, whether they are of all stored rows). A test may fail on rows that the
    tests before it reject (a cast of a text, say): then they are of the rows that are left.
    """
    try:
        return *_passed(rows, test, rows.stored), True
    except ValueError:
        return *_passed(rows, test, alive), False


# --- one step -----------------------------------------------------------------------------------


def _where_test(
    rows: PartRows, step: Step, threshold: Callable[[str, str, Fraction], int | float]
) -> RowTest:
    """A step with SQL as a test of rows: by NumPy where that gives the same answers. SQL is NULL
    where a column that it reads is NULL.

    threshold: (call, column, share) -> number, for each top().
    """
    connection = rows.connection
    try:
        expression = parse(connection, step, rows.known)

        def of_call(call: Tree) -> int | float:
            return threshold(*parse_top(connection, step, call))

        plain = plain_test(expression.tree["select_list"][0], rows.kinds, of_call)
        if plain is not None:
            return RowTest(step=step, plain=plain)
        sql = to_sql(connection, expression, step, threshold, rows.types_of)
    except duckdb.Error as error:
        raise evaluation_error(step, error) from None
    return RowTest(step=step, sql=null_unless_known(sql, expression.not_null))


def row_test(
    rows: PartRows,
    step: Step,
    thresholds: Mapping[str, Threshold],
    drawn: Mapping[tuple[int, int], tuple[int, frozenset[int]]],
    sizes: Mapping[str, int],
) -> RowTest:
    """A step as a test of rows: thresholds by call, limits of draws by (seed, size)."""
    if step.sample is not None:
        return RowTest(step=step, limit=int(Fraction(str(step.sample)) * 2**64))
    if step.random_like is not None:
        limit, ties = drawn[step.seed, sizes[step.random_like]]
        return RowTest(step=step, limit=limit, ties=ties)
    return _where_test(rows, step, lambda call, *_: thresholds[call].value)


def _passed(rows: PartRows, test: RowTest, alive: Mask) -> tuple[Mask, Mask]:
    """((rows,) for which rows the test is true, (rows,) for which it is NULL)."""
    if test.plain is not None:
        passed, missing = test.plain.evaluate(rows)
        return passed, np.zeros_like(alive) if missing is None else missing
    if test.sql is None:
        return _drawn(rows, test), np.zeros_like(alive)
    try:
        answer = rows.evaluate(test.sql, alive)
    except duckdb.Error as error:
        raise evaluation_error(test.step, error) from None
    return is_true(answer), is_true(pc.is_null(answer))


def _drawn(rows: PartRows, test: RowTest) -> Mask:
    assert test.limit is not None
    if test.limit == 0:
        return np.zeros_like(rows.stored)
    # A limit of 2^64 does not fit its type.
    mask = rows.of_stored(rows.stored_hashes(test.step.seed) <= np.uint64(test.limit - 1))
    inside = [tie - rows.first_row for tie in test.ties]
    mask[[tie for tie in inside if 0 <= tie < len(mask)]] = True
    return mask


# --- numbers of the whole pool --------------------------------------------------------------------


def _find_tops(
    rows: PartRows, source: Rows, tops: Mapping[tuple[str, Fraction], _Top]
) -> dict[tuple[str, Fraction], Ranked]:
    """The k-th largest value of each column over the stored rows. NULL and NaN do not count."""
    searches = {}
    columns = {"status"}
    for key, top in tops.items():
        searches[key] = RankSearch(partial(_rank_from_above, top.share))
        step = Step(name=top.step.name, where=top.column, view=top.step.view)
        for column in parse(rows.connection, step, rows.known).columns:
            columns |= set(DERIVED[column][1]) if column in DERIVED else {column}

    def work(unit: int) -> None:
        with borrowed_connection() as connection:
            for part in source.parts(unit, sorted(columns)):
                part_rows = PartRows(connection, part.table, part.first_row)
                for key, search in searches.items():
                    if not search.is_done:
                        search.add(_numbers(part_rows, tops[key])[1])

    _end_searches(source, searches.values(), work)
    thresholds = {}
    for (column, share), search in searches.items():
        if search.result is None:
            top = tops[column, share]
            raise top.step.error(f"no stored row has a value for {top.call}")
        thresholds[column, share] = search.result
    return thresholds


def _end_searches(
    source: Rows, searches: Collection[RankSearch], work: Callable[[int], None]
) -> None:
    """Pass over all rows until every search has its result. `work` shows them those of a unit."""
    while not all(search.is_done for search in searches):
        for _ in map_units(source.units, work):
            pass
        for search in searches:
            if not search.is_done:
                search.end_pass()


def _size(size: int, count: int) -> int:
    return size


def _rank_from_above(share: Fraction, count: int) -> int:
    return count - ceil(share * count) + 1


def _numbers(rows: PartRows, top: _Top) -> tuple[pa.DataType, Numbers]:
    """(type of a column, (n,) its values of the stored rows without NULL and NaN)."""
    try:
        kind, numbers = rows.values_of_stored(top.column)
    except duckdb.Error as error:
        raise evaluation_error(top.step, error) from None
    if numbers is None:
        raise top.step.error(f"{top.call} needs a number, and {top.column} is {kind}")
    return kind, numbers


def _threshold(ranked: Ranked, share: Fraction) -> Threshold:
    kept = ranked.count - ranked.below
    return Threshold(
        value=ranked.value,
        asked=float(share),
        share=kept / ranked.count,
        kept=kept,
        rows=ranked.count,
    )


def size_limits(
    source: Rows, draws: Mapping[tuple[int, int], Step]
) -> dict[tuple[int, int], tuple[int, frozenset[int]]]:
    """(seed, size) -> (the size-th smallest hash, the rows with that hash that are drawn too)."""
    searches = {(seed, size): RankSearch(partial(_size, size), lambda h: h) for seed, size in draws}

    def work(unit: int) -> None:
        with borrowed_connection() as connection:
            for part in source.parts(unit, ["status", "uid"]):
                rows = PartRows(connection, part.table, part.first_row)
                for (seed, _), search in searches.items():
                    if not search.is_done:
                        search.add(rows.stored_hashes(seed))

    _end_searches(source, searches.values(), work)
    draws_made = {}
    for (seed, size), search in searches.items():
        assert search.result is not None
        ranked = search.result
        last, missing = int(ranked.value), size - ranked.below
        if missing == ranked.equal:
            draws_made[seed, size] = last + 1, frozenset[int]()
        else:
            draws_made[seed, size] = last, _first_ties(source, seed, last, missing)
    return draws_made


def _first_ties(source: Rows, seed: int, last: int, count: int) -> frozenset[int]:
    """The first `count` rows with the hash `last`: by uid, then by their place in the pool."""
    ties: list[tuple[str, int]] = []
    with borrowed_connection() as connection:
        for unit in range(source.units):
            for part in source.parts(unit, ["status", "uid"]):
                rows = PartRows(connection, part.table, part.first_row)
                same = rows.of_stored(rows.stored_hashes(seed) == np.uint64(last))
                for row in np.flatnonzero(same).tolist():
                    ties.append((str(part.table["uid"][row]), part.first_row + row))
    return frozenset(row for _, row in sorted(ties)[:count])
