"""The most frequent values of columns of text: domains, languages, whatever a recipe adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.pool_page.pool_rows import Mask, PoolRows

SHOWN_VALUES = 25
FIRST = ("url_host", "page_host", "page_lang", "language")  # columns that stand first
# Columns of text that are different in nearly every row, or that another section shows.
NOT_SHOWN = frozenset(
    {
        "url", "caption", "uid", "page_url", "status", "reason", "title", "anchor", "exif",
        "sha256", "final_url", "optout", "wat", "error_message", "image_name", "key", "class",
        "retry_of", "robots",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLine:
    """Rows with one value. `kept`: by view."""

    value: str | None  # None: NULL, or all values that are not listed
    rows: int
    stored: int
    kept: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTable:
    """The values of a column by frequency; `lines`, `null` and `other` sum to all rows."""

    column: str
    distinct: int
    lines: tuple[ValueLine, ...]
    null: ValueLine
    other: ValueLine


def value_tables(rows: PoolRows, kept: Mapping[str, Mask]) -> Iterator[ValueTable]:
    """A table of each column of text or of truth values. kept: (rows,) by view."""
    names = [name for name in FIRST if name in rows.table.column_names]
    names += [name for name in rows.table.column_names if name not in names]
    for name in names:
        kind = rows.table.schema.field(name).type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_shown = name not in NOT_SHOWN and not name.endswith("_group")
        if is_shown and (is_text or pa.types.is_boolean(kind)):
            yield _value_table(rows, name, kept)


def _value_table(rows: PoolRows, name: str, kept: Mapping[str, Mask]) -> ValueTable:
    column = rows.table[name]
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.string())
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    counts = {}
    masks: dict[str, Mask | None] = {"": None, "stored": rows.stored, **_prefixed(kept)}
    for scope, mask in masks.items():
        of_scope = codes if mask is None else codes[mask]
        counts[scope] = np.bincount(of_scope, minlength=len(values) + 1)
    total, stored = counts[""], counts["stored"]
    order = np.lexsort((np.arange(len(values)), -total[:-1], -stored[:-1]))
    listed = order[:SHOWN_VALUES].tolist()

    def line(value: str | None, places: list[int]) -> ValueLine:
        of_views = {view: int(counts[f"view:{view}"][places].sum()) for view in kept}
        all_rows, stored_rows = int(total[places].sum()), int(stored[places].sum())
        return ValueLine(value=value, rows=all_rows, stored=stored_rows, kept=of_views)

    return ValueTable(
        column=name,
        distinct=len(values),
        lines=tuple(line(str(values[number]), [number]) for number in listed),
        null=line(None, [len(values)]),
        other=line(None, order[SHOWN_VALUES:].tolist()),
    )


def _prefixed(kept: Mapping[str, Mask]) -> dict[str, Mask | None]:
    """No view can be called as one of the other scopes."""
    return {f"view:{view}": mask for view, mask in kept.items()}
