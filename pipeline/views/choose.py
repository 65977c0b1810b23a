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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from manifests.columns import VIEW
from manifests.documents import RuleEffect, Threshold
from manifests.pool_layout import NOT_STORED
from manifests.schema import View
from pipeline.views.rules import (
    DERIVED,
    connect,
    evaluation_error,
    null_unless_known,
    parse,
    to_sql,
)
from pipeline.views.steps import Step, steps_of

KEPT, UNSTORED, FIRST_STEP = 0, 1, 2  # codes of outcomes; each step has two: failed, missing
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a view keeps. `tables`: shard -> table of schema VIEW, aligned with the rows that
    were given. `effects`: of each of several rules, over all stored rows; () for one rule."""

    thresholds: dict[str, Threshold]
    funnel: tuple[tuple[str, int], ...]
    kept: int
    tables: dict[str, pa.Table]
    effects: tuple[RuleEffect, ...] = ()


def choose(
    tables: Mapping[str, pa.Table],
    views: Sequence[View],
    names: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Selection]:
    """Select the rows of each view in `names` (default: all of `views`).

    tables: shard -> the joined columns of its rows. sizes: rows kept by views that `random_like`
    names, if known. ValueError for a rule that is no boolean expression over the columns, that
    could answer differently the next time, or that leaves no row.
    """
    rows = Rows(tables)
    known_sizes = dict(sizes or {})
    selections: dict[str, Selection] = {}

    def select(name: str) -> Selection:
        if name not in selections:
            steps = steps_of(views, name)
            for step in steps:
                if step.random_like is not None and step.random_like not in known_sizes:
                    known_sizes[step.random_like] = select(step.random_like).kept
            selections[name] = _select(rows, name, steps, known_sizes)
        return selections[name]

    wanted = [view.name for view in views] if names is None else names
    return {name: select(name) for name in wanted}


def check(views: Sequence[View], schema: pa.Schema) -> None:
    """ValueError for rules that would fail on any rows with these columns. No rows are needed."""
    rows = Rows({"": schema.empty_table()})

    def threshold(call: str, column: str, share: Fraction) -> float:
        return 0.0

    for view in views:
        for step in steps_of(views, view.name):
            if step.random_like is not None:
                steps_of(views, step.random_like)
            elif step.where is not None:
                try:
                    rows.sql(step, threshold)
                except duckdb.Error as error:
                    raise evaluation_error(step, error) from None


def uid_hashes(uids: Sequence[str], seed: int) -> Hashes:
    """(rows,) xxh3_64 of each uid with `seed`. The one source of randomness of views."""
    hashes = (xxhash.xxh3_64_intdigest(uid.encode(), seed) for uid in uids)
    return np.fromiter(hashes, np.uint64, len(uids))


class Rows:
    """The joined columns of all shards in one table, and the database that evaluates rules over
    it."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.sizes = {shard: table.num_rows for shard, table in tables.items()}
        self.table = pa.concat_tables(tables.values())
        self.connection = connect()
        columns = set(self.table.column_names)
        self.derived = {
            name: sql for name, (sql, sources) in DERIVED.items() if columns.issuperset(sources)
        }
        self.known = columns | set(self.derived)
        self.stored: Mask = _is_true(pc.equal(self.table["status"], "success"))
        self._hashes: dict[int, Hashes] = {}

    def evaluate(self, sql: str, alive: Mask) -> pa.ChunkedArray:
        """`sql` for each row. It is not evaluated for rows that are not alive; they are NULL."""
        table = self.table.append_column("row_is_alive", pa.array(alive))
        self.connection.register("pool_rows", table)
        relation = self._relation(f"CASE WHEN row_is_alive THEN ({sql}) END")
        return relation.to_arrow_table().column(0)

    def sql(self, step: Step, threshold: Any) -> str:
        """The step as a boolean SQL expression, NULL where a column that it reads is NULL.

        threshold: (call, column, share) -> number, for each top(). ValueError for a rule that is
        not boolean.
        """
        expression = parse(self.connection, step, self.known)
        sql = to_sql(self.connection, expression, step, threshold)
        self.connection.register("pool_rows", self.table)
        kind = str(self._relation(f"({sql})").types[0])
        if kind != "BOOLEAN":
            raise step.error(f"it gives {kind}, not true or false")
        return null_unless_known(sql, expression.not_null)

    def _relation(self, sql: str) -> Any:
        derived = "".join(f", {text} AS {name}" for name, text in self.derived.items())
        return self.connection.sql(
            f"SELECT {sql} AS answer FROM (SELECT *{derived} FROM pool_rows)"
        )

    def stored_hashes(self, seed: int) -> Hashes:
        """(stored rows,) `uid_hashes` of the stored rows, computed once per seed."""
        if seed not in self._hashes:
            uids = self.table["uid"].filter(pa.array(self.stored)).to_pylist()
            self._hashes[seed] = uid_hashes(uids, seed)
        return self._hashes[seed]

    def sample(self, share: float, seed: int) -> Mask:
        """(rows,) the stored rows whose hash is below share × 2^64."""
        limit = int(Fraction(str(share)) * 2**64)
        below = self.stored_hashes(seed) <= np.uint64(limit - 1) if limit else np.False_
        mask = np.zeros(len(self.stored), np.bool_)
        mask[self.stored] = below
        return mask

    def smallest(self, size: int, seed: int) -> Mask:
        """(rows,) the `size` stored rows with the smallest hashes; equal hashes by uid."""
        hashes = self.stored_hashes(seed)
        positions = np.flatnonzero(self.stored)
        last = np.partition(hashes, size - 1)[size - 1]
        drawn = positions[hashes < last]
        ties = positions[hashes == last]
        uids = self.table["uid"]
        by_uid = sorted(ties, key=lambda position: str(uids[int(position)]))
        mask = np.zeros(len(self.stored), np.bool_)
        mask[drawn] = True
        mask[np.array(by_uid[: size - len(drawn)], np.intp)] = True
        return mask


def _select(rows: Rows, name: str, steps: Sequence[Step], sizes: Mapping[str, int]) -> Selection:
    alive = rows.stored.copy()
    code = np.where(alive, KEPT, UNSTORED).astype(np.int16)
    thresholds: dict[str, Threshold] = {}
    funnel = [("attempted", len(alive)), ("stored", int(alive.sum()))]
    if not alive.any():
        raise ValueError(
            f"view {name!r} keeps nothing: none of the pool's {len(alive)} rows is stored"
        )
    for number, step in enumerate(steps):
        passed, missing = _passed(rows, step, alive, thresholds, sizes)
        code[alive & ~passed] = FIRST_STEP + 2 * number
        code[alive & missing] = FIRST_STEP + 2 * number + 1
        before, alive = int(alive.sum()), alive & passed
        funnel.append((step.name, int(alive.sum())))
        if not alive.any():
            raise ValueError(
                f"view {name!r} keeps nothing: rule {step.name!r} ({step.text()}) lets none of the "
                f"{before} rows through that the rules before it left"
            )
    outcomes: list[str | None] = [None, NOT_STORED]
    for step in steps:
        outcomes += [step.name, f"{step.name}:missing"]
    rule = pa.array(outcomes, pa.string()).take(pa.array(code))
    whole = pa.Table.from_arrays([pa.array(alive), rule], schema=VIEW)
    tables, start = {}, 0
    for shard, size in rows.sizes.items():
        tables[shard] = whole.slice(start, size)
        start += size
    return Selection(
        thresholds=thresholds,
        funnel=tuple(funnel),
        kept=int(alive.sum()),
        tables=tables,
        effects=_effects(rows, steps, thresholds, sizes) if len(steps) > 1 else (),
    )


def _effects(
    rows: Rows,
    steps: Sequence[Step],
    thresholds: dict[str, Threshold],
    sizes: Mapping[str, int],
) -> tuple[RuleEffect, ...]:
    """What each step rejects of all stored rows, and what it alone rejects.

    A rule may fail on rows that the rules before it reject (a cast of a text, say). Its counts are
    not known then, and nobody's `alone`.
    """
    rejected: dict[str, Mask | None] = {}
    times = np.zeros(len(rows.stored), np.int16)
    for step in steps:
        try:
            passed, _ = _passed(rows, step, rows.stored, thresholds, sizes)
        except ValueError:
            rejected[step.name] = None
            continue
        failed = rows.stored & ~passed
        rejected[step.name] = failed
        times += failed
    known = all(mask is not None for mask in rejected.values())
    effects = []
    for name, mask in rejected.items():
        effect = RuleEffect(
            rule=name,
            rejected=None if mask is None else int(mask.sum()),
            alone=int((mask & (times == 1)).sum()) if known and mask is not None else None,
        )
        effects.append(effect)
    return tuple(effects)


def _passed(
    rows: Rows,
    step: Step,
    alive: Mask,
    thresholds: dict[str, Threshold],
    sizes: Mapping[str, int],
) -> tuple[Mask, Mask]:
    """((rows,) for which rows the step is true, (rows,) for which it is NULL). Fills
    `thresholds`."""
    if step.sample is not None:
        return rows.sample(step.sample, step.seed), np.zeros_like(alive)
    if step.random_like is not None:
        return rows.smallest(sizes[step.random_like], step.seed), np.zeros_like(alive)

    def threshold(call: str, column: str, share: Fraction) -> int | float:
        if call not in thresholds:
            thresholds[call] = _threshold(rows, step, call, column, share)
        return thresholds[call].value

    try:
        answer = rows.evaluate(rows.sql(step, threshold), alive)
    except duckdb.Error as error:
        raise evaluation_error(step, error) from None
    return _is_true(answer), _is_true(pc.is_null(answer))


def _threshold(rows: Rows, step: Step, call: str, column: str, share: Fraction) -> Threshold:
    """The k-th largest value of `column` over the stored rows. NULL and NaN do not count."""
    values = pc.drop_null(rows.evaluate(column, rows.stored))
    if pa.types.is_decimal(values.type):  # a column times 0.5 is a decimal
        values = values.cast(pa.float64())
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise step.error(f"{call} needs a number, and {column} is {values.type}")
    numbers = values.to_numpy()
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        raise step.error(f"no stored row has a value for {call}")
    k = ceil(share * len(numbers))
    value = np.partition(numbers, len(numbers) - k)[len(numbers) - k]
    kept = int((numbers >= value).sum())
    return Threshold(
        value=value.item(),
        asked=float(share),
        share=kept / len(numbers),
        kept=kept,
        rows=len(numbers),
    )


def _is_true(answer: Any) -> Mask:
    """True where a boolean column is true; NULL counts as false."""
    mask: Mask = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return mask
