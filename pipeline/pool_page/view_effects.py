"""What the rules of a view do together and alone, over the rows that were read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.pool_page.pool_rows import Mask, PoolRows, PoolView
from pipeline.views import rule_outcomes

MATRIX_RULES = 30  # rules of which each pair is compared: those that reject most


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """Rows that one rule rejects. `rejected`, `missing` and `alone` are None where it cannot be
    evaluated on all stored rows."""

    name: str
    text: str
    columns: frozenset[str]
    first: int  # rows that this rule rejects and none before it
    rejected: int | None = None
    missing: int | None = None  # of them those with a NULL in a column that it reads
    alone: int | None = None  # rows that the view would keep without it


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEffects:
    """`overlap[i][j]`: rows that both rules reject, of the rules `compared`. `others[column]`:
    (rows,) rows that pass the rules that do not read a column; of other columns it is `kept`."""

    name: str
    stored: int
    kept: int
    rules: tuple[RuleLine, ...]
    compared: tuple[str, ...] = ()
    overlap: tuple[tuple[int, ...], ...] = ()
    others: Mapping[str, Mask] = field(default_factory=dict)
    disagrees: bool = False  # the rules, evaluated again, keep other rows than the masks

    def replaced(self, column: str) -> tuple[str, ...]:
        """The rules that read a column, which a new threshold takes the place of."""
        if not self.others:
            return ()
        return tuple(rule.name for rule in self.rules if column in rule.columns)


def view_effects(
    rows: PoolRows, view: PoolView, columns: Collection[str], sizes: Mapping[str, int]
) -> ViewEffects:
    """The effects of each rule of a current view.

    columns: for which `others` is wanted. sizes: rows that each view keeps.
    """
    assert view.kept is not None
    times = np.zeros(rows.table.num_rows, np.int16)
    only = np.zeros(rows.table.num_rows, np.int16)  # number of the rule that rejected a row last
    without: dict[str, Mask] = {}
    packed: list[tuple[int, int, NDArray[np.uint8]]] = []  # (rejected, -rule, bits)
    first = _first_counts(view)
    lines: list[RuleLine] = []
    known = True
    for number, outcome in enumerate(
        rule_outcomes(rows.table, view.document, sizes if rows.whole else None)
    ):
        line = RuleLine(
            name=outcome.name,
            text=outcome.text,
            columns=outcome.columns,
            first=first.get(outcome.name, 0),
        )
        if outcome.rejected is None or outcome.missing is None:
            known = False
            lines.append(line)
            continue
        for column in (outcome.columns & set(columns)) - without.keys():
            without[column] = rows.stored & (times == 0)
        times += outcome.rejected
        only[outcome.rejected] = number
        for column in without:
            if column not in outcome.columns:
                without[column] &= ~outcome.rejected
        rejected = int(outcome.rejected.sum())
        missing = int(outcome.missing.sum())
        lines.append(replace(line, rejected=rejected, missing=missing))
        packed.append((rejected, -number, np.packbits(outcome.rejected)))
        packed = sorted(packed, reverse=True, key=lambda item: item[:2])[:MATRIX_RULES]
    if known:
        alone = np.bincount(only[times == 1], minlength=len(lines)).tolist()
        lines = [replace(one, alone=count) for one, count in zip(lines, alone, strict=True)]
    compared = sorted(packed, key=lambda item: -item[1])
    bits = [item[2] for item in compared]
    return ViewEffects(
        name=view.name,
        stored=int(rows.stored.sum()),
        kept=int(view.kept.sum()),
        rules=tuple(lines),
        compared=tuple(lines[-number].name for _, number, _ in compared),
        overlap=tuple(tuple(_both(one, other) for other in bits) for one in bits),
        others=without if known else {},
        disagrees=known and not np.array_equal(view.kept, rows.stored & (times == 0)),
    )


def _both(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """Set bits that two bit fields share."""
    return int(np.bitwise_count(one & other).sum())


def _first_counts(view: PoolView) -> dict[str, int]:
    """Rows by the rule that rejected them first, NULLs in its columns included."""
    assert view.first_rule is not None
    counts: dict[str, int] = {}
    for entry in view.first_rule.value_counts().to_pylist():
        if entry["values"] is not None:
            name = entry["values"].removesuffix(":missing")
            counts[name] = counts.get(name, 0) + entry["counts"]
    return counts
