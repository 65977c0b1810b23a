"""A pool for people: what it holds, some of its rows as a table, its images, one rule on it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from clipmill.manifests import disk, pool
from clipmill.manifests.commits import read_commits
from clipmill.manifests.pool import Part, names_of
from clipmill.manifests.schema import Rule, View
from clipmill.pipeline.audit.explain import explain_lines, explain_row
from clipmill.pipeline.views.choose import (
    PartRows,
    compile_views,
    outcomes,
    rows_of,
    with_derived,
)
from clipmill.pipeline.views.files import (
    Column,
    JoinedColumns,
    column_lines,
    list_columns,
)
from clipmill.pipeline.views.rules import (
    DERIVED,
    borrowed_connection,
    columns_of,
    columns_on_disk,
    steps_of,
)

RULE = "where"  # the name of the view and of the rule of `where`


class Columns(tuple[Column, ...]):
    """The columns of a pool: name, type, meaning, and source, which is sidecar, recipe, derived or
    the score set NAME@ID."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(column_lines(self))


class History(dict[str, Any]):
    """What became of one row, as `clipmill audit explain --json` has it."""

    def __repr__(self) -> str:
        return "\n".join(explain_lines(self))

    __str__ = __repr__


class Pool(pool.Pool):
    """An open pool. It does not change: shards that are committed later are not in it."""

    def __repr__(self) -> str:
        totals = self.commits.totals
        lines = [f"Pool({self.path!r}): {totals.rows:,} rows, {totals.stored:,} stored"]
        try:
            views = ", ".join(f"{name} ({view.kept:,})" for name, view in self.views.items())
            lines.append(f"views: {views or 'none'}")
            lines.append(f"score sets: {', '.join(self.score_sets) or 'none'}")
        except ValueError as error:  # a damaged document: a notebook shows a pool all the same
            lines.append(f"error: {error}")
        return "\n".join(lines)

    @property
    def fingerprint(self) -> str:
        """The hash of the shards that are committed."""
        return self.commits.fingerprint

    @functools.cached_property
    def columns(self) -> Columns:
        """What `table`, `images` and `where` may name. ValueError where no row is stored."""
        return Columns(list_columns(self.path))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        view: str | None = None,
        shards: Iterable[int | str] | None = None,
    ) -> Iterator[Part]:
        """The rows of a shard at a time, in bounded memory.

        `part.shard` is its name, `part.table` has all of its rows with these columns, `part.kept`
        says which of them the view keeps (without a view: which have an image), `part.rule` the
        first rule that failed, and `part.kept_rows()` is the table of the kept ones.

        Args:
            columns: Names of `columns` (default: those of the sidecars). A score is of the score
                set that the view's rules read, else of the current one.
            view: Whose choice `kept` and `rule` are.
            shards: Which shards, in which order (default: all, ascending).

        Raises:
            ValueError: A column, the view or a shard is not there, two current score sets have the
                column, or a file is damaged.
        """
        wanted = self.schema.names if columns is None else names_of(columns)
        derives = not DERIVED.keys().isdisjoint(wanted)
        on_disk = sorted(columns_on_disk(wanted) | {"status"}) if derives else wanted
        for part in super().scan(on_disk, view=view, shards=shards):
            yield dataclasses.replace(part, table=_with(part.table, wanted)) if derives else part

    def table(self, columns: Sequence[str] | None = None, view: str | None = None) -> pa.Table:
        """Rows as one table, in the order of the shards.

        Args:
            columns: Names of `columns` (default: those of the sidecars).
            view: Only rows that this view keeps (default: all rows, also those without an image).

        Raises:
            ValueError: As of `scan`.
        """
        parts = self.scan(columns, view=view)
        return pa.concat_tables(part.table if view is None else part.kept_rows() for part in parts)

    def images(
        self,
        view: str | None = None,
        columns: Sequence[str] = ("key", "caption"),
        shards: Iterable[int | str] | None = None,
    ) -> Iterator[tuple[dict[str, Any], bytes]]:
        """({column: value}, bytes of the image) of each stored row.

        Args:
            view: Only rows that this view keeps.
            columns: Names of `columns`.
            shards: Which shards, in which order (default: all, ascending).

        Raises:
            ValueError: As of `scan`, and for a damaged tar.
        """
        places = ["image_offset", "image_length"]
        for part in self.scan([*names_of(columns), *places], view=view, shards=shards):
            tar = self.commits.tar(part.shard)
            for row in part.kept_rows().to_pylist():
                offset, length = row["image_offset"], row["image_length"]
                data = disk.read_bytes(tar, offset, length)
                if len(data) != length:
                    raise ValueError(
                        f"shard {part.shard} is damaged: {tar} is shorter than its sidecar says; "
                        f"run clipmill audit repair {self.path}"
                    )
                yield {name: row[name] for name in columns}, data

    def where(self, sql: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The stored rows for which an expression is true: what a view with this one rule keeps.

        Args:
            sql: As in a recipe, such as `clip_score >= top(clip_score, 0.3) and language = 'en'`.
            columns: Names of `columns` (default: those of the sidecars).

        Raises:
            ValueError: The expression is none that a rule may be, or a column is not there.
        """
        wanted = self.schema.names if columns is None else names_of(columns)
        views = [View(name=RULE, rules=(Rule(name=RULE, where=sql),))]
        known = [column.name for column in self.columns]
        used = columns_of(views, RULE, known) | columns_on_disk(wanted)
        source = JoinedColumns(self.commits, used, self.sets_of(used))
        kept = []
        with borrowed_connection() as connection:
            empty = PartRows(connection, source.schema.empty_table())
            tests, _ = compile_views(empty, {RULE: steps_of(views, RULE)}, source, {})[RULE]
        for unit in range(source.units):
            for _, rows in rows_of(source, unit):
                codes, _ = outcomes(rows, {RULE: tests})[RULE]
                kept.append(_with(rows.table.filter(pa.array(codes == 0)), wanted))
        return pa.concat_tables(kept)

    def explain(self, row: str) -> History:
        """What became of a row: its pair, each attempt, its scores, and what each view decided.

        Args:
            row: Its uid, URL, key or file name.

        Raises:
            ValueError: No row has this name.
        """
        if not isinstance(row, str):
            raise ValueError(f"row is {row!r}; give a text: a uid, a URL, a key or a file name")
        return History(explain_row(self.path, row))


def open_pool(url: str | os.PathLike[str], /) -> Pool:
    """The pool in a folder or at a URL, such as s3://lab/pool.

    Raises:
        ValueError: There is none, or its index is damaged; in one line.
    """
    opened = Pool(read_commits(os.fspath(url)))
    if not len(opened.commits):
        raise ValueError(f"{opened.path} is no pool: it has no committed shard")
    return opened


def _with(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Some columns of rows, also derived ones."""
    return (table if DERIVED.keys().isdisjoint(columns) else with_derived(table)).select(columns)
