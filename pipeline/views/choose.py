"""Columns and rules to masks: SQL and Arrow. This module opens no file and knows no worker.

DuckDB evaluates every rule: one query for some rows has the answers of all rules of all views, each
rule once. What a view makes of them, the first rule that is not true and what each rule rejects, is
sums of bytes. A row's `rule` is the first step that is not true for it, or `NAME:missing` if the
step reads a NULL that it does not speak of (see `rules`).

`top(column, share)` is a number that is computed first, over all stored rows of the pool with a
value: the k-th largest with k = ceil(share × number of such rows). So `clip_score >=
top(clip_score, 0.30)` keeps the best 30 % of the rows that have a score, and all rows that tie with
the last of them.

Random rows are drawn by the `text_hashes` of their uids: `sample` keeps the stored rows with a hash
below share × 2^64, `random_like` the rows with the smallest hashes. Both depend on uid and seed
alone, so with the same seed a smaller sample is a part of every larger one. Nothing depends on how
the rows are divided into shards or on the number of workers.

Rows come in parts, and units of parts are worked on in parallel. The parts are read once for all
thresholds (see `Ranks`) and once for the masks; one part per thread is in memory.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clipmill.manifests import disk
from clipmill.manifests.arrays import Array, Bytes, Hashes, Mask
from clipmill.manifests.columns import MASK
from clipmill.manifests.hashes import text_hashes
from clipmill.manifests.late import duckdb
from clipmill.manifests.layout import NOT_STORED
from clipmill.manifests.records import RuleEffect, Threshold, ViewDocument
from clipmill.manifests.schema import View
from clipmill.pipeline.progress.state import Measure
from clipmill.pipeline.progress.view import counted_stage
from clipmill.pipeline.views.rules import (
    DERIVED,
    TABLE,
    TOO_DEEP,
    Step,
    borrowed_connection,
    columns_on_disk,
    evaluation_error,
    is_selected,
    long_lists,
    parse,
    quoted,
    step_of,
    steps_of,
    to_sql,
)

# --------------------------------------------------------------------------------------------------
# Some rows of a pool and the database that evaluates rules over them.


# (rows,) of one rule: 0 where it is false, TRUE or MISSING.
Answers = Bytes
TRUE, MISSING = 1, 2


def stored_rows_of(table: pa.Table) -> Mask:
    """(rows,) which are stored, by the column `status`: of texts, or of dictionaries of them."""
    parts = [np.zeros(0, np.bool_)]
    for part in table["status"].chunks:
        encoded = part.dictionary_encode()
        is_success = pc.equal(encoded.dictionary, "success").to_numpy(zero_copy_only=False)
        codes = pc.fill_null(encoded.indices, len(is_success)).to_numpy()
        parts.append(np.append(is_success, False)[codes])
    return np.concatenate(parts)


def _readable(table: pa.Table) -> pa.Table:
    """The table with 32-bit floats in place of those of 16 bits, which DuckDB cannot read, and NULL
    in place of NaN, which DuckDB orders above every number."""
    for index, each in enumerate(table.schema):
        kind, column = _wide(each.type), table.column(index)
        if kind != each.type:
            column = column.cast(kind)
        if pa.types.is_floating(kind):
            is_nan = pc.is_nan(column)
            if pc.any(is_nan).as_py():
                column = pc.if_else(is_nan, pa.scalar(None, kind), column)
        if column is not table.column(index):
            table = table.set_column(index, each.with_type(kind), column)
    return table


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_wide(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_wide(kind.value_type))
    return pa.float32() if pa.types.is_float16(kind) else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTest:
    """One step. Either `sql` or `limit` is set."""

    step: Step
    sql: str | None = None
    not_null: tuple[str, ...] = ()  # columns; where one is NULL, the answer of the SQL is MISSING
    lists: Mapping[str, str] = field(default_factory=dict)  # SQL of columns that `sql` names
    limit: int | None = None  # stored rows with a smaller hash pass
    # Rows of the pool with the hash `limit` that pass too.
    ties: frozenset[int] = field(default_factory=frozenset)


class PartRows:
    """The joined columns of some consecutive rows."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: pa.Table, first_row: int = 0
    ) -> None:
        """first_row: number of its first row in the pool."""
        self.connection, self.table, self.first_row = connection, table, first_row
        columns = set(table.column_names)
        self.derived = {
            name: derived.sql
            for name, derived in DERIVED.items()
            if columns.issuperset(derived.sources)
        }
        self.known = columns | set(self.derived)
        self.stored = stored_rows_of(table)
        self.is_alive = "row_is_alive"  # no column of the table begins so
        while any(name.lower().startswith(self.is_alive) for name in self.known):
            self.is_alive += "_"
        self._hashes: dict[int, Hashes] = {}

    @cached_property
    def readable(self) -> pa.Table:
        """The rows as rules see them in DuckDB."""
        return _readable(self.table)

    def answers(self, tests: Sequence[RowTest], alive: Mask) -> list[Answers]:
        """The answers of tests with SQL, in one query. They are not evaluated for rows that are not
        alive, nor where a column is NULL. An error may be that of any of them.
        """
        columns: list[str] = []
        lists: dict[str, str] = {}
        for number, test in enumerate(tests):
            lists |= test.lists
            known = "".join(f" AND {quoted(name)} IS NOT NULL" for name in test.not_null)
            columns.append(
                f"CASE WHEN {self.is_alive}{known} THEN CAST(({test.sql}) AS UTINYINT) "
                f"ELSE {MISSING}::UTINYINT END AS answer_{number}"
            )
        text = ", ".join(columns)
        try:
            found = self._of_alive(text, alive, lists)
        except duckdb.Error:
            if not lists or len(tests) > 1:
                raise
            for name, sql in lists.items():  # slow, but where the rule guards its list, it works
                text = text.replace(name, f"({sql})")
            found = self._of_alive(text, alive)
        answers = []
        for column in found:
            known_column = pc.fill_null(column, MISSING) if column.null_count else column
            answers.append(known_column.to_numpy())
        return answers

    def _of_alive(
        self, columns: str, alive: Mask, lists: Mapping[str, str] | None = None
    ) -> list[pa.ChunkedArray]:
        self._register(alive)
        return list(self._select(columns, lists).to_arrow_table().columns)

    def _register(self, alive: Mask) -> None:
        table = self.readable.append_column(self.is_alive, pa.array(alive))
        self.connection.register(TABLE, table)

    def values_of_stored(self, sql: str) -> tuple[pa.DataType, Array | None]:
        """(type of `sql`, its values of the stored rows without NULL and NaN; None where it is no
        number). It is not evaluated for other rows. A column of numbers is not given to DuckDB."""
        if sql in self.table.column_names and _is_number(self.table.schema.field(sql).type):
            answer = self.table[sql].filter(pa.array(self.stored)).drop_null()
        else:
            of_alive = f"CASE WHEN {self.is_alive} THEN ({sql}) END AS answer"
            answer = self._of_alive(of_alive, self.stored)[0].drop_null()
        if pa.types.is_decimal(answer.type):  # a column times 0.5 is a decimal
            answer = answer.cast(pa.float64())
        if not _is_number(answer.type):
            return answer.type, None
        values = answer.to_numpy()
        return answer.type, values[~np.isnan(values)]

    def types_of(self, expressions: Sequence[str], lists: Mapping[str, str]) -> list[str]:
        """DuckDB's types of some expressions over the columns. An error may be that of any.

        lists: SQL of columns that they name.
        """
        columns = [f"({sql}) AS answer_{number}" for number, sql in enumerate(expressions)]
        self._register(self.stored)
        return [str(kind) for kind in self._select(", ".join(columns), lists).types]

    def with_derived(self) -> pa.Table:
        """The columns of the table and those that are derived from them."""
        self.connection.register(TABLE, self.table)
        columns = [self._select(name).to_arrow_table().column(0) for name in self.derived]
        table = self.table
        for name, column in zip(self.derived, columns, strict=True):
            table = table.append_column(name, column)
        return table

    def _select(self, columns: str, lists: Mapping[str, str] | None = None) -> Any:
        derived = "".join(f", {text} AS {name}" for name, text in self.derived.items())
        rows = f"SELECT *{derived} FROM {TABLE}"
        if lists:
            answers = "".join(f", {text} AS {name}" for name, text in lists.items())
            rows = f"SELECT *{answers} FROM ({rows})"
        return self.connection.sql(f"SELECT {columns} FROM ({rows})")

    def stored_hashes(self, seed: int) -> Hashes:
        """(stored rows,) `text_hashes` of the uids of the stored rows, computed once per seed."""
        if seed not in self._hashes:
            uids = self.table["uid"].filter(pa.array(self.stored)).to_pylist()
            self._hashes[seed] = text_hashes(uids, seed)
        return self._hashes[seed]

    def of_stored(self, values: Mask) -> Mask:
        """(rows,) from (stored rows,); False for the others."""
        mask = np.zeros(len(self.stored), np.bool_)
        mask[self.stored] = values
        return mask


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


# --------------------------------------------------------------------------------------------------
# The exact k-th value of any number of values that come in parts. They lie in a file of the scratch
# folder, as many bytes as the values have, and are partitioned where they lie: the system keeps in
# memory what fits.


RANKED_AT_ONCE = 1 << 22  # values that are compared with the one that was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The value of a rank; of `count` values `below` are less than it, `equal` equal it."""

    value: int | float
    count: int
    below: int
    equal: int


class Ranks:
    """Values by the name of what they are of. Threads may share it. folder: for its files, which
    are open only while they are written or read: there may be a thousand.
    """

    def __init__(self, folder: Path) -> None:
        self._files: dict[Hashable, tuple[Path, np.dtype[Any]]] = {}
        self._lock = threading.Lock()
        self._folder = folder

    def add(self, name: Hashable, values: Array) -> None:
        """Some more values: (n,) numbers of one type without NaN."""
        with self._lock:
            if name not in self._files:
                self._files[name] = self._folder / f"{len(self._files)}.values", values.dtype
            path, kind = self._files[name]
            assert values.dtype == kind
            with disk.naming(path), path.open("ab") as file:
                file.write(np.ascontiguousarray(values).data)

    def find(self, name: Hashable, rank: Callable[[int], int]) -> Ranked | None:
        """The value of rank(count) from below, from 1 to count; None where there is no value."""
        if name not in self._files:
            return None
        with self._lock:
            path, kind = self._files[name]
            count = path.stat().st_size // kind.itemsize
            if not count:
                return None
            position = rank(count) - 1
            assert 0 <= position < count
            values = np.memmap(path, kind, "r+", shape=(count,))
            values.partition(position)
            value = values[position] + kind.type(0)  # 0.0 for -0.0
            below = equal = 0
            for start in range(0, count, RANKED_AT_ONCE):
                part = values[start : start + RANKED_AT_ONCE]
                below += int(np.count_nonzero(part < value))
                equal += int(np.count_nonzero(part == value))
        return Ranked(value=value.item(), count=count, below=below, equal=equal)


# --------------------------------------------------------------------------------------------------
# Units of work in as many threads as there are cores, their results in order.


T = TypeVar("T")
THREADS = max(1, os.cpu_count() or 1)


def map_units(units: int, work: Callable[[int], T], stage: str = "choose") -> Iterator[T]:
    """work(0), work(1), …: a few of them at a time, in threads. The first error ends the rest.

    DuckDB, Arrow and NumPy release Python's lock for most of their time.
    """
    with counted_stage(stage, units, brief=True) as counter:
        for unit, result in enumerate(_results(units, work)):
            counter.ended(str(unit), Measure())
            yield result


def _results(units: int, work: Callable[[int], T]) -> Iterator[T]:
    if units <= 1 or THREADS == 1:
        yield from map(work, range(units))
        return
    running: deque[Future[T]] = deque()
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="views")
    try:
        for unit in range(units):
            running.append(threads.submit(work, unit))
            if len(running) >= 2 * THREADS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


# --------------------------------------------------------------------------------------------------
# The steps of a view as tests of single rows: thresholds are numbers, random draws are limits.
#
# What is a number for the whole pool (the k-th value of a column, the k-th hash) is found here,
# in passes over the parts of the pool.


KEPT, UNSTORED, FIRST_STEP = 0, 1, 2  # codes of outcomes; each step has two: failed, missing
Codes = Array  # of as few bits as the codes of a view need


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Consecutive rows: of some whole shards."""

    table: pa.Table
    first_row: int  # in the pool
    sizes: dict[str, int]  # shard -> its rows


class RowSource(Protocol):
    """The rows of a pool, in units that are worked on in parallel."""

    schema: pa.Schema
    units: int
    rows: int

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[RowBlock]:
        """The parts of a unit, with some columns (default: all)."""
        ...


def rows_of(
    source: RowSource, unit: int, columns: Sequence[str] | None = None
) -> Iterator[tuple[Mapping[str, int], PartRows]]:
    """(rows by shard, the rows in a database) of the parts of a unit, with some columns."""
    with borrowed_connection() as connection:
        for part in source.parts(unit, columns):
            yield part.sizes, PartRows(connection, part.table, part.first_row)


class InMemorySource:
    """Tables as one part."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._part = RowBlock(
            table=pa.concat_tables(tables.values()),
            first_row=0,
            sizes={shard: table.num_rows for shard, table in tables.items()},
        )
        self.schema, self.rows, self.units = self._part.table.schema, self._part.table.num_rows, 1

    def parts(self, unit: int, columns: Sequence[str] | None = None) -> Iterator[RowBlock]:
        """The one part."""
        yield self._part


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


def check_steps(rows: PartRows, steps: Sequence[Step]) -> tuple[list[_Top], dict[Step, RowTest]]:
    """The calls of top() in some steps, and the tests of steps with SQL and without such calls.

    rows: none, with all columns. ValueError for SQL that would fail on any rows.
    """
    tops: list[_Top] = []

    def threshold(step: Step, call: str, column: str, share: Fraction) -> int | float:
        tops.append(_Top(step=step, call=call, column=column, share=share))
        kind, _ = _numbers(rows, tops[-1])  # refuses text before any row is read
        return 0 if pa.types.is_integer(kind) else 0.0

    by_sql: dict[str, RowTest] = {}
    for step in steps:
        if step.where is not None and step.where not in by_sql:
            by_sql[step.where] = _where_test(rows, step, partial(threshold, step))
    _check_types(rows, list(by_sql.values()))
    for top in tops:
        by_sql.pop(str(top.step.where), None)
    tests = {step: by_sql.get(str(step.where)) for step in steps}
    return tops, {step: replace(test, step=step) for step, test in tests.items() if test}


def _check_types(rows: PartRows, tests: Sequence[RowTest]) -> None:
    """ValueError for the first test with SQL that is not boolean."""
    if not tests:
        return
    try:
        lists = {name: sql for test in tests for name, sql in test.lists.items()}
        kinds = rows.types_of([str(test.sql) for test in tests], lists)
    except duckdb.Error as error:
        if len(tests) == 1:
            raise evaluation_error(tests[0].step, error) from None
        half = len(tests) // 2
        _check_types(rows, tests[:half])
        _check_types(rows, tests[half:])
        return
    for test, kind in zip(tests, kinds, strict=True):
        if kind != "BOOLEAN":
            raise test.step.error(f"it gives {kind}, not true or false")


def compile_views(
    rows: PartRows, views: Mapping[str, Sequence[Step]], source: RowSource, sizes: Mapping[str, int]
) -> dict[str, tuple[list[RowTest], dict[str, Threshold]]]:
    """The tests of each view and its resolved thresholds, by the call as the rule spells it.

    sizes: of the views that random steps name.
    """
    checked = {name: check_steps(rows, steps) for name, steps in views.items()}
    wanted: dict[tuple[str, Fraction], _Top] = {}
    for tops, _ in checked.values():
        wanted |= {(top.column, top.share): top for top in tops}
    draws = set()
    for steps in views.values():
        for step in steps:
            if step.random_like is not None:
                draws.add((step.seed, sizes[step.random_like]))
    ranked = _find_tops(rows, source, wanted)
    drawn = size_limits(source, draws)
    compiled = {}
    for name, steps in views.items():
        tops, made = checked[name]
        thresholds = {}
        for top in tops:
            one = ranked[top.column, top.share]
            kept, count = one.count - one.below, one.count
            thresholds[top.call] = Threshold(
                value=one.value, asked=float(top.share), share=kept / count, kept=kept, rows=count
            )
        tests = []
        for step in steps:
            tests.append(made.get(step) or row_test(rows, step, thresholds, drawn, sizes))
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


Outcomes = dict[str, tuple[Codes, ViewCounts]]


def outcomes(rows: PartRows, views: Mapping[str, Sequence[RowTest]]) -> Outcomes:
    """For each view ((rows,) the outcome of each row, counts of them)."""
    answers = stored_answers(rows, [test for tests in views.values() for test in tests])
    return {name: _outcome_codes(rows, tests, answers) for name, tests in views.items()}


def _outcome_codes(
    rows: PartRows, tests: Sequence[RowTest], answers: Mapping[str | None, Answers]
) -> tuple[Codes, ViewCounts]:
    """answers: `stored_answers` of the tests, and of others."""
    alive = rows.stored.copy()
    kind = np.min_scalar_type(FIRST_STEP + 2 * len(tests))
    codes: Codes = np.full(len(alive), KEPT, kind)
    codes[~alive] = UNSTORED
    counts = ViewCounts(len(tests))
    counts.left[0] = np.count_nonzero(alive)
    times = np.zeros(len(alive), kind)  # how many tests reject a row
    for number, test in enumerate(tests):
        answer = drawn(rows, test) if test.sql is None else answers.get(test.sql)
        if answer is None:
            counts.known[number] = False
            answer = _answers_of_left(rows, test, alive)
        passed = answer == TRUE
        if counts.known[number]:
            rejected = rows.stored & ~passed
            counts.rejected[number] = np.count_nonzero(rejected)
            times += rejected
        failed = alive & ~passed
        codes += failed * (kind.type(FIRST_STEP + 2 * number) + (answer == MISSING))
        alive &= passed
        counts.left[number + 1] = np.count_nonzero(alive)
    of_one = codes[times == 1]  # where all are known, the only one that rejects is the first
    counts.alone[:] = np.bincount((of_one - FIRST_STEP) // 2, minlength=len(tests))
    return codes, counts


def stored_answers(rows: PartRows, tests: Sequence[RowTest]) -> dict[str | None, Answers]:
    """The answers for all stored rows by the SQL of a test. Tests without SQL, and those that fail
    on a stored row (a cast of a text, say), are not among them."""
    by_sql = {test.sql: test for test in tests if test.sql is not None}
    if not by_sql:
        return {}
    try:
        return dict(zip(by_sql, rows.answers(list(by_sql.values()), rows.stored), strict=True))
    except duckdb.Error:
        if len(by_sql) == 1:
            return {}
    several = list(by_sql.values())
    half = len(several) // 2
    return stored_answers(rows, several[:half]) | stored_answers(rows, several[half:])


def _answers_of_left(rows: PartRows, test: RowTest, alive: Mask) -> Answers:
    """The answers for the rows that are left. ValueError where the test fails on one of them."""
    try:
        return rows.answers([test], alive)[0]
    except duckdb.Error as error:
        raise evaluation_error(test.step, error) from None


# --- one step -----------------------------------------------------------------------------------


def _where_test(
    rows: PartRows, step: Step, threshold: Callable[[str, str, Fraction], int | float]
) -> RowTest:
    """A step with SQL as a test of rows.

    threshold: (call, column, share) -> number, for each top().
    """
    try:
        expression = parse(step, rows.known)
        tree, lists = long_lists(expression.tree, rows.is_alive)
        types_of = partial(rows.types_of, lists=lists)
        sql = to_sql(replace(expression, tree=tree), step, threshold, types_of)
    except duckdb.Error as error:
        raise evaluation_error(step, error) from None
    except RecursionError:
        raise step.error(TOO_DEEP) from None
    return RowTest(step=step, sql=sql, not_null=tuple(sorted(expression.not_null)), lists=lists)


def sample_limit(share: float) -> int:
    """`sample` keeps the stored rows whose hash is below it."""
    return int(Fraction(str(share)) * 2**64)


def row_test(
    rows: PartRows,
    step: Step,
    thresholds: Mapping[str, Threshold],
    drawn: Mapping[tuple[int, int], tuple[int, frozenset[int]]],
    sizes: Mapping[str, int],
) -> RowTest:
    """A step as a test of rows: thresholds by call, limits of draws by (seed, size)."""
    if step.sample is not None:
        return RowTest(step=step, limit=sample_limit(step.sample))
    if step.random_like is not None:
        limit, ties = drawn[step.seed, sizes[step.random_like]]
        return RowTest(step=step, limit=limit, ties=ties)
    return _where_test(rows, step, lambda call, *_: thresholds[call].value)


def drawn(rows: PartRows, test: RowTest) -> Answers:
    """The answers of a test with a limit: TRUE or FALSE."""
    assert test.limit is not None
    mask = np.zeros_like(rows.stored)
    if test.limit:  # a limit of 2^64 does not fit its type
        mask = rows.of_stored(rows.stored_hashes(test.step.seed) <= np.uint64(test.limit - 1))
        inside = [tie - rows.first_row for tie in test.ties]
        mask[[tie for tie in inside if 0 <= tie < len(mask)]] = True
    return mask.view(np.uint8)


# --- numbers of the whole pool --------------------------------------------------------------------


def _find_tops(
    rows: PartRows, source: RowSource, tops: Mapping[tuple[str, Fraction], _Top]
) -> dict[tuple[str, Fraction], Ranked]:
    """The k-th largest value of each column over the stored rows. NULL and NaN do not count."""
    if not tops:
        return {}
    columns = {"status"}
    by_column: dict[str, _Top] = {}
    for top in tops.values():
        by_column.setdefault(top.column, top)
        step = Step(name=top.step.name, where=top.column, view=top.step.view)
        columns |= columns_on_disk(parse(step, rows.known).columns)
    with disk.scratch_folder("clipmill-ranks-") as folder:
        ranks = Ranks(folder)

        def work(unit: int) -> None:
            for _, part_rows in rows_of(source, unit, sorted(columns)):
                for column, top in by_column.items():
                    ranks.add(column, _numbers(part_rows, top)[1])

        deque(map_units(source.units, work), maxlen=0)
        thresholds = {}
        for (column, share), top in tops.items():
            ranked = ranks.find(column, partial(_rank_from_above, share))
            if ranked is None:
                raise top.step.error(f"no stored row has a value for {top.call}")
            thresholds[column, share] = ranked
    return thresholds


def _rank_from_above(share: Fraction, count: int) -> int:
    return count - ceil(share * count) + 1


def _numbers(rows: PartRows, top: _Top) -> tuple[pa.DataType, Array]:
    """(type of a column, (n,) its values of the stored rows without NULL and NaN)."""
    try:
        kind, numbers = rows.values_of_stored(top.column)
    except duckdb.Error as error:
        raise evaluation_error(top.step, error) from None
    if numbers is None:
        raise top.step.error(f"{top.call} needs a number, and {top.column} is {kind}")
    return kind, numbers


def size_limits(
    source: RowSource, draws: Collection[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, frozenset[int]]]:
    """(seed, size) -> (the size-th smallest hash, the rows with that hash that are drawn too)."""
    if not draws:
        return {}
    seeds = {seed for seed, _ in draws}
    draws_made = {}
    with disk.scratch_folder("clipmill-ranks-") as folder:
        ranks = Ranks(folder)

        def work(unit: int) -> None:
            for _, rows in rows_of(source, unit, ["status", "uid"]):
                for seed in seeds:
                    ranks.add(seed, rows.stored_hashes(seed))

        deque(map_units(source.units, work), maxlen=0)
        for seed, size in draws:
            ranked = ranks.find(seed, partial(min, size))
            assert ranked is not None
            last, missing = int(ranked.value), size - ranked.below
            if missing == ranked.equal:
                draws_made[seed, size] = last + 1, frozenset[int]()
            else:
                draws_made[seed, size] = last, _first_ties(source, seed, last, missing)
    return draws_made


def _first_ties(source: RowSource, seed: int, last: int, count: int) -> frozenset[int]:
    """The first `count` rows with the hash `last`: by uid, then by their place in the pool."""
    ties: list[tuple[str, int]] = []
    for unit in range(source.units):
        for _, rows in rows_of(source, unit, ["status", "uid"]):
            same = rows.of_stored(rows.stored_hashes(seed) == np.uint64(last))
            for row in np.flatnonzero(same).tolist():
                ties.append((str(rows.table["uid"][row]), rows.first_row + row))
    return frozenset(row for _, row in sorted(ties)[:count])


# --------------------------------------------------------------------------------------------------
# The views of a pool: thresholds, then the masks.


TakeMask = Callable[[str, str, pa.Table], None]  # (view, shard, its mask of schema MASK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a view keeps. `effects`: of each of several rules, over all stored rows; () for one
    rule."""

    thresholds: dict[str, Threshold]
    funnel: tuple[tuple[str, int], ...]
    kept: int
    effects: tuple[RuleEffect, ...] = ()


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
    source: RowSource,
    views: Sequence[View],
    names: Sequence[str],
    take: TakeMask,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Selection]:
    """Select the rows of each view in `names`; the masks go to `take`, shard by shard in order.

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
        for name, selection in _apply(source, of_ready, names, take, known_sizes).items():
            selections[name] = selection
            known_sizes.setdefault(name, selection.kept)
            del todo[name]
    return {name: selections[name] for name in names}


def _apply(
    source: RowSource,
    steps: Mapping[str, Sequence[Step]],
    names: Sequence[str],
    take: TakeMask,
    sizes: Mapping[str, int],
) -> dict[str, Selection]:
    """The selections of some views whose random rows can be drawn, in one pass over the rows."""
    with borrowed_connection() as connection:
        rows = PartRows(connection, source.schema.empty_table())
        compiled = compile_views(rows, steps, source, sizes)
    tests = {name: of_view for name, (of_view, _) in compiled.items()}

    def work(unit: int) -> list[tuple[Mapping[str, int], Outcomes]]:
        return [(sizes, outcomes(rows, tests)) for sizes, rows in rows_of(source, unit)]

    counts = {name: ViewCounts(len(steps[name])) for name in steps}
    for of_parts in map_units(source.units, work):
        for shard_sizes, of_views in of_parts:
            for name, (codes, of_view) in of_views.items():
                counts[name] += of_view
                if name in names:
                    _take_masks(take, name, shard_sizes, codes, tests[name])
    selections = {}
    for name in steps:
        funnel = _funnel(name, steps[name], source.rows, counts[name].left.tolist())
        selections[name] = Selection(
            thresholds=compiled[name][1],
            funnel=funnel,
            kept=funnel[-1][1],
            effects=counts[name].effects(steps[name]),
        )
    return selections


def _take_masks(
    take: TakeMask, view: str, sizes: Mapping[str, int], codes: Codes, tests: Sequence[RowTest]
) -> None:
    rules = [NOT_STORED]
    for test in tests:
        rules += [test.step.name, f"{test.step.name}:missing"]
    whole = mask_of(codes == KEPT, codes.astype(np.int32) - UNSTORED, rules)
    start = 0
    for shard, size in sizes.items():
        take(view, shard, whole.slice(start, size))
        start += size


def mask_of(kept: Mask, rejected_by: Array, rules: Sequence[str]) -> pa.Table:
    """A mask of schema MASK. rejected_by: (rows,) int32 positions in `rules`, of rows not kept."""
    indices = pa.array(rejected_by, pa.int32(), mask=kept)
    rule = pa.DictionaryArray.from_arrays(indices, pa.array(rules, pa.string()))
    return pa.Table.from_arrays([pa.array(kept), rule], schema=MASK)


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
                f"of the {before} rows through that the rules before it left; `clipmill look` "
                "shows which values the columns have"
            )
    after_steps = zip([step.name for step in steps], left[1:], strict=True)
    return (("attempted", rows), ("stored", left[0]), *after_steps)


# --------------------------------------------------------------------------------------------------
# What each rule of a view does to rows in memory, whatever the other rules do.
#
# The thresholds are those of the view's document. Masks say which rule rejects a row first; this
# module says of every rule which rows it rejects, so that rules can be compared.


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
    with borrowed_connection() as connection:
        return PartRows(connection, table).with_derived()


def rule_outcomes(
    table: pa.Table, document: ViewDocument, sizes: Mapping[str, int] | None = None
) -> Iterator[RuleOutcome]:
    """The rules of a view over rows of its pool, one by one, in order.

    table: the columns that the rules read, `status`, and `uid` for random rules. sizes: rows that
    other views keep, for rules that are `random_like` them; None: `table` is not the whole pool.
    """
    steps = [step_of(rule) for rule in document.rules]
    with borrowed_connection() as connection:
        rows = PartRows(connection, table)
        tests: dict[int, RowTest] = {}
        # A program selected the rows of some views; their `where` is prose.
        for number, step in enumerate(() if is_selected(document.rules) else steps):
            try:
                test = _test(rows, document, number, step, sizes)
            except ValueError:  # it reads a column that is not there
                continue
            if test is not None:  # else a draw of a size that is not known
                tests[number] = test
        answers = stored_answers(rows, list(tests.values()))
        for number, step in enumerate(steps):
            outcome = RuleOutcome(name=step.name, text=step.text())
            if (test := tests.get(number)) is not None:
                answer = drawn(rows, test) if test.sql is None else answers.get(test.sql)
                if answer is not None:  # else it fails on some row
                    outcome = replace(
                        outcome,
                        columns=parse(step, rows.known).columns if step.where else frozenset(),
                        rejected=rows.stored & (answer != TRUE),
                        missing=rows.stored & (answer == MISSING),
                    )
            yield outcome


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
    limits = size_limits(InMemorySource({"0": rows.table}), {(step.seed, size)})
    return row_test(rows, step, {}, limits, {step.random_like: size})
