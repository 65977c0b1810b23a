"""Expressions over some rows: not evaluated for rows that are gone, NULL is not true."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipeline.shuffle import connect
from pipeline.views.row_tests import PartRows, uid_hashes

TABLE = pa.table(
    {"status": ["success", "failed", "success"], "uid": ["a", "b", "c"], "x": [0, 0, None]}
)


def test_an_expression_is_not_evaluated_for_rows_that_are_gone() -> None:
    rows = PartRows(connect(), TABLE)
    alive = np.array([True, False, True])
    assert rows.evaluate("x = 0", alive).to_pylist() == [True, None, None]
    assert rows.types_of(["x = 0", "x"], {}) == ["BOOLEAN", "BIGINT"]
    with pytest.raises(Exception, match="y"):
        rows.types_of(["x = 0", "y = 0"], {})


def test_a_column_may_have_the_name_of_ours() -> None:
    table = TABLE.append_column("Row_is_alive", pa.array([False, True, True]))
    rows = PartRows(connect(threads=1), table)
    alive = np.array([True, True, False])
    assert rows.evaluate("NOT row_is_alive", alive).to_pylist() == [True, False, None]


def test_hashes_are_of_the_stored_rows() -> None:
    rows = PartRows(connect(threads=1), TABLE)
    expected = [xxhash.xxh3_64_intdigest(uid, 7) for uid in (b"a", b"c")]
    assert rows.stored_hashes(7).tolist() == expected == uid_hashes(["a", "c"], 7).tolist()
    assert rows.of_stored(np.array([True, False])).tolist() == [True, False, False]


@pytest.mark.parametrize("length", [-1, 2])
def test_16_bit_floats_can_be_read_by_rules(length: int) -> None:
    vectors = pa.array([[0.5, 1.0], [0.0, 2.0], None], pa.list_(pa.float16(), length))
    table = TABLE.append_column("half", pa.array([0.25, 1, 2], pa.float16()))
    rows = PartRows(connect(threads=1), table.append_column("vector", vectors))
    alive = np.ones(3, np.bool_)
    assert rows.evaluate("half > 0.5", alive).to_pylist() == [False, True, True]
    assert rows.evaluate("vector[1] = 0.5", alive).to_pylist() == [True, False, None]
