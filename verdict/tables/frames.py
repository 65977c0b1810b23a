"""A table of a stranger in columns: each holds its distinct cells once, and a code for each row.

So a million rows take little, and what a column holds is seen from its distinct cells alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipmill.manifests.arrays import FloatArray, Integers, Mask
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
