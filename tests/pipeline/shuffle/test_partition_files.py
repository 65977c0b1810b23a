"""An exchange: what goes into a partition comes out of it, sorted by id inside each run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests import disk
from pipeline import shuffle
from pipeline.pool.lease import LeaseLost
from pipeline.shuffle import PartitionFiles


def files(folder: Path, fence: int | None = None) -> PartitionFiles:
    return PartitionFiles(
        pool=str(folder), folder=f"{folder}/work", name="x", runs=2, partitions=3, fence=fence
    )


def test_rows_come_out_of_the_partition_that_they_went_into(tmp_path: Path) -> None:
    exchange = files(tmp_path)
    assert exchange.written().tolist() == [False, False]
    for run in (0, 1):
        rows = pa.table({"a": [f"{run}{i}" for i in range(4)]})
        ids = np.array([9, 8, 7, 6], np.uint64) + np.uint64(10 * run)
        exchange.write(run, rows, np.array([2, 0, 2, 0]), ids)
    assert exchange.written().tolist() == [True, True]
    table, ids = exchange.read(2)
    assert table["a"].to_pylist() == ["02", "00", "12", "10"]
    assert ids.tolist() == [7, 9, 17, 19]
    table, ids = exchange.read(1)
    assert (table.num_rows, ids.tolist()) == (0, [])
    exchange.remove()
    assert disk.list_names(exchange.folder) == []


def test_a_run_without_its_index_is_not_written(tmp_path: Path) -> None:
    exchange = files(tmp_path)
    exchange.write(1, pa.table({"a": [1]}), np.array([0]), np.array([1], np.uint64))
    disk.remove(exchange.run(1).path("index"))
    assert exchange.written().tolist() == [False, False]


def test_nothing_is_written_under_a_lost_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(pool: str, fence: int | None) -> None:
        assert (pool, fence) == (str(tmp_path), 7)
        raise LeaseLost("another command has the pool")

    monkeypatch.setattr(shuffle, "check_fence", lost)
    exchange = files(tmp_path, 7)
    with pytest.raises(LeaseLost):
        exchange.write(0, pa.table({"a": [1]}), np.array([0]), np.array([1], np.uint64))
    assert disk.list_names(exchange.folder) == []
