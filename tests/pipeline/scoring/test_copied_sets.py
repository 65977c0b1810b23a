"""The file of a shard's columns is made once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from manifests import disk
from manifests.aligned import parquet_bytes
from manifests.layout import PoolLayout
from pipeline.executor.tickets import Ticket
from pipeline.pool.score_columns import commit_columns
from pipeline.scoring.worker import make_copier

ROWS = {"uids": "u", "sidecar": "s", "rows": 2, "stored": 2}


def commit(folder: Path, values: list[int], **metadata: object) -> int:
    written = {**ROWS, **metadata}
    content = parquet_bytes(pa.table({"a": values}), {**written, "scored": len(values)})
    return commit_columns(PoolLayout(str(folder)), "a@1", 0, content, written, len(values), None)


def values(pool: Path, name: str = "a@1", column: str = "a") -> list[int]:
    table = disk.read_parquet(PoolLayout(str(pool)).score_part(name, 0))
    read: list[int] = table[column].to_pylist()
    return read


def test_columns_of_the_same_rows_stay(tmp_path: Path) -> None:
    assert commit(tmp_path, [1, 2]) == 2
    assert commit(tmp_path, [5]) == 2
    assert values(tmp_path) == [1, 2]
    assert commit(tmp_path, [5], sidecar="other") == 1
    assert values(tmp_path) == [5]


def test_columns_of_another_pool_or_damaged_ones_are_replaced(tmp_path: Path) -> None:
    assert commit(tmp_path, [1, 2], pool="before") == 2
    assert commit(tmp_path, [3, 4, 5], pool="now") == 3
    Path(PoolLayout(str(tmp_path)).score_part("a@1", 0)).write_bytes(b"PAR1")
    assert commit(tmp_path, [6], pool="now") == 1
    assert values(tmp_path) == [6]


def test_a_copy_has_other_names(tmp_path: Path) -> None:
    commit(tmp_path, [1, 2])
    config = {"pool": str(tmp_path), "source": "a@1", "target": "b@1", "columns": {"a": "b"}}
    work = make_copier(config)
    assert work(Ticket(id="00000", group="0")) == {"scored": {"b@1": 2}}
    assert values(tmp_path, "b@1", "b") == [1, 2]
    with pytest.raises(FileNotFoundError):
        work(Ticket(id="00001", group="1"))
