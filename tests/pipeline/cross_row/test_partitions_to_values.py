"""Tickets over partitions: the parts that the tests of the engine do not show."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline import cross_row as values


def uids(*numbers: int) -> pa.Array:
    return pa.array([f"{number:032x}" for number in numbers])


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
