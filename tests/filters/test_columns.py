"""Values of filters as Arrow, NULL for what is no number; equal values are in one partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.filters.columns import (
    WrongColumns,
    arrow_array,
    arrow_columns,
    mixed,
    partition_of,
)

NAN, INF = float("nan"), float("inf")
PAIRS = pa.list_(pa.float16(), 2)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1.5, NAN, INF, None], pa.float32(), [1.5, None, None, None]),
        (np.array([1.5, NAN, -INF]), pa.float32(), [1.5, None, None]),
        (np.array([1.0, NAN, INF]), pa.int32(), [1, None, None]),
        (np.array([1, 2], np.int16), pa.int64(), [1, 2]),
        (["a", None, ""], pa.string(), ["a", None, ""]),
        (np.array([0.5, NAN], np.float16), pa.float16(), [0.5, None]),
        (pa.array([1.0, INF]), pa.float32(), [1.0, None]),
        (pa.chunked_array([[1], [2]]), pa.int32(), [1, 2]),
        ([np.array([1, 2], np.uint16)], pa.list_(pa.uint16()), [[1, 2]]),
        (np.array([[1, 2], [NAN, 0], [3, 4]], np.float16), PAIRS, [[1, 2], None, [3, 4]]),
        (np.array([[1, 2], [INF, 0]], np.float32), PAIRS, [[1, 2], None]),
        (np.zeros((0, 2)), PAIRS, []),
        ([], pa.float32(), []),
    ],
)  # fmt: skip
def test_values_become_arrow(values: Any, kind: pa.DataType, expected: list[Any]) -> None:
    array = arrow_array(values, kind)
    assert array.type == kind
    assert array.to_pylist() == expected


def test_a_slice_of_lists_is_not_its_whole() -> None:
    whole = pa.FixedSizeListArray.from_arrays(
        pa.array(np.array([NAN, 0, 1, 2, NAN, 3, 4, 5], np.float16)), 2
    )
    assert arrow_array(whole.slice(1, 2), PAIRS).to_pylist() == [[1, 2], None]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"a": [1.0, 2.0], "b": [1, 2]}, WrongColumns, "must give the columns a; it gave a, b"),
        ({}, WrongColumns, "must give the columns a"),
        ([1.0, 2.0], WrongColumns, "it gave <class 'list'>"),
        ({"a": [1.0]}, WrongColumns, "filter mine gave 1 values of a for 2 rows"),
        ({"a": ["x", "y"]}, ValueError, "filter mine: the values of a are not of type float: "),
    ],
)
def test_mistakes_of_a_filter(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        arrow_columns("mine", values, {"a": pa.float32()}, 2)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, -3, 5, 2**62, None, -3], pa.int64()),
        pa.array(["a", "bb", "a", "ü", None, "bb"]),
        pa.chunked_array([["a", "bb", "a"], ["ü", None, "bb"]]),
        pa.array([b"a", b"bb", b"a", b"\xff", None, b"bb"]),
    ],
)
def test_equal_values_are_in_one_partition(values: pa.Array) -> None:
    for partitions in (1, 7):
        partition = partition_of(values, partitions)
        assert partition.dtype == np.int64
        assert partition[0] == partition[2]
        assert partition[1] == partition[5]
        assert partition[4] == 0
        assert partition.max() < partitions


def test_the_partitions_are_of_about_one_size_and_the_same_everywhere() -> None:
    counts = np.bincount(partition_of(pa.array(range(10_000)), 10))
    assert counts.min() > 850
    assert partition_of(pa.array(["word", "x"]), 1000).tolist() == [349, 425]
    values = np.arange(1000, dtype=np.uint64)
    assert len(np.unique(mixed(values))) == 1000
    assert len(partition_of(pa.array([], pa.string()), 4)) == 0
