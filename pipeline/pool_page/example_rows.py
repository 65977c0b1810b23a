"""Which rows the page shows as images. The choice depends on the uids alone, and is never by hand:
of the candidates those with the smallest hashes of their uids."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from pipeline.pool_page.number_columns import NumberColumn
from pipeline.pool_page.pool_rows import Mask, PoolRows, PoolView

# A rule that compares one column with one number.
COMPARISON = re.compile(r'\s*"?(\w+)"?\s*(?:>=|>|<=|<)\s*(-?\d+(?:\.\d+)?|top\([^()]*\))\s*', re.I)
SEED = 20240229
GROUP = 12  # images of a group
RULE_GROUP = 8  # of the rows that one rule rejects
RULES = 24  # rules of a view with a group of their own: those that reject most first
COPY_GROUPS = 12  # groups of copies of each filter
COPIES = 8  # images of a group of copies
LADDER = 24  # images per column of numbers, over its whole range
CANDIDATES = 64  # rows of which one is chosen: a hash of every uid of a large pool takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one kind. `view` is "" for all stored rows; `rule` is set for rejected rows."""

    view: str
    title: str
    rows: tuple[int, ...]
    of: int  # rows of this kind
    rule: str = ""


class RowDraw:
    """Draws rows by the hash of their uids, the same ones whatever the order of the calls."""

    def __init__(self, rows: PoolRows) -> None:
        self._uids = rows.table["uid"]
        self._hashes: dict[int, int] = {}

    def draw(self, mask: Mask, count: int) -> tuple[int, ...]:
        """Up to `count` rows of a mask, in the order of their hashes. Of many rows it looks at
        some in equal distances."""
        numbers = np.flatnonzero(mask)
        return self.of_numbers(numbers, count)

    def of_numbers(self, numbers: NDArray[Any], count: int) -> tuple[int, ...]:
        """The same for row numbers."""
        most = count * CANDIDATES
        if len(numbers) > most:
            numbers = numbers[np.linspace(0, len(numbers) - 1, most).astype(np.int64)]
        return tuple(sorted(numbers.tolist(), key=self._hash)[:count])

    def _hash(self, row: int) -> int:
        if row not in self._hashes:
            uid = self._uids[row].as_py() or ""
            self._hashes[row] = xxhash.xxh3_64_intdigest(uid.encode(), SEED)
        return self._hashes[row]


def example_groups(rows: PoolRows, views: Sequence[PoolView]) -> list[Group]:
    """Groups of stored rows: of the whole pool, and kept and rejected by each rule of each view."""
    draw = RowDraw(rows)
    stored = int(rows.stored.sum())
    groups = []
    if stored:
        drawn = draw.draw(rows.stored, GROUP)
        groups.append(Group(view="", title="stored", rows=drawn, of=stored))
    for view in views:
        if view.kept is None or view.first_rule is None:
            continue
        kept = draw.draw(view.kept, GROUP)
        groups.append(Group(view=view.name, title="kept", rows=kept, of=int(view.kept.sum())))
        groups += _rejected(rows, view, draw)
    return groups


def _rejected(rows: PoolRows, view: PoolView, draw: RowDraw) -> list[Group]:
    """Rows by the rule that rejects them first, the rule that rejects most first."""
    assert view.first_rule is not None
    counts = {}
    for entry in view.first_rule.filter(rows.stored).value_counts().to_pylist():
        if entry["values"] is not None:
            counts[entry["values"]] = entry["counts"]
    groups = []
    for rule in sorted(counts, key=lambda name: (-counts[name], name))[:RULES]:
        mask = pc.fill_null(pc.equal(view.first_rule, rule), False).to_numpy()
        drawn = draw.draw(np.asarray(mask, np.bool_) & rows.stored, RULE_GROUP)
        title = f"rejected by {rule}"
        groups.append(Group(view=view.name, title=title, rows=drawn, of=counts[rule], rule=rule))
    return groups


def view_thresholds(view: PoolView, columns: Collection[str]) -> list[tuple[str, float]]:
    """(column, number) of each rule that compares one of some columns with a number or a top()."""
    resolved = {}
    for call, threshold in view.document.thresholds.items():
        resolved["".join(call.split()).lower()] = float(threshold.value)
    limits: dict[tuple[str, float], None] = {}
    for rule in view.document.rules:
        match = COMPARISON.fullmatch(rule.get("where") or "")
        if match is None or match[1] not in columns:
            continue
        text = "".join(match[2].split()).lower()
        value = resolved.get(text) if text.startswith("top(") else float(text)
        if value is not None:
            limits[match[1], value] = None
    return list(limits)


def beside_thresholds(
    rows: PoolRows, views: Sequence[PoolView], columns: Mapping[str, NumberColumn]
) -> list[Group]:
    """The stored rows nearest to each threshold of each view, on both sides."""
    groups = []
    for view in views:
        for name, value in view_thresholds(view, columns):
            column = columns[name]
            rank = int(np.searchsorted(column.values, value, side="left"))
            low, high = nearest(column, rows.stored, rank, RULE_GROUP)
            above = len(column.values) - rank
            title = f"{name} = {value:.6g}"
            groups.append(Group(view=view.name, title=f"below {title}", rows=low, of=rank))
            groups.append(Group(view=view.name, title=f"from {title} on", rows=high, of=above))
    return groups


def copies(rows: PoolRows) -> list[Group]:
    """The largest groups of copies of each column NAME_group that a filter left, of two stored
    rows or more: the largest first, equal ones by name."""
    groups = []
    for column in rows.table.column_names:
        name = column.removesuffix("_group")
        if column == name or f"{name}_size" not in rows.table.column_names:
            continue
        values = rows.table[column].combine_chunks()
        counts = pc.value_counts(values.filter(pa.array(rows.stored)).drop_null())
        sizes = np.asarray(counts.field("counts"))
        several = pa.array(sizes > 1)
        names = counts.field("values").filter(several).to_pylist()
        pairs = zip(names, sizes[sizes > 1].tolist(), strict=True)
        largest = sorted(pairs, key=lambda pair: (-pair[1], str(pair[0])))[:COPY_GROUPS]
        for number, (group, size) in enumerate(largest, start=1):
            same = np.asarray(pc.fill_null(pc.equal(values, group), False), np.bool_)
            drawn = tuple(np.flatnonzero(same & rows.stored)[:COPIES].tolist())
            groups.append(Group(view="", title=f"{name}: group {number}", rows=drawn, of=size))
    return groups


def ladder(rows: PoolRows, column: NumberColumn, steps: int = LADDER) -> tuple[int, ...]:
    """Rows spread evenly over the order of a column: one of each stretch, by hash."""
    draw = RowDraw(rows)
    chosen: list[int] = []
    for part in np.array_split(column.rows, steps):
        if len(part):
            chosen += draw.of_numbers(part, 1)
    return tuple(chosen)


def nearest(
    column: NumberColumn, scope: Mask, rank: int, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(rows of a scope just below a rank in the order of a column, rows from it on), each the
    nearest first."""
    return (
        tuple(_walk(column.rows[:rank][::-1], scope, count)),
        tuple(_walk(column.rows[rank:], scope, count)),
    )


def _walk(numbers: NDArray[np.int32], scope: Mask, count: int) -> list[int]:
    """The first rows of a scope, looked for in longer and longer stretches."""
    chosen: list[int] = []
    start, length = 0, 4 * count
    while start < len(numbers) and len(chosen) < count:
        part = numbers[start : start + length]
        chosen += part[scope[part]].tolist()
        start, length = start + length, 4 * length
    return chosen[:count]
