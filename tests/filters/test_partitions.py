"""Equal values are in one partition, whatever the column is made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from filters.columns import mixed, partition_of


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
