"""Captions that hold a text, over all rows in memory, by DuckDB."""

from __future__ import annotations

import threading

import duckdb
import numpy as np
import pyarrow as pa

from pipeline.pool_page.survey import Survey


class CaptionSearch:
    """The captions of the stored rows in lower case. One search at a time."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._lock = threading.Lock()
        self._connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
        self._connection.execute("SET python_enable_replacements = false")
        rows = survey.rows
        numbers = np.flatnonzero(rows.stored).astype(np.int32)
        captions = pa.table(
            {"row": numbers, "caption": rows.table["caption"].filter(pa.array(rows.stored))}
        )
        self._connection.register("given", captions)
        self._connection.execute(
            "CREATE TABLE captions AS SELECT row, lower(caption) AS caption FROM given"
        )
        self._connection.unregister("given")
        self._connection.execute("SET lock_configuration = true")

    def find(self, text: str, view: str, most: int) -> tuple[int, list[int]]:
        """(how many rows of a view hold a text, the first of them in the order of the pool). The
        case of letters does not matter; "" stands for all stored rows."""
        query = "SELECT row FROM captions WHERE contains(caption, lower(?)) ORDER BY row"
        with self._lock:
            row_numbers = self._connection.execute(query, [text]).fetchnumpy()["row"]
        rows = np.asarray(row_numbers, np.int64)
        if view:
            kept = self._survey.detailed[view].kept
            assert kept is not None
            rows = rows[kept[rows]]
        return len(rows), rows[:most].tolist()
