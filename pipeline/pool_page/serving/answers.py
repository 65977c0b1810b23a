"""What the server answers: counts at a threshold, captions that hold a text, images, neighbours.

Every answer is about rows that are still committed as they were read: where a shard was replaced
since, by a purge or a repair, nothing of it is given out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.pool_page.example_rows import nearest
from pipeline.pool_page.number_columns import NumberColumn
from pipeline.pool_page.page_data import image_records
from pipeline.pool_page.serving.alike import Alike
from pipeline.pool_page.serving.caption_search import CaptionSearch
from pipeline.pool_page.survey import Survey
from pipeline.pool_page.thumbnails import NoImage, are_current, image_bytes, thumbnail

NEAREST = 6  # images on each side of a threshold
HITS = 60  # images of a search
SIDE = 192  # pixels of an image
LONGEST_TEXT = 200  # of a search, characters
LONGEST_NUMBER = 60
LARGEST_EXPONENT = 300
CACHED_COUNTS = 48  # of a column and a view: 4 bytes a row each


class Changed(ValueError):
    """The pool has changed since it was read."""


class Answers:
    """Answers about one survey, from several threads."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self._counts: OrderedDict[tuple[str, str], NDArray[np.int32]] = OrderedDict()
        self._sums: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._search = CaptionSearch(survey)
        self.alike = Alike.of_survey(survey)

    def count(self, column: str, view: str, value: str) -> dict[str, Any]:
        """Rows of a view's scope below a decimal number, and the nearest images on both sides.

        ValueError for an unknown column or view and for what is no number.
        """
        numbers = self._column(column)
        scope = self._scope(view, column)
        text = _checked_number(value)
        rank = numbers.below(text)
        below = self._below(numbers, view)
        low, high = nearest(numbers, scope, rank, NEAREST)
        records = self._records([*low, *high], column)
        return {
            "threshold": text,
            "below": int(below[rank]),
            "values": int(below[-1]),
            "rows": self._scope_rows(view, column, scope),
            "low": records[: len(low)],
            "high": records[len(low) :],
        }

    def search(self, text: str, view: str) -> dict[str, Any]:
        """Stored rows of a view whose captions hold a text, whatever the case of its letters."""
        if not text or len(text) > LONGEST_TEXT:
            raise ValueError(f"give a text of 1 to {LONGEST_TEXT} characters")
        self._scope(view, "")
        count, hits = self._search.find(text, view, HITS)
        return {"count": count, "images": self._records(hits)}

    def image(self, shard: int, row: int) -> bytes:
        """The image of a stored row as a JPEG. NoImage where there is none, or none any more."""
        number = self.survey.rows.row_at(shard, row)
        if number is None or not are_current(self.survey.rows, [shard]):
            raise NoImage("the pool has no such row")
        return thumbnail(image_bytes(self.survey.rows, number), SIDE)

    def similar(self, shard: int, row: int) -> dict[str, Any]:
        """The images whose embeddings are most like that of a row, the nearest first."""
        number = self.survey.rows.row_at(shard, row)
        if self.alike is None or number is None:
            raise ValueError("the row has no embedding in this pool")
        return {"images": self._records(self.alike.nearest(number))}

    def like_text(self, text: str) -> dict[str, Any]:
        """The images whose embeddings are most like a text, the nearest first.

        ValueError for a text that is empty or too long, and where the model cannot be had.
        """
        if not text or len(text) > LONGEST_TEXT:
            raise ValueError(f"give a text of 1 to {LONGEST_TEXT} characters")
        if self.alike is None:
            raise ValueError("the pool has no embeddings; add the filter embed to its recipe")
        return {"images": self._records(self.alike.nearest_to_text(text))}

    def _column(self, name: str) -> NumberColumn:
        if name not in self.survey.columns or not len(self.survey.columns[name].values):
            raise ValueError(f"there is no column of numbers {name!r}")
        return self.survey.columns[name]

    def _scope(self, view: str, column: str) -> NDArray[np.bool_]:
        if view and view not in self.survey.detailed:
            raise ValueError(f"the page has no view {view!r}")
        return self.survey.scope(view, column)

    def _scope_rows(self, view: str, column: str, scope: NDArray[np.bool_]) -> int:
        """Rows of a scope, counted once: 4 ms for a million rows."""
        key = column, view
        if key not in self._sums:
            self._sums[key] = int(scope.sum())
        return self._sums[key]

    def _below(self, column: NumberColumn, view: str) -> NDArray[np.int32]:
        """(values + 1,) rows of the scope before each place in the order of a column."""
        key = column.name, view
        with self._lock:
            if key in self._counts:
                self._counts.move_to_end(key)
                return self._counts[key]
        counts = np.zeros(len(column.rows) + 1, np.int32)
        np.cumsum(self._scope(view, column.name)[column.rows], dtype=np.int32, out=counts[1:])
        with self._lock:
            self._counts[key] = counts
            while len(self._counts) > CACHED_COUNTS:
                self._counts.popitem(last=False)
        return counts

    def _records(self, rows: Iterable[int], *columns: str) -> list[dict[str, Any]]:
        records = image_records(self.survey, rows, columns)
        if not are_current(self.survey.rows, [record["shard"] for record in records]):
            raise Changed("The pool has changed since it was read: start look.py again.")
        return records


def _checked_number(text: str) -> str:
    """A number as a rule may spell it. ValueError for what is none."""
    try:
        number = Decimal(text) if len(text) <= LONGEST_NUMBER else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > LARGEST_EXPONENT:
        raise ValueError(f"{text[:LONGEST_NUMBER]!r} is not a number that a rule can hold")
    return f"{number:f}"
