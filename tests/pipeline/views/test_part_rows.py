"""Expressions over some rows: not evaluated for rows that are gone, NULL is not true."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipeline.views.part_rows import PartRows, is_true, uid_hashes
from pipeline.views.rules import connect

TABLE = pa.table(
    {"status": ["success", "failed", "success"], "uid": ["a", "b", "c"], "x": [0, 0, None]}
)


def test_an_expression_is_not_evaluated_for_rows_that_are_gone() -> None:
    rows = PartRows(connect(), TABLE)
    alive = np.array([True, False, True])
    assert rows.evaluate("x = 0", alive).to_pylist() == [True, None, None]
    assert is_true(rows.evaluate("x = 0", alive)).tolist() == [True, False, False]
    assert rows.type_of("x = 0") == "BOOLEAN"
    with pytest.raises(Exception, match="y"):
        rows.type_of("y = 0")


def test_hashes_are_of_the_stored_rows() -> None:
    rows = PartRows(connect(threads=1), TABLE)
    expected = [xxhash.xxh3_64_intdigest(uid, 7) for uid in (b"a", b"c")]
    assert rows.stored_hashes(7).tolist() == expected == uid_hashes(["a", "c"], 7).tolist()
    assert rows.of_stored(np.array([True, False])).tolist() == [True, False, False]
