"""Tickets over partitions: the parts that the tests of the engine do not show."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipeline import cross_row as values
from pipeline.cross_row import NO_UIDS, uids_of


def uids(*numbers: int) -> pa.Array:
    return pa.array([f"{number:032x}" for number in numbers])


def test_rows_are_sorted_by_group_uid_and_place() -> None:
    table = pa.table({"uid": uids(3, 1, 2, 1), "group": ["b", "b", "a", "b"]})
    rows, ids = values._sorted(table, np.array([0, 9, 1, 2], np.uint64), ("group",))
    assert ids.tolist() == [1, 2, 9, 0]
    assert rows["uid"].to_pylist() == uids(2, 1, 1, 3).to_pylist()
    assert rows.column_names == ["uid", "group"]


def test_a_row_without_a_near_one_is_its_own_group() -> None:
    groups = values._groups_of(uids_of(uids(5, 1, 7)), uids_of(uids(7, 5)), uids_of(uids(2, 2)))
    assert groups.tolist() == uids_of(uids(2, 1, 2)).tolist()
    assert (
        values._groups_of(uids_of(uids(5)), NO_UIDS, NO_UIDS).tolist() == uids_of(uids(5)).tolist()
    )


def test_edges_become_arrow_and_back() -> None:
    edges = uids_of(uids(0, 256, 2**120))
    column = pa.chunked_array([values._as_arrow(edges[:1]), values._as_arrow(edges).slice(1)])
    assert values._as_numpy(column).tolist() == edges.tolist()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, 2)], "links must return a table of uid_a and uid_b"),
        (pa.table({"a": [1]}), "links must return a table of uid_a and uid_b"),
        (
            pa.table({"uid_a": ["x"], "uid_b": ["y"]}),
            "links must return uids: a uid does not have 32 hex digits",
        ),
    ],
)
def test_links_that_are_none(pairs: object, message: str) -> None:
    class Worker:
        class instance:
            name = "near"

    with pytest.raises(ValueError, match=f"filter near: {message}"):
        values._linked(Worker(), pairs)  # type: ignore[arg-type]
