"""A table of a stranger in columns: each holds its distinct cells once, and a code for each row.

So a million rows take little, and what a column holds is seen from its distinct cells alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipmill.manifests.arrays import Array, FloatArray, Integers, Mask
from clipmill.manifests.text import is_printable
from clipmill.verdict.tables.cells import Cell, comma_use, is_empty, read_cell

Codes = NDArray[np.int32]
ABSENT = None  # the cell of a row that lacks the column


class Column:
    """The cells of a column. values: the distinct ones. codes: of every row, a place in
    `values`.
    """

    __slots__ = ("_cells", "codes", "comma", "values")

    def __init__(self, values: Sequence[Any], codes: Codes, comma: str = "") -> None:
        self.values = list(values)
        self.codes = codes
        self.comma = comma
        self._cells: list[Cell] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def cells(self) -> list[Cell]:
        """What the distinct cells say as numbers."""
        if self._cells is None:
            self._cells = [read_cell(value, self.comma) for value in self.values]
        return self._cells

    def numbers(self) -> FloatArray:
        """The number of every row; NaN where there is none."""
        distinct = np.array(
            [np.nan if cell.value is None else cell.value for cell in self.cells], np.float64
        )
        return distinct[self.codes] if len(distinct) else np.full(len(self.codes), np.nan)

    def at(self, row: int) -> Any:
        """The cell of a row."""
        return self.values[self.codes[row]]

    def counts(self) -> Integers:
        """How many rows have each distinct cell."""
        return np.bincount(self.codes, minlength=len(self.values))

    def present(self) -> list[Any]:
        """The distinct cells that some row has and that are not empty, in order of their rows."""
        seen = self.counts() > 0
        return [
            value for value, is_there in zip(self.values, seen, strict=True)
            if is_there and not is_empty(value)
        ]  # fmt: skip

    def has_numbers(self) -> bool:
        """Whether some cell is a number."""
        return any(cell.value is not None for cell in self.cells)

    def is_there(self) -> Mask:
        """Which rows have a cell that is not empty."""
        return self.where(lambda value: not is_empty(value))

    def where(self, is_wanted: Callable[[Any], bool]) -> Mask:
        """Which rows have a cell of which something is true; it is asked once for each cell."""
        distinct = np.array([is_wanted(value) for value in self.values], bool)
        return distinct[self.codes] if len(distinct) else np.zeros(len(self.codes), bool)

    def is_in(self, wanted: Collection[Any]) -> Mask:
        """Which rows have one of these as their text or as their number."""
        return self.where(lambda value: text_of(value) in wanted) | np.isin(
            self.numbers(), [each for each in wanted if isinstance(each, float)]
        )

    def texts(self) -> Column:
        """The same cells as stripped texts in one line, "" where there is nothing."""
        return self.mapped(text_of)

    def mapped(self, change: Callable[[Any], Any]) -> Column:
        """The column of other distinct cells; what becomes equal is one."""
        return recoded([change(value) for value in self.values], self.codes)

    def filled(self, is_blank: Mask) -> Column:
        """The same with the cell above in blank rows."""
        rows = np.where(is_blank, 0, np.arange(len(is_blank)))
        return Column(self.values, self.codes[np.maximum.accumulate(rows)], self.comma)

    def taken(self, rows: Mask | Integers) -> Column:
        """Some of the rows, and of the distinct cells those that they have."""
        codes = self.codes[rows]
        used = np.bincount(codes, minlength=len(self.values)) > 0
        if used.all():
            return Column(self.values, codes, self.comma)
        values = [value for value, is_used in zip(self.values, used, strict=True) if is_used]
        return Column(values, (np.cumsum(used, dtype=np.int32) - 1)[codes], self.comma)


def text_of(value: Any) -> str:
    """A cell as text in one line."""
    if is_empty(value):
        return ""
    text = value if isinstance(value, str) else str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        text = str(int(value))
    return text.strip() if is_printable(text) else " ".join(text.split())


def recoded(values: Sequence[Any], codes: Codes) -> Column:
    """A column whose listed cells may be equal."""
    places: dict[Any, int] = {}
    new = np.array([places.setdefault(_key(value), len(places)) for value in values], np.int32)
    distinct: list[Any] = [None] * len(places)
    for value, place in zip(values, new.tolist(), strict=True):
        distinct[place] = value
    return Column(distinct, new[codes] if len(new) else codes)


def _key(value: object) -> Any:
    """1, 1.0 and True are three cells, lists are one each."""
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, int | float | bool):
        return (type(value), "nan") if value != value else (type(value), value)
    return ("object", id(value))


def column_of(cells: Iterable[object]) -> Column:
    """A column of single cells."""
    listed = list(cells)
    places: dict[Any, int] = {}
    codes = np.empty(len(listed), np.int32)
    values: list[Any] = []
    for row, cell in enumerate(listed):
        key = cell if type(cell) is str else _key(cell)
        place = places.get(key)
        if place is None:
            place = places[key] = len(values)
            values.append(cell)
        codes[row] = place
    return Column(values, codes)


class SeveralTables(ValueError):
    """A file of several tables. labels: what --table takes for each of them, also for several that
    have one header.
    """

    def __init__(self, text: str, labels: Sequence[str]) -> None:
        super().__init__(f"{text}: choose one with --table")
        self.text, self.labels = text, labels


@dataclass(slots=True)
class Frame:
    """Columns of one length, with what the form of the file says of them.

    form: what the file is. roles: {column: (role, reason)} that the form knows. history: the file
    is what one run left behind, step by step: this column. notes: what was done to read it.
    left_out: {reason: rows} of lines that are no rows. tables: the titles of the tables that it was
    put together from, which are its column `table`. caption: the words that name it in the file.
    """

    columns: dict[str, Column]
    rows: int
    form: str = "table"
    roles: dict[str, tuple[str, str]] = field(default_factory=dict)
    history: str = ""
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    parts: dict[str, tuple[str, str]] = field(default_factory=dict)
    original: dict[str, tuple[str, str]] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    caption: str = ""

    def taken(self, rows: Mask | Integers) -> Frame:
        """Some of the rows."""
        kept = {name: column.taken(rows) for name, column in self.columns.items()}
        count = int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows)
        return replace(self, columns=kept, rows=count)

    def add(self, name: str, value: Any) -> None:
        """A column of one cell, where there is none of this name."""
        self.columns.setdefault(name, Column([value], np.zeros(self.rows, np.int32)))


def frame_of_records(records: Sequence[Mapping[str, object]], form: str) -> Frame:
    """The rows of JSON as columns."""
    names = dict.fromkeys(key for row in records for key in row)
    columns = {name: column_of([row.get(name) for row in records]) for name in names}
    return Frame(columns, len(records), form)


def settle_commas(frame: Frame, delimiter: str) -> None:
    """Says of each column what the commas of its numbers do."""
    for name, column in frame.columns.items():
        column.comma = comma_use(column.values, delimiter)
        if column.comma:
            what = "groups digits" if column.comma == "groups" else "is the decimal point"
            frame.notes.append(f"{name}: the comma {what}")


def joined(frames: Sequence[Frame]) -> Frame:
    """All rows of several tables; a column that one lacks is empty there."""
    if len(frames) == 1:
        return frames[0]
    names = dict.fromkeys(name for frame in frames for name in frame.columns)
    rows = sum(frame.rows for frame in frames)
    columns = {}
    for name in names:
        values: list[Any] = []
        codes = np.empty(rows, np.int32)
        start, comma = 0, ""
        for frame in frames:
            part = frame.columns.get(name)
            if part is None:
                part = Column([ABSENT], np.zeros(frame.rows, np.int32))
            codes[start : start + frame.rows] = part.codes + len(values)
            values += part.values
            comma = comma or part.comma
            start += frame.rows
        columns[name] = recoded(values, codes)
        columns[name].comma = comma
    whole = Frame(columns, rows, ", ".join(dict.fromkeys(frame.form for frame in frames)))
    for frame in frames:
        whole.roles |= frame.roles
        whole.history = whole.history or frame.history
        whole.notes += frame.notes
        whole.parts |= frame.parts
        whole.original |= frame.original
        whole.tables = whole.tables or frame.tables
        whole.caption = whole.caption or frame.caption
        for reason, count in frame.left_out.items():
            whole.left_out[reason] = whole.left_out.get(reason, 0) + count
    return whole


def stacked(frame: Frame, parts: Sequence[Frame], note: str) -> Frame:
    """The table with the rows of all parts in the place of its own."""
    rows = joined(parts)
    return replace(frame, columns=rows.columns, rows=rows.rows, notes=[*frame.notes, note])


def with_rows(
    frame: Frame, others: Mapping[str, Column], key: str, names: Mapping[str, Mapping[str, str]],
    metrics: Sequence[str], note: str,
) -> Frame:  # fmt: skip
    """The table with a row for each label in the place of its columns. names: {label: {metric: its
    column}}; others: columns that each of these rows has; key: the column of the labels.
    """
    first = np.zeros(frame.rows, np.int32)
    parts = []
    for label, own in names.items():
        values = {
            metric: frame.columns[own[metric]] if metric in own else Column([ABSENT], first)
            for metric in metrics
        }  # fmt: skip
        parts.append(Frame({**others, key: Column([label], first), **values}, frame.rows))
    return stacked(frame, parts, note)


def shared_start(rows: Iterable[Sequence[str]]) -> int:
    """How many first items, or letters, all have in common."""
    alike = [len(set(items)) == 1 for items in zip(*rows, strict=False)]
    return alike.index(False) if False in alike else len(alike)


# --- groups of rows -------------------------------------------------------------------------------


def group_codes(frame: Frame, names: Sequence[str]) -> Integers:
    """A number for each row; equal where the cells of all these columns are equal as texts."""
    codes = np.zeros(frame.rows, np.int64)
    for name in names:
        codes = refined(codes, frame.columns[name].texts().codes)
    return codes


def joined_texts(columns: Sequence[Column]) -> Column:
    """The texts of several columns in one."""
    if len(columns) == 1:
        return columns[0]
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = refined(codes, column.codes)
    values = []
    for row in np.unique(codes, return_index=True)[1].tolist():
        values.append(" ".join(filter(None, (column.at(row) for column in columns))).strip())
    return recoded(values, codes.astype(np.int32))


def refined(groups_N: Array, codes: Array) -> Integers:
    """Numbers of the groups that are alike in `codes` too."""
    pairs = groups_N.astype(np.int64) * (int(codes.max(initial=0)) + 1) + codes
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def varies(groups_N: Array, values_N: Array) -> bool:
    """Whether values differ inside of some group."""
    if not len(groups_N):
        return False
    values = np.unique(values_N, return_inverse=True)[1]
    return distinct(groups_N.astype(np.int64) * len(values) + values) > distinct(groups_N)


def are_same_groups(one_N: Array, other_N: Array) -> bool:
    """Whether rows that are alike in the one are alike in the other, and the reverse."""
    return not varies(one_N, other_N) and not varies(other_N, one_N)


def pairs_of(one_N: Array, other_N: Array) -> Integers:
    """(2, pairs) the different pairs of codes that some row has, in order."""
    return np.unique(np.stack([one_N, other_N]), axis=1)


def distinct(codes: Array) -> int:
    """How many different ones there are."""
    return len(np.unique(codes))
