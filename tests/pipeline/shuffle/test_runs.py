"""A sorted run: any range of its rows is read, and nothing is there before its index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.shuffle import Run, read_index, read_keys, read_rows, write_run


@pytest.mark.parametrize("scheme", ["", "memory://"])
@pytest.mark.parametrize(("rows", "groups"), [(9000, 5), (900, 300), (1, 1), (0, 4), (5000, 1)])
def test_any_range_is_read(tmp_path: Path, scheme: str, rows: int, groups: int) -> None:
    rng = np.random.default_rng(rows)
    group = rng.integers(0, groups, rows)
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    table = pa.table({"row": np.arange(rows), "text": [f"text {row}" for row in range(rows)]})
    run = Run(f"{scheme}{tmp_path}", "job", 3)
    write_run(run, table, group, keys, groups, tmp_path)
    order = np.lexsort((keys, group))
    index = read_index(run)
    assert np.diff(index.groups).tolist() == np.bincount(group, minlength=groups).tolist()
    assert np.diff(index.batches).max(initial=0) <= 4096
    assert read_keys(run, 0, rows).tolist() == keys[order].tolist()
    for start, stop in ((0, rows), (rows // 3, rows // 2), (0, min(1, rows)), (rows, rows)):
        read = pa.Table.from_batches(read_rows(run, index, start, stop), table.schema)
        assert read["row"].to_pylist() == order[start:stop].tolist()
        assert read["text"].to_pylist() == [f"text {row}" for row in order[start:stop]]


def test_batches_are_large_enough_and_begin_where_a_group_does(tmp_path: Path) -> None:
    group = np.repeat(np.arange(100), 100)
    run = Run(str(tmp_path), "job", 0)
    write_run(run, pa.table({"x": group}), group, group.astype(np.uint64), 100, tmp_path)
    batches = read_index(run).batches
    assert set(np.diff(batches[:-1]).tolist()) == {300}
    assert all(bound % 100 == 0 for bound in batches.tolist())


def test_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_index(Run(str(tmp_path), "job", 0))
